// SPDX-License-Identifier: Apache-2.0
#include <support/backends.hpp>
#include <support/pass_order.hpp>
#include <support/plain_flow.hpp>

#include <cmath>
#include <deque>
#include <type_traits>

namespace test_pipeline {

using namespace zbpp;
using namespace zbpp::test;

namespace {

problem small(placement placement, int microbatches, std::vector<bytes> limits = {}) {
  return {
      std::move(placement),
      microbatches,
      stage_costs{
          .forward = 3,
          .backward_input = 2,
          .backward_weight = 1,
          .activation = 100,
          .weight_gradient_input = 30,
          .edge = 8},
      1,
      std::move(limits)};
}

}  // namespace

TEST_CASE("a pipeline wants one stage for each of its placement's", "[pipeline]") {
  auto const planned = make_plan(zb_h1{}, small(placement::linear(3), 4));
  for (std::size_t count : {std::size_t{0}, std::size_t{2}, std::size_t{4}}) {
    std::vector<plain_flow> stages(count);
    CHECK(refusal([&] {
            pipeline(planned, threads{}, stages);
          }) == "the pipeline got " + std::to_string(count) + " stages; its placement has 3");
  }
}

TEST_CASE("a program that verify refuses makes no pipeline", "[pipeline]") {
  auto const problem = small(placement::linear(2), 2);
  std::vector<plain_flow> stages(2);
  auto const order = zb_h1{}(problem);

  // Each rank waits for a pass of the other that stands behind its own.
  schedule const deadlocked(
      problem.placement(), 2, passes({"0F0 0B0 0F1 0B1 0W0 0W1", "1F1 1B1 1F0 1B0 1W0 1W1"}));
  plan const stuck("ZB-H1", problem, order, lower(deadlocked));
  auto const text = refusal(errc::refused_program, [&] { pipeline(stuck, threads{}, stages); });
  CHECK(has(text, "the program is refused"));
  CHECK(has(text, "the ranks wait in a cycle"));

  plan const incomplete(
      "ZB-H1",
      problem,
      order,
      lower({problem.placement(), 2, passes({"0F0 0F1 0B0 0W0 0B1 0W1", "1F0 1B0 1W0"})}));
  auto const other =
      refusal(errc::refused_program, [&] { pipeline(incomplete, virtual_time{}, stages); });
  CHECK(has(other, "it is missing"));
}

TEST_CASE("a plan that needs more memory than there is makes no pipeline", "[pipeline]") {
  std::vector<plain_flow> stages(2);
  auto const fits = make_plan(gpipe{}, small(placement::linear(2), 4, {10'000}));
  CHECK_NOTHROW(pipeline(fits, threads{}, stages));
  auto const planned = make_plan(gpipe{}, small(placement::linear(2), 4, {10'000, 300}));
  auto const text = refusal(errc::refused_program, [&] { pipeline(planned, threads{}, stages); });
  CHECK(has(text, "rank 1"));
  CHECK(has(text, "its limit is 300"));
}

TEST_CASE("a pipeline may go without having run", "[pipeline]") {
  auto const planned = make_plan(zb_h1{}, small(placement::linear(4), 4));
  std::vector<plain_flow> stages(4);
  for (int repeat = 0; repeat < 20; ++repeat) {
    pipeline const one{planned, threads{}, stages};
    pipeline const two{planned, virtual_time{}, stages};
    CHECK(one.steps() == 0);
    CHECK(two.failures().empty());
  }
}

TEST_CASE("one plan serves several pipelines, which keep their own copy", "[pipeline]") {
  std::vector<plain_flow> stages(6);
  std::optional<plan> planned = make_plan(zb_v{}, small(placement::v_shape(3), 7));
  plan const& fixed = *planned;
  pipeline first{fixed, threads{}, stages};
  pipeline second{fixed, threads{.count = 2}, stages};
  pipeline third{fixed, virtual_time{}, stages};
  planned.reset();
  for (int repeat = 0; repeat < 3; ++repeat) {
    CHECK(plain_flow::are_expected(first.step().losses, 6));
    CHECK(plain_flow::are_expected(second.step().losses, 6));
    CHECK(plain_flow::are_expected(third.step().losses, 6));
    CHECK(plain_flow::are_expected(second.evaluate().losses, 6));
  }
  CHECK(first.steps() == 3);
  CHECK(third.planned().policy() == "ZB-V");
}

TEST_CASE("pipelines run at the same time on threads of their own", "[pipeline]") {
  auto const planned = make_plan(zb_h1{}, small(placement::linear(3), 5));
  std::array<bool, 3> is_right{};
  {
    std::vector<std::jthread> callers;
    for (auto& right : is_right)
      callers.emplace_back([&planned, &right] {
        std::vector<plain_flow> stages(3);
        pipeline pipe{planned, threads{.count = 2}, stages};
        right = true;
        for (int i = 0; i < 20; ++i) {
          right = right && plain_flow::are_expected(pipe.step().losses, 3);
        }
      });
  }
  CHECK(is_right == std::array<bool, 3>{true, true, true});
}

TEST_CASE("a step may be made from different threads in turn", "[pipeline]") {
  auto const planned = make_plan(zb_h1{}, small(placement::linear(3), 5));
  std::vector<plain_flow> stages(3);
  pipeline on_threads{planned, threads{}, stages};
  pipeline virtually{planned, virtual_time{}, stages};
  for (int i = 0; i < 5; ++i)
    std::jthread([&] {
      on_threads.step();
      virtually.step();
    }).join();
  CHECK(plain_flow::are_expected(on_threads.step().losses, 3));
  CHECK(plain_flow::are_expected(virtually.step().losses, 3));
}

namespace {

// Does what plain_flow does, by plain passes.
struct plain_object {
  struct saved {};
  int updates = 0;
  message forward(saved&, message const& in, microbatch mb, pass_context ctx) const {
    auto const value =
        (mb.is_first_stage() ? mb.index() + 1 : in[0].as<double>()[0]) * 2 + mb.stage();
    if (mb.is_last_stage()) mb.report_loss(value);
    auto out = ctx.allocate_edge(8);
    out.as<double>()[0] = value;
    return out;
  }
  message backward_input(saved&, message const&, microbatch, pass_context) const { return {}; }
  void backward_weight(saved&, microbatch, pass_context) const {}
  void update(pass_context) { ++updates; }
};

}  // namespace

TEST_CASE("stages of different types make one pipeline", "[pipeline]") {
  plain_flow by_hand;
  plain_object object;
  as_flow adapted(object);
  auto const check = [&](auto backend) {
    std::vector<stage_ref> const mixed{by_hand, adapted, by_hand, adapted};
    auto const planned = make_plan(zb_v{}, small(placement::v_shape(2), 5));
    pipeline pipe{planned, backend, mixed};
    object.updates = 0;
    CHECK(plain_flow::are_expected(pipe.step().losses, 4));
    CHECK(object.updates == 2);  // it is two stages
  };
  check(virtual_time{});
}

TEST_CASE("stages come in any container that outlives the pipeline", "[pipeline]") {
  auto const planned = make_plan(zb_h1{}, small(placement::linear(2), 2));
  std::vector<plain_flow> in_vector(2);
  std::array<plain_flow, 2> in_array{};
  std::deque<plain_flow> in_deque(2);
  plain_flow plain[2];
  CHECK(plain_flow::are_expected(pipeline(planned, virtual_time{}, in_vector).step().losses, 2));
  CHECK(plain_flow::are_expected(pipeline(planned, virtual_time{}, in_array).step().losses, 2));
  CHECK(plain_flow::are_expected(pipeline(planned, virtual_time{}, in_deque).step().losses, 2));
  CHECK(plain_flow::are_expected(pipeline(planned, virtual_time{}, plain).step().losses, 2));
  CHECK(plain_flow::are_expected(
      pipeline(planned, virtual_time{}, std::span(in_vector)).step().losses, 2));
  std::vector<stage_ref> const both{in_vector[0], in_array[1]};
  CHECK(plain_flow::are_expected(pipeline(planned, virtual_time{}, both).step().losses, 2));
}

namespace {

// Notes what happens to its stage, in order.
struct noting {
  std::vector<std::string>* notes = nullptr;
  bool reports = true;

  message forward(message const&, microbatch mb, pass_context) const {
    note("F", mb);
    if (reports && mb.is_last_stage()) mb.report_loss(0);
    return {};
  }
  message backward(message const&, microbatch mb, pass_context) const {
    note("B", mb);
    return {};
  }
  void weight(microbatch mb) const { note("W", mb); }
  flow operator()(microbatch mb) { return in_order(*this, mb); }
  void update(pass_context) { notes->push_back("update"); }
  void note(std::string const& action, microbatch mb) const {
    notes->push_back(
        action + std::to_string(mb.index()) + " step " + std::to_string(mb.step()) +
        (mb.is_training() ? "" : " evaluating"));
  }
};

}  // namespace

TEST_CASE("a stage is updated once a step, after its last W", "[pipeline]") {
  auto const check = [](auto backend) {
    for (auto const& placement : placements_to_run(2)) {
      on_plans(small(placement, 4), {}, [&](plan const& planned) {
        std::vector<std::vector<std::string>> notes(detail::index(placement.stages()));
        std::vector<noting> stages;
        for (auto& n : notes) stages.push_back({.notes = &n});
        pipeline pipe{planned, backend, stages};
        pipe.step();
        pipe.evaluate();
        pipe.step();
        for (auto const& n : notes) {
          REQUIRE(n.size() == 13 + 4 + 13);
          CHECK(std::count(n.begin(), n.end(), "update") == 2);
          CHECK(n[11] == "W3 step 0");
          CHECK(n[12] == "update");
          for (std::size_t i = 13; i < 17; ++i)
            CHECK(n[i] == "F" + std::to_string(i - 13) + " step 1 evaluating");
          CHECK(n[28] == "W3 step 1");
          CHECK(n[29] == "update");
        }
      });
    }
  };
  check(virtual_time{});
  check(threads{});
}

TEST_CASE("an evaluation runs the forward passes and leaves nothing behind", "[pipeline]") {
  on_backends([](auto backend) {
    for (auto const& placement : placements_to_run(3))
      on_plans(small(placement, 6), {}, [&](plan const& planned) {
        std::vector<plain_flow> stages(detail::index(placement.stages()));
        pipeline pipe{planned, backend, stages};
        for (int i = 0; i < 3; ++i) {
          auto const& result = pipe.evaluate();
          CHECK(plain_flow::are_expected(result.losses, placement.stages()));
          CHECK(result.measured.size() == detail::index(placement.stages()) * 6);
          for (auto const& timed : result.measured.all())
            CHECK(timed.pass.kind == pass_kind::forward);
          for (int rank = 0; rank < placement.ranks(); ++rank)
            CHECK(pipe.memory(rank).in_use == std::array<bytes, purposes>{});
          CHECK(pipe.steps() == i);
          CHECK(plain_flow::are_expected(pipe.step().losses, placement.stages()));
        }
      });
  });
}

TEST_CASE("an evaluation follows the verified program, not the plan's schedule", "[pipeline]") {
  auto const problem = small(placement::linear(2), 2);
  schedule const swapped(
      placement::linear(2), 2, passes({"0F1 0F0 0B1 0B0 0W0 0W1", "1F1 1B1 1F0 1B0 1W0 1W1"}));
  plan const planned("two orders", problem, zb_h1{}(problem), lower(swapped));
  std::vector<plain_flow> stages(2);
  pipeline pipe{planned, virtual_time{}, stages};
  CHECK(plain_flow::are_expected(pipe.evaluate().losses, 2));
  CHECK(pipe.evaluate().measured[1].front().pass == pass{pass_kind::forward, 1, 1});
}

TEST_CASE("the loss of a step is the mean of its microbatches", "[pipeline]") {
  auto const planned = make_plan(zb_h1{}, small(placement::linear(2), 3));
  std::vector<plain_flow> stages(2);
  pipeline pipe{planned, virtual_time{}, stages};
  double sum = 0;
  for (int m = 0; m < 3; ++m) sum += plain_flow::expected_loss(2, m);
  CHECK(pipe.step().loss() == sum / 3);

  std::vector<std::string> notes;
  std::vector<noting> silent(2, {&notes, false});
  pipeline other{planned, virtual_time{}, silent};
  CHECK(std::isnan(other.step().loss()));
}

TEST_CASE("a step tells whether each of its losses is a finite number", "[pipeline]") {
  constexpr auto infinite = std::numeric_limits<double>::infinity();
  constexpr auto none = std::numeric_limits<double>::quiet_NaN();
  auto const are_finite = [](std::vector<double> losses) {
    step_result result;
    result.losses = std::move(losses);
    return result.has_finite_losses();
  };
  CHECK(are_finite({1, 0, -2}));
  CHECK(are_finite({std::numeric_limits<double>::max(), std::numeric_limits<double>::max()}));
  for (auto const wrong : {infinite, -infinite, none, -none}) {
    CHECK_FALSE(are_finite({wrong, 1}));
    CHECK_FALSE(are_finite({1, wrong}));
  }
  CHECK_FALSE(are_finite({infinite, -infinite}));
}

TEST_CASE("a buffer that a stage keeps outlives the pipeline", "[pipeline]") {
  struct hoarder {
    std::vector<buffer> kept{};
    struct passes {
      std::vector<buffer>* kept;
      message forward(message const& in, microbatch mb, pass_context ctx) const {
        buffer y = ctx.allocate_edge(8);
        y.as<double>()[0] = 10 * mb.stage() + mb.index();
        kept->push_back(y);
        if (!in.empty()) kept->push_back(in[0]);
        return y;
      }
      static message backward(message const&, microbatch, pass_context) { return {}; }
      static void weight(microbatch) {}
    };
    flow operator()(microbatch mb) { return in_order(passes{&kept}, mb); }
  };
  auto const planned = make_plan(zb_v{}, small(placement::v_shape(2), 3));
  std::vector<hoarder> stages(4);
  {
    pipeline pipe{planned, threads{}, stages};
    pipe.step();
  }
  for (int s = 0; s < 4; ++s) {
    auto const& kept = stages[detail::index(s)].kept;
    REQUIRE(kept.size() == (s == 0 ? 3U : 6U));
    for (std::size_t i = 0; i < kept.size(); ++i) {
      bool const is_input = s > 0 && i % 2 == 1;
      auto const m = static_cast<int>(s > 0 ? i / 2 : i);
      CHECK(kept[i].as<double>()[0] == 10 * (is_input ? s - 1 : s) + m);
    }
  }
}

}  // namespace test_pipeline
