// SPDX-License-Identifier: Apache-2.0
//
// How an explanation becomes lines.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/explanation_text.hpp>
#include <zbpp/io/text_table.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

[[nodiscard]] ZBPP_INLINE double percent_of(ticks part, ticks whole) {
  return 100 * static_cast<double>(part) / static_cast<double>(whole);
}

/// A column of the accounts.
struct account_column {
  std::string name;
  ticks (*part)(rank_account const& of);
};

/// @param has_messages  whether a record of messages tells what was late
/// @return the parts of an account
[[nodiscard]] ZBPP_INLINE std::vector<account_column> account_columns(bool has_messages) {
  using account = rank_account const&;
  std::vector<account_column> columns{
      {"passes", [](account of) { return of.work; }},
      {"longer", [](account of) { return of.longer; }},
      {"bubble", [](account of) { return of.bubble; }},
      {"imbalance", [](account of) { return of.imbalance; }},
      {"for ranks", [](account of) {
         return std::accumulate(of.for_rank.begin(), of.for_rank.end(), ticks{0});
       }}};
  if (has_messages) columns.push_back({"sent late", [](account of) { return of.sent_late; }});
  columns.push_back({"messages", [](account of) { return of.messages; }});
  if (has_messages) columns.push_back({"taken late", [](account of) { return of.taken_late; }});
  columns.push_back({"host", [](account of) { return of.host; }});
  columns.push_back({"optimizer", [](account of) { return of.optimizer; }});
  columns.push_back({"gain", [](account of) { return of.gain; }});
  return columns;
}

/// @return an empty table with a column for the rank, and these
[[nodiscard]] ZBPP_INLINE text_table account_table(std::vector<account_column> const& columns) {
  std::vector<std::string> names{"rank"};
  for (auto const& column : columns) names.push_back(column.name);
  return text_table(std::move(names));
}

/// Writes the parts of an explanation in one unit.
class explanation_text {
 public:
  explanation_text(explanation const& step, time_unit unit) : step_(step), unit_(unit) {}

  [[nodiscard]] std::string text() const {
    auto text = "step " + time(step_.measured) + "; planned " + time(step_.planned);
    if (step_.planned > 0)
      text += ", " + fixed_text(percent_of(step_.measured - step_.planned, step_.planned), 1) +
              " % more";
    if (step_.clock_error > 0)
      text += "\nclocks are set to that of rank 0 within " + time(step_.clock_error);
    return text + "\n\n" + accounts() + "\n" + critical() + delays() + gains();
  }

 private:
  [[nodiscard]] std::string number(ticks t) const { return fixed_text(t, unit_, 3); }
  [[nodiscard]] std::string time(ticks t) const { return joined(number(t), " ", to_string(unit_)); }

  [[nodiscard]] std::string accounts() const {
    auto const columns = account_columns(step_.has_messages);
    auto table = account_table(columns);
    for (std::size_t r = 0; r < step_.ranks.size(); ++r) {
      auto const& waits = step_.ranks[r].for_rank;
      std::vector<std::string> cells{std::to_string(r)};
      for (auto const& column : columns) cells.push_back(number(column.part(step_.ranks[r])));
      auto const most = std::ranges::max_element(waits);
      table.add(
          std::move(cells),
          most != waits.end() && *most > 0
              ? "waits most for rank " + std::to_string(most - waits.begin())
              : "");
    }
    return table.text();
  }

  // By rank, in the order in which the path comes to them first.
  [[nodiscard]] std::string critical() const {
    struct part {
      int rank;
      ticks took = 0;
      ticks longer = 0;
    };
    std::vector<part> parts;
    ticks sent_late = 0;
    ticks messages = 0;
    ticks host = 0;
    ticks optimizer = 0;
    for (auto const& p : step_.critical) {
      auto at = std::ranges::find(parts, p.rank, &part::rank);
      if (at == parts.end()) at = parts.insert(at, {p.rank});
      at->took += p.end - p.start;
      at->longer += p.end - p.start - p.planned;
      auto const late = p.cause == wait_cause::message ? p.taken_late : p.waited;
      (p.cause == wait_cause::optimizer ? optimizer : host) += late;
      sent_late += p.sent_late;
      messages += p.waited - late - p.sent_late;
    }
    std::string text = joined("critical path, ", step_.critical.size(), " passes:");
    for (auto const& [rank, took, longer] : parts)
      text += joined(" rank ") + rank + " " + time(took) +
              (longer > 0 ? " (" + number(longer) + " longer)" : "") + ",";
    if (step_.has_messages) text += " sent late " + time(sent_late) + ",";
    if (optimizer > 0) text += " optimizer " + time(optimizer) + ",";
    return text + " messages " + time(messages) + ", host " + time(host) + "\n";
  }

  [[nodiscard]] std::string delays() const {
    std::string text;
    for (auto const& d : step_.worst) {
      std::string const pass = joined(to_string(d.pass), " on rank ", d.rank);
      auto const longer = " took " + time(d.took) + " for " + number(d.planned) + "; at that";
      auto const late = time(d.took) + " late; without that";
      switch (d.kind) {
        case delay_kind::pass: text += pass + longer; break;
        case delay_kind::send: text += "the message to " + pass + " was sent " + late; break;
        case delay_kind::message: text += "the message to " + pass + longer; break;
        case delay_kind::start: text += pass + " started " + late; break;
      }
      text += " the step ends " + number(d.gain) + " sooner\n";
    }
    return text;
  }

  [[nodiscard]] std::string gains() const {
    std::string text;
    auto const add = [&](std::string const& cause, ticks gain) {
      if (gain > 0) text += "with " + cause + " the step ends " + time(gain) + " sooner\n";
    };
    auto const most = std::ranges::max_element(step_.ranks, {}, &rank_account::gain);
    if (most != step_.ranks.end())
      add(joined("the passes of rank ", most - step_.ranks.begin(), " as planned"), most->gain);
    add("messages as stated", step_.message_gain);
    add("messages sent at once", step_.send_gain);
    add("no late starts", step_.host_gain);
    return text;
  }

  explanation const& step_;
  time_unit unit_;
};

}  // namespace detail

ZBPP_INLINE std::string to_text(explanation const& step, time_unit unit) {
  return detail::explanation_text(step, unit).text();
}

ZBPP_INLINE std::string changes_text(
    explanation const& before, explanation const& after, time_unit unit) {
  detail::require(
      before.ranks.size() == after.ranks.size(),
      "the steps to compare have different numbers of ranks; give two steps of one plan");
  auto const change = [&](ticks from, ticks to) {
    std::string signed_text = to > from ? "+" : "";
    signed_text += fixed_text(to - from, unit, 3);
    return signed_text;
  };
  std::string text =
      detail::joined("step ", change(before.measured, after.measured), " ", to_string(unit));
  if (before.measured > 0) {
    auto const grown = after.measured - before.measured;
    text += detail::joined(", ") + (grown > 0 ? "+" : "") +
            fixed_text(detail::percent_of(grown, before.measured), 1) + " %";
  }
  auto const columns = detail::account_columns(before.has_messages || after.has_messages);
  auto table = detail::account_table(columns);
  for (std::size_t r = 0; r < before.ranks.size(); ++r) {
    std::vector<std::string> cells{std::to_string(r)};
    for (auto const& column : columns)
      cells.push_back(change(column.part(before.ranks[r]), column.part(after.ranks[r])));
    table.add(std::move(cells));
  }
  return text + "\n\n" + table.text();
}

}  // namespace zbpp
