// SPDX-License-Identifier: Apache-2.0
//
// When ranks step: the names of the kinds of steps, and what is told of them.
#pragma once

#include "optimizer_settings.hpp"
#include "table.hpp"
#include <zbpp/analysis/lower.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpt {

/// Names the kinds of steps on the command line.
inline constexpr std::array<std::pair<char const*, zbpp::step_kind>, 3> step_kinds{
    {{"unchecked", zbpp::step_kind::unchecked},
     {"synchronous", zbpp::step_kind::synchronous},
     {"post-validated", zbpp::step_kind::post_validated}}};

/// @return the names of all `step_kinds`
[[nodiscard]] inline std::vector<std::string> step_kind_names() {
  std::vector<std::string> names;
  for (auto const& kind : step_kinds) names.emplace_back(kind.first);
  return names;
}

/// @return the name of one of `step_kinds`
[[nodiscard]] inline char const* name_of(zbpp::step_kind kind) {
  return std::find_if(
             step_kinds.begin(), step_kinds.end(), [&](auto& k) { return k.second == kind; })
      ->first;
}

/// @return the names of some kinds, with something between them
[[nodiscard]] inline std::string names_of(
    std::vector<zbpp::step_kind> const& kinds, std::string_view between) {
  std::string names;
  for (auto const kind : kinds) {
    if (!names.empty()) names += between;
    names += name_of(kind);
  }
  return names;
}

/// @return what a policy is called that runs with one of some kinds
[[nodiscard]] inline std::string title_of(
    std::string_view policy, zbpp::step_kind kind, std::vector<zbpp::step_kind> const& all) {
  return std::string(policy) + (all.size() > 1 ? std::string(", ") + name_of(kind) : "");
}

/// Tells when ranks step, and what the norm may be.
[[nodiscard]] inline std::string describe_steps(
    std::vector<zbpp::step_kind> const& kinds, optimizer_settings const& how) {
  return names_of(kinds, " and ") +
         (how.clip > 0.0 ? ", the norm of all gradients at most " + exact(how.clip) : "");
}

/// Counts the steps of a run that did not wait for the norm of all gradients.
struct step_counts {
  std::int64_t early = 0;    ///< taken before the norm was known
  std::int64_t amended = 0;  ///< early ones that did not hold

  /// Takes in a step.
  void add(zbpp::update_report const& update) {
    early += update.is_post_validated ? 1 : 0;
    amended += update.is_amended ? 1 : 0;
  }
  /// @return what the columns of a table are called that has the counts
  [[nodiscard]] static std::vector<std::string> columns() { return {"early", "amended"}; }
  /// @return the counts for these columns
  [[nodiscard]] std::vector<std::string> cells() const {
    return {std::to_string(early), std::to_string(amended)};
  }
};

}  // namespace gpt
