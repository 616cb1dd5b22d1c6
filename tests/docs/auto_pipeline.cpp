// SPDX-License-Identifier: Apache-2.0
//
// The C++ blocks of docs/auto_pipeline.md.

// [train
#include <zbpp/adapt/auto_pipeline.hpp>
#include <zbpp/plan.hpp>
#include <zbpp/zbpp.hpp>

#include <iostream>
#include <string>

// train]
namespace docs_auto_pipeline {

// [train
template <class Make>
void train(zbpp::problem const& stated, Make const& copies, Make const& layers, int steps) {
  auto const model = zbpp::measure_layers(stated, zbpp::threads{}, copies);
  zbpp::auto_settings settings;
  settings.on_report = [](std::string const& line) { std::cout << line << '\n'; };
  zbpp::auto_pipeline pipe{model, zbpp::threads{}, layers, settings};
  for (int i = 0; i < steps; ++i) std::cout << pipe.step().loss() << '\n';
}
// train]

// [by_hand
inline zbpp::auto_settings by_hand() {
  return {
      .plan = {.placement = zbpp::placement::v_shape(4), .policy = zbpp::zb_v{}},
      .replan = std::nullopt};  // the plan stays
}
// by_hand]

}  // namespace docs_auto_pipeline
