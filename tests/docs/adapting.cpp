// SPDX-License-Identifier: Apache-2.0
//
// The C++ blocks of docs/adapting.md.

// [train
#include <zbpp/plan.hpp>
#include <zbpp/runtime/adaptive_pipeline.hpp>
#include <zbpp/zbpp.hpp>

#include <iostream>
#include <string>

// train]
namespace docs_adapting {

// [train
template <class Stages>
void train(zbpp::plan const& first, Stages& stages, int steps) {
  zbpp::replan_settings settings;
  settings.on_report = [](std::string const& line) { std::cout << line << '\n'; };
  zbpp::adaptive_pipeline pipe{first, zbpp::threads{}, stages, settings};
  for (int i = 0; i < steps; ++i) std::cout << pipe.step().loss() << '\n';
}
// train]

template <class Stages>
double wait_with_w(zbpp::plan const& planned, Stages& stages) {
  // [on_stall
  zbpp::training_options const options{.on_stall = {.runs_w = true}};
  zbpp::pipeline pipe{planned, zbpp::threads{}, stages, options};
  // on_stall]
  return pipe.step().loss();
}

}  // namespace docs_adapting
