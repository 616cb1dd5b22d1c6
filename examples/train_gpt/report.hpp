// SPDX-License-Identifier: Apache-2.0
//
// What is told and drawn of plans and runs.
#pragma once

#include "planning.hpp"
#include "program.hpp"
#include "runs.hpp"
#include <zbpp/io/file.hpp>
#include <zbpp/io/line_chart.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/io/text_table.hpp>
#include <zbpp/json/plan.hpp>
#include <zbpp/plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Is one policy on its way through the program.
struct contender {
  std::string title;
  zbpp::step_kind kind;                       ///< when ranks step
  std::string why_not;                        ///< why it does not run; empty where it does
  std::optional<zbpp::plan> plan;             ///< of those that run, in the end
  std::optional<run_record> run;              ///< of those that ran
  std::optional<zbpp::plan> first_plan = {};  ///< where it was another one

  /// @return whether there are steps to tell about
  [[nodiscard]] bool has_steps() const { return run && !run->losses.empty(); }
};

/// Writes bytes as mebibytes.
[[nodiscard]] inline std::string mebibytes(zbpp::bytes size) {
  return zbpp::fixed_text(static_cast<double>(size) / (1024.0 * 1024.0), 2);
}

/// Writes ticks as milliseconds.
[[nodiscard]] inline std::string milliseconds(zbpp::ticks time) {
  return zbpp::fixed_text(zbpp::to_milliseconds(time), 3);
}

/// Tells what the passes of each stage take and keep.
[[nodiscard]] inline std::string describe(zbpp::problem const& problem, model_config const& model) {
  zbpp::text_table lines(
      {"stage",
       "rank",
       "layers",
       "F ms",
       "B ms",
       "W ms",
       "update ms",
       "kept to B MiB",
       "to W MiB",
       "edge MiB"});
  for (int s = 0; s < problem.stages(); ++s) {
    auto const& c = problem.costs(s);
    auto const own = layers_of_stage(model, problem.stages(), s);
    auto const blocks = std::min(own.last, model.layers) - own.first;
    lines.add(
        {std::to_string(s),
         std::to_string(problem.placement().rank_of(s)),
         blocks > 0 ? std::to_string(blocks) + (blocks == 1 ? " block" : " blocks")
                    : "shard " + std::to_string(own.first - model.layers),
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
         milliseconds(message_time(problem)) + " ms\n" + lines.text(2);
}

/// Tells what each policy is expected to cost, when steps follow each other.
[[nodiscard]] inline std::string predictions(std::vector<contender> const& all) {
  zbpp::text_table lines({"policy", "placement", "step ms", "bubble", "most memory of a rank MiB"});
  for (auto const& c : all) {
    if (!c.plan) {
      lines.add({c.title}, c.why_not);
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
  return "predicted\n" + lines.text(2);
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
  zbpp::text_table lines(std::move(columns));
  auto const reference = sequential ? median(sequential->milliseconds) : 0.0;
  if (sequential)
    lines.add(
        {sequential->name,
         std::to_string(sequential->losses.size()),
         zbpp::fixed_text(sequential->last_loss(), 4),
         "",
         zbpp::fixed_text(reference, 2),
         "1.00"});
  for (auto const& c : all) {
    if (!c.has_steps()) {
      bool const was_done = c.run && c.run->first > 0 && !interrupt::was_raised();
      lines.add(
          {c.title},
          !c.plan    ? c.why_not
          : was_done ? "took all its steps before"
                     : "interrupted before it began");
      continue;
    }
    std::vector<double> bubbles;
    for (auto const& line : c.run->timelines) bubbles.push_back(zbpp::bubble_rate(line));
    auto const time = median(c.run->milliseconds);
    std::vector<std::string> cells{
        c.title,
        std::to_string(c.run->losses.size()),
        zbpp::fixed_text(c.run->last_loss(), 4),
        !sequential           ? ""
        : c.run->is_identical ? "yes"
                              : "NO",
        zbpp::fixed_text(time, 2),
        sequential ? zbpp::fixed_text(reference / time, 2) : "",
        bubbles.empty() ? "" : percent(median(bubbles)),
        percent(zbpp::bubble_rate(c.plan->timeline()))};
    if (agrees) append(cells, c.run->counts.cells());
    lines.add(std::move(cells));
  }
  return "trained" + std::string(sequential ? "" : "; without the reference, nothing is compared") +
         "\n" + lines.text(2);
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
    if (c.first_plan) {
      auto const before = c.run->typical(0, c.run->first_changed);
      lines.push_back({c.title + " predicted at first", c.first_plan->timeline(), {}});
      lines.push_back({c.title + " measured at first", steps[before], {}});
    }
    auto typical = c.run->typical();
    if (c.kind == zbpp::step_kind::unchecked) {
      auto const profile = zbpp::activation_profile(c.plan->schedule(), c.plan->problem());
      lines.push_back({c.title + " predicted", c.plan->timeline(), profile});
      lines.back().reductions = zbpp::reductions_of(c.plan->timeline(), c.plan->problem());
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

/// Finds the last policy that ran and of which a typical step is known.
/// @return null where there is none
[[nodiscard]] inline contender const* last_with_step(std::vector<contender> const& all) {
  contender const* last = nullptr;
  for (auto const& c : all)
    if (c.has_steps() && c.run->typical_step.size() > 0) last = &c;
  return last;
}

/// Tells in three lines what made a typical step longer than predicted.
[[nodiscard]] inline std::string shortfall(
    std::string const& title, zbpp::explanation const& step) {
  auto const share = [](zbpp::ticks part, zbpp::ticks whole) {
    return percent(
        static_cast<double>(part) / static_cast<double>(std::max<zbpp::ticks>(whole, 1)));
  };
  std::vector<std::pair<zbpp::ticks, std::string>> losses{
      {0, "longer passes"},
      {0, "waits for other ranks"},
      {0, "messages"},
      {0, "late starts"},
      {0, "late sends"}};
  std::pair<zbpp::ticks, std::string> best{step.message_gain, "messages as predicted"};
  if (step.host_gain > best.first) best = {step.host_gain, "no late starts"};
  if (step.send_gain > best.first) best = {step.send_gain, "no late sends"};
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    auto const& rank = step.ranks[r];
    losses[0].first += rank.longer;
    losses[1].first += std::accumulate(rank.for_rank.begin(), rank.for_rank.end(), zbpp::ticks{0});
    losses[2].first += rank.messages;
    losses[3].first += rank.host + rank.taken_late;
    losses[4].first += rank.sent_late;
    if (rank.gain > best.first)
      best = {rank.gain, "the passes of rank " + std::to_string(r) + " as predicted"};
  }
  std::ranges::stable_sort(losses, std::ranges::greater{}, [](auto& loss) { return loss.first; });
  std::string list;
  for (auto const& [lost, name] : losses)
    if (lost > 0)
      list += (list.empty() ? "" : ", ") + name + " " +
              share(lost, step.measured * std::ssize(step.ranks));
  auto const more = step.measured - step.planned;
  return "a typical step of " + title + ": " + milliseconds(step.measured) + " ms, " +
         share(std::abs(more), step.planned) + (more < 0 ? " less" : " more") +
         " than predicted\n  lost, of the time of all ranks: " + (list.empty() ? "nothing" : list) +
         "\n  with " + best.second + " it would end " + share(best.first, step.measured) +
         " sooner";
}

/// Writes the pictures, and the plan of the last policy, into a folder; each file appears as a
/// whole or not at all.
/// @param explained  what is found of the last policy's typical step, to be drawn; or null
/// @throws zbpp::error (io_failed) with the path and the reason
/// @return the names of the files; empty where no step was taken
[[nodiscard]] inline std::string write_files(
    std::filesystem::path const& folder,
    std::optional<run_record> const& sequential,
    std::vector<contender> const& all,
    double entropy,
    zbpp::explanation const* explained) {
  zbpp::line_chart losses{
      .title = "Loss", .vertical = {.title = "loss", .unit = "nats a byte"}, .is_overlaid = true};
  zbpp::chart_panel panel{
      .horizontal = {.title = "step", .is_whole = true},
      .level = zbpp::chart_level{entropy, "entropy of single bytes"}};
  // What another program saw before is not known.
  auto const add = [&](std::string name, std::int64_t first, std::vector<double> const& values) {
    panel.curves.push_back({std::move(name)});
    for (auto const value : values)
      panel.curves.back().points.push_back({static_cast<double>(first++), value});
  };
  if (sequential) {
    losses.title += ": sequential, and the pipelines on top of it";
    add(sequential->name, 0, sequential->losses);
  }
  for (auto const& c : all)
    if (c.has_steps()) add(c.title, c.run->first, c.run->losses);
  if (panel.curves.empty()) return {};
  losses.panels.push_back(std::move(panel));
  zbpp::write_file(folder / "loss.svg", to_svg(losses));
  std::string names = "loss.svg";
  auto lines = timelines(all);
  if (!lines.empty()) {
    zbpp::write_file(folder / "timeline.svg", zbpp::to_svg(lines));
    names += ", timeline.svg";
  }
  auto const* const last = last_with_step(all);
  if (last == nullptr) return names;
  lines.push_back({"measured", last->run->typical_step});  // zbpp-plan --explain looks for it
  zbpp::write_file(folder / "trace.json", zbpp::to_chrome_trace(lines));
  auto const& plan = *last->plan;
  zbpp::write_file(
      folder / "plan.json",
      zbpp::json::write_plan(
          zbpp::json::make_plan_report(plan.policy(), plan.schedule(), plan.problem())));
  names += ", trace.json, plan.json";
  if (explained == nullptr) return names;
  auto const drawing = explanation_drawing(plan, last->run->typical_step, *explained);
  zbpp::write_file(folder / "explained.svg", zbpp::to_svg(drawing));
  return names + ", explained.svg";
}

}  // namespace gpt
