// SPDX-License-Identifier: Apache-2.0
//
// Reduces peak memory at a fixed cost: the handcrafted orders, then searches within lower limits
// that end as soon as they meet the cost.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/after_passes.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/detail/plan_search.hpp>
#include <zbpp/planner/detail/search_budget.hpp>
#include <zbpp/planner/detail/search_once.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/save_memory.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

namespace zbpp {
namespace detail {

/// Looks for less memory at a cost that is settled. What it does depends on the problem, the seed
/// and the budget alone.
class memory_saver {
 public:
  memory_saver(found_plan found, ticks most, search_budget const& budget)
      : best_(std::move(found)),
        used_(memory_of(best_.schedule, problem_)),
        most_(most),
        budget_(budget.quiet()),
        passes_(static_cast<double>(best_.schedule.passes().size())),
        least_(least_memory(problem_)) {
    for (auto const limit : problem_.memory_limits()) top_ = std::max(top_, limit);
    for (auto const& c : problem_.all_costs())
      for (auto const size :
           {c.activation,
            c.weight_gradient_input,
            c.recompute_input,
            c.output_gradient,
            c.edge,
            c.static_memory,
            c.workspace})
        grain_ = std::gcd(grain_, size);
  }

  memory_saver(memory_saver const&) = delete;  // `problem_` refers to `best_`
  memory_saver& operator=(memory_saver const&) = delete;

  [[nodiscard]] found_plan run() {
    if (used_ != least_) {
      try_known();
      lower_peak();
      lower_sum();
    }
    best_.work += budget_.spent();
    return std::move(best_);
  }

 private:
  // ---- levels: one number that stands for the limits of all ranks -------------------------------

  // @return limits that are as large a part of the problem's own on every rank; without any, one
  //         limit for all
  [[nodiscard]] std::vector<bytes> limits_at(bytes level) const {
    std::vector<bytes> limits;
    for (int rank = 0; rank < problem_.ranks(); ++rank)
      limits.push_back(std::max(
          part_of(problem_.memory_limit(rank).value_or(top_), level), least_[index(rank)]));
    return limits;
  }
  [[nodiscard]] bytes part_of(bytes limit, bytes level) const {
    if (limit == top_) return level;
    return static_cast<bytes>(
        static_cast<double>(limit) * static_cast<double>(level) / static_cast<double>(top_));
  }
  // @return the least level at which so much memory fits
  [[nodiscard]] bytes level_of(std::vector<bytes> const& used) const {
    bytes level = 0;
    for (int rank = 0; rank < problem_.ranks(); ++rank)
      level = std::max(level, level_of_rank(rank, used[index(rank)]));
    return level;
  }
  [[nodiscard]] bytes level_of_rank(int rank, bytes used) const {
    auto const limit = problem_.memory_limit(rank).value_or(top_);
    if (limit == top_) return used;
    if (limit == 0) return 0;
    auto level = static_cast<bytes>(
        static_cast<double>(used) * static_cast<double>(top_) / static_cast<double>(limit));
    while (part_of(limit, level) < used) ++level;
    return level;
  }
  // What sizes add up to is a multiple of this, as levels are where all limits are alike.
  [[nodiscard]] bytes step_at(bytes level) const {
    constexpr bytes parts = 1024;  // chosen by us: what is closer is of no use to anybody
    bool const alike = level_of(limits_at(level)) == level;
    return std::max({alike ? grain_ : bytes{1}, level / parts, bytes{1}});
  }

  // ---- orders -----------------------------------------------------------------------------------

  // Takes an order within the cost that takes less memory.
  bool take(schedule order, bool fuses) {
    auto used = memory_of(order, problem_);
    budget_.spend(passes_per_simulation * passes_);
    auto const use = memory_use_of(used, problem_);
    if (use >= memory_use_of(used_, problem_) || !keeps_limits(used, problem_)) return false;
    auto taken = cost(simulate(order, problem_));
    bool const may_fuse =
        fuses && budget_.left() > passes_per_simulation * fusion::most_trials * passes_;
    if (taken > most_ && may_fuse) {
      int trials = 0;
      order = fuse_where_it_pays(std::move(order), problem_, &trials);
      budget_.spend(passes_per_simulation * trials * passes_);
      taken = cost(simulate(order, problem_));
      used = memory_of(order, problem_);
      if (memory_use_of(used, problem_) >= memory_use_of(used_, problem_)) return false;
    }
    if (taken > most_) return false;
    best_.schedule = std::move(order);
    best_.cost = taken;
    used_ = std::move(used);
    return true;
  }

  void try_known() {
    auto orders = handcrafted_orders(problem_);
    for (auto& order : known_orders(problem_))  // some have R, or suit the memory
      if (std::ranges::find(orders, order) == orders.end()) orders.push_back(std::move(order));
    for (auto& order : orders) {
      if (budget_.is_stopped()) return;
      ++best_.tries;
      take(std::move(order), true);
    }
    take(one_by_one(problem_), false);
  }

  // Looks for an order within limits, for a part of the budget that is left.
  bool search(std::vector<bytes> limits, double part) {
    auto const limited = with_memory_limits(problem_, std::move(limits));
    if (!fits_memory(limited)) return false;
    auto found = search_for(limited, budget_.of(std::max(0.0, part * budget_.left())), most_);
    best_.tries += found.tries;
    budget_.spend(found.work + overhead * passes_);
    return found.cost <= most_ && take(std::move(found.schedule), false);
  }
  // What a search takes beside its tries, in tries.
  static constexpr double overhead = 10;

  // ---- the largest share ------------------------------------------------------------------------

  void lower_peak() {
    try_budgets();
    auto low = bounded_level();  // below this there is none, or nothing is known
    auto const at = [&](bytes level) { return search(limits_at(level), search_part); };
    if (low >= level_of(used_) || budget_.is_over() || at(low)) return;
    while (!budget_.is_over()) {
      auto const high = level_of(used_);
      auto const step = step_at(high);
      auto const middle = low + std::max((high - low) / 2 / step * step, step);
      if (middle >= high) return;
      if (!at(middle)) low = middle;
    }
  }
  // The memories in which other policies search, each rank with its own, suit a placement.
  void try_budgets() {
    for (auto const budget_for : activation_budgets(problem_.placement())) {
      auto limits = limits_within(problem_, budget_for(problem_));
      bool is_lower = false;
      for (int rank = 0; rank < problem_.ranks(); ++rank) {
        auto& limit = limits[index(rank)];
        is_lower = is_lower || limit < used_[index(rank)];
        limit = std::clamp(
            used_[index(rank)], least_[index(rank)], std::max(limit, least_[index(rank)]));
      }
      if (is_lower && !budget_.is_over() && may_suffice(limits))
        search(std::move(limits), budget_part);
    }
  }
  // Asks the bound whether an order within limits can meet the cost, where that takes little.
  [[nodiscard]] bool may_suffice(std::vector<bytes> const& limits) {
    auto const work = work_of_bound(problem_);
    if (work > part_for_bound * budget_.left()) return true;
    budget_.spend(work);
    return lower_bound(with_memory_limits(problem_, limits)).cost <= most_;
  }
  static constexpr double part_for_bound = 0.1;
  static constexpr double budget_part = 0.4;
  static constexpr double search_part = 0.2;

  // @return a level below which no schedule meets the cost
  [[nodiscard]] bytes bounded_level() {
    auto low = level_of(least_);
    auto high = level_of(used_);
    auto const work = work_of_bound(problem_);
    constexpr double part = 0.25;
    auto const most_work = part * budget_.left();
    double spent = 0;
    for (;;) {
      auto const step = step_at(high);
      if (high - low < step || spent + work > most_work || budget_.is_stopped()) break;
      auto const middle = low + (high - low) / 2 / step * step;
      spent += work;
      if (lower_bound(with_memory_limits(problem_, limits_at(middle))).cost > most_)
        low = std::min(middle + step, high);
      else
        high = middle;
    }
    budget_.spend(spent);
    return low;
  }

  // ---- the sum ----------------------------------------------------------------------------------

  // Lowers what the ranks beside the fullest take: of all at once, then of one after another.
  void lower_sum() {
    constexpr double most_tries = 300;
    budget_.keep(most_tries * passes_);
    try_budgets();
    constexpr int halvings = 4;
    double low = 0;
    double high = 1;
    for (int i = 0; i < halvings && !budget_.is_over(); ++i) {
      auto const middle = (low + high) / 2;
      (lower_others(middle, every_rank) ? high : low) = middle;
    }
    for (int rank = problem_.ranks(); rank-- > 0;)
      while (!budget_.is_over() && lower_others(0.5, rank)) {
      }
  }
  static constexpr int every_rank = -1;

  // Leaves a rank so large a part of what it takes beyond the least.
  bool lower_others(double part, int only) {
    auto const most = level_of(used_);
    auto limits = used_;
    bool is_lower = false;
    for (int rank = 0; rank < problem_.ranks(); ++rank) {
      auto const least = least_[index(rank)];
      auto& limit = limits[index(rank)];
      if ((only != every_rank && only != rank) || level_of_rank(rank, limit) == most) continue;
      auto const lower = least + static_cast<bytes>(part * static_cast<double>(limit - least));
      is_lower = is_lower || lower < limit;
      limit = lower;
    }
    if (!is_lower) return false;
    return may_suffice(limits) && search(std::move(limits), search_part);
  }

  found_plan best_;
  problem const& problem_ = best_.problem;
  std::vector<bytes> used_;
  ticks most_;
  search_budget budget_;
  double passes_;
  std::vector<bytes> least_;  // without which nothing runs
  bytes top_ = 0;             // the largest limit
  bytes grain_ = 0;
};

}  // namespace detail

ZBPP_INLINE memory_use memory_use_of(std::vector<bytes> const& peaks, problem const& problem) {
  memory_use use;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    auto const peak = peaks[detail::index(rank)];
    auto const limit = problem.memory_limit(rank);
    auto const of_rank = static_cast<double>(peak);
    use.sum += peak;
    use.largest_share = std::max(
        use.largest_share, limit && *limit > 0 ? of_rank / static_cast<double>(*limit) : of_rank);
  }
  return use;
}

ZBPP_INLINE ticks detail::cost_with_share(ticks cost, double share) {
  if (!(share >= 0 && share <= most_memory_share))
    throw error(errc::bad_argument) + "most_memory_for is " + share + "; it lies between 0 and " +
        most_memory_share;
  return cost + static_cast<ticks>(share * static_cast<double>(cost));
}

ZBPP_INLINE found_plan
detail::save_memory(found_plan found, ticks most, search_budget const& budget) {
  if (budget.is_stopped()) return found;
  return memory_saver(std::move(found), most, budget).run();
}

ZBPP_INLINE found_plan save_memory(found_plan found, ticks most, search_settings const& search) {
  return detail::save_memory(std::move(found), most, detail::search_budget(search));
}

}  // namespace zbpp
