// SPDX-License-Identifier: Apache-2.0
//
// The first C++ block of docs/optimizer.md.
#include <zbpp/zbpp.hpp>

#include <cstdio>
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

}  // namespace docs_optimizer
