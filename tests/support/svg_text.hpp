// SPDX-License-Identifier: Apache-2.0
//
// What tests ask about the text of an SVG picture.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp::test {

/// Counts the places at which a text has a part.
inline std::size_t count(std::string_view text, std::string_view part) {
  std::size_t result = 0;
  for (auto at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1))
    ++result;
  return result;
}

/// Says what is wrong with a text as XML; the empty text when it is well formed. It knows as much
/// of XML as a drawing uses: elements, attributes in double quotes, and the named entities.
inline std::string xml_fault(std::string_view text) {
  std::vector<std::string> open;
  auto is_escaped = [](std::string_view part) {
    for (auto at = part.find('&'); at != std::string_view::npos; at = part.find('&', at + 1)) {
      auto const entity = part.substr(at, part.find(';', at) - at);
      if (entity != "&amp" && entity != "&lt" && entity != "&gt" && entity != "&quot") return false;
    }
    return part.find('<') == std::string_view::npos;
  };
  std::size_t roots = 0;
  while (!text.empty()) {
    auto const next = text.find('<');
    auto const content = text.substr(0, next);
    if (!is_escaped(content) || content.find('>') != std::string_view::npos) return "bad text";
    if (open.empty() && content.find_first_not_of('\n') != std::string_view::npos)
      return "text outside the root";
    if (next == std::string_view::npos) break;
    text.remove_prefix(next + 1);
    auto const end = text.find('>');
    if (end == std::string_view::npos) return "a tag does not end";
    auto tag = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return "closes " + std::string(tag);
      open.pop_back();
      continue;
    }
    bool const is_closed = tag.ends_with('/');
    if (is_closed) tag.remove_suffix(1);
    if (open.empty() && ++roots > 1) return "two roots";
    auto const name = tag.substr(0, tag.find(' '));
    std::vector<std::string_view> seen;
    tag.remove_prefix(name.size());
    while (!tag.empty()) {
      auto const equals = tag.find("=\"");
      if (tag.front() != ' ' || equals == std::string_view::npos) return "bad attribute";
      auto const key = tag.substr(1, equals - 1);
      for (auto other : seen)
        if (other == key) return "attribute twice: " + std::string(key);
      seen.push_back(key);
      auto const close = tag.find('"', equals + 2);
      if (close == std::string_view::npos) return "bad attribute";
      if (!is_escaped(tag.substr(equals + 2, close - equals - 2))) return "bad attribute";
      tag.remove_prefix(close + 1);
    }
    if (!is_closed) open.emplace_back(name);
  }
  return open.empty() && roots == 1 ? "" : "not closed";
}

/// Says whether every element is one that a viewer of SVG draws: it leaves out what it does not
/// know.
inline bool is_svg(std::string_view text) {
  constexpr std::array<std::string_view, 7> known{
      "svg", "style", "rect", "text", "path", "circle", "title"};
  for (auto at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    auto name = text.substr(at + 1);
    if (name.starts_with('/')) name.remove_prefix(1);
    name = name.substr(0, name.find_first_of(" />"));
    if (std::find(known.begin(), known.end(), name) == known.end()) return false;
  }
  return true;
}

/// Is a mark of a curve, where a picture has it.
struct svg_mark {
  double x = 0;
  double y = 0;
  bool is_full = false;
};

/// Finds the marks of a chart whose titles begin with a text.
inline std::vector<svg_mark> marks_of(std::string_view text, std::string const& title) {
  std::vector<svg_mark> marks;
  auto const begin = "<title>" + title;
  for (auto at = text.find(begin); at != std::string_view::npos; at = text.find(begin, at + 1)) {
    auto const tag = text.substr(text.rfind("<path", at), at - text.rfind("<path", at));
    auto const from = tag.find("translate(") + 10;
    auto const space = tag.find(' ', from);
    marks.push_back(
        {std::stod(std::string(tag.substr(from, space - from))),
         std::stod(std::string(tag.substr(space + 1))),
         tag.find(" full\"") != std::string_view::npos});
  }
  return marks;
}

}  // namespace zbpp::test
