// SPDX-License-Identifier: Apache-2.0
//
// What depends on how often and when a pass runs: hooks run once, as in a plain loop, and R makes
// what F made.
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/plan_grid.hpp>
#include <support/torch_hooked.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace test_torch_recompute {

using namespace zbpp::test;
using zbpp::microbatch;
using zbpp::plan;
using zbpp::torch::module_stage;
using zbpp::torch::recompute_options;
using zbpp::torch::tensors;

namespace {

constexpr int microbatches = 4;

zbpp::problem recomputed_problem(zbpp::placement const& placement) {
  return {placement, microbatches, zbpp::stage_costs{.forward = 10, .recompute = 10}, 1};
}

std::vector<module_stage<>> stages_of(torch_model const& model, recompute_options options = {}) {
  std::vector<module_stage<>> stages;
  for (auto const& slice : model.slices)
    stages.emplace_back(slice.forward, ends_of(model), zbpp::torch::no_step{}, options);
  return stages;
}

// What a step leaves.
struct step_outcome {
  std::vector<double> losses;
  tensors grads;
  std::vector<tensors> retained;
  std::vector<int> counts;
};

step_outcome outcome_of(
    torch_model const& model,
    std::vector<double> losses,
    hook_counts const& counts,
    seen_tensors const& seen) {
  step_outcome made{std::move(losses), {}, {}, counts.all()};
  for (auto const& each : parameters_of(model)) made.grads.push_back(each.grad());
  for (std::size_t place = 0; place < 2 * model.slices.size(); ++place)
    made.retained.push_back(seen.grads(place));
  return made;
}

plan recomputed_plan(zbpp::placement const& placement) {
  auto const problem = recomputed_problem(placement);
  auto const order = zbpp::greedy_auto{.search = {.seconds = 0}}(problem);
  return zbpp::make_plan("recomputed", with_all_r(order, true), problem);
}

std::string text_of_step(
    plan const& planned, std::vector<module_stage<>>& stages, auto const& backend) {
  zbpp::pipeline pipe{planned, backend, stages};
  try {
    pipe.step();
  } catch (zbpp::error const& thrown) {
    return thrown.what();
  }
  return {};
}

}  // namespace

TEST_CASE("hooks run as in a plain loop, once, under every policy", "[torch][hooks]") {
  auto const threads = one_thread_each();
  for (auto const& placement : placements_to_run(2)) {
    auto const make = [&](auto run) {
      auto const counts = std::make_shared<hook_counts>();
      auto const seen = std::make_shared<seen_tensors>();
      auto const model = hooked_model(placement.stages(), counts, seen);
      auto losses = run(model);
      return outcome_of(model, std::move(losses), *counts, *seen);
    };
    auto const expected =
        make([](torch_model const& model) { return plain_microbatches(model, 0, microbatches); });
    for (int const each : expected.counts) REQUIRE(each > 0);
    auto retained = expected.retained;
    for (std::size_t place = 1; place < retained.size(); place += 2)  // received
      for (auto& each : retained[place]) each = each / given_factor;
    for_each_plan_of(
        recomputed_problem(placement),
        {.recomputed = true},
        [&](std::string const& name, plan const& planned) {
          auto const check = [&](auto const& backend) {
            INFO(name);
            auto const found = make([&](torch_model const& model) {
              auto stages = stages_of(model);
              zbpp::pipeline pipe{planned, backend, stages};
              return pipe.step().losses;
            });
            CHECK(found.losses == expected.losses);
            CHECK(same_bits(found.grads, expected.grads));
            CHECK(found.counts == expected.counts);
            for (std::size_t place = 0; place < retained.size(); ++place)
              CHECK(same_bits(found.retained[place], retained[place]));
          };
          check(zbpp::virtual_time{});
          check(threads);
        });
  }
}

TEST_CASE("R draws what F drew, and the default generator goes on from F", "[torch][recompute]") {
  // One rank, so that nothing else draws in between, with and without R.
  auto const problem = recomputed_problem(zbpp::placement::custom({0, 0, 0}));
  auto const order = zbpp::greedy_auto{.search = {.seconds = 0}}(problem);
  auto const run = [&](zbpp::schedule const& of, recompute_options options) {
    auto const made = std::make_shared<made_twice>(3);
    auto const model = noisy_model(3, made);
    auto stages = stages_of(model, options);
    zbpp::pipeline pipe{zbpp::make_plan("", of, problem), zbpp::virtual_time{}, stages};
    at::manual_seed(7);
    static_cast<void>(at::randn({1}));  // leaves half a pair of normal numbers
    auto const losses = pipe.step().losses;
    step_outcome found{losses, {}, {}, {}};
    for (auto const& each : parameters_of(model)) found.grads.push_back(each.grad());
    found.grads.push_back(at::randn({5}));
    return found;
  };
  auto const expected = run(with_all_r(order, false), {});
  auto const found = run(with_all_r(order, true), {});
  CHECK(found.losses == expected.losses);
  CHECK(same_bits(found.grads, expected.grads));
  auto const drifted = run(with_all_r(order, true), {.restore_generators = false});
  CHECK_FALSE(same_bits(drifted.grads, expected.grads));
}

TEST_CASE("R makes what F made while other ranks draw, too", "[torch][recompute]") {
  auto const threads = one_thread_each();
  for (auto const& placement : placements_to_run(2)) {
    auto const planned = recomputed_plan(placement);
    auto const made = std::make_shared<made_twice>(placement.stages());
    auto const model = noisy_model(placement.stages(), made);
    auto stages = stages_of(model, {.check = true});
    zbpp::pipeline pipe{planned, threads, stages};
    for (int step = 0; step < 10; ++step) CHECK_NOTHROW(pipe.step());
    for (std::size_t s = 0; s < made->first.size(); ++s) {
      CHECK(made->first[s].size() == 10 * microbatches);
      CHECK(same_bits(made->first[s], made->second[s]));
    }
    CHECK_NOTHROW(pipe.evaluate());

    // Beside passes that are not made again, and batches that are drawn, too.
    auto mixed = noisy_model(placement.stages(), made);
    mixed.batch = [](std::int64_t) { return at::randn({3, 8}); };
    auto of_mixed = stages_of(mixed, {.check = true});
    zbpp::problem const problem = recomputed_problem(placement);
    auto const half =
        zbpp::make_plan("half", with_recompute(with_all_r(planned.schedule(), false)), problem);
    zbpp::pipeline other{half, threads, of_mixed};
    for (int step = 0; step < 10; ++step) CHECK_NOTHROW(other.step());
  }
}

TEST_CASE("a flow knows whether its plan recomputes anywhere", "[torch][recompute]") {
  auto const problem = recomputed_problem(zbpp::placement::linear(2));
  auto const order = zbpp::one_f_one_b{}(problem);
  zbpp::rows<zbpp::pass> rows;  // R of the last stage alone
  for (int rank = 0; rank < 2; ++rank) {
    auto const all = with_all_r(order, rank == 1);
    for (auto const& each : all.passes(rank)) rows.push(each);
    rows.end_row();
  }
  zbpp::schedule const last(order.placement(), order.microbatches(), std::move(rows));
  for (auto const& [of, expected] :
       {std::pair(with_all_r(order, false), false), std::pair(last, true)}) {
    auto const model = mlp_model(run_seed(), 2, 1, 4, 2);
    std::vector<bool> calls;
    auto ends = ends_of(model);
    ends.batch = [&, batch = ends.batch](microbatch mb) {
      calls.push_back(mb.has_recomputation());
      return batch(mb);
    };
    std::vector<module_stage<>> stages;
    for (auto const& slice : model.slices) stages.emplace_back(slice.forward, ends);
    zbpp::pipeline pipe{zbpp::make_plan("", of, problem), zbpp::virtual_time{}, stages};
    pipe.step();
    CHECK(calls == std::vector<bool>(microbatches, expected));
  }
}

TEST_CASE("a check of R names the stage and what differs", "[torch][recompute]") {
  auto const planned = recomputed_plan(zbpp::placement::linear(3));
  auto const threads = one_thread_each();
  // A stage whose third tensor grows with each call.
  auto const model_with = [](std::size_t wrong, std::function<at::Tensor(int)> const& third) {
    auto const calls = std::make_shared<std::vector<int>>(3);
    std::vector<module_stage<>> stages;
    for (std::size_t s = 0; s < 3; ++s) {
      zbpp::torch::stage_ends const ends{
          .batch = [](microbatch) -> tensors {
            return {at::ones({2, 2}), at::ones({2}), at::zeros({4})};
          },
          .loss = [](tensors const& outputs, microbatch) { return outputs[2].sum(); }};
      auto const forward = [=](tensors const& in) -> tensors {
        auto const call = (*calls)[s]++;
        return {in[0] * 2, in[1], s == wrong ? third(call) : in[2] + 1};
      };
      zbpp::torch::no_step const optimizer;
      // [check
      stages.emplace_back(forward, ends, optimizer, recompute_options{.check = true});
      // check]
    }
    return stages;
  };
  auto const growing = [](int call) { return at::arange(4, at::kFloat) * call; };
  auto const text = [&](std::size_t wrong, std::function<at::Tensor(int)> const& third) {
    auto stages = model_with(wrong, third);
    auto const found = text_of_step(planned, stages, threads);
    auto again = model_with(wrong, third);
    CHECK_THAT(text_of_step(planned, again, zbpp::virtual_time{}), Catch::Contains("of R differs"));
    return found;
  };
  CHECK_THAT(text(1, growing), Catch::Contains("stage 1, microbatch 0: output 2 of R differs"));
  CHECK_THAT(
      text(1, growing), Catch::Contains("3 of 4 numbers, the first at 1, where F has 0 and R "));
  CHECK_THAT(
      text(1, growing),
      Catch::Contains("a stage that is recomputed has to compute the same twice"));
  CHECK_THAT(text(2, growing), Catch::Contains("stage 2, microbatch 0: output 2 of R differs"));
  CHECK_THAT(
      text(0, [](int call) { return at::ones({call + 4}); }),
      Catch::Contains("F gave Float of sizes [4], R Float of sizes ["));
  CHECK_THAT(
      text(0, [](int call) { return call == 0 ? at::ones({4}) : at::Tensor(); }),
      Catch::Contains("R gave an undefined tensor"));
  auto stages = model_with(3, growing);
  CHECK(text_of_step(planned, stages, threads) == "");
}

}  // namespace test_torch_recompute
