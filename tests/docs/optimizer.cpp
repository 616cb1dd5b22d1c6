// SPDX-License-Identifier: Apache-2.0
//
// C++ blocks of docs/optimizer.md.
#include <zbpp/zbpp.hpp>

#include <cstdio>
#include <span>
#include <vector>

namespace docs_optimizer {

void train(zbpp::problem const& problem, std::vector<zbpp::stage_ref>& stages) {
  // [plan
  auto const plan =
      zbpp::make_plan(zbpp::zb_h2{}, problem, {.step = zbpp::step_kind::post_validated});
  zbpp::pipeline pipe{plan, zbpp::threads{}, stages, {.clip = 1.0}};
  pipe.run(100, [](zbpp::step_result const& step) {
    std::printf("loss %.4f, norm %.3f\n", step.loss(), step.update.norm);
  });
  // plan]
}

[[nodiscard]] zbpp::plan at_once(zbpp::problem const& problem) {
  // [at_once
  auto const plan = zbpp::make_plan(
      zbpp::zb_h2{}, problem, {.step = zbpp::step_kind::synchronous, .at_once = {0, 1}});
  // at_once]
  return plan;
}

[[nodiscard]] zbpp::training_options agreement() {
  // [agreement
  zbpp::training_options const options{.clip = 1.0, .agreement = {.every = 8, .share = 0.5}};
  // agreement]
  return options;
}

void tie(
    std::vector<zbpp::stage_costs> stages,
    std::span<float> embedding,
    std::span<float> gradients_of_embedding,
    std::span<float> weights,
    std::span<float> gradients) {
  // [tied
  stages.front().tied = stages.back().tied = static_cast<zbpp::bytes>(embedding.size_bytes());
  zbpp::problem const problem{zbpp::placement::v_shape(4), 8, stages};

  zbpp::optim::adamw first{{{embedding, gradients_of_embedding, true}, {weights, gradients}}};
  // tied]
  static_cast<void>(problem);
  static_cast<void>(first);
}

}  // namespace docs_optimizer
