// SPDX-License-Identifier: Apache-2.0
//
// Text within SVG pictures.
#pragma once

#include <zbpp/io/text.hpp>

#include <string>
#include <string_view>

namespace zbpp::detail {

/// Escapes what XML would take for markup.
[[nodiscard]] inline std::string xml_text(std::string_view text) {
  std::string result;
  for (char c : one_line(text)) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += c;
    }
  }
  return result;
}

}  // namespace zbpp::detail
