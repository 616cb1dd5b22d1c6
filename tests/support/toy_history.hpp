// SPDX-License-Identifier: Apache-2.0
//
// What a training of the toy network gives, step by step, to be compared to the bit.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/model/pass.hpp>

#include <support/toy_mlp.hpp>
#include <support/toy_reference.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::test::toy {

inline constexpr int steps = 3;

[[nodiscard]] inline bool is_same(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
[[nodiscard]] inline bool is_same(std::vector<double> const& a, std::vector<double> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}
[[nodiscard]] inline bool is_same(stage_model const& a, stage_model const& b) {
  auto const has_same_bits = [](auto const& x, auto const& y) { return is_same(x, y); };
  auto const has_same_gradient = [](layer const& x, layer const& y) {
    return is_same(x.gradient, y.gradient);
  };
  return std::ranges::equal(a.weights, b.weights, has_same_bits) &&
         std::ranges::equal(a.layers, b.layers, has_same_gradient);
}
[[nodiscard]] inline bool is_same(model const& a, model const& b) {
  return std::ranges::equal(
      a, b, [](stage_model const& x, stage_model const& y) { return is_same(x, y); });
}

/// What each step gives: losses, and the model before and after its weights are updated.
struct history {
  std::vector<std::vector<double>> losses;
  std::vector<model> models;
};

/// @return what differs first, or nothing
[[nodiscard]] inline std::string difference(history const& a, history const& b) {
  if (a.losses.size() != b.losses.size() || a.models.size() != b.models.size())
    return "numbers of steps";
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    if (!is_same(a.losses[i], b.losses[i])) return "losses of step " + std::to_string(i);
  for (std::size_t i = 0; i < a.models.size(); ++i)
    for (std::size_t s = 0; s < a.models[i].size(); ++s)
      if (!is_same(a.models[i][s], b.models[i][s]))
        return "stage " + std::to_string(s) + " of model " + std::to_string(i);
  return "";
}
[[nodiscard]] inline bool operator==(history const& a, history const& b) {
  return difference(a, b).empty();
}

/// Trains with `step(number)`, which gives the losses.
template <class Step>
[[nodiscard]] history train(model& all, Step step) {
  history result;
  for (int i = 0; i < steps; ++i) {
    result.losses.push_back(step(i));
    result.models.push_back(all);
    update(all);
    result.models.push_back(all);
  }
  return result;
}

/// Knows which backward passes a plan has fused: called with a stage and a microbatch.
class fused_passes {
 public:
  explicit fused_passes(plan const& planned) {
    for (auto const& p : planned.schedule().passes().all())
      if (p.kind == pass_kind::backward) all_.emplace(p.stage, p.microbatch);
  }
  [[nodiscard]] bool operator()(int stage, int microbatch) const {
    return all_.contains({stage, microbatch});
  }

 private:
  std::set<std::pair<int, int>> all_;
};

/// Trains as one process would, with B and W fused where the plan has BW.
[[nodiscard]] inline history train_reference(plan const& planned) {
  auto all = make_model(planned.problem().stages());
  fused_passes const is_fused(planned);
  return train(all, [&](int step) {
    return reference_step(all, step, planned.problem().microbatches(), is_fused);
  });
}

}  // namespace zbpp::test::toy
