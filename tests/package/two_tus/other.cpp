// SPDX-License-Identifier: Apache-2.0
#include <zbpp/plan.hpp>
#include <zbpp/zbpp.hpp>

bool other_unit_accepts(zbpp::plan const& plan);
bool other_unit_accepts(zbpp::plan const& plan) {
  return zbpp::verify(plan.program(), plan.problem()).empty();
}

zbpp::ticks bound_of_other_unit(zbpp::problem const& problem);
zbpp::ticks bound_of_other_unit(zbpp::problem const& problem) {
  return zbpp::lower_bound(problem).cost;
}
