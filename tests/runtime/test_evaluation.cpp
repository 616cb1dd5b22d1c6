// SPDX-License-Identifier: Apache-2.0
//
// What an evaluation hands out: each message that the last stage sends, once, in order, where its
// passes run.
#include <support/backends.hpp>
#include <support/nested.hpp>

#include <thread>

namespace test_evaluation {

using namespace zbpp;
using namespace zbpp::test;

namespace {

problem small(placement placement, int microbatches) {
  return {
      std::move(placement),
      microbatches,
      stage_costs{
          .forward = 3, .backward_input = 2, .backward_weight = 1, .activation = 16, .edge = 8},
      1};
}

// What all stages of a test share. Only the first stage reads `inputs`.
struct shared_state {
  std::vector<std::int64_t> inputs;
  std::thread::id last_stage;  // where it runs
};

// Makes a number out of the one that it gets.
struct numbers {
  shared_state* shared = nullptr;
  bool sends = true;
  bool reports_in_f = true;
  int weights_done = 0;

  flow operator()(microbatch mb) {
    message out;
    message const in = co_await mb.recv_activation();
    co_await F([&](pass_context ctx) {
      auto const x = mb.is_first_stage() ? shared->inputs[detail::index(mb.index())]
                                         : in[0].as<std::int64_t>()[0];
      buffer made = ctx.allocate_edge(8);
      made.as<std::int64_t>()[0] = next(x, mb.stage());
      // Larger than an edge may be where no edge is.
      out = mb.is_last_stage() ? message(made, ctx.allocate(100)) : message(made);
      if (mb.is_last_stage()) shared->last_stage = std::this_thread::get_id();
      if (mb.is_last_stage() && reports_in_f)
        mb.report_loss(std::numeric_limits<double>::quiet_NaN());
    });
    if (sends) co_await mb.send_activation(std::move(out));
    co_await R([] {});
    message const back = co_await mb.recv_gradient();
    if (mb.is_fused()) {
      co_await BW([&] {
        if (mb.is_last_stage()) mb.report_loss(mb.index());
        ++weights_done;
      });
      co_await mb.send_gradient();
    } else {
      co_await B([&] {
        if (mb.is_last_stage()) mb.report_loss(mb.index());
      });
      co_await mb.send_gradient();
      co_await W([&] { ++weights_done; });
    }
  }

  static std::int64_t next(std::int64_t x, int stage) { return (x * 31 + stage + 7) % 1'000'003; }
  static std::int64_t through(std::int64_t x, int stages) {
    for (int s = 0; s < stages; ++s) x = next(x, s);
    return x;
  }
};

template <class Backend>
struct rig {
  rig(plan const& planned, Backend backend)
      : stages(detail::index(planned.problem().stages()), numbers{&shared}),
        pipe(planned, backend, stages) {
    for (int m = 0; m < planned.problem().microbatches(); ++m) shared.inputs.push_back(m * 100);
  }

  [[nodiscard]] bool is_clean() const { return uses_no_memory(pipe); }

  shared_state shared;
  std::vector<numbers> stages;
  pipeline<Backend> pipe;
};

// The microbatches of the last stage in the order of the program.
std::vector<int> last_order(program const& code) {
  std::vector<int> order;
  auto const last = code.stages() - 1;
  for (auto const& i : code.instructions(code.placement().rank_of(last)))
    if (i.kind == instruction_kind::forward && i.stage == last) order.push_back(i.microbatch);
  return order;
}

template <class Backend>
void check_outputs(plan const& planned, Backend backend) {
  rig r(planned, backend);
  auto const stages = planned.problem().stages();
  for (int round = 0; round < 2; ++round) {
    std::vector<int> order;
    bool is_right = true;
    r.pipe.evaluate([&](evaluation_output const& out) {
      order.push_back(out.microbatch);
      is_right =
          is_right && out.message.size() == 2 && out.message[1].size() == 100 &&
          out.message[0].as<std::int64_t>()[0] == numbers::through(out.microbatch * 100, stages) &&
          out.context.kind() == backend_kind::host &&
          std::this_thread::get_id() == r.shared.last_stage;
    });
    CHECK(is_right);
    CHECK(order == last_order(planned.program()));
    CHECK(r.is_clean());
    // Nobody hears of what runs without a callable.
    r.pipe.evaluate();
    r.pipe.step();
    CHECK(order.size() == detail::index(planned.problem().microbatches()));
    CHECK(r.is_clean());
  }
}

plan one_plan() { return make_plan(zb_h1{}, small(placement::linear(3), 4)); }

}  // namespace

TEST_CASE(
    "what the last stage sends is handed out in the order of the program", "[evaluation][long]") {
  for (int p : {1, 2, 3})
    for (auto const& placement : placements_to_run(p))
      for (int m : microbatches_to_run(p))
        on_plans(small(placement, m), {.recomputed = true}, [](plan const& planned) {
          check_outputs(planned, virtual_time{});
          check_outputs(planned, threads{});
          check_outputs(planned, threads{.count = 2});
        });
}

TEST_CASE("what was handed out may be kept by its buffers", "[evaluation]") {
  std::vector<buffer> kept(4);
  auto const planned = one_plan();
  {
    rig r(planned, threads{});
    r.pipe.evaluate([&](evaluation_output const& out) {
      kept[detail::index(out.microbatch)] = out.message[0];
    });
    r.pipe.step();
  }
  for (int m = 0; m < 4; ++m)
    CHECK(kept[detail::index(m)].as<std::int64_t>()[0] == numbers::through(m * 100, 3));
}

TEST_CASE("a loop of evaluations feeds its outputs back, between training steps", "[evaluation]") {
  auto const check = [](plan const& planned, auto backend) {
    auto const count = planned.problem().microbatches();
    auto const stages = planned.problem().stages();
    rig r(planned, backend);
    std::vector<std::int64_t> expected = r.shared.inputs;
    std::vector<std::int64_t> made(expected.size());
    for (int round = 0; round < 6; ++round) {
      r.pipe.evaluate([&](evaluation_output const& out) {
        made[detail::index(out.microbatch)] = out.message[0].as<std::int64_t>()[0];
      });
      r.shared.inputs = made;
      for (auto& x : expected) x = numbers::through(x, stages);
      CHECK(made == expected);
      if (round % 2 == 1) r.pipe.step();
    }
    CHECK(r.pipe.steps() == 3);
    for (auto const& s : r.stages) CHECK(s.weights_done == 3 * count);
  };
  for (auto const& placement : placements_to_run(2)) {
    on_plans(small(placement, 5), {}, [&](plan const& planned) {
      check(planned, virtual_time{});
      check(planned, threads{});
    });
  }
}

TEST_CASE("what the callable throws is the failure of that F", "[evaluation]") {
  on_backends([](auto backend) {
    rig r(one_plan(), backend);
    for (int m = 0; m < 4; ++m) {
      auto fail = [m](evaluation_output const& out) {
        if (out.microbatch == m) throw std::out_of_range("no such token");
      };
      auto const text = refusal(errc::pass_failed, [&] { r.pipe.evaluate(fail); });
      CHECK(text.find("rank 2, position ") == 0);
      CHECK(text.ends_with(
          ", stage 2, microbatch " + std::to_string(m) + ": on_output threw: no such token"));
      REQUIRE(r.pipe.failures().size() == 1);
      CHECK(to_string(r.pipe.failures().front().instruction) == "2F" + std::to_string(m));
      CHECK(r.is_clean());
      CHECK(throws_nested<std::out_of_range>([&] { r.pipe.evaluate(fail); }));
      int heard = 0;
      r.pipe.evaluate([&](evaluation_output const&) { ++heard; });
      CHECK(heard == 4);
      CHECK(r.is_clean());
    }
    r.pipe.step();
  });
}

TEST_CASE("a last stage that sends nothing is refused where somebody listens", "[evaluation]") {
  rig r(one_plan(), virtual_time{});
  r.stages[2].sends = false;
  CHECK_NOTHROW(r.pipe.evaluate());
  CHECK(
      refusal(errc::wrong_flow, [&] { r.pipe.evaluate([](evaluation_output const&) {}); })
          .find("the flow of stage 2 microbatch 0 has not called send_activation()") !=
      std::string::npos);
  CHECK(r.is_clean());
  r.stages[2].sends = true;
  r.pipe.step();
}

TEST_CASE(
    "a loss that is reported in B alone is missed where nobody takes outputs", "[evaluation]") {
  auto const check = [](plan const& planned, auto backend) {
    rig r(planned, backend);
    auto const last = planned.problem().stages() - 1;
    auto const hear = [](evaluation_output const&) {};
    auto& stage = r.stages[detail::index(last)];
    auto const first = last_order(planned.program()).front();
    auto const is_refused = [&] {
      auto const text = refusal(errc::wrong_flow, [&] { r.pipe.evaluate(); });
      return has(text,
                 "evaluate() runs F only, and there the flow of stage " + std::to_string(last) +
                     " microbatch " + std::to_string(first) +
                     " reports no loss; call mb.report_loss() in F and not in B, or take the "
                     "outputs "
                     "with evaluate(on_output)") &&
             r.pipe.failures().front().location.stage == last &&
             r.pipe.failures().front().location.microbatch == first;
    };
    stage.reports_in_f = false;
    CHECK(is_refused());
    CHECK(r.is_clean());
    // A step reports in B, and what it left does not pass for a loss of the next evaluation.
    CHECK(r.pipe.step().has_finite_losses());
    CHECK(is_refused());
    CHECK_NOTHROW(r.pipe.evaluate(hear));
    CHECK(is_refused());
    // A loss that is not a number was reported, too.
    stage.reports_in_f = true;
    CHECK_FALSE(r.pipe.evaluate().has_finite_losses());
    CHECK(r.pipe.step().has_finite_losses());
    CHECK(r.is_clean());
  };
  for (auto const& placement : placements_to_run(3))
    on_plans(small(placement, 4), {.recomputed = true}, [&](plan const& planned) {
      check(planned, virtual_time{});
      check(planned, threads{.count = 2});
    });
}

namespace {

// Notes when the modes of stages begin, by their numbers, and end, by the numbers below 0.
struct moded : numbers {
  std::vector<int>* noted = nullptr;
  bool fails = false;

  std::shared_ptr<void> evaluation_scope() {
    if (fails) throw std::runtime_error("no such mode");
    noted->push_back(number);
    return {this, [](moded* stage) { stage->noted->push_back(-stage->number); }};
  }
  int number = 0;
};

}  // namespace

TEST_CASE("stages are in the mode of evaluations before F and until the end", "[evaluation]") {
  auto const planned = make_plan(one_f_one_b{}, small(placement::linear(3), 2));
  on_backends([&](auto const& backend) {
    shared_state shared;
    shared.inputs = {1, 2};
    std::vector<int> noted;
    std::vector<moded> stages(3);
    for (int s = 0; s < 3; ++s) {
      auto& stage = stages[static_cast<std::size_t>(s)];
      stage.shared = &shared;
      stage.noted = &noted;
      stage.number = s + 1;
    }
    pipeline pipe(planned, backend, stages);
    auto const noted_by = [&](auto call) {
      noted.clear();
      call();
      return noted;
    };
    std::vector<int> const all{1, 2, 3, -3, -2, -1};
    CHECK(noted_by([&] { pipe.evaluate(); }) == all);
    CHECK(noted_by([&] {
            pipe.evaluate([&](evaluation_output const&) { CHECK(noted == std::vector{1, 2, 3}); });
          }) == all);
    CHECK(noted_by([&] { pipe.step(); }).empty());
    CHECK(noted_by([&] {
            CHECK_THROWS(pipe.evaluate([](evaluation_output const&) { throw 1; }));
          }) == all);
    stages[2].fails = true;
    CHECK(noted_by([&] {
            CHECK_THAT(
                refusal(errc::pass_failed, [&] { pipe.evaluate(); }),
                Catch::Contains("no such mode"));
          }) == std::vector{1, 2, -2, -1});
    stages[2].fails = false;
    CHECK(noted_by([&] { pipe.evaluate(); }) == all);
  });
}

}  // namespace test_evaluation
