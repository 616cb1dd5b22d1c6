// SPDX-License-Identifier: Apache-2.0
//
// What a run takes from its arenas is what the plan says, byte for byte, when stages allocate what
// their costs declare.
#include <zbpp/analysis/evaluation.hpp>
#include <zbpp/analysis/memory.hpp>

#include <support/backends.hpp>
#include <support/declared_stages.hpp>
#include <support/random_pairs.hpp>

namespace test_memory_use {

using namespace zbpp;
using namespace zbpp::test;
using namespace zbpp::test::memory_use;

namespace {

template <class Backend>
void check_evaluation(plan const& planned, Backend backend) {
  std::vector<declared<>> stages(
      detail::index(planned.problem().stages()), declared<>{&planned.problem()});
  pipeline pipe{planned, backend, stages};
  auto const expected = peak_evaluation_memory(planned.program(), planned.problem());
  for (int repeat = 0; repeat < 3; ++repeat) {
    if (repeat == 1) pipe.step();
    pipe.evaluate();
    for (int rank = 0; rank < planned.problem().ranks(); ++rank) {
      INFO("rank " << rank << ", evaluation " << repeat);
      auto const& usage = pipe.memory(rank);
      CHECK(usage.most(purpose::activation) == expected[detail::index(rank)].activations);
      CHECK(usage.most(purpose::edge) == expected[detail::index(rank)].edges);
      CHECK(usage.peak_total == expected[detail::index(rank)].total);
      CHECK(usage.in_use == std::array<bytes, purposes>{});
    }
  }
}

// Takes passes in any order in which each finds its input made, and first all F.
schedule random_order(seeded_random& random, placement const& placement, int microbatches) {
  std::vector<std::vector<pass>> rows_of(detail::index(placement.ranks()));
  auto const last = placement.stages() - 1;
  for (auto const kind : {pass_kind::forward, pass_kind::backward_input}) {
    bool const is_forward = kind == pass_kind::forward;
    std::vector<int> done(detail::index(microbatches), 0);  // stages, by microbatch
    for (int left = placement.stages() * microbatches; left > 0; --left) {
      auto m = random.integer(0, microbatches - 1);
      while (done[detail::index(m)] > last) m = (m + 1) % microbatches;
      auto const at = done[detail::index(m)]++;
      auto const s = is_forward ? at : last - at;
      auto& row = rows_of[detail::index(placement.rank_of(s))];
      row.push_back({kind, s, static_cast<int>(m)});
    }
  }
  for (int s = 0; s <= last; ++s)
    for (int m = 0; m < microbatches; ++m)
      rows_of[detail::index(placement.rank_of(s))].push_back({pass_kind::backward_weight, s, m});
  rows<pass> all;
  for (auto const& row : rows_of) {
    for (auto const& p : row) all.push(p);
    all.end_row();
  }
  return {placement, microbatches, std::move(all)};
}

}  // namespace

TEST_CASE("a run takes as much memory as its plan says", "[memory-use]") {
  auto const p = GENERATE(from_range(thinned<std::vector<int>>({1, 2, 3, 4, 6}, {1, 2, 3})));
  for_each_uneven_plan(p, {}, [](plan const& planned) {
    on_all_backends(
        [&](auto backend) { check_peaks(planned, backend, declared<>{&planned.problem()}); });
    check_peaks(planned, threads{}, declared<external_memory, one_object>{&planned.problem()});
  });
}

TEST_CASE("an evaluation takes as much memory as is said", "[memory-use][long]") {
  auto const p = GENERATE(from_range(thinned<std::vector<int>>({1, 2, 3, 4, 6}, {1, 2, 3})));
  for_each_uneven_plan(p, {}, [](plan const& planned) {
    on_all_backends([&](auto backend) { check_evaluation(planned, backend); });
  });
}

TEST_CASE("the same where ranks take microbatches in any order", "[memory-use]") {
  auto const count = thinned(300, 60);
  for (int n = 0; n < count; ++n) {
    ZBPP_SEEDED(random, n);
    auto const ranks = static_cast<int>(random.integer(2, 4));
    auto const m = static_cast<int>(random.integer(1, 12));
    std::vector<int> owners;
    for (int s = 0; s < static_cast<int>(random.integer(ranks, 3 * ranks)); ++s)
      owners.push_back(s < ranks ? s : static_cast<int>(random.integer(0, ranks - 1)));
    auto const placement = placement::custom(owners);
    INFO(n);
    auto const planned = make_plan(
        "in any order", random_order(random, placement, m), uneven_problem(random, placement, m));
    check_evaluation(planned, virtual_time{});
    check_evaluation(planned, threads{});
    check_evaluation(planned, threads{.count = 1});
  }
}

TEST_CASE("an evaluation of more microbatches takes no more memory", "[memory-use]") {
  auto const peaks = [](int microbatches) {
    problem const problem(
        placement::linear(3), microbatches, stage_costs{.activation = 500, .edge = 100});
    auto const planned = make_plan(zb_h1{}, problem);
    CHECK(evaluation_depth(forward_only(planned.program())) == 2);
    check_evaluation(planned, threads{});
    return peak_evaluation_memory(planned.program(), problem);
  };
  auto const many = peaks(200);
  CHECK(many == peaks(5));
  CHECK(many[0].edges == 3 * 100);  // two were sent, one is being made
  CHECK(many[1].edges == 4 * 100);  // and one received
  CHECK(many[2].edges == 100);
  CHECK(many[1].activations == 500);
}

TEST_CASE("where an order needs it, an evaluation holds more messages", "[memory-use]") {
  // Rank 0 runs all of stage 0 before stage 2. Rank 1 takes depth + 1 of its messages before it has
  // to wait, and depth more may be under way.
  for (int m = 1; m < 20; ++m) {
    auto const row = [m](int low, int high) {
      std::string text;
      auto const add = [&](int stage, char kind) {
        for (int i = 0; i < m; ++i) text += std::to_string(stage) + kind + std::to_string(i) + " ";
      };
      for (int s : {low, high}) add(s, 'F');
      for (char kind : {'B', 'W'})
        for (int s : {high, low}) add(s, kind);
      text.pop_back();
      return text;
    };
    auto const placement = placement::looped(2, 2);
    problem const problem(placement, m, stage_costs{.activation = 10, .edge = 8});
    auto const planned =
        make_plan("by hand", schedule(placement, m, passes({row(0, 2), row(1, 3)})), problem);
    CHECK(evaluation_depth(forward_only(planned.program())) == std::max(2, m / 2));
    check_evaluation(planned, virtual_time{});
    check_evaluation(planned, threads{});
  }
}

TEST_CASE("a run takes what B adds for W, and where it runs BW it does not", "[memory-use]") {
  auto const p = GENERATE(1, 2, 3);
  for_each_uneven_plan(p, {.most_added = 3000}, [](plan const& planned) {
    check_peaks(planned, virtual_time{}, declared<>{&planned.problem()});
    check_peaks(planned, threads{.count = 2}, declared<>{&planned.problem()});
  });
}

TEST_CASE("a run with pairs takes as much memory as its plan says", "[memory-use]") {
  int seed = 0;
  std::ptrdiff_t pairs = 0;
  for_each_uneven_plan(3, {.most_added = 400}, [&](plan const& plain) {
    ZBPP_SEEDED(random, ++seed);
    auto const planned = paired_plan(plain, random, pairs);
    check_peaks(planned, virtual_time{}, declared<>{&planned.problem()});
    check_peaks(planned, threads{.count = 2}, declared<>{&planned.problem()});
  });
  CHECK(pairs > 0);
}

TEST_CASE("what a flow keeps of its input counts as an activation", "[memory-use]") {
  for (auto const& placement : placements_to_run(3)) {
    problem const problem(
        placement,
        6,
        stage_costs{
            .forward = 1,
            .activation = keeps_its_input::activation,
            .weight_gradient_input = keeps_its_input::weight_gradient_input,
            .edge = keeps_its_input::edge});
    on_plans(problem, {.fused = false}, [](plan const& planned) {
      auto const& all = planned.schedule().passes().all();
      if (std::any_of(all.begin(), all.end(), [](pass p) { return p.kind == pass_kind::backward; }))
        return;
      check_peaks(planned, virtual_time{}, keeps_its_input{});
      check_peaks(planned, threads{}, keeps_its_input{});
    });
  }
}

TEST_CASE("what only B needs is free after B", "[memory-use]") {
  auto const placement = placement::linear(1);
  problem const problem(
      placement, 3, stage_costs{.forward = 1, .activation = 1000, .weight_gradient_input = 10});
  auto const peak_of = [&](std::string const& row) {
    auto const planned = make_plan("by hand", schedule(placement, 3, passes({row})), problem);
    check_peaks(planned, virtual_time{}, declared<>{&planned.problem()});
    return peak_memory(planned.program(), problem)[0].activations;
  };
  CHECK(peak_of("0F0 0F1 0F2 0B0 0B1 0B2 0W0 0W1 0W2") == 3000);
  CHECK(peak_of("0F0 0B0 0F1 0B1 0F2 0B2 0W0 0W1 0W2") == 1020);
  CHECK(peak_of("0F0 0B0 0W0 0F1 0B1 0W1 0F2 0B2 0W2") == 1000);
}

TEST_CASE("the peak of a rank is that of the last step", "[memory-use]") {
  problem const problem(
      placement::linear(1),
      4,
      stage_costs{.forward = 1, .activation = 1000, .weight_gradient_input = 10});
  auto const planned = make_plan(gpipe{}, problem);
  std::vector<declared<>> stages(1, declared<>{&planned.problem()});
  pipeline pipe{planned, virtual_time{}, stages};
  pipe.step();
  CHECK(pipe.memory(0).most(purpose::activation) == 4000);
  pipe.evaluate();
  CHECK(pipe.memory(0).most(purpose::activation) == 1000);
  pipe.step();
  CHECK(pipe.memory(0).most(purpose::activation) == 4000);
}

namespace {

// Keeps its output and its input until W, and looks whether they are still what they were. Where
// two chunks of a rank meet, one's output is the other's input: the same memory.
struct keeps_both {
  std::vector<std::byte const*>* outputs = nullptr;
  std::vector<std::byte const*>* inputs = nullptr;
  int* good = nullptr;

  flow operator()(microbatch mb) {
    message const in = co_await mb.recv_activation();
    buffer y;
    co_await F([&](pass_context ctx) {
      y = ctx.allocate_edge(64);
      for (auto& word : y.as<int>()) word = 100 * mb.stage() + mb.index();
      outputs->push_back(y.data());
      inputs->push_back(in[0].data());
    });
    co_await mb.send_activation(y);
    message const back = co_await mb.recv_gradient();
    buffer dx;
    co_await B([&](pass_context ctx) {
      dx = ctx.allocate_edge(64);
      for (auto& word : dx.as<int>()) word = -100 * mb.stage() - mb.index();
    });
    co_await mb.send_gradient(dx);
    co_await W([&] {
      bool right = holds(y, 100 * mb.stage() + mb.index());
      right = right && holds(dx, -100 * mb.stage() - mb.index());
      if (!mb.is_first_stage()) right = right && holds(in[0], 100 * (mb.stage() - 1) + mb.index());
      if (!mb.is_last_stage())
        right = right && holds(back[0], -100 * (mb.stage() + 1) - mb.index());
      if (right) ++*good;
    });
  }

  static bool holds(buffer const& data, int value) {
    auto const words = data.as<int>();
    return words.size() == 16 &&
           std::all_of(words.begin(), words.end(), [=](int word) { return word == value; });
  }
};

}  // namespace

TEST_CASE("two chunks of a rank share a buffer, and either may need it last", "[memory-use]") {
  auto const* const rows = GENERATE(
      "0F0 0F1 1F0 1F1 1B0 0B0 1B1 0B1 0W0 1W0 0W1 1W1",
      "0F0 0F1 1F0 1F1 1B0 0B0 1B1 0B1 1W0 0W0 1W1 0W1",
      "0F0 1F0 1B0 1W0 0B0 0F1 1F1 0W0 1B1 1W1 0B1 0W1",
      "0F0 1F0 1B0 0B0 0W0 0F1 1F1 1W0 1B1 0B1 0W1 1W1");
  auto const placement = placement::custom({0, 0});
  auto const planned = make_plan(
      "by hand",
      schedule(placement, 2, passes({rows})),
      problem(placement, 2, stage_costs{.forward = 1, .edge = 64}));
  std::vector<std::byte const*> outputs;
  std::vector<std::byte const*> inputs;
  int good = 0;
  std::vector<keeps_both> stages(2, {&outputs, &inputs, &good});
  pipeline pipe{planned, virtual_time{}, stages};
  for (int repeat = 0; repeat < 2; ++repeat) {
    good = 0;
    pipe.step();
    CHECK(good == 4);
    CHECK(pipe.memory(0).in_use == std::array<bytes, purposes>{});
  }
  // Each input of stage 1 is an output of stage 0, not a copy.
  int shared = 0;
  for (auto const* input : inputs)
    if (input != nullptr) shared += std::count(outputs.begin(), outputs.end(), input) > 0 ? 1 : 0;
  CHECK(shared == 4);
}

TEST_CASE("at the turn of a V either W may come first", "[memory-use]") {
  auto const* const row = GENERATE(
      "1F0 2F0 1F1 2F1 2B0 1B0 2W0 1W0 2B1 1B1 1W1 2W1",
      "1F0 2F0 1F1 2F1 2B0 1B0 1W0 2W0 2B1 1B1 2W1 1W1");
  auto const placement = placement::v_shape(2);
  auto const planned = make_plan(
      "by hand",
      schedule(placement, 2, passes({"0F0 0F1 3F0 3B0 3F1 3B1 0B0 3W0 0B1 3W1 0W0 0W1", row})),
      problem(placement, 2, stage_costs{.forward = 1, .edge = 64}));
  on_backends([&](auto backend) {
    // One list a rank: ranks may run on different threads.
    std::array<std::vector<std::byte const*>, 2> outputs;
    std::array<std::vector<std::byte const*>, 2> inputs;
    std::array<int, 2> good{};
    std::vector<keeps_both> stages;
    for (int s = 0; s < 4; ++s) {
      auto const rank = detail::index(placement.rank_of(s));
      stages.push_back({&outputs[rank], &inputs[rank], &good[rank]});
    }
    pipeline pipe{planned, backend, stages};
    pipe.step();
    CHECK(good == std::array<int, 2>{4, 4});
    for (int rank : {0, 1}) CHECK(pipe.memory(rank).in_use == std::array<bytes, purposes>{});
  });
}

}  // namespace test_memory_use
