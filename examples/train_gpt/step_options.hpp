// SPDX-License-Identifier: Apache-2.0
//
// The options --clip and --step: what gradients are clipped to, and when ranks step.
#pragma once

#include "step_kinds.hpp"
#include "validators.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace gpt {

/// Describes both to the parser.
/// @param how    gets what gradients are clipped to; it outlives the parser, as do the kinds
/// @param kinds  get those that the user names
inline void add_step_options(
    CLI::App& app, optimizer_settings& how, std::vector<zbpp::step_kind>& kinds) {
  app.add_option("--clip", how.clip, "Most that the norm of all gradients may be")
      ->check(positive_decimal())
      ->default_str("");
  app.add_option_function<std::vector<std::string>>(
         "--step",
         [&kinds](std::vector<std::string> const& names) {
           kinds.clear();
           for (auto const& name : names)
             for (auto const& [known, kind] : step_kinds)
               if (name == known) kinds.push_back(kind);
         },
         "When ranks step: unchecked, without the norm; synchronous, when it is known; or\n"
         "post-validated, before; several to compare. With --clip, post-validated; else unchecked")
      ->check(is_one_of(step_kind_names()))
      ->delimiter(',')
      ->option_text("KIND,...");
}

/// Settles what both mean, once they are parsed.
/// @throws setting_error when they do not go together
inline void settle_steps(
    CLI::App const& app, optimizer_settings& how, std::vector<zbpp::step_kind>& kinds) {
  using zbpp::step_kind;
  bool const clips = app.count("--clip") > 0;
  if (clips && app.count("--step") == 0) kinds = {step_kind::post_validated};
  how.needs_norm = std::ranges::find(kinds, step_kind::unchecked) == kinds.end();
  if (!how.needs_norm && clips)
    throw setting_error(
        "--clip needs the norm of all gradients, which --step unchecked does without; give "
        "synchronous or post-validated");
  if (!how.needs_norm && kinds.size() > 1)
    throw setting_error(
        "--step unchecked gives other bits than the other kinds where gradients are not finite; "
        "run it on its own");
}

}  // namespace gpt
