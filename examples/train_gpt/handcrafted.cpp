// SPDX-License-Identifier: Apache-2.0
//
// Stands in for searching.cpp in a program that has the handcrafted policies alone, and so is built
// without the planner.
#include "searching.hpp"

#include <vector>

namespace gpt {
namespace {

[[noreturn]] void refuse() {
  throw setting_error(
      "--policy or --adaptive takes a search, and this program was built without the planner; "
      "build the target train_gpt");
}

}  // namespace

std::vector<zbpp::any_policy> policies(options const& o) {
  if (o.searches) refuse();
  std::vector<zbpp::any_policy> all;
  zbpp::for_each_handcrafted([&](auto const& policy) { all.emplace_back(policy); });
  return all;
}

zbpp::schedule order_of_blocks(
    zbpp::any_policy const&, zbpp::placement const&, model_config const&, zbpp::problem const&) {
  refuse();
}

run_record run_adapting(
    zbpp::plan const&,
    training const&,
    zbpp::threads const&,
    std::vector<chunk_stage>&,
    zbpp::training_state const&,
    saver*) {
  refuse();
}

}  // namespace gpt
