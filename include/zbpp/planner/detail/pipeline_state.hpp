// SPDX-License-Identifier: Apache-2.0
//
// Where a pipeline stands while the list scheduler runs it: what its ranks hold, how far its stages
// are, and when each input arrives. Microbatches of a stage go in order, so a few counters say it.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/detail/rank_rules.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Stands for a time that is not known yet.
inline constexpr ticks never = std::numeric_limits<ticks>::max();

/// Names what a rank does next on one of its stages.
enum class action : std::uint16_t { forward, backward, weight, recompute };

/// Holds what a problem and the rules say of one stage, and how far it is.
struct stage_state {
  ticks forward = 0;
  ticks backward_input = 0;
  ticks backward_weight = 0;
  ticks backward_fused = 0;
  ticks recompute = 0;
  ticks hop_down = 0;  // to the next stage
  ticks hop_up = 0;    // to the stage before
  bytes activation = 0;
  bytes recompute_input = 0;
  bytes weight_gradient_input = 0;
  bytes output_gradient = 0;
  bytes limit = 0;  // most that its rank holds
  int rank = 0;
  std::uint16_t chunk = 0;

  bool fuses = false;
  bool recomputes = false;
  ticks backward = 0;  // time of B, or of BW
  bytes added = 0;     // while B runs
  bytes left = 0;      // by B, for W
  int in_flight = 0;   // most microbatches between F and B
  bytes kept = 0;      // by F
  bytes room = 0;      // most that its rank holds while its F runs

  int f = 0;  // how many have started
  int b = 0;
  int w = 0;

  /// @return how many W wait
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

  /// @return the time from its first to its last pass so far
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
      : microbatches_(problem.microbatches()) {
    auto const cells = index(problem.stages()) * index(microbatches_);
    forward_input_.resize(cells);
    backward_input_.resize(cells);
    for (int s = 0; s < problem.stages(); ++s) stages_.push_back(state_of(problem, s, reserve));
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
        s.backward = s.fuses ? s.backward_fused : s.backward_input;
        s.added = s.fuses ? 0 : s.output_gradient;
        s.left = s.fuses ? 0 : s.weight_gradient_input;
        s.in_flight = rules[index(*i)].in_flight;
        s.f = s.b = s.w = 0;
        s.kept = s.recomputes ? s.recompute_input : s.activation;
        s.room = s.limit - later;
        later += s.kept;
        most_added = std::max(most_added, s.activation - s.kept + s.added);
        r.all_work += microbatches_ * (s.forward + s.backward + (s.fuses ? 0 : s.backward_weight) +
                                       (s.recomputes ? s.recompute : 0));
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
  arrival execute(int stage, action what) {
    auto& s = stages_[index(stage)];
    auto& r = ranks_[index(s.rank)];
    switch (what) {
      case action::forward: {
        auto const k = s.f++;
        ++r.forwards;
        r.held += s.kept;
        run(r, forward_input_[cell(stage, k)], s.forward);
        bool const is_last = index(stage) + 1 == stages_.size();
        return is_last ? arrive(backward_input_, stage, k, r.free)
                       : arrive(forward_input_, stage + 1, k, r.free + s.hop_down);
      }
      case action::backward: {
        auto const k = s.b++;
        if (s.fuses) ++s.w;
        ++r.backwards;
        r.recomputed = -1;
        r.held -= s.activation - s.left;  // grows where B adds more than it frees
        run(r, backward_input_[cell(stage, k)], s.backward);
        return stage == 0 ? arrival{} : arrive(backward_input_, stage - 1, k, r.free + s.hop_up);
      }
      case action::weight:
        ++s.w;
        r.held -= s.weight_gradient_input;
        run(r, 0, s.backward_weight);
        return {};
      case action::recompute:
        r.recomputed = stage;
        r.held += s.activation - s.kept;
        run(r, 0, s.recompute);
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
    stage.forward = c.forward;
    stage.backward_input = c.backward_input;
    stage.backward_weight = c.backward_weight;
    stage.backward_fused = c.of(pass_kind::backward);
    stage.recompute = c.recompute.value_or(0);
    stage.hop_down = s + 1 < problem.stages() ? problem.transfer_time(s, s + 1) : 0;
    stage.hop_up = s > 0 ? problem.transfer_time(s, s - 1) : 0;
    stage.activation = c.activation;
    stage.recompute_input = c.recompute_input;
    stage.weight_gradient_input = c.weight_gradient_input;
    stage.output_gradient = c.output_gradient;
    stage.rank = rank;
    stage.chunk = static_cast<std::uint16_t>(problem.placement().chunk_of(s));
    stage.limit = std::numeric_limits<bytes>::max() / 2;
    if (auto const limit = problem.memory_limit(rank)) {
      stage.limit = *limit - (reserve.empty() ? 0 : reserve[index(rank)]);
      bytes workspace = 0;
      for (int other : problem.placement().stages_of(rank)) {
        stage.limit -= problem.costs(other).static_memory;
        workspace = std::max(workspace, problem.costs(other).workspace);
      }
      stage.limit -= workspace;
    }
    return stage;
  }

  [[nodiscard]] std::size_t cell(int s, int microbatch) const noexcept {
    return index(s) * index(microbatches_) + index(microbatch);
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
  std::vector<stage_state> stages_;
  std::vector<rank_state> ranks_;
  std::vector<ticks> forward_input_;  // of (stage, microbatch): when it is there
  std::vector<ticks> backward_input_;
};

}  // namespace zbpp::detail
