// SPDX-License-Identifier: Apache-2.0
//
// How CSV files are read: strict, with line and cell of what is refused. Only `impl/csv.ipp`
// includes it.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/csv_pairs.hpp>
#include <zbpp/io/detail/csv_cell.hpp>
#include <zbpp/io/detail/csv_text.hpp>
#include <zbpp/io/detail/text_encoding.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Reads the cells of a file and finds out, or checks, what they are about.
class csv_reader {
 public:
  /// Reads all cells; `passes_only` refuses what a schedule does not have.
  csv_reader(std::string_view text, bool passes_only, csv_pairs pairs = csv_pairs::in_turn)
      : passes_only_(passes_only), pairs_(pairs) {
    if (auto const other = foreign_encoding(text); !other.empty())
      refuse(0, none, std::string(other), std::string(expected_utf8));
    text = without_byte_order_mark(text);
    take_separator(text);
    if (text.empty()) refuse(0, none, "nothing", "one line for each rank");
    for (int line = 0; !text.empty(); ++line) {
      read_line(line, take_csv_line(text));
      if (has_waits_) check_waits(line);
    }
    ranks_ = cells_.ranks();
  }

  /// @return placement and number of microbatches: the given ones, checked, or those that the cells
  ///         show
  [[nodiscard]] std::pair<placement, int> shape(
      std::optional<placement> const& given, std::optional<int> given_microbatches) {
    // Empty lines at the end are no ranks, unless the placement has as many.
    while (ranks_ > (given ? given->ranks() : 1) && cells_[ranks_ - 1].empty()) --ranks_;
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
    result.reserve(index(ranks_), cells_.size());
    for (int line = 0; line < ranks_; ++line) {
      for (auto const& c : cells_[line])
        if (!c.is_outside()) result.push(c.what);
      result.end_row();
    }
    return result;
  }

  /// @return the passes of all ranks
  [[nodiscard]] rows<pass> passes() const {
    rows<pass> result;
    result.reserve(index(ranks_), cells_.size());
    for (int line = 0; line < ranks_; ++line) {
      for (auto const& c : cells_[line]) result.push(c.what.as_pass());
      result.end_row();
    }
    return result;
  }

  /// @return how often each outside action stands in the file
  [[nodiscard]] std::array<std::int64_t, csv_outside_actions.size()> outside_actions() const {
    std::array<std::int64_t, csv_outside_actions.size()> count{};
    for_each([&](int, cell const& c) {
      if (c.is_outside()) ++count[index(c.outside)];
    });
    return count;
  }

 private:
  static constexpr std::int64_t none = -1;

  using cell = csv_cell;

  // The given placement, checked, or the one that the cells show.
  [[nodiscard]] placement placement_or(std::optional<placement> const& given) const {
    if (!given) return shown_placement();
    if (given->ranks() != ranks_)
      refuse(
          ranks_ - 1,
          none,
          std::to_string(ranks_) + " lines",
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

  // Spreadsheets name the separator in a line of its own, such as `sep=;`.
  void take_separator(std::string_view& text) {
    separator_ = csv_separator(text);
    constexpr std::string_view name = "sep=";
    if (!text.starts_with(name)) return;
    auto const stated = take_csv_line(text).substr(name.size());
    if (stated != "," && stated != ";" && stated != "\t")
      refuse(0, none, "'sep=" + visible(stated, 40) + "'", "a comma, a semicolon or a tab");
    separator_ = stated.front();
    skipped_lines_ = 1;
  }

  void read_line(int line, std::string_view text) {
    csv_rest rest{text};
    for (std::int64_t column = 0; !rest.has_ended; ++column)
      read_cell(line, column, take_csv_cell(rest, separator_));
    cells_.end_row();
  }

  void read_cell(int line, std::int64_t column, csv_text_cell const& from) {
    auto complain = [&](std::string const& expected) {
      refuse(line, column, "'" + visible(from.written, 40) + "'", expected);
    };
    if (!from.is_closed) complain("one action, with a quote before and behind it or none");
    auto const text = from.content;
    auto rest = text;
    if (text.empty()) return;
    if (!rest.starts_with('(')) {
      auto action = read_action(rest, complain);
      action.column = column;
      cells_.push(action);
      if (!rest.empty())
        complain(
            "nothing after " + std::string(text.substr(0, text.size() - rest.size())) +
            (rest.find_first_of(",;\t") == std::string_view::npos ? "" : separator_note(from)));
      return;
    }
    auto const take = [&](std::string_view what) {
      if (!rest.starts_with(what)) complain("a pair like (0F7;7B3)OVERLAP_F_B");
      rest.remove_prefix(what.size());
    };
    take("(");
    auto first = read_action(rest, complain);
    take(";");
    auto second = read_action(rest, complain);
    take(")");
    take(csv_pair_name);
    if (!rest.empty()) complain("nothing after the pair");
    if (!is_pair(first.what, second.what) && !is_pair(second.what, first.what))
      complain("an F and a B or I of two microbatches in a pair");
    first.column = second.column = column;
    if (pairs_ == csv_pairs::together) {
      if (!is_pair(first.what, second.what)) std::swap(first, second);
      second.what.is_paired = true;
    }
    cells_.push(first);
    cells_.push(second);
  }

  [[nodiscard]] std::string separator_note(csv_text_cell const& from) const {
    if (from.is_quoted) return "; quotes hold one cell";
    auto const* const name = separator_ == ','   ? "commas"
                             : separator_ == ';' ? "semicolons"
                                                 : "tabs";
    return std::string("; in this text, ") + name + " separate cells";
  }

  // Reads one action, and leaves in `rest` what stands behind it.
  template <class Complain>
  [[nodiscard]] cell read_action(std::string_view& rest, Complain complain) {
    cell action;
    auto& what = action.what;
    if (!read_number(rest, what.stage))
      complain("a cell like 0F3 that begins with a stage from 0 to 2147483647");
    auto const letters = rest.substr(0, rest.find_first_of("0123456789"));
    auto const known = passes_only_ ? std::size_t{5} : csv_letters.size();
    std::size_t kind = 0;
    while (kind < known && csv_letters[kind] != letters) ++kind;
    what.kind = static_cast<instruction_kind>(kind);
    if (kind == known) {
      action.outside = outside_action(letters);
      if (!action.is_outside())
        complain(
            passes_only_
                ? "F, I, W, B or R after the stage, for a schedule has passes only"
                : "F, I, W, B, R, SEND_F, RECV_F, SEND_B, RECV_B, STEP, NORM, VALIDATE, SEND_T, "
                  "ADD_T, UNSHARD, RESHARD, REDUCE_GRAD, WAIT_REDUCE_GRAD, WAIT_SEND_F or "
                  "WAIT_SEND_B after the stage");
      what.kind = csv_outside_actions[index(action.outside)].like;
      has_waits_ = has_waits_ || what.is_send();
    }
    rest.remove_prefix(letters.size());
    if (what.has_microbatch() && !read_number(rest, what.microbatch))
      complain("a microbatch from 0 to 2147483647 after the letters");
    return action;
  }

  // Which outside action it is; none in a schedule.
  [[nodiscard]] std::int32_t outside_action(std::string_view letters) const {
    auto const* const found = std::ranges::find(
        csv_outside_actions, letters, [](csv_outside_action const& a) { return a.letters; });
    bool const is_known = !passes_only_ && found != csv_outside_actions.end();
    return is_known ? static_cast<std::int32_t>(found - csv_outside_actions.begin()) : -1;
  }

  // Each wait follows its send, which is waited for once.
  void check_waits(int line) const {
    std::set<instruction> pending;
    for (auto const& c : cells_[line]) {
      if (!c.what.is_send()) continue;
      if (!c.is_outside())
        pending.insert(c.what);
      else if (pending.erase(c.what) == 0)
        refuse(
            line, c, "its " + to_string(cell{c.what}) + " before it, and no other wait for that");
    }
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
    for (int line = 0; line < ranks_; ++line)
      if (cells_[line].empty())
        refuse(line, none, "no action", "at least one, for a placement to be seen in the cells");
    for_each([&](int line, cell const& c) {
      auto const [at, is_new] = first.try_emplace(c.what.stage, line, c);
      if (!is_new && at->second.first != line)
        refuse(
            line,
            c,
            "stage " + std::to_string(c.what.stage) + " on one rank only; line " +
                std::to_string(at->second.first + 1 + skipped_lines_) + " has it too");
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
          ranks_ - 1,
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
    for (int line = 0; line < ranks_; ++line)
      for (auto const& c : cells_[line]) visit(line, c);
  }

  [[noreturn]] void refuse(int line, cell const& c, std::string const& expected) const {
    refuse(line, c.column, "'" + to_string(c) + "'", expected);
  }

  [[noreturn]] void refuse(
      int line, std::int64_t column, std::string const& found, std::string const& expected) const {
    auto text = "line " + std::to_string(line + 1 + skipped_lines_);
    if (column != none) text += ", cell " + std::to_string(column + 1);
    throw error(errc::bad_format, text + ": found " + found + "; expected " + expected);
  }

  bool passes_only_;
  csv_pairs pairs_;
  bool has_waits_ = false;
  char separator_ = ',';
  int skipped_lines_ = 0;  // in front of the first rank
  int ranks_ = 0;
  rows<cell> cells_;
};

}  // namespace zbpp::detail
