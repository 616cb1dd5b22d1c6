// SPDX-License-Identifier: Apache-2.0
//
// How a text becomes a problem of layers, and back.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/json/detail/document.hpp>
#include <zbpp/json/detail/problem_text.hpp>
#include <zbpp/json/layers.hpp>

#include <string>
#include <string_view>
#include <variant>

namespace zbpp::json {

ZBPP_INLINE layered_problem
read_layers(std::string_view text, std::string const& name, time_unit* unit) {
  detail::document const all(text, name);
  detail::problem_reader reader{detail::value(all)};
  auto model = reader.read_layered();
  if (unit != nullptr) *unit = reader.unit();
  return model;
}

ZBPP_INLINE std::variant<problem, layered_problem> read_stages_or_layers(
    std::string_view text, std::string const& name, time_unit* unit) {
  detail::document const all(text, name);
  detail::problem_reader reader{detail::value(all)};
  std::variant<problem, layered_problem> read =
      reader.has_layers() ? std::variant<problem, layered_problem>(reader.read_layered())
                          : std::variant<problem, layered_problem>(reader.read());
  if (unit != nullptr) *unit = reader.unit();
  return read;
}

ZBPP_INLINE std::string write_layers(layered_problem const& model, time_unit unit) {
  return detail::problem_writer(model, unit, "").write() + "\n";
}

}  // namespace zbpp::json
