// SPDX-License-Identifier: Apache-2.0
//
// What the program tells before and after training: the problem, the predictions, the outcome, and
// the pictures.
#pragma once

#include "runs.hpp"
#include "svg_chart.hpp"
#include "table.hpp"
#include <zbpp/zbpp.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Is one policy on its way through the program.
struct contender {
  std::string title;
  zbpp::step_kind kind;            ///< when ranks step
  std::string why_not;             ///< why it does not run; empty where it does
  std::optional<zbpp::plan> plan;  ///< of those that run
  std::optional<run_record> run;   ///< of those that ran

  /// @return whether there are steps to tell about
  [[nodiscard]] bool has_steps() const { return run && !run->losses.empty(); }
};

/// Writes bytes as mebibytes.
[[nodiscard]] inline std::string mebibytes(zbpp::bytes size) {
  return fixed(static_cast<double>(size) / (1024.0 * 1024.0), 2);
}

/// Writes ticks as milliseconds.
[[nodiscard]] inline std::string milliseconds(zbpp::ticks time) {
  return fixed(zbpp::to_milliseconds(time), 3);
}

/// Tells what the passes of each stage take and keep.
[[nodiscard]] inline std::string describe(zbpp::problem const& problem, index layers) {
  table lines(
      {"stage",
       "rank",
       "blocks",
       "F ms",
       "B ms",
       "W ms",
       "update ms",
       "kept to B MiB",
       "to W MiB",
       "edge MiB"});
  for (int s = 0; s < problem.stages(); ++s) {
    auto const& c = problem.costs(s);
    auto const blocks = blocks_of_stage(layers, problem.stages(), s);
    lines.add(
        {std::to_string(s),
         std::to_string(problem.placement().rank_of(s)),
         std::to_string(blocks.last - blocks.first),
         milliseconds(c.forward),
         milliseconds(c.backward_input),
         milliseconds(c.backward_weight),
         milliseconds(c.norm + c.optimizer_step),
         mebibytes(c.activation),
         mebibytes(c.weight_gradient_input),
         mebibytes(c.edge)});
  }
  return "problem, " + problem.placement().name() +
         " placement: " + std::to_string(problem.ranks()) + " ranks, " +
         std::to_string(problem.microbatches()) + " microbatches, a message takes " +
         milliseconds(message_time(problem)) + " ms\n" + lines.text();
}

/// Tells what each policy is expected to cost, when steps follow each other.
[[nodiscard]] inline std::string predictions(std::vector<contender> const& all) {
  table lines({"policy", "placement", "step ms", "bubble", "most memory of a rank MiB"});
  for (auto const& c : all) {
    if (!c.plan) {
      lines.add(c.title, c.why_not);
      continue;
    }
    zbpp::bytes most = 0;
    for (auto const& peak : zbpp::peak_memory(c.plan->program(), c.plan->problem()))
      most = std::max(most, peak.total);
    lines.add(
        {c.title,
         c.plan->problem().placement().name(),
         milliseconds(zbpp::times_of_steps(*c.plan).steady.rounded_up()),
         percent(zbpp::bubble_rate(c.plan->timeline())),
         mebibytes(most)});
  }
  return "predicted\n" + lines.text();
}

/// Tells how the runs went; times and measured bubbles are medians over the steps. Where the norm
/// of all gradients decides about steps: how many were taken before it was known, and did not hold.
/// @param sequential  the reference; where there is none, nothing is compared
[[nodiscard]] inline std::string outcome(
    std::optional<run_record> const& sequential, std::vector<contender> const& all) {
  std::vector<std::string> columns{
      "policy",
      "steps",
      "loss at end",
      "identical",
      "step ms",
      "speed-up",
      "bubble measured",
      "predicted"};
  bool const agrees = all.front().kind != zbpp::step_kind::unchecked;
  if (agrees) append(columns, step_counts::columns());
  table lines(std::move(columns));
  auto const reference = sequential ? quantile(sequential->milliseconds) : 0.0;
  if (sequential)
    lines.add(
        {sequential->name,
         std::to_string(sequential->losses.size()),
         fixed(sequential->last_loss(), 4),
         "",
         fixed(reference, 2),
         "1.00"});
  for (auto const& c : all) {
    if (!c.has_steps()) {
      bool const was_done = c.run && c.run->first > 0 && !interrupt::was_raised();
      lines.add(
          c.title,
          !c.plan    ? c.why_not
          : was_done ? "took all its steps before"
                     : "interrupted before it began");
      continue;
    }
    std::vector<double> bubbles;
    for (auto const& line : c.run->timelines) bubbles.push_back(zbpp::bubble_rate(line));
    auto const time = quantile(c.run->milliseconds);
    std::vector<std::string> cells{
        c.title,
        std::to_string(c.run->losses.size()),
        fixed(c.run->last_loss(), 4),
        !sequential           ? ""
        : c.run->is_identical ? "yes"
                              : "NO",
        fixed(time, 2),
        sequential ? fixed(reference / time, 2) : "",
        bubbles.empty() ? "" : percent(quantile(bubbles)),
        percent(zbpp::bubble_rate(c.plan->timeline()))};
    if (agrees) append(cells, c.run->counts.cells());
    lines.add(std::move(cells));
  }
  return "trained" + std::string(sequential ? "" : "; without the reference, nothing is compared") +
         "\n" + lines.text();
}

/// Says whether a step follows the one before without a stop of all ranks: then its clock goes on.
[[nodiscard]] inline bool follows(zbpp::timeline const& before, zbpp::timeline const& line) {
  for (int rank = 0; rank < line.ranks(); ++rank)
    if (line[rank].front().start < before[rank].back().end) return false;
  return true;
}

/// Draws a step, and the next one where that follows without a stop, from the start of the first.
[[nodiscard]] inline zbpp::named_timeline draw_steps(
    std::string name, run_record const& from, std::size_t first) {
  bool const are_two = first + 1 < from.timelines.size() &&
                       follows(from.timelines[first], from.timelines[first + 1]);
  auto const last = are_two ? first + 1 : first;
  auto begin = from.timelines[first][0].front().start;
  for (int rank = 1; rank < from.timelines[first].ranks(); ++rank)
    begin = std::min(begin, from.timelines[first][rank].front().start);
  zbpp::named_timeline drawn{std::move(name), {}};
  for (int rank = 0; rank < from.timelines[first].ranks(); ++rank) {
    for (auto step = first; step <= last; ++step) {
      for (auto timed : from.timelines[step][rank])
        drawn.line.push({timed.pass, timed.start - begin, timed.end - begin});
      auto update = from.updates[step][static_cast<std::size_t>(rank)];
      for (auto const time :
           {&zbpp::rank_update::measured,
            &zbpp::rank_update::stepped,
            &zbpp::rank_update::validated})
        update.*time -= begin;
      // That of the last step may be in a step that is not drawn.
      if (step == last) update.validated = update.stepped;
      drawn.updates.push(update);
    }
    drawn.line.end_row();
    drawn.updates.end_row();
  }
  return drawn;
}

/// Lists the timelines of all that ran and were measured: as planned, and the median step. Where
/// ranks agree on steps, the one that follows it is there as well.
[[nodiscard]] inline std::vector<zbpp::named_timeline> timelines(
    std::vector<contender> const& all) {
  std::vector<zbpp::named_timeline> lines;
  for (auto const& c : all) {
    if (!c.has_steps() || c.run->timelines.empty()) continue;
    auto const& steps = c.run->timelines;
    auto typical = c.run->typical();
    if (c.kind == zbpp::step_kind::unchecked) {
      auto const profile = zbpp::activation_profile(c.plan->schedule(), c.plan->problem());
      lines.push_back({c.title + " predicted", c.plan->timeline(), profile});
      lines.push_back({c.title + " measured", steps[typical], profile});
      continue;
    }
    auto const said = zbpp::simulate_steps(c.plan->program(), c.plan->problem(), 2);
    lines.push_back({c.title + " predicted", said.line, {}, said.updates});
    while (typical > 0 &&
           (typical + 1 == steps.size() || !follows(steps[typical], steps[typical + 1])))
      --typical;
    lines.push_back(draw_steps(c.title + " measured", *c.run, typical));
  }
  return lines;
}

/// Writes the pictures into a folder; each file appears as a whole or not at all.
/// @throws zbpp::error (io_failed) with the path and the reason
/// @return the names of the files; empty where no step was taken
[[nodiscard]] inline std::string write_files(
    std::filesystem::path const& folder,
    std::optional<run_record> const& sequential,
    std::vector<contender> const& all,
    double entropy) {
  chart losses{"Loss in nats a byte", {}, entropy, "entropy of single bytes"};
  if (sequential) {
    losses.title += ": sequential, and the pipelines on top of it";
    losses.curves.push_back({sequential->name, sequential->losses});
  }
  for (auto const& c : all) {
    if (!c.has_steps()) continue;
    // What another program saw before is not known.
    std::vector<double> values(
        static_cast<std::size_t>(c.run->first), std::numeric_limits<double>::quiet_NaN());
    values.insert(values.end(), c.run->losses.begin(), c.run->losses.end());
    losses.curves.push_back({c.title, std::move(values)});
  }
  if (losses.curves.empty()) return {};
  zbpp::write_file(folder / "loss.svg", to_svg(losses));
  auto const lines = timelines(all);
  if (lines.empty()) return "loss.svg";
  zbpp::write_file(folder / "timeline.svg", zbpp::to_svg(lines));
  zbpp::write_file(folder / "trace.json", zbpp::to_chrome_trace(lines));
  return "loss.svg, timeline.svg, trace.json";
}

}  // namespace gpt
