// SPDX-License-Identifier: Apache-2.0
//
// Messages by NCCL on its model, all ranks in one thread: every policy on every layout of
// communicators gives the bits of one process, or `verify` refuses it and the model deadlocks.
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_in_one_process.hpp>
#include <support/padded_toy.hpp>
#include <support/plan_grid.hpp>
#include <support/policy_grid.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace test_nccl_layouts {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
using zbpp::channel_layout;
using zbpp::plan;
using zbpp::problem;

namespace {

constexpr channel_layout layouts[] = {
    channel_layout::one_per_directed_pair,
    channel_layout::one_per_pair,
    channel_layout::one_per_rank};

// A GPU for each rank, with a hardware queue for each of its streams.
model::options machine_of(plan const& planned, std::uint64_t seed) {
  return {.seed = seed, .devices = planned.problem().ranks()};
}

toy::history train(plan const& planned, nccl_in_one_process backend) {
  auto all = toy::make_model(planned.problem().stages());
  std::vector<toy::padded_stage> stages(all.begin(), all.end());
  backend.edges = toy::edge_shapes(planned.problem());
  zbpp::pipeline pipe{planned, std::move(backend), stages};
  return toy::train(all, [&](int) { return pipe.step().losses; });
}

void check_works(plan const& planned, channel_layout layout, std::uint64_t seed) {
  checked_gpus const gpus(machine_of(planned, seed));
  auto const expected = toy::in_single_precision(toy::train_reference(planned));
  bool const is_right = train(planned, {.layout = layout}) == expected;
  INFO(to_string(layout) << ", interleaving " << seed);
  CHECK(is_right);
}

void check_stands_still(plan const& planned, channel_layout layout, std::uint64_t seed) {
  model::reset(machine_of(planned, seed));
  INFO(to_string(layout) << ", interleaving " << seed);
  CHECK_THROWS_AS(train(planned, {.layout = layout}), zbpp::error);  // refused
  CHECK(first_of(model::faults()) == "");
  CHECK_THROWS_AS(train(planned, {.layout = layout, .verifies = false}), cuda::cuda_error);
  auto const faults = model::take_faults();
  CHECK(first_of(faults).starts_with("deadlock"));
  CHECK(first_of(model::leaks()) == "");
}

}  // namespace

TEST_CASE(
    "every policy gives the bits of one process on every layout that is safe", "[nccl][long]") {
  std::uint64_t seed = run_seed();
  int works = 0;
  int refused = 0;
  for (int p : thinned<std::vector<int>>({1, 2, 3, 4}, {1, 2, 3}))
    for_each_plan_to_launch(p, [&](std::string const& name, plan const& planned) {
      INFO(name);
      for (auto const layout : layouts) {
        if (verify(planned.program(), planned.problem(), layout).empty()) {
          ++works;
          check_works(planned, layout, ++seed);
        } else {
          ++refused;
          check_stands_still(planned, layout, ++seed);
        }
      }
    });
  CHECK(works > 100);
  CHECK(refused > 10);
}

namespace {

// Puts passes in any order that keeps what each of them needs before it.
zbpp::schedule random_order(
    zbpp::placement const& placement, int microbatches, seeded_random& values) {
  using zbpp::pass;
  using enum zbpp::pass_kind;
  std::vector<std::vector<pass>> of_rank(zbpp::detail::index(placement.ranks()));
  std::set<pass> done;
  std::vector<pass> left;
  for (int s = 0; s < placement.stages(); ++s)
    for (int m = 0; m < microbatches; ++m)
      for (auto const kind : {forward, backward_input, backward_weight})
        left.push_back({kind, s, m});
  auto const is_ready = [&](pass const& p) {
    auto const has = [&](zbpp::pass_kind kind, int s, int m) {
      return done.contains({kind, s, m});
    };
    auto const [kind, s, m, is_paired] = p;
    if (kind == forward) return s == 0 || has(forward, s - 1, m);
    if (kind == backward_input)
      return has(forward, s, m) && (s + 1 == placement.stages() || has(backward_input, s + 1, m));
    return has(backward_input, s, m) && (m == 0 || has(backward_weight, s, m - 1));
  };
  while (!left.empty()) {
    auto const at =
        static_cast<std::size_t>(values.integer(0, static_cast<std::int64_t>(left.size()) - 1));
    if (!is_ready(left[at])) continue;
    of_rank[zbpp::detail::index(placement.rank_of(left[at].stage))].push_back(left[at]);
    done.insert(left[at]);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(at));
  }
  zbpp::rows<pass> passes;
  for (auto const& row : of_rank) {
    for (auto const& p : row) passes.push(p);
    passes.end_row();
  }
  return {placement, microbatches, std::move(passes)};
}

}  // namespace

TEST_CASE("verify and the model agree on which layouts deadlock", "[nccl]") {
  int works[3] = {};
  int refused[3] = {};
  for (std::uint64_t trial = 0; trial < thinned(300U, 75U); ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const wheres = placements_to_run(static_cast<int>(values.integer(2, 4)));
    auto const& placement = wheres[static_cast<std::size_t>(values.integer(0, 2))];
    problem const problem(placement, static_cast<int>(values.integer(1, 4)), launched_costs(), 87);
    auto const planned = make_plan(
        "random",
        random_order(placement, problem.microbatches(), values),
        problem,
        {.receive_ahead = static_cast<int>(values.integer(0, 3))});
    REQUIRE(verify(planned.program(), planned.problem()).empty());
    for (std::size_t i = 0; i < 3; ++i) {
      bool const is_safe = verify(planned.program(), planned.problem(), layouts[i]).empty();
      ++(is_safe ? works : refused)[i];
      (is_safe ? check_works : check_stands_still)(planned, layouts[i], trial);
    }
  }
  CHECK(refused[0] == 0);
  for (int i : {1, 2}) {
    CHECK(works[i] > thinned(5, 0));
    CHECK(refused[i] > thinned(5, 0));
  }
}

}  // namespace test_nccl_layouts
