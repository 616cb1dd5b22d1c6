// SPDX-License-Identifier: Apache-2.0
//
// How a replanner watches steps, searches beside them, and takes back what did not pay.
#pragma once

#include <zbpp/analysis/message_times.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/detail/median.hpp>
#include <zbpp/planner/detail/search_parts.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/replanner.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Runs one search for an order, on a thread of its own or at once.
class order_lookup {
 public:
  order_lookup(problem costs, search_settings settings, bool in_background)
      : costs_(std::move(costs)) {
    if (!in_background) {
      search(settings);
      return;
    }
    settings.on_progress = {};  // it would be called from that thread
    thread_ = std::jthread([this, settings](std::stop_token const& stop) mutable {
      settings.stop = stop;
      search(settings);
    });
  }

  [[nodiscard]] bool is_done() const noexcept { return is_done_; }
  [[nodiscard]] problem const& costs() const noexcept { return costs_; }
  /// @return the order; or nothing where the search failed
  [[nodiscard]] std::optional<schedule> const& order() const noexcept { return order_; }
  [[nodiscard]] std::string const& failure() const noexcept { return failure_; }

 private:
  void search(search_settings const& settings) noexcept {
    try {
      order_ = greedy_auto{.search = settings}.find(costs_).schedule;
    } catch (std::exception const& failed) {
      failure_ = failed.what();
    }
    is_done_ = true;
  }

  problem costs_;
  std::optional<schedule> order_;
  std::string failure_;
  std::atomic<bool> is_done_ = false;
  std::jthread thread_;  // ends before the rest does
};

[[nodiscard]] inline double ratio(ticks part, ticks whole) noexcept {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

[[nodiscard]] inline std::string percent_text(double share) {
  return fixed_text(100 * share, 1) + " %";
}

}  // namespace detail

/// Holds what a replanner knows of the plan that runs.
class replanner::watch {
 public:
  watch(plan const& first, replan_settings settings)
      : settings_(std::move(settings)),
        current_(first),
        reference_(first.problem()),
        measured_(first.problem()),
        wait_(settings_.first_steps) {
    using detail::require;
    require(settings_.first_steps >= 0, "replan_settings::first_steps is below 0");
    require(settings_.window >= 1, "replan_settings::window is below 1; give a number of steps");
    require(settings_.band > 0, "replan_settings::band is not above 0; give a share of the step");
    require(
        settings_.least_gain >= 0 && settings_.least_gain < 1,
        "replan_settings::least_gain does not lie between 0 and 1; give a share of the step");
    require(settings_.least_steps >= 0, "replan_settings::least_steps is below 0");
    require(
        settings_.message_quantile >= 0 && settings_.message_quantile <= 1,
        "replan_settings::message_quantile does not lie between 0 and 1");
    detail::check_budget(settings_.search);
  }

  [[nodiscard]] std::optional<plan> after_step(timeline const& measured) {
    ++step_;
    if (wait_ > 0) {
      --wait_;
      return std::nullopt;
    }
    if (filled_ == steps_.size()) steps_.emplace_back();
    steps_[filled_++] = measured;
    if (filled_ < detail::index(settings_.window)) return std::nullopt;
    auto const took = median_cost();
    measured_ = costs_and_messages_from(steps_, current_.problem(), settings_.message_quantile);
    filled_ = 0;
    if (is_on_trial_) {
      is_on_trial_ = false;
      if (auto before = judge(took)) return before;
    }
    median_ = took;
    if (lookup_) {
      if (!lookup_->is_done()) return std::nullopt;
      return take_found();
    }
    if (!has_left_band() || step_ < next_switch_) return std::nullopt;
    report("measured costs have left those of the plan; looking for another order");
    lookup_.emplace(measured_, settings_.search, settings_.in_background);
    return lookup_->is_done() ? take_found() : std::nullopt;
  }

  void refuse_plan(std::string const& why) {
    report("the new plan cannot run, so the old one goes on: " + why);
    switches_.back().is_taken_back = true;
    restore();
  }

  [[nodiscard]] plan const& current() const noexcept { return current_; }
  [[nodiscard]] std::vector<plan_switch> const& switches() const noexcept { return switches_; }
  [[nodiscard]] problem const& costs() const noexcept { return measured_; }

 private:
  [[nodiscard]] ticks median_cost() const {
    std::vector<ticks> all;
    for (auto const& step : steps_) all.push_back(cost(step));
    return detail::median(all);
  }

  [[nodiscard]] bool has_left(ticks now, ticks planned) const noexcept {
    return static_cast<double>(std::abs(now - planned)) >
           settings_.band * static_cast<double>(planned);
  }
  [[nodiscard]] bool has_left_band() const {
    auto const work = [](stage_costs const& c) { return c.forward + c.of(pass_kind::backward); };
    for (int s = 0; s < reference_.stages(); ++s)
      if (has_left(work(measured_.costs(s)), work(reference_.costs(s)))) return true;
    return has_left(
        cost(simulate(current_.schedule(), measured_)),
        cost(simulate(current_.schedule(), reference_)));
  }

  [[nodiscard]] std::optional<plan> take_found() {
    auto const costs = lookup_->costs();
    auto const order = lookup_->order();
    auto const failure = lookup_->failure();
    lookup_.reset();
    reference_ = costs;  // whatever comes of it, these costs have been looked at
    if (!order) {
      report("the search failed, so the plan stays: " + failure);
      return std::nullopt;
    }
    auto const old_cost = cost(simulate(current_.schedule(), costs));
    auto const new_cost = cost(simulate(*order, costs));
    auto const gain = detail::ratio(old_cost - new_cost, old_cost);
    if (gain <= 0 || gain < settings_.least_gain) {
      report(
          "no order is foreseen to save " + detail::percent_text(settings_.least_gain) +
          " of the step, so the plan stays");
      return std::nullopt;
    }
    plan next("replanned", costs, *order, settings_.program);
    before_.emplace(std::exchange(current_, std::move(next)));
    switches_.push_back(
        {.step = step_, .before = median_, .foreseen_old = old_cost, .foreseen = new_cost});
    report("another order runs from here; foreseen to save " + detail::percent_text(gain));
    begin_anew();
    is_on_trial_ = true;
    return current_;
  }

  // Takes the last switch back where it did not shorten the step.
  [[nodiscard]] std::optional<plan> judge(ticks took) {
    auto& last = switches_.back();
    last.after = took;
    auto const gain = detail::ratio(last.before - took, last.before);
    if (took < last.before) {
      report("the new order saved " + detail::percent_text(gain) + " of the step");
      before_.reset();
      return std::nullopt;
    }
    last.is_taken_back = true;
    report(
        "the new order cost " + detail::percent_text(-gain) + " more, so the old one runs again");
    restore();
    return current_;
  }

  void restore() {
    current_ = *std::exchange(before_, std::nullopt);
    is_on_trial_ = false;
    begin_anew();
  }
  void begin_anew() {
    wait_ = settings_.first_steps;
    next_switch_ = step_ + settings_.least_steps;
    filled_ = 0;
  }

  void report(std::string const& line) const {
    if (settings_.on_report) settings_.on_report("step " + std::to_string(step_) + ": " + line);
  }

  replan_settings settings_;
  plan current_;
  std::optional<plan> before_;  // while the current one is on trial
  problem reference_;           // the costs that the plan was made for, or was kept with
  problem measured_;
  int wait_;  // how many steps are not measured
  std::int64_t step_ = 0;
  std::int64_t next_switch_ = 0;
  ticks median_ = 0;
  bool is_on_trial_ = false;
  std::vector<timeline> steps_;  // of the window; later ones are copied into the same memory
  std::size_t filled_ = 0;       // how many of them belong to it so far
  std::vector<plan_switch> switches_;
  std::optional<detail::order_lookup> lookup_;
};

ZBPP_INLINE replanner::replanner(plan const& first, replan_settings settings)
    : watch_(std::make_unique<watch>(first, std::move(settings))) {}
ZBPP_INLINE replanner::replanner(replanner&&) noexcept = default;
ZBPP_INLINE replanner& replanner::operator=(replanner&&) noexcept = default;
ZBPP_INLINE replanner::~replanner() = default;

ZBPP_INLINE std::optional<plan> replanner::after_step(timeline const& measured) {
  return watch_->after_step(measured);
}
ZBPP_INLINE void replanner::refuse_plan(std::string const& why) { watch_->refuse_plan(why); }
ZBPP_INLINE plan const& replanner::current() const noexcept { return watch_->current(); }
ZBPP_INLINE std::vector<plan_switch> const& replanner::switches() const noexcept {
  return watch_->switches();
}
ZBPP_INLINE problem const& replanner::costs() const noexcept { return watch_->costs(); }

}  // namespace zbpp
