// SPDX-License-Identifier: Apache-2.0
//
// What searches share that are made of searches: checked settings, progress that is part of a
// whole, and memory limits one after another.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/planner/search.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace zbpp::detail {

/// How many passes a search places in a second of its budget.
inline constexpr double passes_a_second = 2e7;

/// How many passes it places in the time in which a pass is simulated, and its memory counted.
inline constexpr double passes_a_simulation = 20;

/// @return the effort for raising a bound while a search goes on: a small part of its budget
[[nodiscard]] inline double effort_within(search_settings const& search) {
  return search.seconds * passes_a_second / 128;
}
/// @return the effort for the bound of what a search has found, twelve times as much
[[nodiscard]] inline double effort_behind(search_settings const& search) {
  return 12 * effort_within(search);
}

/// Refuses a budget that is not a number of seconds.
/// @throws error (bad_argument)
inline void check_budget(search_settings const& search) {
  if (!(search.seconds >= 0 && search.seconds <= search_settings::most_seconds))
    throw error(
        errc::bad_argument,
        "a budget of " + std::to_string(search.seconds) + " seconds; it lies between 0 and " +
            std::to_string(search_settings::most_seconds));
}

/// Makes a search the `done`-th of `all` in what it reports.
[[nodiscard]] inline search_settings part_of_search(
    search_settings settings, std::size_t done, std::size_t all) {
  if (!settings.on_progress) return settings;
  settings.on_progress = [tell = settings.on_progress, done, all](search_progress const& part) {
    auto whole = part;
    whole.spent = (static_cast<double>(done) + part.spent) / static_cast<double>(all);
    tell(whole);
  };
  return settings;
}

/// @return the limits in ascending order, each once
[[nodiscard]] inline std::vector<bytes> ascending_limits(std::span<bytes const> limits) {
  std::vector<bytes> ascending(limits.begin(), limits.end());
  std::sort(ascending.begin(), ascending.end());
  ascending.erase(std::unique(ascending.begin(), ascending.end()), ascending.end());
  return ascending;
}

}  // namespace zbpp::detail
