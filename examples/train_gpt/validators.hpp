// SPDX-License-Identifier: Apache-2.0
//
// Checks of the command line that more than one program needs.
#pragma once

#include "config.hpp"
#include <zbpp/planner/registry.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

namespace gpt {

/// Refuses an option without its value, which the parser would take from the option after it.
/// @throws setting_error that names the option
inline void check_values(CLI::App const& app, int argc, char const* const* argv) {
  for (int i = 1; i < argc; ++i) {
    auto const* const option = app.get_option_no_throw(argv[i]);
    if (option == nullptr || option->get_items_expected_min() == 0) continue;
    if (i + 1 == argc || std::string_view(argv[i + 1]).starts_with("--"))
      throw setting_error(std::string(argv[i]) + " needs a value; --help lists what there is");
    ++i;
  }
}

/// Accepts the path of a regular file that can be read.
[[nodiscard]] inline CLI::Validator readable_file() {
  return {
      [](std::string& given) -> std::string {
        std::error_code none;
        if (std::filesystem::is_regular_file(given, none) && ::access(given.c_str(), R_OK) == 0)
          return {};
        return "'" + given + "' cannot be read; name a regular file that can";
      },
      ""};
}

/// Accepts positive decimals.
[[nodiscard]] inline CLI::Validator positive_decimal() {
  return {
      [](std::string& given) -> std::string {
        char* stop = nullptr;
        auto const value = std::strtod(given.c_str(), &stop);
        if (!given.empty() && *stop == '\0' && value > 0.0 && value <= 100.0) return {};
        return "'" + given + "' is not a decimal above 0 and up to 100";
      },
      ""};
}

/// Accepts some words.
/// @param words  two or more
[[nodiscard]] inline CLI::Validator is_one_of(std::vector<std::string> words) {
  return {
      [words = std::move(words)](std::string& given) -> std::string {
        if (std::find(words.begin(), words.end(), given) != words.end()) return {};
        auto text = "'" + given + "' is neither " + words.front();
        for (std::size_t i = 1; i < words.size(); ++i)
          text += (i + 1 == words.size() ? " nor " : ", ") + words[i];
        return text;
      },
      ""};
}

/// Accepts the names and titles of policies.
[[nodiscard]] inline CLI::Validator policy_name() {
  return {
      [](std::string& given) -> std::string {
        try {
          given = zbpp::find_policy(zbpp::builtin_policies(), given).name();
          return {};
        } catch (zbpp::error const& unknown) {
          return unknown.what();
        }
      },
      ""};
}

}  // namespace gpt
