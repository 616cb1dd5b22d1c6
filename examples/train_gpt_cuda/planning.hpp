// SPDX-License-Identifier: Apache-2.0
//
// From the names of policies to plans: which placement a policy takes, or why it takes none, and
// what the passes cost there. They are measured in steps on real text: zeros would take less power,
// and a GPU with nothing else to do is quicker than one whose ranks share its bandwidth, caches and
// power.
#pragma once

#include "options.hpp"
#include "stages.hpp"
#include "train_gpt/program.hpp"
#include <zbpp/analysis/lower.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/io/text_table.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/runtime/measure.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpt::cuda {

/// Chooses which steps are measured: after clocks have fallen under load, and enough for medians
/// over all microbatches. Own choice; the model of CUDA does not get warm.
/// @param separate_clocks  whether devices count time from events of their own
[[nodiscard]] inline zbpp::measure_options measuring(bool separate_clocks) {
  zbpp::measure_options options;
#ifdef ZBPP_CUDA_MODEL
  options.steps = 3;
#else
  options.load = std::chrono::milliseconds(2000);
  options.steps = 9;
#endif
  options.message_quantile = 0.5;
  options.has_separate_clocks = separate_clocks;
  return options;
}

/// Tells what was measured.
[[nodiscard]] inline std::string describe(zbpp::problem const& measured) {
  auto const milliseconds = [](zbpp::ticks time) {
    return zbpp::fixed_text(zbpp::to_milliseconds(time), 3);
  };
  auto const& placement = measured.placement();
  auto const message =
      measured.ranks() > 1 ? measured.transfer()(0, 1, measured.costs(0).edge) : zbpp::ticks{0};
  zbpp::text_table lines({"stage", "rank", "F ms", "B ms", "W ms"});
  for (int s = 0; s < placement.stages(); ++s) {
    auto const& costs = measured.costs(s);
    lines.add(
        {std::to_string(s),
         std::to_string(placement.rank_of(s)),
         milliseconds(costs.forward),
         milliseconds(costs.backward_input),
         milliseconds(costs.backward_weight)});
  }
  return "measured in steps with all ranks busy; " + placement.name() + " placement, messages " +
         milliseconds(message) + " ms\n" + lines.text(2);
}

/// Is one policy on its way through the program.
struct contender {
  std::string title;
  zbpp::step_kind kind;            ///< when ranks step
  std::string why_not;             ///< why it does not run; empty where it does
  std::optional<zbpp::plan> plan;  ///< of those that run
};

/// Plans for the policies that the user named, with each kind of steps; one that does not run is
/// there once. A policy gets the first placement that it takes: two chunks per rank as a V, two in
/// a loop, or one.
/// @param report   gets what was measured
/// @param measure  called as `measure(policy, stated)` once for each placement, if the user wants
///                 that: measures a problem whose sizes are stated
/// @throws setting_error when the user asked for a policy that takes no placement
template <class Measure>
[[nodiscard]] std::vector<contender> plan_all(
    options const& o, text const& on, std::string& report, Measure const& measure) {
  std::vector<zbpp::problem> known;
  auto const problem_of = [&](zbpp::placement const& placement, zbpp::any_policy const& policy) {
    for (auto const& p : known)
      if (p.placement() == placement) return p;
    auto stated = guessed_problem(o.how, on, placement);
    known.push_back(o.measure ? measure(policy, stated) : std::move(stated));
    if (o.measure) report += describe(known.back()) + "\n";
    return known.back();
  };
  auto const plan = [&](zbpp::any_policy const& policy, contender& of) {
    for (auto const& placement :
         {zbpp::placement::v_shape(o.ranks),
          zbpp::placement::looped(o.ranks, 2),
          zbpp::placement::linear(o.ranks)}) {
      if (placement.stages() > o.how.model.layers) {
        of.why_not = "needs " + std::to_string(placement.stages()) +
                     " stages with a block each; --layers is " + std::to_string(o.how.model.layers);
        continue;
      }
      try {
        of.plan = zbpp::make_plan(
            policy,
            problem_of(placement, policy),
            {.receive_ahead = receive_ahead_of(o), .step = of.kind, .layout = layout_of(o)});
        of.why_not.clear();
        return;
      } catch (zbpp::error const& refused) {
        if (refused.code() != zbpp::errc::unsupported_problem) throw;
        // With more layers it might have taken another placement, which is the better advice.
        if (of.why_not.empty()) of.why_not = refused.what();
      }
    }
  };
  std::vector<contender> all;
  for (auto const& name : o.policies) {
    auto const policy = zbpp::find_policy(name);
    auto const first = all.size();
    for (auto const kind : o.kinds) {
      all.push_back({title_of(policy.title(), kind, o.kinds), kind, {}, {}});
      doing("planning " + name, [&] { plan(policy, all.back()); });
      if (!all.back().plan) break;
    }
    if (o.names_policies && !all[first].plan)
      throw setting_error("--policy " + name + ": " + all[first].why_not);
  }
  return all;
}

}  // namespace gpt::cuda
