// SPDX-License-Identifier: Apache-2.0
//
// Passes and instructions from their text forms, so that tests show programs as people write them.
#pragma once

#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/program.hpp>

#include <cctype>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace zbpp::test {

/// Reads `2F0`, `1SEND_F2`, `0STEP`.
[[nodiscard]] inline instruction parse_instruction(std::string const& text) {
  std::size_t digits = 0;
  auto const stage = static_cast<std::int32_t>(std::stoi(text, &digits));
  auto rest = text.substr(digits);
  std::size_t letters = rest.size();
  while (letters > 0 && (std::isdigit(static_cast<unsigned char>(rest[letters - 1])) != 0))
    --letters;
  auto const microbatch =
      letters == rest.size() ? 0 : static_cast<std::int32_t>(std::stoi(rest.substr(letters)));
  rest.resize(letters);
  for (auto k = instruction_kind::forward; static_cast<int>(k) < instruction_kinds;
       k = static_cast<instruction_kind>(static_cast<int>(k) + 1))
    if (rest == to_string(k)) return {k, stage, microbatch};
  throw std::invalid_argument("not an instruction: " + text);
}

/// Reads one row per rank, words separated by spaces.
[[nodiscard]] inline rows<instruction> instructions(std::vector<std::string> const& lines) {
  rows<instruction> result;
  for (auto const& line : lines) {
    std::istringstream words(line);
    for (std::string word; words >> word;) result.push(parse_instruction(word));
    result.end_row();
  }
  return result;
}

/// Reads one row of passes a rank.
[[nodiscard]] inline rows<pass> passes(std::vector<std::string> const& lines) {
  auto const all = instructions(lines);
  rows<pass> result;
  for (int rank = 0; rank < all.ranks(); ++rank) {
    for (auto const& i : all[rank]) {
      if (!i.is_pass()) throw std::invalid_argument("not a pass: " + to_string(i));
      result.push(i.as_pass());
    }
    result.end_row();
  }
  return result;
}

/// Writes a row as it is read.
template <class Row>
[[nodiscard]] std::string text_of(Row const& row) {
  std::string text;
  for (auto const& item : row) text.append(text.empty() ? "" : " ").append(to_string(item));
  return text;
}

}  // namespace zbpp::test
