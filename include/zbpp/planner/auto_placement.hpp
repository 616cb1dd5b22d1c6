// SPDX-License-Identifier: Apache-2.0
//
// auto_placement: the cheapest schedule over all placements that a model allows, and what each
// placement costs as memory grows.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/regroup.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/search.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

/// Holds the best schedule that was found for one placement.
struct placed_order {
  problem what;  ///< the model on this placement
  schedule order;
  ticks cost = 0;    ///< exactly what `simulate` says
  cost_bound bound;  ///< no schedule on this placement costs less

  /// @return whether no schedule on this placement costs less
  [[nodiscard]] bool is_optimal() const noexcept { return cost <= bound.cost; }
};

/// Searches for the cheapest schedule of a model over its placements: the one it has, linear, V,
/// and looped with 2, 3, 4 ... chunks. Stages are merged with their neighbours in equal numbers;
/// ranks, transfers and memory limits stay.
struct auto_placement {
  search_settings search = {};  ///< of each placement
  bool halve_stages = true;     ///< where they do not come out even for up to two chunks per rank:
                                ///< times and sizes halve, what is sent does not

  /// Finds the best schedule for each placement that fits the memory, the fewest stages first.
  /// @return nothing when no placement fits
  [[nodiscard]] std::vector<placed_order> candidates(problem const& problem) const;

  /// @return the cheapest of the candidates, of equal ones that with the fewest stages
  /// @throws error (unsupported_problem) when no placement fits the memory: for the placement that
  ///         needs least, the rank, what it needs and the least limit that works
  [[nodiscard]] placed_order operator()(problem const& problem) const;
};

/// Says what one placement costs with one memory limit.
struct sweep_point {
  std::string placement;   ///< `linear`, `v`, `looped 2` with its number of chunks, or `custom`
  bytes memory_limit = 0;  ///< of every rank
  ticks cost = 0;          ///< of the best schedule found
  ticks lower_bound = 0;   ///< no schedule on this placement within this limit costs less
  double bubble_rate = 0;  ///< of the best schedule found
  bool optimal = false;    ///< whether no schedule within this limit costs less

  friend bool operator==(sweep_point const&, sweep_point const&) = default;
};

namespace detail {

/// @return whether every rank has the memory for one microbatch at a time
[[nodiscard]] inline bool fits_memory(problem const& problem) {
  return keeps_limits(least_memory(problem), problem);
}

/// Makes a search the `done`-th of `all` in what it reports.
[[nodiscard]] inline search_settings part_of_search(
    search_settings settings, std::size_t done, std::size_t all) {
  if (!settings.on_progress) return settings;
  settings.on_progress = [tell = settings.on_progress, done, all](search_progress const& part) {
    auto whole = part;
    whole.spent = (static_cast<double>(done) + part.spent) / static_cast<double>(all);
    tell(whole);
  };
  return settings;
}

[[nodiscard]] inline placed_order place(problem problem, search_settings const& search) {
  auto found = greedy_auto{.search = search}.find(problem);
  return {std::move(problem), std::move(found.order), found.cost, found.bound};
}

}  // namespace detail

inline std::vector<placed_order> auto_placement::candidates(problem const& problem) const {
  auto all = detail::regroupings(problem, halve_stages);
  std::erase_if(all, [](zbpp::problem const& one) { return !detail::fits_memory(one); });
  std::vector<placed_order> found;
  for (std::size_t i = 0; i < all.size(); ++i)
    found.push_back(
        detail::place(std::move(all[i]), detail::part_of_search(search, i, all.size())));
  return found;
}

inline placed_order auto_placement::operator()(problem const& problem) const {
  auto found = candidates(problem);
  if (!found.empty())
    return std::move(*std::min_element(
        found.begin(), found.end(), [](placed_order const& a, placed_order const& b) {
          return a.cost < b.cost;  // the first of equal ones has the fewest stages
        }));
  auto const all = detail::regroupings(problem, halve_stages);
  auto const need = [](zbpp::problem const& one) {
    auto const needed = least_memory(one);
    return *std::max_element(needed.begin(), needed.end());
  };
  detail::require_memory(*std::min_element(
      all.begin(), all.end(), [&](zbpp::problem const& a, zbpp::problem const& b) {
        return need(a) < need(b);
      }));
  throw error(errc::unsupported_problem, "no placement fits the memory limits");
}

namespace detail {

[[nodiscard]] inline std::string sweep_name(placement const& placement) {
  auto const name = placement.name();
  return name == "looped" ? name + " " + std::to_string(placement.stages() / placement.ranks())
                          : name;
}

/// Sweeps one placement. What fits a limit fits every higher one, and what no schedule can do
/// within a limit none can do within a lower one.
/// @param limits  ascending, each once
[[nodiscard]] inline std::vector<sweep_point> sweep_placement(
    problem const& problem, std::span<bytes const> limits, search_settings const& search) {
  std::vector<sweep_point> points;
  for (auto const limit : limits) {
    auto const limited = with_memory_limit(problem, limit);
    if (!fits_memory(limited)) continue;
    auto const found = place(limited, search);
    sweep_point point{
        .placement = sweep_name(problem.placement()),
        .memory_limit = limit,
        .cost = found.cost,
        .lower_bound = found.bound.cost,
        .bubble_rate = bubble_rate(simulate(found.order, limited))};
    if (!points.empty() && points.back().cost <= found.cost) {
      point.cost = points.back().cost;
      point.bubble_rate = points.back().bubble_rate;
    }
    points.push_back(std::move(point));
  }
  ticks bound = 0;
  for (auto point = points.rbegin(); point != points.rend(); ++point) {
    bound = std::max(bound, point->lower_bound);
    point->lower_bound = bound;
    point->optimal = point->cost <= bound;
  }
  return points;
}

[[nodiscard]] inline std::vector<bytes> ascending_limits(std::span<bytes const> limits) {
  std::vector<bytes> ascending(limits.begin(), limits.end());
  std::sort(ascending.begin(), ascending.end());
  ascending.erase(std::unique(ascending.begin(), ascending.end()), ascending.end());
  return ascending;
}

}  // namespace detail

/// Finds what each placement of a model costs with each of several memory limits, which take the
/// place of the problem's own. With more memory no point of a placement is worse.
/// @return a point for each placement and limit that fits: placement after placement, the fewest
///         stages first, each with its limits ascending
/// @throws error (bad_argument) when a limit is negative
[[nodiscard]] inline std::vector<sweep_point> sweep_memory(
    problem const& problem, std::span<bytes const> limits, auto_placement const& settings = {}) {
  auto const ascending = detail::ascending_limits(limits);
  auto const all = detail::regroupings(problem, settings.halve_stages);
  std::vector<sweep_point> points;
  for (auto const& one : all)
    for (auto& point : detail::sweep_placement(one, ascending, settings.search))
      points.push_back(std::move(point));
  return points;
}

/// Finds what the problem's own placement costs with each of several memory limits, which take the
/// place of the problem's own. With more memory no point is worse.
/// @return a point for each limit that fits, ascending
/// @throws error (bad_argument) when a limit is negative
[[nodiscard]] inline std::vector<sweep_point> sweep_memory(
    problem const& problem, std::span<bytes const> limits, greedy_auto const& settings) {
  return detail::sweep_placement(problem, detail::ascending_limits(limits), settings.search);
}

}  // namespace zbpp
