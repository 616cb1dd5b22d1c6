// SPDX-License-Identifier: Apache-2.0
//
// Checks of the command line that more than one program needs.
#pragma once

#include <zbpp/planner/registry.hpp>

#include <CLI/CLI.hpp>

#include <string>

namespace gpt {

/// Accepts two words.
[[nodiscard]] inline CLI::Validator is_one_of(std::string const& one, std::string const& other) {
  return {
      [=](std::string& given) -> std::string {
        if (given == one || given == other) return {};
        return "'" + given + "' is neither " + one + " nor " + other;
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
