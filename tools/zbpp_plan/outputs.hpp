// SPDX-License-Identifier: Apache-2.0
//
// Where answers go: files, each written whole or not at all, or standard output.
#pragma once

#include "numbers.hpp"
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/ascii.hpp>
#include <zbpp/io/chrome_trace.hpp>
#include <zbpp/io/csv.hpp>
#include <zbpp/io/file.hpp>
#include <zbpp/io/svg.hpp>
#include <zbpp/io/terminal.hpp>
#include <zbpp/json/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

namespace planning {

/// Writes to standard output.
/// @throws zbpp::error (io_failed)
inline void print(std::string_view text) { zbpp::write_stream(stdout, "standard output", text); }

/// Writes a file, or standard output where the path is `-`.
/// @throws zbpp::error (io_failed)
inline void write(std::string const& path, std::string_view text) {
  if (path == "-")
    print(text);
  else
    zbpp::write_file(path, text);
}

/// Says what is to be written, and where.
struct outputs {
  /// By option, the path that was given; empty where it was not.
  std::array<std::pair<char const*, std::string>, 4> files{
      {{"--json", {}}, {"--csv", {}}, {"--svg", {}}, {"--trace", {}}}};
  bool ascii = false;
  zbpp::csv_options csv = {};
  bool csv_transfers = false;

  [[nodiscard]] std::string const& path(std::string_view option) const {
    return std::find_if(
               files.begin(), files.end(), [&](auto const& file) { return file.first == option; })
        ->second;
  }
  /// Forgets what was asked of an option.
  void clear(std::string_view option) {
    for (auto& [name, path] : files)
      if (name == option) path.clear();
  }
  /// @return whether anything but a summary was asked for
  [[nodiscard]] bool any() const {
    return ascii || std::any_of(files.begin(), files.end(), [](auto const& file) {
             return !file.second.empty();
           });
  }
  /// @return whether a file goes to standard output
  [[nodiscard]] bool takes_standard_output() const {
    return std::any_of(
        files.begin(), files.end(), [](auto const& file) { return file.second == "-"; });
  }

  /// Refuses what could not be written, before there is a long search for it.
  /// @throws zbpp::error
  void check() const {
    for (auto const& [option, path] : files) {
      if (path.empty()) continue;
      for (auto const& [other, other_path] : files)
        if (other != option && other_path == path)
          refuse(
              std::string(option) + " and " + other + " both write " + path + "; take two files");
      if (path == "-" && ascii)
        refuse(std::string(option) + " and --ascii both write standard output; take a file");
      if (path != "-") check_writable(option, path);
    }
  }

 private:
  static void check_writable(char const* option, std::filesystem::path const& path) {
    namespace fs = std::filesystem;
    std::error_code none;
    if (fs::is_directory(path, none)) refuse(option, path.string(), "a file; that is a folder");
    bool const is_file = !fs::exists(path, none) || fs::is_regular_file(path, none);
    auto const folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    if (is_file && !fs::is_directory(folder, none))
      refuse(option, path.string(), "a file in a folder that exists");
    if (::access((is_file ? folder : path).c_str(), W_OK) != 0)
      refuse(option, path.string(), "a path that can be written");
  }
};

/// Writes all that is asked of plans; JSON and CSV are of the first.
/// @throws zbpp::error
inline void write_plans(
    outputs const& out, std::vector<zbpp::json::plan_report> const& plans, zbpp::time_unit unit) {
  std::vector<zbpp::named_timeline> lines;
  for (auto const& one : plans)
    lines.push_back(
        {one.policy, one.timeline, zbpp::activation_profile(one.schedule, one.problem)});
  auto const put = [&](char const* option, auto make) {
    if (auto const& path = out.path(option); !path.empty()) write(path, make());
  };
  put("--json", [&] { return zbpp::json::write_plan(plans.front(), unit); });
  put("--csv", [&] {
    auto const& order = plans.front().schedule;
    if (!out.csv_transfers) return zbpp::to_csv(order, out.csv);
    auto how = out.csv;
    how.for_pytorch = true;
    auto const layout = zbpp::channel_layout::one_per_rank;
    return zbpp::to_csv(zbpp::lower(order, {.step = zbpp::step_kind::none, .layout = layout}), how);
  });
  put("--svg", [&] { return zbpp::to_svg(lines); });
  put("--trace", [&] {
    bool const is_one_model =
        !plans.empty() && std::all_of(plans.begin(), plans.end(), [&](auto const& one) {
          return one.problem == plans.front().problem;
        });
    return is_one_model ? zbpp::to_chrome_trace(lines, plans.front().problem)
                        : zbpp::to_chrome_trace(lines);
  });
  if (out.ascii) print(zbpp::to_ascii(lines, zbpp::terminal_options()));
}

}  // namespace planning
