// SPDX-License-Identifier: Apache-2.0
//
// A small trainer for compile_times.sh, which defines POLICIES: what it trains with, one after
// another.
#if defined(SEARCHES)
#include <zbpp/plan.hpp>
#endif
#include "../tests/user_flags/scale.hpp"
#include <zbpp/zbpp.hpp>

#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <vector>

namespace {

void train(zbpp::plan const& planned) {
  std::vector<scale> stages(static_cast<std::size_t>(planned.problem().stages()));
  zbpp::pipeline pipe{planned, zbpp::threads{}, stages};
  for (int step = 0; step < 10; ++step) std::printf("%d %f\n", step, pipe.step().loss());
}

}  // namespace

int main() {
  zbpp::stage_costs const costs{.forward = 1, .backward_input = 1, .backward_weight = 1};
  [[maybe_unused]] zbpp::problem const linear(zbpp::placement::linear(4), 8, costs);
  [[maybe_unused]] zbpp::problem const v_shape(zbpp::placement::v_shape(4), 8, costs);
  for (auto const& planned : {POLICIES}) train(planned);
}
