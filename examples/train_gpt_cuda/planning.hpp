// SPDX-License-Identifier: Apache-2.0
//
// From the names of policies to plans: which placement a policy takes, or why it takes none, and
// what the passes cost there.
#pragma once

#include "measure.hpp"
#include "options.hpp"
#include <zbpp/planner/registry.hpp>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpt::cuda {

/// Is one policy on its way through the program.
struct contender {
  std::string title;
  zbpp::step_kind kind;            ///< when ranks step
  std::string why_not;             ///< why it does not run; empty where it does
  std::optional<zbpp::plan> plan;  ///< of those that run
};

/// Measures a problem whose sizes are stated, by steps of a policy that takes its placement.
using measure_call =
    std::function<zbpp::problem(zbpp::any_policy const&, zbpp::problem const& stated)>;

/// Plans for the policies that the user named; measures each placement once.
class planner {
 public:
  /// @param o        outlives the planner, as does the text
  /// @param measure  is called where the user wants that
  planner(options const& o, text const& on, measure_call measure)
      : o_(&o), on_(&on), measure_(std::move(measure)) {}

  /// Finds the first placement that a policy takes (two chunks per rank as a V, two in a loop, one)
  /// and plans there, with each kind of steps.
  /// @return one of each kind; one in all where the policy does not run
  /// @throws setting_error when the user asked for a policy that takes none
  [[nodiscard]] std::vector<contender> plan(std::string const& name) {
    auto const policy = zbpp::find_policy(zbpp::builtin_policies(), name);
    std::vector<contender> found;
    for (auto const kind : o_->kinds) {
      found.push_back({title_of(policy.title(), kind, o_->kinds), kind, {}, {}});
      fill(policy, found.back());
      if (!found.back().plan) break;
    }
    if (o_->names_policies && !found.front().plan)
      throw setting_error("--policy " + name + ": " + found.front().why_not);
    return found;
  }

  /// @return what was measured, as text
  [[nodiscard]] std::string const& told() const { return told_; }

 private:
  void fill(zbpp::any_policy const& policy, contender& of) {
    for (auto const& where :
         {zbpp::placement::v_shape(o_->ranks),
          zbpp::placement::looped(o_->ranks, 2),
          zbpp::placement::linear(o_->ranks)}) {
      if (where.stages() > o_->how.model.layers) {
        of.why_not = "needs " + std::to_string(where.stages()) +
                     " stages with a block each; --layers is " +
                     std::to_string(o_->how.model.layers);
        continue;
      }
      try {
        of.plan = zbpp::make_plan(
            policy,
            problem(where, policy),
            {.receive_ahead = receive_ahead_of(*o_), .step = of.kind, .layout = layout_of(*o_)});
        of.why_not.clear();
        return;
      } catch (zbpp::error const& refused) {
        if (refused.code() != zbpp::errc::unsupported_problem) throw;
        // With more layers it might have taken another placement, which is the better advice.
        if (of.why_not.empty()) of.why_not = refused.what();
      }
    }
  }

  [[nodiscard]] zbpp::problem const& problem(
      zbpp::placement const& placement, zbpp::any_policy const& policy) {
    auto const known = std::find_if(problems_.begin(), problems_.end(), [&](auto const& p) {
      return p.placement() == placement;
    });
    if (known != problems_.end()) return *known;
    auto stated = guessed_problem(o_->how, *on_, placement);
    if (!o_->measure) return problems_.emplace_back(std::move(stated));
    auto measured = measure_(policy, stated);
    told_ += describe(measured) + "\n";
    return problems_.emplace_back(std::move(measured));
  }

  options const* o_;
  text const* on_;
  measure_call measure_;
  std::vector<zbpp::problem> problems_;
  std::string told_;
};

}  // namespace gpt::cuda
