// SPDX-License-Identifier: Apache-2.0
//
// Where problems and what is checked or explained come from: files, or standard input.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/file.hpp>
#include <zbpp/io/text.hpp>

#include <cstdio>
#include <string>

namespace planning {

/// @return how messages name what stands at a path; `-` is standard input
[[nodiscard]] inline std::string input_name(std::string const& path) {
  return path == "-" ? "standard input" : path;
}

/// Reads all of a file, or of standard input where the path is `-`.
/// @throws zbpp::error (io_failed)
[[nodiscard]] inline std::string read(std::string const& path) {
  if (path == "-") return zbpp::read_stream(stdin, input_name(path), zbpp::largest_text);
  return zbpp::read_file(path, zbpp::largest_text);
}

/// Does what may refuse the content of a file, and names the file in front of the refusal.
/// @throws zbpp::error
template <class Act>
[[nodiscard]] auto with_name_of(std::string const& path, Act act) {
  try {
    return act();
  } catch (zbpp::error const& refused) {
    throw zbpp::error(refused.code(), input_name(path) + ": " + refused.what());
  }
}

}  // namespace planning
