// SPDX-License-Identifier: Apache-2.0
//
// The C++ block of docs/period.md.

// [print_times
#include <zbpp/plan.hpp>

#include <iostream>

// print_times]
namespace docs_period {

// [print_times
void print_times(zbpp::plan const& plan) {
  auto const report = zbpp::period(plan.schedule(), plan.problem());
  auto const [whole, part, of] = report.period;
  std::cout << "a step takes " << whole << " + " << part << '/' << of << " ticks in the long run\n";
  for (int const rank : report.critical_ranks) std::cout << "rank " << rank << " sets this\n";
  for (zbpp::ticks const offset : report.offsets)
    std::cout << "a rank begins " << offset << " ticks after the rank of stage 0\n";
  if (report.transient) std::cout << "that is reached after " << *report.transient << " steps\n";
  std::cout << "a step on its own costs " << report.first_step << " ticks\n";
  std::cout << "if all ranks synchronize after it, it takes " << report.synchronous << " ticks\n";
}
// print_times]

}  // namespace docs_period
