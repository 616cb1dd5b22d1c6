// SPDX-License-Identifier: Apache-2.0
//
// Stands in for searching.cpp in a program that has the handcrafted policies alone, and so is built
// without the planner.
#include "searching.hpp"

#include <string>
#include <vector>

namespace gpt {
namespace {

[[noreturn]] void refuse(std::string const& option) {
  throw setting_error(
      option + " searches, and this program was built without the planner; build the target "
               "train_gpt");
}

}  // namespace

zbpp::any_policy policy_of(std::string const& name) {
  std::vector<zbpp::any_policy> all;
  zbpp::for_each_policy([&](auto const& policy) {
    if constexpr (!requires { policy.search; })
      if (policy.name == name) all.emplace_back(policy);
  });
  if (all.empty()) refuse("--policy " + name);
  return all.front();
}

zbpp::schedule order_of_blocks(
    zbpp::any_policy const&, zbpp::placement const&, model_config const&, zbpp::problem const&) {
  refuse("--adaptive");
}

run_record run_adapting(
    zbpp::plan const&,
    zbpp::step_kind,
    training const&,
    zbpp::threads const&,
    std::vector<chunk_stage>&,
    zbpp::training_state const&,
    saver*) {
  refuse("--adaptive");
}

}  // namespace gpt
