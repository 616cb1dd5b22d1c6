// SPDX-License-Identifier: Apache-2.0
//
// How a profile becomes lines.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/io/profile_text.hpp>
#include <zbpp/io/text_table.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace zbpp {

ZBPP_INLINE std::string to_text(step_profile const& of, time_unit unit) {
  auto const number = [unit](ticks t) { return fixed_text(t, unit, 3); };
  auto const table_of = [](std::string const& first) {
    return text_table({first, "count", "median", "least", "most", "deviation"});
  };
  auto const cells = [&](std::string const& name, time_spread const& took) {
    return std::vector<std::string>{
        name,
        std::to_string(took.count),
        number(took.median),
        number(took.least),
        number(took.most),
        number(took.deviation)};
  };
  auto passes = table_of("stage, pass");
  for (auto const& one : of.passes)
    passes.add(cells(detail::joined(one.stage, " ", to_string(one.kind)), one.took));
  passes.add(cells("step", of.step));
  auto messages = table_of("from, to");
  for (auto const& one : of.messages)
    messages.add(cells(detail::joined(one.from, " ", one.to), one.took));
  return detail::joined("times in ") + to_string(unit) + "\n\n" + passes.text() +
         (of.messages.empty() ? "" : "\n" + messages.text());
}

}  // namespace zbpp
