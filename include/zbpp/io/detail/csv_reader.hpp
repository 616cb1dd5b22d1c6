// SPDX-License-Identifier: Apache-2.0
//
// The cells of CSV files, and how they are read: strict, with line and cell of what is refused.
// Only `impl/csv.ipp` includes it.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>

#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// What stands behind the passes of a pair.
inline constexpr std::string_view csv_pair_name = "OVERLAP_F_B";

/// The letters of each kind of instruction, in the order of `instruction_kind`.
inline constexpr std::array<std::string_view, instruction_kinds> csv_letters{
    "F", "I", "W", "B", "R", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "STEP", "NORM", "VALIDATE",
    "SEND_T", "ADD_T"};

/// Writes one cell.
/// @throws error (bad_argument) when there is no such kind of instruction
inline void add_cell(std::string& text, instruction const& i) {
  if (static_cast<std::size_t>(i.kind) >= csv_letters.size())
    throw error(errc::bad_argument, to_string(i) + ": there is no such instruction");
  text += std::to_string(i.stage);
  text += csv_letters[static_cast<std::size_t>(i.kind)];
  if (i.has_microbatch()) text += std::to_string(i.microbatch);
}

/// Reads the cells of a file and finds out, or checks, what they are about.
class csv_reader {
 public:
  /// Reads all cells; `passes_only` refuses what a schedule does not have.
  csv_reader(std::string_view text, bool passes_only) : passes_only_(passes_only) {
    if (text.empty()) refuse(0, none, "nothing", "one line for each rank");
    for (int line = 0; !text.empty(); ++line) {
      auto const end = text.find('\n');
      read_line(line, text.substr(0, end));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
  }

  /// @return placement and number of microbatches: the given ones, checked, or those that the cells
  ///         show
  [[nodiscard]] std::pair<placement, int> shape(
      std::optional<placement> const& given, std::optional<int> given_microbatches) const {
    auto placed = placement_or(given);
    auto const count = microbatches(given_microbatches);
    // What looks at an order keeps something for each pass that there should be; a short file must
    // not ask for more of that than its caller does.
    if (!given || !given_microbatches) check_passes(std::int64_t{placed.stages()} * count);
    return {std::move(placed), count};
  }

  /// @return the instructions of all ranks
  [[nodiscard]] rows<instruction> instructions() const {
    rows<instruction> result;
    result.reserve(index(cells_.ranks()), cells_.size());
    for (int line = 0; line < cells_.ranks(); ++line) {
      for (auto const& c : cells_[line]) result.push(c.what);
      result.end_row();
    }
    return result;
  }

  /// @return the passes of all ranks
  [[nodiscard]] rows<pass> passes() const {
    rows<pass> result;
    result.reserve(index(cells_.ranks()), cells_.size());
    for (int line = 0; line < cells_.ranks(); ++line) {
      for (auto const& c : cells_[line]) result.push(c.what.as_pass());
      result.end_row();
    }
    return result;
  }

 private:
  static constexpr std::int64_t none = -1;

  struct cell {
    instruction what;
    std::int64_t column = 0;
  };

  // The given placement, checked, or the one that the cells show.
  [[nodiscard]] placement placement_or(std::optional<placement> const& given) const {
    if (!given) return shown_placement();
    if (given->ranks() != cells_.ranks())
      refuse(
          cells_.ranks() - 1,
          none,
          std::to_string(cells_.ranks()) + " lines",
          std::to_string(given->ranks()) + ", one for each rank of the placement");
    for_each([&](int line, cell const& c) {
      if (c.what.stage >= given->stages())
        refuse(line, c, "a stage from 0 to " + std::to_string(given->stages() - 1));
      if (auto const rank = given->rank_of(c.what.stage); rank != line)
        refuse(line, c, "only stages of this rank; that one is on rank " + std::to_string(rank));
    });
    return *given;
  }

  // The given number of microbatches, checked, or the one that the cells show.
  [[nodiscard]] int microbatches(std::optional<int> given) const {
    if (given) require(*given >= 1, "microbatches is given as less than 1");
    std::map<std::int32_t, std::pair<int, cell>> first;
    for_each([&](int line, cell const& c) {
      if (given && c.what.microbatch >= *given)
        refuse(line, c, "a microbatch from 0 to " + std::to_string(*given - 1));
      if (!given && c.what.has_microbatch()) first.try_emplace(c.what.microbatch, line, c);
    });
    if (given) return *given;
    auto const count = count_without_gap(first, "microbatch");
    if (count == 0) refuse(0, none, "no cell with a microbatch", "at least one pass");
    return count;
  }

  void read_line(int line, std::string_view text) {
    if (text.ends_with('\r')) text.remove_suffix(1);
    for (std::int64_t column = 0;; ++column) {
      auto const end = text.find(',');
      read_cell(line, column, text.substr(0, end));
      if (end == std::string_view::npos) break;
      text.remove_prefix(end + 1);
    }
    cells_.end_row();
  }

  void read_cell(int line, std::int64_t column, std::string_view text) {
    auto const begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return;
    text = text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
    auto rest = text;
    auto complain = [&](std::string const& expected) {
      refuse(line, column, "'" + one_line(text, 40) + "'", expected);
    };
    if (!rest.starts_with('(')) {
      cells_.push({read_action(rest, complain), column});
      if (!rest.empty())
        complain("nothing after " + std::string(text.substr(0, text.size() - rest.size())));
      return;
    }
    auto const take = [&](std::string_view what) {
      if (!rest.starts_with(what)) complain("a pair like (0F7;7B3)OVERLAP_F_B");
      rest.remove_prefix(what.size());
    };
    take("(");
    auto const first = read_action(rest, complain);
    take(";");
    auto const second = read_action(rest, complain);
    take(")");
    take(csv_pair_name);
    if (!rest.empty()) complain("nothing after the pair");
    if (!is_pair(first, second) && !is_pair(second, first))
      complain("an F and a B or I of two microbatches in a pair");
    cells_.push({first, column});
    cells_.push({second, column});
  }

  // Reads one action, and leaves in `rest` what stands behind it.
  template <class Complain>
  [[nodiscard]] instruction read_action(std::string_view& rest, Complain complain) const {
    instruction what;
    if (!read_number(rest, what.stage))
      complain("a cell like 0F3 that begins with a stage from 0 to 2147483647");
    auto const letters = rest.substr(0, rest.find_first_of("0123456789"));
    auto const known = passes_only_ ? std::size_t{5} : csv_letters.size();
    std::size_t kind = 0;
    while (kind < known && csv_letters[kind] != letters) ++kind;
    if (kind == known)
      complain(
          passes_only_
              ? "F, I, W, B or R after the stage, for a schedule has passes only"
              : "F, I, W, B, R, SEND_F, RECV_F, SEND_B, RECV_B, STEP, NORM, VALIDATE, SEND_T or "
                "ADD_T after the stage");
    what.kind = static_cast<instruction_kind>(kind);
    rest.remove_prefix(letters.size());
    if (what.has_microbatch() && !read_number(rest, what.microbatch))
      complain("a microbatch from 0 to 2147483647 after the letters");
    return what;
  }

  // An F and a backward pass of one microbatch never overlap: the second waits for the first.
  [[nodiscard]] static bool is_pair(instruction const& f, instruction const& b) noexcept {
    return f.kind == instruction_kind::forward &&
           (b.kind == instruction_kind::backward || b.kind == instruction_kind::backward_input) &&
           f.microbatch != b.microbatch;
  }

  [[nodiscard]] static bool read_number(std::string_view& text, std::int32_t& value) {
    if (text.empty() || text.front() < '0' || text.front() > '9') return false;
    auto const [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (fault != std::errc{}) return false;
    text.remove_prefix(index(end - text.data()));
    return true;
  }

  [[nodiscard]] placement shown_placement() const {
    std::map<std::int32_t, std::pair<int, cell>> first;
    for (int line = 0; line < cells_.ranks(); ++line)
      if (cells_[line].empty())
        refuse(line, none, "no action", "at least one, for a placement to be seen in the cells");
    for_each([&](int line, cell const& c) {
      auto const [at, is_new] = first.try_emplace(c.what.stage, line, c);
      if (!is_new && at->second.first != line)
        refuse(
            line,
            c,
            "stage " + std::to_string(c.what.stage) + " on one rank only; line " +
                std::to_string(at->second.first + 1) + " has it too");
    });
    count_without_gap(first, "stage");
    std::vector<int> rank_of;
    rank_of.reserve(first.size());
    for (auto const& [stage, at] : first) rank_of.push_back(at.first);
    return placement::custom(std::move(rank_of));
  }

  void check_passes(std::int64_t least) const {
    std::int64_t passes = 0;
    for_each([&](int, cell const& c) { passes += c.what.is_pass() ? 1 : 0; });
    if (passes < least)
      refuse(
          cells_.ranks() - 1,
          none,
          std::to_string(passes) + " passes in all",
          "at least " + std::to_string(least) +
              ", one for each stage and microbatch that the cells show");
  }

  int count_without_gap(
      std::map<std::int32_t, std::pair<int, cell>> const& first, std::string const& name) const {
    int count = 0;
    for (auto const& [id, at] : first) {
      if (id != count)
        refuse(
            at.first,
            at.second,
            "a cell with " + name + " " + std::to_string(count) +
                " too; they are numbered without a gap");
      ++count;
    }
    return count;
  }

  template <class Visit>
  void for_each(Visit visit) const {
    for (int line = 0; line < cells_.ranks(); ++line)
      for (auto const& c : cells_[line]) visit(line, c);
  }

  [[noreturn]] static void refuse(int line, cell const& c, std::string const& expected) {
    std::string text;
    add_cell(text, c.what);
    refuse(line, c.column, "'" + text + "'", expected);
  }

  [[noreturn]] static void refuse(
      int line, std::int64_t column, std::string const& found, std::string const& expected) {
    auto text = "line " + std::to_string(line + 1);
    if (column != none) text += ", cell " + std::to_string(column + 1);
    throw error(errc::bad_format, text + ": found " + found + "; expected " + expected);
  }

  bool passes_only_;
  rows<cell> cells_;
};

}  // namespace zbpp::detail
