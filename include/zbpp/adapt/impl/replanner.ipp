// SPDX-License-Identifier: Apache-2.0
//
// How a replanner watches steps, searches beside them, and takes back what did not pay.
#pragma once

#include <zbpp/adapt/replanner.hpp>
#include <zbpp/analysis/message_times.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/detail/median.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/scaled_costs.hpp>
#include <zbpp/planner/detail/search_budget.hpp>
#include <zbpp/planner/detail/stage_per_layer.hpp>
#include <zbpp/planner/detail/stage_work.hpp>
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/runtime/agreement.hpp>
#include <zbpp/runtime/group.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/rank_grid.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Runs one search for a plan, on a thread of its own or at once.
class plan_lookup {
 public:
  /// @param costs  measured, of the plan that runs
  /// @param layers  its stages as layers, where they may change ranks
  plan_lookup(
      problem costs, std::optional<problem> layers, search_settings settings, bool in_background)
      : costs_(std::move(costs)), layers_(std::move(layers)) {
    if (!in_background) {
      search(settings);
      return;
    }
    settings.on_progress = {};  // it would be called from that thread
    thread_ = std::jthread([this, settings](std::stop_token stop) mutable {
      settings.stop = [stop] { return stop.stop_requested(); };
      search(settings);
    });
  }

  [[nodiscard]] bool is_done() const noexcept { return is_done_; }
  [[nodiscard]] problem const& costs() const noexcept { return costs_; }
  /// @return the plan; or nothing where the search failed
  [[nodiscard]] std::optional<found_plan> const& found() const noexcept { return found_; }
  [[nodiscard]] std::string const& failure() const noexcept { return failure_; }

 private:
  void search(search_settings const& settings) noexcept {
    try {
      if (layers_)
        found_ = find_plan(
            *layers_,
            {.stage_per_layer = true,
             .seconds = settings.seconds,
             .seed = settings.seed,
             .stop = settings.stop,
             .on_progress = settings.on_progress});
      else
        found_ = find_order(costs_, settings, 0);
    } catch (...) {
      failure_ = detail::text_of(std::current_exception());
    }
    is_done_ = true;
  }

  problem costs_;
  std::optional<problem> layers_;
  std::optional<found_plan> found_;
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

[[nodiscard]] inline ticks work_of(problem const& problem, std::span<int const> stages) {
  ticks work = 0;
  for (int const s : stages) work += work_of(problem.costs(s));
  return work;
}

/// Makes layers of the measured stages of a plan, to be cut again, on ranks as fast as measured.
/// @param stated    what the stages take on a rank of speed 1
/// @param measured  what they took on their ranks
[[nodiscard]] inline problem measured_layers(problem const& stated, problem const& measured) {
  auto const& placement = measured.placement();
  std::vector<double> speeds;
  for (int rank = 0; rank < measured.ranks(); ++rank) {
    auto const planned = work_of(stated, placement.stages_of(rank));
    auto const took = work_of(measured, placement.stages_of(rank));
    constexpr double most = 1000;  // as in step_setup
    speeds.push_back(
        planned > 0 && took > 0 ? std::clamp(ratio(planned, took), 1 / most, most) : 1);
  }
  std::vector<layer_costs> layers;
  for (int s = 0; s < measured.stages(); ++s)
    layers.push_back(at_speed(measured.costs(s), 1 / speeds[index(placement.rank_of(s))]));
  problem const model(
      std::move(layers),
      {.ranks = measured.ranks(),
       .microbatches = measured.microbatches(),
       .transfer = measured.transfer(),
       .memory_limits = {measured.memory_limits().begin(), measured.memory_limits().end()},
       .rank_speeds = std::move(speeds)});
  return with_placement(with_replicas(model, measured.replicas()), merged_placement(placement));
}

/// Says which stages change ranks from one placement to another, and lists them.
[[nodiscard]] inline std::vector<int> moved_stages(placement const& from, placement const& to) {
  std::vector<int> moved;
  for (int s = 0; s < from.stages(); ++s)
    if (from.rank_of(s) != to.rank_of(s)) moved.push_back(s);
  return moved;
}

/// @return such as "stage 3 moves from rank 1 to rank 0, "; empty where none moves
[[nodiscard]] inline std::string moves_text(
    std::vector<int> const& moved, placement const& from, placement const& to) {
  std::string text;
  for (int const s : moved)
    text +=
        joined("stage ", s, " moves from rank ", from.rank_of(s), " to rank ", to.rank_of(s), ", ");
  return text;
}

/// @return the groups of pipelines of a grid that run one plan with this one, and wait for it
[[nodiscard]] ZBPP_INLINE std::vector<group*> partners_in(rank_grid& grid, bool reduces) {
  std::vector<group*> all{&grid.tensor(), reduces ? &grid.data() : &grid.expert()};
  std::erase_if(all, [](group const* one) { return one->size() == 1; });
  return all;
}

/// @return the longest step that a partner measured: others wait for it. A collective call
/// @throws error (no_agreement) when they ran other passes
[[nodiscard]] ZBPP_INLINE timeline longest_of(std::vector<group*> const& partners, timeline own) {
  std::vector<std::vector<std::byte>> parts;
  for (auto* const members : partners) {
    members->compare(std::as_bytes(own.all()), parts);
    std::optional<timeline> found;  // the first of those, which all members find
    for (auto const& bytes : parts) {
      if (bytes.size() != own.all().size_bytes())
        throw error(errc::no_agreement, "pipelines of a grid ran different numbers of passes");
      auto other = own;
      auto const* from = bytes.data();
      for (int rank = 0; rank < other.ranks(); ++rank) {
        auto const to = other[rank];
        std::memcpy(to.data(), std::exchange(from, from + to.size_bytes()), to.size_bytes());
      }
      if (!found || cost(other) > cost(*found)) found = std::move(other);
    }
    own = std::move(*found);
  }
  return own;
}

/// @return what decides
[[nodiscard]] ZBPP_INLINE std::vector<agreement_item> items_of(replan_settings const& s) {
  std::vector<agreement_item> items;
  auto const add = [&](char const* name, double value) {
    items.push_back(zbpp::make_item(joined("replan_settings::", name), number_text(value)));
  };
  add("first_steps", s.first_steps);
  add("window", s.window);
  add("least_steps", static_cast<double>(s.least_steps));
  add("band", s.band);
  add("least_gain", s.least_gain);
  add("message_quantile", s.message_quantile);
  add("seconds", s.seconds);
  return items;
}

/// Lets the pipelines of a grid that run one plan decide by one measured step.
/// @throws error (bad_argument) where they cannot change their plan after the same step;
///         (no_agreement) where they have other settings
[[nodiscard]] ZBPP_INLINE replan_settings
decide_together(pipeline_core& pipe, replan_settings settings) {
  bool const reduces = reduces_gradients(pipe.planned().program());
  auto const partners = partners_in(pipe.grid(), reduces);
  if (partners.empty()) return settings;
  require(
      !settings.in_background && !settings.moves_stages,
      "replan_settings: pipelines of a grid that run one plan change it together, after the same "
      "step, and stages stay on their ranks; set in_background and moves_stages to false");
  for (auto* const members : partners)
    agree(
        *members,
        items_of(settings),
        "pipelines of a grid change plans together; give all the same");
  settings.gather = [&pipe, reduces, own = std::move(settings.gather)](
                        plan const& running, timeline const& measured) {
    auto line = measured;
    try {
      if (own) line = own(running, measured);
    } catch (...) {  // ends the steps of the partners, which would wait for this pipeline
      pipe.grid().fail(std::current_exception());
      throw;
    }
    return longest_of(partners_in(pipe.grid(), reduces), std::move(line));
  };
  return settings;
}

}  // namespace detail

/// Holds what a replanner knows of the plan that runs.
class replanner::watch {
 public:
  watch(plan const& first, replan_settings settings, report_call on_report)
      : settings_(std::move(settings)),
        on_report_(std::move(on_report)),
        first_(first.problem()),
        options_(first.options()),
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
    detail::check_budget({.seconds = settings_.seconds});
    require(
        !settings_.gather || !settings_.in_background,
        "replan_settings::gather is set, and searches run in the background, where processes would "
        "not decide after the same step; set in_background to false");
    require(
        !settings_.gather || !settings_.moves_stages,
        "replan_settings::gather is set, and stages move, which they do between ranks of one "
        "process only; set moves_stages to false");
    if (!settings_.moves_stages) return;
    if (!first_.microbatch_factors().empty())
      throw error(errc::unsupported_problem) +
          "replan_settings::moves_stages: the microbatches of the first plan have factors; stages "
          "that change ranks take microbatches of one size";
    if (auto const found = detail::find_beside_or_again(first.schedule()))
      throw error(errc::unsupported_problem) +
          "replan_settings::moves_stages: the first plan has " + to_string(*found) +
          (found->is_paired ? " in a pair" : "") +
          "; stages that change ranks neither recompute nor run F and B in pairs";
  }

  [[nodiscard]] std::optional<plan> after(timeline const& measured) {
    for (int rank = 0; rank < measured.ranks(); ++rank)
      detail::require(
          settings_.gather || !measured[rank].empty(),
          "replanner: not all ranks run in this process; set replan_settings::gather, such as to "
          "what asio::gather_timeline gives, on all ranks");
    ++step_;
    if (wait_ > 0) {
      --wait_;
      return std::nullopt;
    }
    if (filled_ == steps_.size()) steps_.emplace_back();
    steps_[filled_++] = measured;
    if (filled_ < detail::index(settings_.window)) return std::nullopt;
    filled_ = 0;
    if (settings_.gather)
      for (auto& step : steps_)
        step = detail::named_call("gather", {}, [&] { return settings_.gather(current_, step); });
    auto const took = median_cost();
    measured_ = costs_and_messages_from(steps_, current_.problem(), settings_.message_quantile);
    if (is_on_trial_) {
      is_on_trial_ = false;
      if (auto before = settle_trial(took)) return before;
    }
    median_ = took;
    if (lookup_) {
      if (!lookup_->is_done()) return std::nullopt;
      return take_found();
    }
    if (!has_left_band() || step_ < next_switch_) return std::nullopt;
    report(
        "measured costs have left those of the plan" + slowest_text() +
        "; looking for another one");
    auto layers = settings_.moves_stages ? std::optional(detail::measured_layers(first_, measured_))
                                         : std::nullopt;
    search_settings const search{
        .seconds = settings_.seconds, .seed = settings_.seed, .on_progress = settings_.on_progress};
    lookup_.emplace(measured_, std::move(layers), search, settings_.in_background);
    return lookup_->is_done() ? take_found() : std::nullopt;
  }

  [[nodiscard]] bool refuse_plan(std::string const& why) {
    if (!before_) return false;
    report("the new plan cannot run, so the old one goes on: " + why);
    switches_.back().is_taken_back = true;
    restore();
    return true;
  }

  // Reports what has happened, when all of it is noted; what is left is reported the next time.
  void report_all() {
    while (!unreported_.empty()) {
      auto const line = unreported_.front();
      unreported_.erase(unreported_.begin());
      detail::named_call("on_report", {}, [&] { on_report_(line); });
    }
  }

  [[nodiscard]] plan const& current() const noexcept { return current_; }
  [[nodiscard]] std::vector<plan_switch> const& switches() const noexcept { return switches_; }
  [[nodiscard]] problem const& costs() const noexcept { return measured_; }

 private:
  struct replaced_plan {
    plan planned;
    problem reference;
  };

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
    for (int s = 0; s < reference_.stages(); ++s)
      if (has_left(detail::work_of(measured_.costs(s)), detail::work_of(reference_.costs(s))))
        return true;
    return has_left(
        cost(simulate(current_.schedule(), measured_)),
        cost(simulate(current_.schedule(), reference_)));
  }

  // @return the rank whose work has grown most beyond the band, in words
  [[nodiscard]] std::string slowest_text() const {
    int slowest = -1;
    double most = 1 + settings_.band;
    for (int rank = 0; rank < reference_.ranks(); ++rank) {
      auto const times = detail::ratio(
          detail::work_of(measured_, measured_.placement().stages_of(rank)),
          detail::work_of(reference_, reference_.placement().stages_of(rank)));
      if (times <= most) continue;
      slowest = rank;
      most = times;
    }
    if (slowest < 0) return {};
    return detail::joined(", rank ", slowest, " takes ", fixed_text(most, 2), " times as long");
  }

  [[nodiscard]] std::optional<plan> take_found() {
    auto const costs = lookup_->costs();
    auto const found = lookup_->found();
    auto const failure = lookup_->failure();
    lookup_.reset();
    reference_ = costs;  // whatever comes of it, these costs have been looked at
    if (!found) {
      report("the search failed, so the plan stays: " + failure);
      return std::nullopt;
    }
    auto const old_cost = cost(simulate(current_.schedule(), costs));
    auto const gain = detail::ratio(old_cost - found->cost, old_cost);
    if (gain <= 0 || gain < settings_.least_gain) {
      report(
          "no plan is foreseen to save " + detail::percent_text(settings_.least_gain) +
          " of the step, so this one stays");
      return std::nullopt;
    }
    std::optional<plan> next;
    try {
      next.emplace("replanned", found->problem, found->schedule, options_);
    } catch (error const& refused) {
      report(
          "the plan that was found cannot run, so this one stays: " + std::string(refused.what()));
      return std::nullopt;
    }
    auto const& from = current_.problem().placement();
    auto const& to = found->problem.placement();
    auto const moved = detail::moved_stages(from, to);
    report(
        "another plan runs from here; " + detail::moves_text(moved, from, to) +
        "foreseen to save " + detail::percent_text(gain));
    switches_.push_back(
        {.step = step_,
         .before = median_,
         .foreseen_old = old_cost,
         .foreseen = found->cost,
         .moved = moved});
    before_.emplace(replaced_plan{
        std::exchange(current_, *std::move(next)), std::exchange(reference_, found->problem)});
    begin_again();
    is_on_trial_ = true;
    return current_;
  }

  // Takes the last switch back where it did not shorten the step.
  [[nodiscard]] std::optional<plan> settle_trial(ticks took) {
    auto& last = switches_.back();
    last.after = took;
    auto const gain = detail::ratio(last.before - took, last.before);
    if (took < last.before) {
      report("the new plan saved " + detail::percent_text(gain) + " of the step");
      before_.reset();
      return std::nullopt;
    }
    last.is_taken_back = true;
    report("the new plan cost " + detail::percent_text(-gain) + " more, so the old one runs again");
    restore();
    return current_;
  }

  void restore() {
    auto before = *std::exchange(before_, std::nullopt);
    current_ = std::move(before.planned);
    reference_ = std::move(before.reference);
    measured_ = reference_;  // those of the other plan may be of other ranks
    is_on_trial_ = false;
    begin_again();
  }
  void begin_again() {
    wait_ = settings_.first_steps;
    next_switch_ = step_ + settings_.least_steps;
    filled_ = 0;
  }

  void report(std::string const& line) {
    if (on_report_) unreported_.push_back(detail::joined("step ", step_, ": ", line));
  }

  replan_settings settings_;
  report_call on_report_;
  problem first_;          // what stages take on ranks of speed 1
  lower_options options_;  // of the first plan
  plan current_;
  problem reference_;                    // the costs that the plan was made for, or was kept with
  std::optional<replaced_plan> before_;  // while the current one is on trial
  problem measured_;
  int wait_;  // how many steps are not measured
  std::int64_t step_ = 0;
  std::int64_t next_switch_ = 0;
  ticks median_ = 0;
  bool is_on_trial_ = false;
  std::vector<timeline> steps_;  // of the window; later ones are copied into the same memory
  std::size_t filled_ = 0;       // how many of them belong to it so far
  std::vector<plan_switch> switches_;
  std::vector<std::string> unreported_;  // lines that are not reported yet
  std::optional<detail::plan_lookup> lookup_;
};

ZBPP_INLINE replanner::replanner(plan const& first, replan_settings settings, report_call on_report)
    : watch_(std::make_unique<watch>(first, std::move(settings), std::move(on_report))) {}
ZBPP_INLINE replanner::replanner(
    pipeline_core& pipe, replan_settings settings, report_call on_report)
    : replanner(
          pipe.planned(),
          detail::decide_together(pipe, std::move(settings)),
          std::move(on_report)) {}
ZBPP_INLINE replanner::replanner(replanner&&) noexcept = default;
ZBPP_INLINE replanner& replanner::operator=(replanner&&) noexcept = default;
ZBPP_INLINE replanner::~replanner() = default;

ZBPP_INLINE std::optional<plan> replanner::after(timeline const& measured) {
  auto next = watch_->after(measured);
  watch_->report_all();
  return next;
}
ZBPP_INLINE bool replanner::refuse_plan(std::string const& why) {
  bool const has_before = watch_->refuse_plan(why);
  watch_->report_all();
  return has_before;
}
ZBPP_INLINE void replanner::apply_to(pipeline_core& pipe) {
  if (pipe.planned().schedule() == current().schedule()) return;
  try {
    pipe.take(current());
  } catch (...) {
    if (!pipe.has_plan() || !refuse_plan(detail::text_of(std::current_exception()))) throw;
    apply_to(pipe);
  }
}

ZBPP_INLINE plan const& replanner::current() const noexcept { return watch_->current(); }
ZBPP_INLINE std::vector<plan_switch> const& replanner::switches() const noexcept {
  return watch_->switches();
}
ZBPP_INLINE problem const& replanner::costs() const noexcept { return watch_->costs(); }

}  // namespace zbpp
