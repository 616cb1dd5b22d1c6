// SPDX-License-Identifier: Apache-2.0
//
// CSV files: the cells of instructions; how a text is cut into lines and cells, as spreadsheets and
// editors write it; and how files are read: strict, with line and cell of what is refused.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/csv_pairs.hpp>
#include <zbpp/io/detail/text_encoding.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
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

/// What stands after the passes of a pair.
inline constexpr std::string_view csv_pair_name = "OVERLAP_F_B";

[[nodiscard]] constexpr std::string_view csv_letters(instruction_kind kind) noexcept {
  return is_pass(kind) ? pass_table[static_cast<std::size_t>(kind)].csv_letters : to_string(kind);
}

/// An action of PyTorch's runtime that no program has. Those about one microbatch follow a send.
struct csv_ignored_action {
  std::string_view letters;
  instruction_kind like;  ///< the kind that it is as to ids: a send, or an optimizer step
};

/// Sharded weights are gathered and let go, gradients reduced among replicas, and sends waited for.
inline constexpr std::array<csv_ignored_action, 6> csv_ignored_actions{
    {{"UNSHARD", instruction_kind::optimizer_step},
     {"RESHARD", instruction_kind::optimizer_step},
     {"REDUCE_GRAD", instruction_kind::optimizer_step},
     {"WAIT_REDUCE_GRAD", instruction_kind::optimizer_step},
     {"WAIT_SEND_F", instruction_kind::send_activation},
     {"WAIT_SEND_B", instruction_kind::send_gradient}}};

/// Writes one cell.
/// @throws error (bad_argument) when there is no such kind of instruction
inline void add_cell(std::string& text, instruction const& i) {
  if (static_cast<int>(i.kind) >= instruction_kinds)
    throw error(errc::bad_argument) + to_string(i) + ": there is no such instruction";
  text += std::to_string(i.stage);
  text += csv_letters(i.kind);
  if (i.has_microbatch()) text += std::to_string(i.microbatch);
}

/// One cell to write: an instruction, or else a text.
struct csv_part {
  instruction content;
  std::string text = {};
};

/// One cell as it was read.
struct csv_cell {
  instruction content;        // of an ignored action, with the kind that it is like
  std::int32_t ignored = -1;  // which ignored action it is
  std::int64_t column = 0;

  [[nodiscard]] bool is_ignored() const noexcept { return ignored >= 0; }
};

/// Writes a cell that was read as it stands in its file.
[[nodiscard]] inline std::string to_string(csv_cell const& c) {
  std::string text;
  if (!c.is_ignored()) {
    add_cell(text, c.content);
    return text;
  }
  text = std::to_string(c.content.stage);
  text += csv_ignored_actions[index(c.ignored)].letters;
  if (c.content.has_microbatch()) text += std::to_string(c.content.microbatch);
  return text;
}

/// Holds one cell of a line.
struct csv_text_cell {
  std::string_view written;  ///< with its quotes, without blanks around it
  std::string_view content;  ///< what the quotes hold, if there are any, without blanks around it
  bool is_quoted = false;
  bool is_closed = true;  ///< whether its quotes end, and nothing stands after them
};

/// Removes the first line of a text, with its end: LF, CR LF, CR CR LF (which a CR LF becomes that
/// is written twice as text), or a CR alone.
[[nodiscard]] inline std::string_view take_csv_line(std::string_view& text) noexcept {
  auto const line = text.substr(0, text.find_first_of("\r\n"));
  text.remove_prefix(line.size());
  for (std::string_view const end : {"\r\r\n", "\r\n", "\r", "\n"}) {
    if (!text.starts_with(end)) continue;
    text.remove_prefix(end.size());
    break;
  }
  return line;
}

/// @return what separates the cells of a text: commas, or semicolons where there is no comma, or
///         tabs where there is neither; quotes and pairs in brackets do not count
[[nodiscard]] inline char csv_separator(std::string_view text) noexcept {
  bool has_semicolon = false;
  bool has_tab = false;
  char until = '\0';  // what ends the quotes or brackets
  for (char const c : text) {
    if (c == '\n' || c == '\r' || c == until) {
      until = '\0';
    } else if (until == '\0') {
      if (c == '"') until = '"';
      if (c == '(') until = ')';
      if (c == ',') return ',';
      has_semicolon = has_semicolon || c == ';';
      has_tab = has_tab || c == '\t';
    }
  }
  return has_semicolon ? ';' : has_tab ? '\t' : ',';
}

/// What is left of a line. An empty text is one more cell, unless the line has ended.
struct csv_rest {
  std::string_view text;
  bool has_ended = false;
};

/// Removes the first cell of a line, and the separator after it; the line has not ended.
[[nodiscard]] inline csv_text_cell take_csv_cell(csv_rest& rest, char separator) noexcept {
  auto const line = rest.text;
  auto const front = trimmed_front(separator == '\t' ? line.substr(0, line.find('\t')) : line);
  auto const begin = static_cast<std::size_t>(front.data() - line.data());
  std::size_t search = 0;  // where the cell may end
  if (front.starts_with('"')) {
    search = line.find('"', begin + 1);
    while (search != std::string_view::npos && line.substr(search + 1).starts_with('"'))
      search = line.find('"', search + 2);
  }
  if (separator == ';' && front.starts_with('('))
    search = std::min(line.size(), line.find(')', begin));
  auto const end = search == std::string_view::npos ? search : line.find(separator, search);
  csv_text_cell cell;
  cell.written = trimmed(line.substr(0, end));
  cell.content = cell.written;
  cell.is_quoted = cell.written.starts_with('"');
  if (cell.is_quoted) {
    cell.is_closed =
        cell.written.size() > 1 && cell.written.find('"', 1) + 1 == cell.written.size();
    if (cell.is_closed) cell.content = trimmed(cell.written.substr(1, cell.written.size() - 2));
  }
  rest.has_ended = end == std::string_view::npos;
  if (!rest.has_ended) rest.text.remove_prefix(end + 1);
  return cell;
}

/// @return at most `most` characters of a text, with names of characters that cannot be seen
[[nodiscard]] inline std::string visible(std::string_view text, std::size_t most) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::string shown;
  while (!text.empty() && shown.size() < 4 * most) {
    auto const* const known = std::find_if(
        invisible_characters.begin(), invisible_characters.end(), [&](auto const& one) {
          return text.starts_with(one.bytes);
        });
    auto const first = static_cast<unsigned char>(text.front());
    std::size_t size = 1;
    if (known != invisible_characters.end()) {
      shown += known->name;
      size = known->bytes.size();
    } else if (first < 0x20 || first == 0x7F) {
      shown.append("<U+00").append(1, digits[first >> 4]).append(1, digits[first & 15]) += '>';
    } else {
      shown += text.front();
    }
    text.remove_prefix(size);
  }
  return one_line(shown, most);
}

/// Reads the cells of a file and finds out, or checks, what they are about.
class csv_reader {
 public:
  /// Reads all cells; `passes_only` refuses what a schedule does not have.
  csv_reader(std::string_view text, bool passes_only, csv_pairs pairs = csv_pairs::in_turn)
      : passes_only_(passes_only), pairs_(pairs) {
    if (auto const other = foreign_encoding(text); !other.empty())
      refuse(0, none, std::string(other), std::string(expected_instead_of(other)));
    text = without_byte_order_mark(text);
    take_separator(text);
    if (text.empty()) refuse(0, none, "nothing", "one line for each rank");
    for (int line = 0; !text.empty(); ++line) {
      read_line(line, take_csv_line(text));
      if (has_waits_) check_waits(line);
    }
    ranks_ = cells_.ranks();
  }

  /// @return placement and number of microbatches: those given, checked, or those of the cells
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

  [[nodiscard]] rows<instruction> instructions() const {
    rows<instruction> result;
    result.reserve(index(ranks_), cells_.size());
    for (int line = 0; line < ranks_; ++line) {
      for (auto const& c : cells_[line])
        if (!c.is_ignored()) result.push(c.content);
      result.end_row();
    }
    return result;
  }

  [[nodiscard]] rows<pass> passes() const {
    rows<pass> result;
    result.reserve(index(ranks_), cells_.size());
    for (int line = 0; line < ranks_; ++line) {
      for (auto const& c : cells_[line]) result.push(c.content.as_pass());
      result.end_row();
    }
    return result;
  }

  [[nodiscard]] std::array<std::int64_t, csv_ignored_actions.size()> ignored_actions() const {
    std::array<std::int64_t, csv_ignored_actions.size()> count{};
    for_each([&](int, cell const& c) {
      if (c.is_ignored()) ++count[index(c.ignored)];
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
          joined(ranks_, " lines"),
          joined(given->ranks(), ", one for each rank of the placement"));
    for_each([&](int line, cell const& c) {
      if (c.content.stage >= given->stages())
        refuse(line, c, joined("a stage from 0 to ", given->stages() - 1));
      if (auto const rank = given->rank_of(c.content.stage); rank != line)
        refuse(line, c, joined("only stages of this rank; that one is on rank ", rank));
    });
    return *given;
  }

  // The given number of microbatches, checked, or the one that the cells show.
  [[nodiscard]] int microbatches(std::optional<int> given) const {
    if (given) require(*given >= 1, "microbatches is given as less than 1");
    std::map<std::int32_t, std::pair<int, cell>> first;
    for_each([&](int line, cell const& c) {
      if (given && c.content.microbatch >= *given)
        refuse(line, c, joined("a microbatch from 0 to ", *given - 1));
      if (!given && c.content.has_microbatch()) first.try_emplace(c.content.microbatch, line, c);
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
            joined("nothing after ") + text.substr(0, text.size() - rest.size()) +
            (rest.find_first_of(",;\t") == std::string_view::npos ? "" : separator_note(from)));
      return;
    }
    auto const take = [&](std::string_view letters) {
      if (!rest.starts_with(letters)) complain("a pair like (0F7;7B3)OVERLAP_F_B");
      rest.remove_prefix(letters.size());
    };
    take("(");
    auto first = read_action(rest, complain);
    take(";");
    auto second = read_action(rest, complain);
    take(")");
    take(csv_pair_name);
    if (!rest.empty()) complain("nothing after the pair");
    if (!is_pair(first.content, second.content) && !is_pair(second.content, first.content))
      complain("an F and a B or I of two microbatches in a pair");
    first.column = second.column = column;
    if (pairs_ == csv_pairs::together) {
      if (!is_pair(first.content, second.content)) std::swap(first, second);
      second.content.is_paired = true;
    }
    cells_.push(first);
    cells_.push(second);
  }

  [[nodiscard]] std::string separator_note(csv_text_cell const& from) const {
    if (from.is_quoted) return "; quotes hold one cell";
    auto const* const name = separator_ == ','   ? "commas"
                             : separator_ == ';' ? "semicolons"
                                                 : "tabs";
    return joined("; in this text, ", name, " separate cells");
  }

  // Reads one action, and leaves in `rest` what stands after it.
  template <class Complain>
  [[nodiscard]] cell read_action(std::string_view& rest, Complain complain) {
    cell action;
    auto& read = action.content;
    if (!read_number(rest, read.stage))
      complain("a cell like 0F3 that begins with a stage from 0 to 2147483647");
    auto const letters = rest.substr(0, rest.find_first_of("0123456789"));
    int const known = passes_only_ ? static_cast<int>(pass_kinds) : instruction_kinds;
    int kind = 0;
    while (kind < known && csv_letters(static_cast<instruction_kind>(kind)) != letters) ++kind;
    read.kind = static_cast<instruction_kind>(kind);
    if (kind == known) {
      action.ignored = ignored_action(letters);
      if (!action.is_ignored())
        complain(
            passes_only_
                ? "F, I, W, B or R after the stage, for a schedule has passes only"
                : "F, I, W, B, R, SEND_F, RECV_F, SEND_B, RECV_B, STEP, NORM, VALIDATE, SEND_T, "
                  "ADD_T, STEP_NOW, UNSHARD, RESHARD, REDUCE_GRAD, WAIT_REDUCE_GRAD, WAIT_SEND_F "
                  "or WAIT_SEND_B after the stage");
      read.kind = csv_ignored_actions[index(action.ignored)].like;
      has_waits_ = has_waits_ || read.is_send();
    }
    rest.remove_prefix(letters.size());
    if (read.has_microbatch() && !read_number(rest, read.microbatch))
      complain("a microbatch from 0 to 2147483647 after the letters");
    return action;
  }

  // Which ignored action it is; none in a schedule.
  [[nodiscard]] std::int32_t ignored_action(std::string_view letters) const {
    auto const* const found = std::ranges::find(
        csv_ignored_actions, letters, [](csv_ignored_action const& a) { return a.letters; });
    bool const is_known = !passes_only_ && found != csv_ignored_actions.end();
    return is_known ? static_cast<std::int32_t>(found - csv_ignored_actions.begin()) : -1;
  }

  // Each wait follows its send, which is waited for once.
  void check_waits(int line) const {
    std::set<instruction> pending;
    for (auto const& c : cells_[line]) {
      if (!c.content.is_send()) continue;
      if (!c.is_ignored())
        pending.insert(c.content);
      else if (pending.erase(c.content) == 0)
        refuse(
            line,
            c,
            "its " + to_string(cell{c.content}) + " before it, and no other wait for that");
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
      auto const [at, is_new] = first.try_emplace(c.content.stage, line, c);
      if (!is_new && at->second.first != line)
        refuse(
            line,
            c,
            joined("stage ") + c.content.stage + " on one rank only; line " +
                (at->second.first + 1 + skipped_lines_) + " has it too");
    });
    count_without_gap(first, "stage");
    std::vector<int> rank_of;
    rank_of.reserve(first.size());
    for (auto const& [stage, at] : first) rank_of.push_back(at.first);
    return placement::custom(std::move(rank_of));
  }

  void check_passes(std::int64_t least) const {
    std::int64_t passes = 0;
    for_each([&](int, cell const& c) { passes += c.content.is_pass() ? 1 : 0; });
    if (passes < least)
      refuse(
          ranks_ - 1,
          none,
          joined(passes, " passes in all"),
          joined("at least ", least, ", one for each stage and microbatch that the cells show"));
  }

  int count_without_gap(
      std::map<std::int32_t, std::pair<int, cell>> const& first, std::string const& name) const {
    int count = 0;
    for (auto const& [id, at] : first) {
      if (id != count)
        refuse(
            at.first,
            at.second,
            joined("a cell with ", name, " ", count, " too; they are numbered without a gap"));
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
    std::string text = joined("line ", line + 1 + skipped_lines_);
    if (column != none) text += joined(", cell ", column + 1);
    throw error(errc::bad_format) + text + ": found " + found + "; expected " + expected;
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
