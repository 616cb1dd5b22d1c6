// SPDX-License-Identifier: Apache-2.0
//
// The C++ blocks of docs/adapting.md.

// [train
#include <zbpp/adapt/replanner.hpp>
#include <zbpp/zbpp.hpp>

#include <iostream>
#include <string>

// train]
namespace docs_adapting {

// [train
template <class Stages>
void train(zbpp::plan const& first, Stages& stages, int steps) {
  zbpp::pipeline pipe{first, zbpp::threads{}, stages};
  zbpp::replanner again(
      pipe, {.least_gain = 0.05}, [](std::string const& line) { std::cout << line << '\n'; });
  for (int i = 0; i < steps; ++i)
    if (auto const better = again.after(pipe.step())) pipe.take(*better);
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
