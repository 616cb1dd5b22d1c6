// SPDX-License-Identifier: Apache-2.0
//
// What searches pass down to those that they are made of: how much each may do, when it is to stop,
// and how far all of them are.
//
// A budget is counted in passes that a search could place, so that it ends at the same place on any
// machine. Whatever else is done is converted into passes by what it takes on the machine on which
// a pass takes 50 ns; docs/planner.md says how far that holds.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/search.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

namespace zbpp::detail {

/// How many passes a search places in a second of its budget.
inline constexpr double passes_per_second = 2e7;

/// How many passes it places in the time in which a pass is simulated, and its memory counted.
inline constexpr double passes_per_simulation = 2;

/// The same for a pass of an order in which a choice of pairs is tried.
inline constexpr double passes_per_pair_trial = 8;

/// How many passes it places in the time of one comparison of `raise_bound`.
inline constexpr double passes_per_comparison = 2;

[[nodiscard]] inline double work_of_bound(problem const& problem) {
  return time_of_lower_bound(problem) * 1e-9 * passes_per_second;
}

/// Refuses a budget that is not a number of seconds.
/// @throws error (bad_argument)
inline void check_budget(search_settings const& search) {
  if (!(search.seconds >= 0 && search.seconds <= search_settings::most_seconds))
    throw error(errc::bad_argument) + "a budget of " + search.seconds +
        " seconds; it lies between 0 and " + search_settings::most_seconds;
}

/// Holds what a search may do, in passes, and what of it is done. Parts of it have a budget of
/// their own, and stop and report with all others.
class search_budget {
 public:
  /// @throws error (bad_argument) when the budget is not a number of seconds
  explicit search_budget(search_settings const& settings)
      : whole_(std::make_shared<whole>(whole{settings})),
        passes_(settings.seconds * passes_per_second) {
    check_budget(settings);
  }

  // ---- parts ------------------------------------------------------------------------------------

  /// @return a budget of so large a share of all passes
  [[nodiscard]] search_budget share(double part) const { return of(passes_ * part); }
  /// @return a budget of so many passes
  [[nodiscard]] search_budget of(double passes) const {
    auto part = *this;
    part.passes_ = std::min(passes, search_settings::most_seconds * passes_per_second);
    part.spent_ = 0;
    return part;
  }
  /// @return the same budget, which reports as the `done`-th of `all` parts
  [[nodiscard]] search_budget part(std::size_t done, std::size_t all) const {
    auto const count = static_cast<double>(all);
    return part_from(static_cast<double>(done) / count, 1 / count);
  }
  /// @return the same budget, which reports as a part that begins at a share of what this one
  ///         reports, and is so large a share of it
  [[nodiscard]] search_budget part_from(double begin, double extent) const {
    auto part = *this;
    part.begin_ = begin_ + extent_ * begin;
    part.extent_ = extent_ * extent;
    return part;
  }
  /// @return the same budget for a search of a part of what is searched: it reports no cost above
  ///         `cost`, and `lower_bound` instead of its own, unless it is part of such a part
  [[nodiscard]] search_budget below(ticks cost, ticks lower_bound) const {
    auto part = *this;
    part.cost_ = std::min(cost, cost_);
    if (!lower_bound_) part.lower_bound_ = lower_bound;
    return part;
  }
  /// @return the same budget, which reports nothing
  [[nodiscard]] search_budget quiet() const {
    auto part = *this;
    part.is_quiet_ = true;
    return part;
  }
  /// @return the same as settings, for a policy
  [[nodiscard]] search_settings settings() const {
    search_settings part{
        .seconds = passes_ / passes_per_second, .seed = seed(), .stop = whole_->settings.stop};
    if (reports())
      part.on_progress = [*this](search_progress const& now) {
        report(now.cost, now.lower_bound, now.spent);
      };
    return part;
  }

  // ---- work -------------------------------------------------------------------------------------

  [[nodiscard]] std::uint64_t seed() const noexcept { return whole_->settings.seed; }
  [[nodiscard]] double passes() const noexcept { return passes_; }
  [[nodiscard]] double spent() const noexcept { return spent_; }
  [[nodiscard]] double left() const noexcept { return passes_ - spent_; }
  void spend(double passes) noexcept { spent_ += passes; }
  /// Gives up what is left beyond so many passes.
  void keep(double most) noexcept { passes_ = std::min(passes_, spent_ + most); }
  [[nodiscard]] bool is_stopped() const { return whole_->settings.stop && whole_->settings.stop(); }
  [[nodiscard]] bool is_over() const { return left() <= 0 || is_stopped(); }

  // ---- progress ---------------------------------------------------------------------------------

  [[nodiscard]] bool reports() const noexcept {
    return !is_quiet_ && static_cast<bool>(whole_->settings.on_progress);
  }
  /// Reports that a share of this part is done. Of the whole the share never falls.
  void report(ticks cost, ticks lower_bound, double share) const {
    if (!reports()) return;
    whole_->done = std::clamp(begin_ + extent_ * share, whole_->done, 1.0);
    auto const least = std::min(cost, cost_);
    whole_->settings.on_progress(
        {.cost = least,
         .lower_bound = std::min(lower_bound_.value_or(lower_bound), least),
         .spent = whole_->done});
  }
  /// Reports now and then how far a search is that has done `work` of at most `all` passes.
  void report_work(ticks cost, ticks lower_bound, double work, double all) const {
    auto const share = all > 0 ? std::min(1.0, work / all) : 1.0;
    if (!reports() || begin_ + extent_ * share < whole_->next_report) return;
    report(cost, lower_bound, share);
    // Chosen by us: often enough that whoever watches a long search sees it move.
    constexpr double most_passes = 1e6;
    auto const passes = whole_->settings.seconds * passes_per_second;
    whole_->next_report =
        whole_->done + (passes > 0 ? std::min(1.0 / 64, most_passes / passes) : 1);
  }

 private:
  struct whole {
    search_settings settings;
    double done = 0;  // the greatest share that was reported
    double next_report = 0;
  };

  std::shared_ptr<whole> whole_;
  double passes_;
  double spent_ = 0;
  double begin_ = 0;   // of its part of what is reported
  double extent_ = 1;  // of that part
  ticks cost_ = std::numeric_limits<ticks>::max();
  std::optional<ticks> lower_bound_;
  bool is_quiet_ = false;
};

/// Raises a bound within a budget for that.
/// @return the greater bound, or `bound`, as `raise_bound` has it
[[nodiscard]] inline cost_bound raise_within(
    search_budget& budget, cost_bound const& bound, ticks cost, problem const& problem) {
  constexpr double most_costs = 9;  // that are tried
  double comparisons = 0;
  auto const effort = budget.left() / (most_costs * passes_per_comparison);
  auto const raised = raise_bound(bound, cost, problem, effort, &comparisons);
  budget.spend(passes_per_comparison * comparisons);
  return raised;
}

}  // namespace zbpp::detail
