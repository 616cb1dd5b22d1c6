// SPDX-License-Identifier: Apache-2.0
//
// Shares a budget among the cuts that a policy is asked about.
#pragma once

#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/after_passes.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/search_parts.hpp>
#include <zbpp/planner/named_policy.hpp>
#include <zbpp/planner/partition_by_name.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string_view>
#include <utility>

namespace zbpp {
namespace detail {

/// Makes one search of the schedules of many cuts in what it reports.
class cuts_progress {
 public:
  cuts_progress(std::function<void(search_progress const&)> tell, int count)
      : tell_(std::move(tell)), count_(count) {}

  /// Tells what has come of the cuts so far.
  void tell_cut(search_progress const& now) {
    last_ = now;
    tell(now);
  }
  /// Tells how far the search of the next cut's order is.
  void tell_order(search_progress const& now) {
    tell(
        {.cost = last_.spent > 0 ? std::min(last_.cost, now.cost) : now.cost,
         .lower_bound = last_.lower_bound,
         .spent = std::min(1.0, last_.spent + now.spent / count_)});
  }

 private:
  // The share never falls, though cuts that are refused are not told.
  void tell(search_progress now) {
    now.spent = spent_ = std::max(spent_, now.spent);
    tell_(now);
  }

  std::function<void(search_progress const&)> tell_;
  int count_;
  search_progress last_;
  double spent_ = 0;
};

}  // namespace detail

ZBPP_INLINE found_plan partition_by_name(
    layered_problem const& model,
    std::string_view policy,
    search_settings const& search,
    int schedules) {
  detail::check_budget(search);
  detail::require(schedules >= 0, "schedules is less than 0; 0 leaves it to zbpp");
  auto const asked = named_policy(policy, search);
  auto const name = asked.name();
  if (auto const refusal = placement_refusal(name, model.placement(), model.microbatches());
      !refusal.empty())
    throw error(errc::unsupported_problem, refusal);
  bool const searches = asked.searches();
  auto const count = schedules > 0 ? schedules
                     : searches    ? partition_schedules::of_searches
                                   : partition_schedules::of_rules;
  // The order of the best cut has as much of the budget as all cuts before it.
  auto const phases = static_cast<std::size_t>(searches ? 2 : 1);
  search_settings share{.seconds = search.seconds / (2.0 * count), .seed = search.seed};
  share.stop = search.stop;
  partition_settings cuts{.schedules = count, .seed = search.seed, .stop = search.stop};
  detail::cuts_progress progress(detail::part_of_search(search, 0, phases).on_progress, count);
  if (search.on_progress) {
    cuts.on_progress = [&](search_progress const& now) { progress.tell_cut(now); };
    share.on_progress = [&](search_progress const& now) { progress.tell_order(now); };
  }
  auto found = partition(model, named_policy(name, share), cuts);
  if (!searches || search.stop.stop_requested()) return found;
  auto const last = detail::part_of_search(detail::share_of(search, 0.5), 1, phases);
  auto order = detail::insert_recompute(named_policy(name, last)(found.problem), found.problem);
  auto const took = cost(simulate(order, found.problem));
  if (took >= found.cost || !detail::is_within_limits(order, found.problem)) return found;
  found.lower_bound = 0;  // it was about the shorter searches
  found.schedule = std::move(order);
  found.cost = took;
  return found;
}

}  // namespace zbpp
