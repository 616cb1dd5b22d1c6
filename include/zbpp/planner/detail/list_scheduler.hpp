// SPDX-License-Identifier: Apache-2.0
//
// List scheduling by rules: walks the ranks of a pipeline in the order of time and builds an order,
// as a few rules for each rank decide. Whatever the rules, the order is valid.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

// ---- rules -------------------------------------------------------------------------------------
//
// The choices that the list scheduler leaves open: a few for each rank, a few for each stage.
// Whatever they are, the schedule is valid; they only decide how good it is.

/// Says what a rank does where it has a choice. The defaults are: B as soon as it can run, else F,
/// else W where it delays nothing.
/// @source the first four generalize arXiv 2401.10241 sec. 3.1
struct rank_rule {
  static constexpr int no_limit = std::numeric_limits<int>::max();

  int warm_up = no_limit;             ///< F before the first B
  ticks wait_for_first_backward = 0;  ///< F does not start when the first B is due within this time
  ticks wait_for_backward = 0;        ///< the same for every later B
  /// F does not start when an F of a later stage is due within this time, so that the first
  /// microbatch, which all ranks wait for, never waits for others itself.
  ticks wait_for_deep_forward = 0;
  ticks overrun = 0;  ///< W may end this much after something else could have started
  /// Idle time, from the first pass on, that may be spent waiting for a B or an F that is due; when
  /// it is spent, W goes first, however late it ends.
  ticks idle_allowance = std::numeric_limits<ticks>::max();
  bool overruns_to_the_end = true;   ///< else W delays nothing once the rank's F have run
  int weights_kept = no_limit;       ///< W that wait before W goes before F
  bool forward_first = false;        ///< where both could run, F goes before B
  bool unblock = false;              ///< where an F lacks memory, W goes before B
  bool deep_forward_first = true;    ///< of two F that could run, the later stage's
  bool deep_backward_first = false;  ///< of two B that could run, the later stage's

  friend bool operator==(rank_rule const&, rank_rule const&) = default;
};

/// Says what holds for all microbatches of a stage.
struct stage_rule {
  int in_flight = rank_rule::no_limit;  ///< most microbatches between F and B
  bool fuses = false;                   ///< B and W run as one BW
  bool recomputes = false;              ///< F keeps `recompute_input` only, and R makes the rest

  friend bool operator==(stage_rule const&, stage_rule const&) = default;
};

/// Names an F or a B of a rank: twice its chunk, and one more for B.
using fb_code = std::uint16_t;

/// Holds the rules of a whole pipeline.
struct planner_rules {
  std::vector<rank_rule> ranks;
  std::vector<stage_rule> stages;
  /// For each rank all its F and B, in order, where that is settled; then only W is left to choose.
  std::vector<std::vector<fb_code>> fb_orders;

  planner_rules(int rank_count, int stage_count)
      : ranks(index(rank_count)), stages(index(stage_count)) {}

  [[nodiscard]] rank_rule const& of_rank(int rank) const noexcept { return ranks[index(rank)]; }

  friend bool operator==(planner_rules const&, planner_rules const&) = default;
};

// ---- the state of a pipeline -------------------------------------------------------------------
//
// Where a pipeline stands while the list scheduler runs it: what its ranks hold, how far its stages
// are, and when each input arrives. Microbatches of a stage go in order, so a few counters say it.

/// Stands for a time that is not known yet.
inline constexpr ticks never = std::numeric_limits<ticks>::max();

/// @return bytes that the passes of a rank may hold: its limit without static memory and workspace
[[nodiscard]] inline bytes room_for_passes(problem const& problem, int rank) {
  auto const limit = problem.memory_limit(rank);
  if (!limit) return std::numeric_limits<bytes>::max() / 2;
  auto room = *limit;
  bytes workspace = 0;
  for (int s : problem.placement().stages_of(rank)) {
    room -= problem.fixed_memory(s);
    workspace = std::max(workspace, problem.costs(s).workspace);
  }
  return room - workspace;
}

/// Names what a rank does next on one of its stages.
enum class action : std::uint16_t { forward, backward, weight, recompute };

/// Holds what the passes of a stage take for one microbatch, and their messages.
struct stage_times {
  ticks forward = 0;
  ticks backward_input = 0;
  ticks backward_weight = 0;
  ticks backward_fused = 0;
  ticks recompute = 0;
  ticks hop_down = 0;  // to the next stage
  ticks hop_up = 0;    // to the stage before
};

/// Holds what a problem and the rules say of one stage, and how far it is.
struct stage_state {
  stage_times next = {};  // of its next F, B, W and R
  bytes activation = 0;
  bytes recompute_input = 0;
  bytes weight_gradient_input = 0;
  bytes output_gradient = 0;
  bytes limit = 0;  // most that its rank holds
  int rank = 0;
  std::uint16_t chunk = 0;

  bool fuses = false;
  bool recomputes = false;
  ticks backward = 0;  // of its next B, or BW
  bytes added = 0;     // while B runs
  bytes left = 0;      // by B, for W
  int in_flight = 0;   // most microbatches between F and B
  bytes kept = 0;      // by F
  bytes room = 0;      // most that its rank holds while its F runs

  int f = 0;  // how many have started
  int b = 0;
  int w = 0;

  [[nodiscard]] int pending() const noexcept { return b - w; }
};

/// Holds how far one rank is.
struct rank_state {
  std::span<int const> stages;
  ticks all_work = 0;  // of all passes
  ticks work = 0;      // of the passes that are left
  ticks free = 0;      // when its last pass ends
  ticks first = -1;    // start of its first pass
  bytes held = 0;
  int forwards = 0;
  int backwards = 0;
  int recomputed = -1;  // stage whose R has run and whose B has not

  [[nodiscard]] ticks span() const noexcept { return free - first; }
};

/// Says that a pass has made the input of another stage.
struct arrival {
  int rank = -1;  // that waits for it; -1: nobody
  ticks at = 0;
};

/// Runs passes one by one. It knows no rules but those that keep every order valid.
///
/// What a rank may hold is its limit without static memory and workspace; edges are the caller's to
/// reserve. An F has room only where the later chunks of its rank keep room for one microbatch, and
/// R and B for what they add. R has room only where the B that follows has, and a B that finds none
/// lets the W that wait go first: once no W waits, the rank holds what F and R keep and no more, so
/// B has room. Then the oldest microbatch can always go on, and memory wedges no order.
class pipeline_state {
 public:
  /// @param reserve  bytes of each rank that are not to be used; empty for none
  pipeline_state(problem const& problem, std::vector<bytes> const& reserve)
      : microbatches_(problem.microbatches()), distinct_(problem.distinct_microbatches()) {
    auto const cells = index(problem.stages()) * index(microbatches_);
    forward_input_.resize(cells);
    backward_input_.resize(cells);
    for (int s = 0; s < problem.stages(); ++s) {
      stages_.push_back(state_of(problem, s, reserve));
      for (int k = 0; k < distinct_; ++k) times_.push_back(times_of(problem, s, k));
    }
    for (int r = 0; r < problem.ranks(); ++r) {
      ranks_.emplace_back();
      ranks_.back().stages = problem.placement().stages_of(r);
    }
  }

  /// Goes back to the start.
  void reset(std::vector<stage_rule> const& rules) {
    std::fill(forward_input_.begin(), forward_input_.end(), never);
    std::fill(backward_input_.begin(), backward_input_.end(), never);
    std::fill_n(forward_input_.begin(), microbatches_, ticks{0});
    for (auto& r : ranks_) {
      r = {.stages = r.stages};
      bytes later = 0;
      bytes most_added = 0;  // by R and B of one microbatch
      for (auto i = r.stages.rbegin(); i != r.stages.rend(); ++i) {
        auto& s = stages_[index(*i)];
        s.fuses = rules[index(*i)].fuses;
        s.recomputes = rules[index(*i)].recomputes;
        r.all_work += take_first_times(*i);
        s.added = s.fuses ? 0 : s.output_gradient;
        s.left = s.fuses ? 0 : s.weight_gradient_input;
        s.in_flight = rules[index(*i)].in_flight;
        s.f = s.b = s.w = 0;
        s.kept = s.recomputes ? s.recompute_input : s.activation;
        s.room = s.limit - later;
        later += s.kept;
        most_added = std::max(most_added, s.activation - s.kept + s.added);
      }
      for (int s : r.stages) stages_[index(s)].room -= most_added;
      r.work = r.all_work;
    }
  }

  [[nodiscard]] int microbatches() const noexcept { return microbatches_; }
  [[nodiscard]] std::vector<rank_state> const& ranks() const noexcept { return ranks_; }
  [[nodiscard]] rank_state const& rank(int r) const noexcept { return ranks_[index(r)]; }
  [[nodiscard]] stage_state const& stage(int s) const noexcept { return stages_[index(s)]; }

  /// @return when the next F, or B, of a stage has its input; `never` where that is not known
  [[nodiscard]] ticks forward_input(int s) const noexcept {
    return forward_input_[cell(s, stage(s).f)];
  }
  [[nodiscard]] ticks backward_input(int s) const noexcept {
    return backward_input_[cell(s, stage(s).b)];
  }

  /// Runs the next pass of a kind on a stage, as soon as its rank and its input allow.
  /// @return whose input it makes, and when that arrives
  arrival execute(int stage, action kind) {
    auto& s = stages_[index(stage)];
    auto& r = ranks_[index(s.rank)];
    switch (kind) {
      case action::forward: {
        auto const k = s.f++;
        ++r.forwards;
        r.held += s.kept;
        run(r, forward_input_[cell(stage, k)], s.next.forward);
        bool const is_last = index(stage) + 1 == stages_.size();
        auto const at = r.free + s.next.hop_down;
        if (differ()) take_next_forward(stage);
        return is_last ? arrive(backward_input_, stage, k, r.free)
                       : arrive(forward_input_, stage + 1, k, at);
      }
      case action::backward: {
        auto const k = s.b++;
        if (s.fuses) ++s.w;
        ++r.backwards;
        r.recomputed = -1;
        r.held -= s.activation - s.left;  // grows where B adds more than it frees
        run(r, backward_input_[cell(stage, k)], s.backward);
        auto const at = r.free + s.next.hop_up;
        if (differ()) take_next_backward(stage);
        return stage == 0 ? arrival{} : arrive(backward_input_, stage - 1, k, at);
      }
      case action::weight:
        ++s.w;
        r.held -= s.weight_gradient_input;
        run(r, 0, s.next.backward_weight);
        if (differ()) take_next_weight(stage);
        return {};
      case action::recompute:
        r.recomputed = stage;
        r.held += s.activation - s.kept;
        run(r, 0, s.next.recompute);
        return {};
    }
    return {};
  }

 private:
  [[nodiscard]] static stage_state state_of(
      problem const& problem, int s, std::vector<bytes> const& reserve) {
    auto const& c = problem.costs(s);
    auto const rank = problem.placement().rank_of(s);
    stage_state stage;
    stage.activation = c.activation;
    stage.recompute_input = c.recompute_input;
    stage.weight_gradient_input = c.weight_gradient_input;
    stage.output_gradient = c.output_gradient;
    stage.rank = rank;
    stage.chunk = static_cast<std::uint16_t>(problem.placement().chunk_of(s));
    stage.limit = room_for_passes(problem, rank);
    if (!reserve.empty() && problem.memory_limit(rank)) stage.limit -= reserve[index(rank)];
    return stage;
  }

  [[nodiscard]] static stage_times times_of(problem const& problem, int s, int microbatch) {
    auto const c = problem.costs(s, microbatch);
    return {
        .forward = c.forward,
        .backward_input = c.backward_input,
        .backward_weight = c.backward_weight,
        .backward_fused = c.of(pass_kind::backward),
        .recompute = c.recompute.value_or(0),
        .hop_down = s + 1 < problem.stages() ? problem.transfer_time(s, s + 1, microbatch) : 0,
        .hop_up = s > 0 ? problem.transfer_time(s, s - 1, microbatch) : 0};
  }

  [[nodiscard]] std::size_t cell(int s, int microbatch) const noexcept {
    return index(s) * index(microbatches_) + index(microbatch);
  }

  // Whether microbatches take different times, so that those of the next pass change.
  [[nodiscard]] bool differ() const noexcept { return distinct_ > 1; }
  [[nodiscard]] stage_times const& times_of(int stage, int microbatch) const noexcept {
    auto const k = std::min(microbatch, distinct_ - 1);
    return times_[index(stage) * index(distinct_) + index(k)];
  }

  // Takes the times of the first passes of a stage. @return what all of its passes take
  ticks take_first_times(int stage) noexcept {
    auto& s = stages_[index(stage)];
    ticks all = 0;
    for (int k = 0; k < distinct_; ++k) {
      auto const& t = times_of(stage, k);
      all += t.forward + backward_of(s, t) + (s.fuses ? 0 : t.backward_weight) +
             (s.recomputes ? t.recompute : 0);
    }
    s.next = times_of(stage, 0);
    s.backward = backward_of(s, s.next);
    return differ() ? all : microbatches_ * all;
  }
  [[nodiscard]] static ticks backward_of(stage_state const& s, stage_times const& t) noexcept {
    return s.fuses ? t.backward_fused : t.backward_input;
  }
  void take_next_forward(int stage) noexcept {
    auto& s = stages_[index(stage)];
    auto const& t = times_of(stage, s.f);
    s.next.forward = t.forward;
    s.next.hop_down = t.hop_down;
  }
  void take_next_backward(int stage) noexcept {
    auto& s = stages_[index(stage)];
    auto const& t = times_of(stage, s.b);
    s.backward = backward_of(s, t);
    s.next.recompute = t.recompute;
    s.next.hop_up = t.hop_up;
  }
  void take_next_weight(int stage) noexcept {
    auto& s = stages_[index(stage)];
    s.next.backward_weight = times_of(stage, s.w).backward_weight;
  }

  static void run(rank_state& r, ticks ready, ticks time) noexcept {
    auto const start = std::max(r.free, ready);
    if (r.first < 0) r.first = start;
    r.free = start + time;
    r.work -= time;
  }

  arrival arrive(std::vector<ticks>& input, int s, int microbatch, ticks at) noexcept {
    input[cell(s, microbatch)] = at;
    return {stages_[index(s)].rank, at};
  }

  int microbatches_;
  int distinct_;                    // microbatches of which times are kept; 1: all take the same
  std::vector<stage_times> times_;  // by stage and microbatch
  std::vector<stage_state> stages_;
  std::vector<rank_state> ranks_;
  std::vector<ticks> forward_input_;  // of (stage, microbatch): when it is there
  std::vector<ticks> backward_input_;
};

// ---- choosing a pass ---------------------------------------------------------------------------
//
// How a rank that is free chooses its next pass: by rules alone, or along an order of F and B that
// is settled. This is where W finds its place.

/// Says what a rank does next: a pass on one of its stages, or, with no stage, waiting until `at`.
struct choice {
  action kind{};
  int stage = -1;
  ticks at = never;
};

/// Chooses for one rank at one moment.
class chooser {
 public:
  chooser(pipeline_state const& state, int rank, rank_rule const& rule, ticks now)
      : state_(state), rank_(state.rank(rank)), rule_(rule), now_(now) {}

  /// Chooses by rules: B, F, or a W where they say so or where nothing else could start.
  [[nodiscard]] choice by_rules() {
    look();
    bool ready_f = forward_.at <= now_;
    bool ready_b = backward_.at <= now_;
    if (weight_ >= 0 && blocked_ && !ready_f && rule_.unblock) return {action::weight, weight_};
    if (ready_f && ready_b) (rule_.forward_first ? ready_b : ready_f) = false;
    if (ready_b) return backward(backward_.stage);
    if (ready_f && waits_for_deep_forward()) {
      forward_ = deepest_;
      ready_f = false;
    }
    if (ready_f && is_near(backward_.at) && may_wait(backward_.at)) ready_f = false;
    if (ready_f && !too_many_pending(backward_.at)) return {action::forward, forward_.stage};

    // What could start next, were it not for a W.
    auto const next = forward_.at > now_ ? std::min(forward_.at, backward_.at) : backward_.at;
    if (weight_ >= 0 && (ready_f || blocked_ || lacks_room(backward_.stage) || goes_before(next)))
      return {action::weight, weight_};
    if (backward_.stage >= 0) {  // a gradient is on its way: its R can run before it arrives
      auto const& s = state_.stage(backward_.stage);
      if (needs_recompute(s) && now_ + s.next.recompute <= next && fits_recompute(s))
        return {action::recompute, backward_.stage};
    }
    return {.at = next};
  }

  /// Chooses along an order: the next F or B runs when it can, W where it must or delays nothing.
  [[nodiscard]] choice along(std::span<fb_code const> fb_order) {
    for (int s : rank_.stages) consider_weight(s);
    auto const done = index(rank_.forwards) + index(rank_.backwards);
    if (done == fb_order.size()) return {action::weight, weight_};
    auto const stage = rank_.stages[fb_order[done] / 2];
    auto const& s = state_.stage(stage);
    bool const is_f = fb_order[done] % 2 == 0;
    if (rank_.held + (is_f ? s.kept : s.added) > s.limit) return {action::weight, weight_};
    auto const at =
        std::max(now_, is_f ? state_.forward_input(stage) : state_.backward_input(stage));
    if (!is_f && needs_recompute(s) && at != never && (at == now_ || now_ + s.next.recompute <= at))
      return backward(stage);
    if (at > now_)
      return weight_ >= 0 && goes_before(at) ? choice{action::weight, weight_} : choice{.at = at};
    if (weight_ >= 0 && state_.stage(weight_).pending() > rule_.weights_kept)
      return {action::weight, weight_};
    return {is_f ? action::forward : action::backward, stage};
  }

 private:
  // The stage whose F, or B, comes first, and when its input is there.
  struct candidate {
    int stage = -1;
    ticks at = never;
  };

  void look() {
    bool const may_fill = rank_.backwards > 0 || rank_.forwards < rule_.warm_up;
    for (int i : rank_.stages) {
      auto const& s = state_.stage(i);
      if (may_fill && s.f < state_.microbatches() && s.f - s.b < s.in_flight) {
        auto const at = std::max(now_, state_.forward_input(i));
        if (rank_.held + s.kept > s.room) {
          blocked_ = blocked_ || at == now_;
        } else {
          prefer(forward_, i, at, rule_.deep_forward_first);
          if (at != never) deepest_ = {i, at};
        }
      }
      if (s.b < s.f && (rank_.recomputed < 0 || rank_.recomputed == i))
        prefer(backward_, i, std::max(now_, state_.backward_input(i)), rule_.deep_backward_first);
      consider_weight(i);
    }
  }

  static void prefer(candidate& best, int stage, ticks at, bool deep_first) noexcept {
    if (at == never) return;
    if (at < best.at || (at == best.at && deep_first)) best = {stage, at};
  }

  void consider_weight(int i) noexcept {
    auto const pending = state_.stage(i).pending();
    if (pending > (weight_ < 0 ? 0 : state_.stage(weight_).pending())) weight_ = i;
  }

  // A B whose turn it is, its R first, and before that the W that stand in their way.
  [[nodiscard]] choice backward(int stage) const {
    auto const& s = state_.stage(stage);
    if (!needs_recompute(s))
      return fits_backward(s) ? choice{action::backward, stage} : choice{action::weight, weight_};
    return fits_recompute(s) ? choice{action::recompute, stage} : choice{action::weight, weight_};
  }
  [[nodiscard]] bool needs_recompute(stage_state const& s) const noexcept {
    return s.recomputes && rank_.recomputed < 0;
  }
  [[nodiscard]] bool fits_recompute(stage_state const& s) const noexcept {
    return rank_.held + s.activation - s.kept + s.added <= s.limit;
  }
  [[nodiscard]] bool lacks_room(int stage) const noexcept {
    return stage >= 0 && !fits_backward(state_.stage(stage));
  }
  [[nodiscard]] bool fits_backward(stage_state const& s) const noexcept {
    return rank_.held + s.added <= s.limit;
  }

  // Whether the rank leaves an F that could run for one of a later stage that is due; a B that
  // could run as well is for the rules to choose from.
  [[nodiscard]] bool waits_for_deep_forward() const noexcept {
    return deepest_.at > now_ && deepest_.at - now_ < rule_.wait_for_deep_forward &&
           backward_.at > now_ && may_wait(deepest_.at);
  }
  [[nodiscard]] bool is_near(ticks at) const noexcept {
    auto const wait =
        rank_.backwards == 0 ? rule_.wait_for_first_backward : rule_.wait_for_backward;
    return at > now_ && at - now_ < wait;
  }
  // Whether waiting until `at` keeps the idle time of the rank within what its rule allows.
  [[nodiscard]] bool may_wait(ticks at) const noexcept {
    return rank_.first < 0 ||
           at - rank_.first - (rank_.all_work - rank_.work) <= rule_.idle_allowance;
  }
  // Whether a W goes first when something else could start at `next`.
  [[nodiscard]] bool goes_before(ticks next) const noexcept {
    if (next == never) return true;
    auto const end = now_ + state_.stage(weight_).next.backward_weight;
    return end <= next || (end <= next + rule_.overrun && may_overrun()) || !may_wait(next);
  }
  [[nodiscard]] bool may_overrun() const noexcept {
    return rule_.overruns_to_the_end ||
           index(rank_.forwards) < rank_.stages.size() * index(state_.microbatches());
  }
  [[nodiscard]] bool too_many_pending(ticks next_backward) const noexcept {
    return weight_ >= 0 && state_.stage(weight_).pending() > rule_.weights_kept &&
           goes_before(next_backward);
  }

  pipeline_state const& state_;
  rank_state const& rank_;
  rank_rule const& rule_;
  ticks now_;
  candidate forward_;
  candidate deepest_;  // of the F, the one of the latest stage
  candidate backward_;
  int weight_ = -1;       // stage with the most W that wait
  bool blocked_ = false;  // an F has its input, but no memory
};

// ---- the scheduler -----------------------------------------------------------------------------
//
// The list scheduler: one engine that turns a few rules per rank into a schedule, for any
// placement, times, transfers and memory limits. All searches go over its rules.

/// Builds schedules of one problem, again and again; it allocates in its constructor only. It walks
/// the ranks in the order of time: a rank that is free chooses its next pass, or waits for the next
/// input that it knows of.
class list_scheduler {
 public:
  /// @param reserve  bytes of each rank that are not to be used; empty for none
  explicit list_scheduler(problem const& problem, std::vector<bytes> const& reserve = {})
      : problem_(problem), state_(problem, reserve), rows_(index(problem.ranks())) {
    std::size_t begin = 0;
    for (int r = 0; r < problem.ranks(); ++r) {
      rows_[index(r)].begin = begin;
      begin += 4 * problem.placement().stages_of(r).size() * index(problem.microbatches());
    }
    codes_.resize(begin);
    leaves_ = std::bit_ceil(index(problem.ranks()));
    wakes_.resize(2 * leaves_);
    for (int r = 0; r < problem.ranks(); ++r) wakes_[leaves_ + index(r)].rank = r;
  }

  /// Makes the schedule that the rules lead to.
  /// @param most  gives up as soon as the cost is certainly more
  /// @return its cost, as `simulate` has it; `never` where it gave up, or rules do not let it end
  /// @complexity O(passes * (chunks + log ranks))
  [[nodiscard]] ticks run(planner_rules const& rules, ticks most = never) {
    state_.reset(rules.stages);
    for (auto& w : wakes_) w.at = never;
    for (auto& row : rows_) row.length = 0;
    wake(state_.stage(0).rank, 0);
    ticks cost = 0;
    while (wakes_[1].at != never) {
      auto const now = wakes_[1].at;
      auto const rank = static_cast<int>(wakes_[1].rank);
      auto& row = rows_[index(rank)];
      chooser choose(state_, rank, rules.of_rank(rank), now);
      auto const next =
          rules.fb_orders.empty() ? choose.by_rules() : choose.along(rules.fb_orders[index(rank)]);
      if (next.stage < 0) {
        set_wake(rank, std::max(next.at, state_.rank(rank).free));
        continue;
      }
      auto const made = state_.execute(next.stage, next.kind);
      codes_[row.begin + row.length++] = static_cast<std::uint16_t>(
          state_.stage(next.stage).chunk * 4 + static_cast<std::uint16_t>(next.kind));
      auto const& r = state_.rank(rank);
      if (r.span() + r.work > most) return never;
      cost = std::max(cost, r.span());
      set_wake(rank, r.free);
      if (made.rank >= 0) wake(made.rank, made.at);
    }
    return is_complete() ? cost : never;
  }

  [[nodiscard]] bytes room(int rank) const noexcept {
    return state_.stage(state_.rank(rank).stages.front()).limit;
  }

  [[nodiscard]] std::size_t placed() const noexcept {
    std::size_t sum = 0;
    for (auto const& row : rows_) sum += row.length;
    return sum;
  }

  /// @return the schedule of the last run, which must not have given up
  [[nodiscard]] schedule order() const {
    constexpr std::array kinds{
        pass_kind::forward,
        pass_kind::backward_input,
        pass_kind::backward_weight,
        pass_kind::recompute};
    rows<pass> passes;
    passes.reserve(rows_.size(), placed());
    std::vector<std::array<std::int32_t, 4>> count(index(problem_.stages()));
    for (int rank = 0; rank < problem_.ranks(); ++rank) {
      auto const& row = rows_[index(rank)];
      for (std::size_t i = 0; i < row.length; ++i) {
        auto const code = codes_[row.begin + i];
        auto const stage = problem_.placement().stages_of(rank)[code / 4];
        bool const fuses = code % 4 == 1 && state_.stage(stage).fuses;
        passes.push(
            {fuses ? pass_kind::backward : kinds[code % 4],
             stage,
             count[index(stage)][code % 4]++});
      }
      passes.end_row();
    }
    return {problem_.placement(), problem_.microbatches(), std::move(passes)};
  }

 private:
  struct rank_row {
    std::size_t begin = 0;  // in codes_
    std::size_t length = 0;
  };
  struct waking {
    ticks at = never;
    std::int64_t rank = 0;
  };

  [[nodiscard]] bool is_complete() const {
    for (int s = 0; s < problem_.stages(); ++s)
      if (state_.stage(s).w != problem_.microbatches()) return false;
    return true;
  }

  // Wakes a rank at a time, or earlier where it will be.
  void wake(int rank, ticks at) noexcept {
    at = std::max(at, state_.rank(rank).free);
    if (at < wakes_[leaves_ + index(rank)].at) set_wake(rank, at);
  }
  // Goes all the way up without a branch, as no processor could foresee where to stop.
  void set_wake(int rank, ticks at) noexcept {
    auto node = leaves_ + index(rank);
    wakes_[node].at = at;
    while (node > 1) {
      auto const left = wakes_[node & ~std::size_t{1}];
      auto const right = wakes_[node | 1];
      bool const is_right = right.at < left.at;  // the lower rank is first where both are
      node /= 2;
      wakes_[node].at = is_right ? right.at : left.at;
      wakes_[node].rank = is_right ? right.rank : left.rank;
    }
  }

  problem const& problem_;
  pipeline_state state_;
  std::vector<rank_row> rows_;
  std::vector<std::uint16_t> codes_;  // chunk * 4 + action, a part for each rank
  // When each rank chooses next, as the leaves of a tree in which every node is the first of the
  // two below it: node 1 is the first of all, node leaves_ + r is rank r.
  std::vector<waking> wakes_;
  std::size_t leaves_ = 1;
};

}  // namespace zbpp::detail
