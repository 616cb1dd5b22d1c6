// SPDX-License-Identifier: Apache-2.0
//
// The claim of the library: whatever the policy and the backend, losses, gradients and weights are
// those of one process, to the bit.
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/plan_grid.hpp>
#include <support/toy_mlp.hpp>
#include <support/toy_reference.hpp>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

using namespace zbpp::test;
using zbpp::pipeline;
using zbpp::plan;
using zbpp::threads;
using zbpp::virtual_time;

namespace {

constexpr int steps = 3;

bool is_same(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
bool is_same(std::vector<double> const& a, std::vector<double> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}
bool is_same(toy::model const& a, toy::model const& b) {
  for (std::size_t s = 0; s < a.size(); ++s) {
    for (std::size_t k = 0; k < a[s].layers.size(); ++k)
      if (!is_same(a[s].layers[k].gradient, b[s].layers[k].gradient)) return false;
    for (std::size_t k = 0; k < a[s].weights.size(); ++k)
      if (!is_same(a[s].weights[k], b[s].weights[k])) return false;
  }
  return true;
}

// What each step gives: losses, and the model before and after its weights are updated.
struct history {
  std::vector<std::vector<double>> losses;
  std::vector<toy::model> models;

  friend bool operator==(history const& a, history const& b) {
    bool same = a.losses.size() == b.losses.size() && a.models.size() == b.models.size();
    for (std::size_t i = 0; same && i < a.losses.size(); ++i)
      same = is_same(a.losses[i], b.losses[i]);
    for (std::size_t i = 0; same && i < a.models.size(); ++i)
      same = is_same(a.models[i], b.models[i]);
    return same;
  }
};

template <class Step>
history train(toy::model& all, Step step) {
  history result;
  for (int i = 0; i < steps; ++i) {
    result.losses.push_back(step(i));
    result.models.push_back(all);
    toy::update(all);
    result.models.push_back(all);
  }
  return result;
}

history train_reference(plan const& planned) {
  std::vector<std::vector<bool>> fused(
      static_cast<std::size_t>(planned.what.stages()),
      std::vector<bool>(static_cast<std::size_t>(planned.what.microbatches())));
  for (auto const& p : planned.order.passes().all())
    if (p.kind == zbpp::pass_kind::backward)
      fused[static_cast<std::size_t>(p.stage)][static_cast<std::size_t>(p.microbatch)] = true;
  auto all = toy::make_model(planned.what.stages());
  return train(all, [&](int step) {
    return toy::reference_step(all, step, planned.what.microbatches(), [&](int s, int m) {
      return fused[static_cast<std::size_t>(s)][static_cast<std::size_t>(m)];
    });
  });
}

template <class Backend, class Stages>
history train_pipeline(plan const& planned, Backend backend, toy::model& all, Stages& stages) {
  pipeline pipe{planned, backend, stages};
  return train(all, [&](int) {
    auto const evaluated = pipe.evaluate().losses;  // of the same batches, since no step was made
    auto const& losses = pipe.step().losses;
    if (!is_same(evaluated, losses)) FAIL("evaluate() gives other losses than step()");
    return losses;
  });
}

template <class Backend>
history train_by_hand(plan const& planned, Backend backend) {
  auto all = toy::make_model(planned.what.stages());
  std::vector<toy::hand_written> stages(all.begin(), all.end());
  return train_pipeline(planned, backend, all, stages);
}

template <class Backend>
history train_as_flow(plan const& planned, Backend backend) {
  auto all = toy::make_model(planned.what.stages());
  std::vector<toy::passes> objects(all.begin(), all.end());
  std::vector<zbpp::as_flow<toy::passes>> stages(objects.begin(), objects.end());
  return train_pipeline(planned, backend, all, stages);
}

// Checks a plan on few or on all backends.
void check(std::string const& name, plan const& planned) {
  INFO(name);
  auto const expected = train_reference(planned);
  CHECK(train_by_hand(planned, virtual_time{}) == expected);
  CHECK(train_by_hand(planned, threads{}) == expected);
  CHECK(train_as_flow(planned, virtual_time{}) == expected);
  CHECK(train_as_flow(planned, threads{.count = 2}) == expected);
}

zbpp::stage_costs toy_costs() {
  auto costs = uneven_costs();
  costs.edge = toy::edge;
  return costs;
}

}  // namespace

TEST_CASE("every policy gives the bits of one process", "[bit-equality]") {
  auto const p = GENERATE(1, 2, 3, 4, 5, 6, 7, 8);
  for (auto const& where : placements_to_run(p))
    for (int m : microbatches_to_run(p))
      for_each_plan_of(
          zbpp::problem(where, m, toy_costs(), 87),
          {},
          [](std::string const& name, plan const& planned) { check(name, planned); });
}

TEST_CASE("recomputing changes no bit", "[bit-equality]") {
  auto const p = GENERATE(1, 2, 4);
  for (auto const& where : placements_to_run(p))
    for_each_plan_of(
        zbpp::problem(where, 2 * p, toy_costs(), 87),
        {.fused = false, .recomputed = true},
        [](std::string const& name, plan const& planned) { check(name, planned); });
}

TEST_CASE("it does not matter how many threads the ranks share", "[bit-equality]") {
  auto const count = GENERATE(1, 2, 3, 4, 7);
  for_each_plan_of(
      zbpp::problem(zbpp::placement::v_shape(4), 9, toy_costs(), 87),
      {},
      [&](std::string const& name, plan const& planned) {
        INFO(name << ", " << count << " threads");
        auto const expected = train_reference(planned);
        CHECK(train_by_hand(planned, threads{.count = count}) == expected);
        CHECK(train_as_flow(planned, threads{.count = count, .spins = 50}) == expected);
        CHECK(
            train_by_hand(planned, threads{.count = count, .emulates_transfers = true}) ==
            expected);
      });
}

TEST_CASE("receives that are opened early change no bit", "[bit-equality]") {
  auto const ahead = GENERATE(1, 2);
  for (auto const& where : placements_to_run(3))
    for_each_plan_of(
        zbpp::problem(where, 6, toy_costs(), 87),
        {.receive_ahead = ahead},
        [](std::string const& name, plan const& planned) { check(name, planned); });
}

TEST_CASE("the reference learns", "[bit-equality]") {
  auto all = toy::make_model(6);
  auto total = [&](std::int64_t step) {
    double sum = 0;
    for (auto loss : toy::reference_step(all, step, 5, [](int, int) { return false; })) sum += loss;
    return sum;
  };
  auto const before = total(0);
  toy::update(all);
  CHECK(total(0) < before);
}
