// SPDX-License-Identifier: Apache-2.0
//
// The command line of the benchmarks in this folder: what to measure, how much of it, and where to
// write it.
#pragma once

#include <zbpp/error.hpp>

#include <initializer_list>
#include <string>
#include <string_view>

namespace zbpp::bench {

/// Holds what the command line says.
struct choices {
  std::string_view act;   ///< what to measure
  bool is_short = false;  ///< few sizes, to see that all works
  std::string json;       ///< the file for programs; empty: none
  std::string markdown;   ///< the file for people; empty: none
};

/// Reads `ACT [--short] [--json FILE] [--markdown FILE]`.
/// @throws error (bad_argument)
[[nodiscard]] inline choices read(
    int count, char** arguments, std::initializer_list<std::string_view> acts) {
  auto const refuse = [&](std::string const& what) {
    std::string all;
    for (auto const act : acts) all += (all.empty() ? "" : ", ") + std::string(act);
    throw error(
        errc::bad_argument,
        what + "; give one of " + all +
            ", and then, if you like, --short, --json FILE and --markdown FILE");
  };
  choices result;
  for (auto const act : acts)
    if (count > 1 && arguments[1] == act) result.act = act;
  if (result.act.empty()) refuse("nothing says what to measure");
  for (int i = 2; i < count; ++i) {
    std::string_view const name = arguments[i];
    if (name == "--short") {
      result.is_short = true;
    } else if (name == "--json" && i + 1 < count) {
      result.json = arguments[++i];
    } else if (name == "--markdown" && i + 1 < count) {
      result.markdown = arguments[++i];
    } else {
      refuse("'" + std::string(name) + "' is not understood");
    }
  }
  return result;
}

}  // namespace zbpp::bench
