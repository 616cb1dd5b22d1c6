// SPDX-License-Identifier: Apache-2.0
//
// Finds policies by name: the built-in ones, and whatever a program adds to its own list. The list
// is a value; nothing registers itself behind anybody's back.
#pragma once

#include <zbpp/planner/chunk_policies.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/zb_v.hpp>
#include <zbpp/policy/dualpipe_v.hpp>
#include <zbpp/policy/interleaved.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/policy.hpp>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp {

/// Holds a policy of any type together with its names.
class any_policy {
 public:
  /// Takes a policy by value, settings included.
  template <policy Policy>
  any_policy(Policy what)
      : name_(Policy::name),
        title_(Policy::title),
        summary_(Policy::summary),
        make_(std::move(what)) {}

  /// @return the identifier, such as `zb_h1`
  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  /// @return the name as people write it, such as `ZB-H1`
  [[nodiscard]] std::string_view title() const noexcept { return title_; }
  /// @return what it does, in a few words
  [[nodiscard]] std::string_view summary() const noexcept { return summary_; }
  /// @return the schedule of a problem
  [[nodiscard]] schedule operator()(problem const& problem) const { return make_(problem); }

 private:
  std::string_view name_;
  std::string_view title_;
  std::string_view summary_;
  std::function<schedule(problem const&)> make_;
};

/// @return the policies that come with the library, each with its default settings
[[nodiscard]] inline std::vector<any_policy> builtin_policies() {
  return {
      gpipe{},
      one_f_one_b{},
      interleaved{},
      interleaved_zb{},
      zb_h1{},
      zb_h2{},
      zb_v{},
      v_half{},
      v_min{},
      dualpipe_v{},
      greedy_auto{}};
}

/// Finds a policy by its name or title.
/// @throws error (bad_argument) listing the names there are
[[nodiscard]] inline any_policy find_policy(
    std::vector<any_policy> const& policies, std::string_view name) {
  auto const found = std::find_if(policies.begin(), policies.end(), [name](any_policy const& p) {
    return p.name() == name || p.title() == name;
  });
  if (found != policies.end()) return *found;
  std::string text = "no policy is called '" + std::string(name) + "'; there are";
  for (auto const& p : policies) text.append(" ").append(p.name());
  throw error(errc::bad_argument, text);
}

}  // namespace zbpp
