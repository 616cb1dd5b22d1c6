// SPDX-License-Identifier: Apache-2.0
//
// The first passes of each rank's order and when they run: a state of the exhaustive search. It
// knows which passes can be next, and a lower bound on what the rest costs.
#pragma once

#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Grows an order by one pass at a time, and takes them back. Each stage takes its microbatches in
/// turn, so what is chosen is a kind and a stage. Where B adds something for W, BW is one more
/// kind.
class order_so_far {
 public:
  static constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  enum kind : std::uint8_t { backward, forward, weight, fused };
  static constexpr std::array all_kinds{backward, forward, weight};

  /// Names the next pass of a kind on a stage; stage -1 stands for "not decided".
  struct next_pass {
    kind what = forward;
    int stage = -1;
    friend auto operator<=>(next_pass const&, next_pass const&) = default;
  };
  /// A pass that can be the next of its rank.
  struct option {
    next_pass next;
    ticks start;  ///< a lower bound unless `known`
    ticks end;
    bool known;  ///< whether its input has a time
  };
  struct rank_state {
    ticks clock = 0;       // end of its last pass
    ticks start = 0;       // of its first pass
    bool settled = false;  // whether no choice can change that any more
    int passes_left = 0;
    ticks work_left = 0;
    ticks forwards_left = 0;  // time of the F among it
    bytes held = 0;
    bytes limit = 0;
    next_pass committed{};    // runs next, as soon as its input is there
    ticks free = 0;           // lower bound on the start of its next pass
    ticks free_for_rest = 0;  // and of what comes after the pass it is committed to
  };

  explicit order_so_far(problem const& problem)
      : problem_(problem),
        last_(problem.stages() - 1),
        m_(problem.microbatches()),
        ranks_(index(problem.ranks())),
        stages_(index(problem.stages())),
        ends_{grid<ticks>(problem.stages(), m_), grid<ticks>(problem.stages(), m_)},
        rows_(index(problem.ranks())) {
    if (m_ > 127) throw std::invalid_argument("order_so_far: more than 127 microbatches");
    for (int r = 0; r < problem.ranks(); ++r) {
      auto& rank = ranks_[index(r)];
      rank.limit = problem.memory_limit(r).value_or(none);
      for (int s : problem.placement().stages_of(r)) {
        rank.held += problem.costs(s).static_memory;
        rank.passes_left += 3 * m_;
        rank.forwards_left += m_ * time(forward, s);
        for (auto k : all_kinds) rank.work_left += m_ * time(k, s);
      }
    }
    settle_first_starts();
  }

  [[nodiscard]] rank_state const& rank(int r) const { return ranks_[index(r)]; }
  [[nodiscard]] std::vector<std::vector<pass>> const& rows() const { return rows_; }
  [[nodiscard]] bool all_settled() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](auto const& r) { return r.settled; });
  }

  /// Lets a rank run a pass.
  void run(int r, option const& chosen) {
    auto& rank = ranks_[index(r)];
    taken_.push_back({r, chosen.next, rank});
    auto const [what, s] = chosen.next;
    auto const k = counted_as(what);
    auto& number = stages_[index(s)].done[k];
    auto const& c = problem_.costs(s);
    constexpr std::array names{
        pass_kind::backward_input,
        pass_kind::forward,
        pass_kind::backward_weight,
        pass_kind::backward};
    rows_[index(r)].push_back({names[what], s, number});
    if (!rank.settled) rank.start = chosen.start;
    rank.settled = true;
    rank.clock = chosen.end;
    rank.work_left -= time(what, s);
    rank.passes_left -= what == fused ? 2 : 1;
    rank.committed = {};
    if (k == forward) {
      rank.held += c.activation;
      rank.forwards_left -= c.forward;
    } else if (what == fused) {
      rank.held -= c.activation;
      ++stages_[index(s)].done[weight];
    } else {
      rank.held -= k == backward ? c.activation - c.weight_gradient_input : c.weight_gradient_input;
    }
    if (k != weight) ends_[k](s, number) = chosen.end;
    ++number;
  }

  /// Takes the last pass back.
  void take_back() {
    auto const& [r, next, before] = taken_.back();
    auto& done = stages_[index(next.stage)].done;
    --done[counted_as(next.what)];
    if (next.what == fused) --done[weight];
    ranks_[index(r)] = before;
    rows_[index(r)].pop_back();
    taken_.pop_back();
  }

  /// Decides what a rank runs next although its input has no time yet; `{}` takes that back.
  void commit(int r, next_pass next) { ranks_[index(r)].committed = next; }

  /// @return the pass that a rank is committed to, as soon as its input has a time
  [[nodiscard]] std::optional<option> ready(int r) const {
    auto const next = rank(r).committed;
    if (next.stage < 0 || !input_of(next).known) return std::nullopt;
    return option_of(next);
  }

  /// @return the passes that can be the next of a rank: what they need of this rank stands in the
  ///         order, and memory suffices
  [[nodiscard]] std::vector<option> options(int r) const {
    std::vector<option> result;
    for (auto k : all_kinds)
      for (int s : problem_.placement().stages_of(r))
        if (can_be_next(k, s)) result.push_back(option_of({k, s}));
    for (int s : problem_.placement().stages_of(r))
      if (can_fuse_next(s)) result.push_back(option_of({fused, s}));
    return result;
  }

  /// @return whether BW of a stage can take less memory than B and W
  [[nodiscard]] bool may_fuse(int s) const { return problem_.costs(s).output_gradient > 0; }

  /// Finds how soon inputs can be there and ranks can go on. Ranks that wait for each other raise
  /// each other for ever, so it ends after a few rounds.
  /// @return false when a rank has passes left and none that can be next
  [[nodiscard]] bool look_ahead() {
    for (auto& rank : ranks_) rank.free = rank.free_for_rest = rank.clock;
    bool changed = true;
    for (int round = 0; round < 3 && changed; ++round) {
      for (int s = 0; s <= last_; ++s) find_input(forward, s);
      for (int s = last_; s >= 0; --s) find_input(backward, s);
      changed = false;
      for (int r = 0; r < problem_.ranks(); ++r) {
        auto& rank = ranks_[index(r)];
        if (rank.passes_left == 0) continue;
        auto const soonest = soonest_start(r);
        if (soonest == none) return false;
        changed = changed || soonest > rank.free;
        auto const [k, s] = rank.committed;
        rank.free = soonest;
        rank.free_for_rest = s >= 0 ? soonest + time(k, s) : soonest;
      }
    }
    return true;
  }

  /// Gives a lower bound on the cost of all orders that begin like this; needs `look_ahead`. It is
  /// exact when no pass is left. For each rank it is the greater of
  ///  - the work that is left, from when the rank can go on;
  ///  - the way of the last microbatch. Once the last F of a stage is over, it goes on to the last
  ///    stage and comes back, and a W follows. Before the last B of a stage its rank has run all F,
  ///    and all B of the stages that come no earlier in the model.
  [[nodiscard]] ticks bound() {
    find_last_ends();
    ticks most = 0;
    for (int r = 0; r < problem_.ranks(); ++r) {
      auto const& rank = ranks_[index(r)];
      auto finish = rank.passes_left == 0 ? rank.clock : rank.free + rank.work_left;
      for (int s : problem_.placement().stages_of(r))
        if (left(weight, s) > 0)
          finish = std::max(finish, stages_[index(s)].last[backward] + time(weight, s));
      // A rank whose first start is open may start late, but has all its work before it then.
      most = std::max(most, rank.settled ? finish - rank.start : rank.work_left);
    }
    return most;
  }

  /// Describes the state: equal keys have the same passes in the order and the same left. Of two
  /// states with the same key, one has its times no later than the other's if whatever follows can
  /// cost no more. Both need that all first starts are settled.
  void describe(std::string& key, std::vector<ticks>& times) const {
    key.clear();
    times.clear();
    for (auto const& stage : stages_)
      for (int n : stage.done) key.push_back(static_cast<char>(n));
    for (auto const& rank : ranks_) {
      key.append(std::to_string(rank.committed.stage))
          .push_back(static_cast<char>(rank.committed.what));
      times.push_back(rank.clock);
      times.push_back(-rank.start);  // a late start makes the span short
    }
    // An input that is there before its rank is free is as good as one that comes just then.
    for (int s = 0; s <= last_; ++s) {
      auto const clock = rank_of(s).clock;
      if (s > 0)
        for (int n = done(forward, s); n < done(forward, s - 1); ++n)
          times.push_back(std::max(clock, ends_[forward](s - 1, n) + hop(s - 1, s)));
      if (s < last_)
        for (int n = done(backward, s); n < done(backward, s + 1); ++n)
          times.push_back(std::max(clock, ends_[backward](s + 1, n) + hop(s + 1, s)));
    }
  }

 private:
  struct input {
    ticks time = 0;  // when it is there; a lower bound if that is not known
    bool known = false;
  };
  struct stage_state {
    std::array<int, 3> done{};      // by kind
    std::array<input, 2> inputs{};  // of the next B and F
    std::array<ticks, 2> last{};    // lower bounds on the ends of the last B and F
  };
  struct taken {
    int rank;
    next_pass next;
    rank_state before;
  };

  [[nodiscard]] static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] ticks time(kind k, int s) const {
    auto const& c = problem_.costs(s);
    if (k == fused) return c.backward_input + c.backward_weight;
    return k == forward ? c.forward : k == backward ? c.backward_input : c.backward_weight;
  }
  // The kind whose microbatches a pass counts among, and whose input it needs.
  [[nodiscard]] static kind counted_as(kind k) { return k == fused ? backward : k; }
  [[nodiscard]] ticks hop(int from, int to) const { return problem_.transfer_time(from, to); }
  [[nodiscard]] int done(kind k, int s) const { return stages_[index(s)].done[k]; }
  [[nodiscard]] int left(kind k, int s) const { return m_ - done(k, s); }
  [[nodiscard]] int rank_number(int s) const { return problem_.placement().rank_of(s); }
  [[nodiscard]] rank_state const& rank_of(int s) const { return ranks_[index(rank_number(s))]; }

  // Where the first p stages are on p ranks, nothing can run on a rank before the first of them.
  void settle_first_starts() {
    ticks now = 0;
    for (int s = 0; s < problem_.ranks(); ++s) {
      auto& rank = ranks_[index(rank_number(s))];
      if (rank.settled) return;
      if (s > 0) now += hop(s - 1, s);
      rank.start = now;
      rank.settled = true;
      now += time(forward, s);
    }
  }

  [[nodiscard]] bool can_be_next(kind k, int s) const {
    if (left(k, s) == 0) return false;
    auto const number = done(k, s);
    auto const has = [&](int other) {
      return rank_number(other) != rank_number(s) || done(k, other) > number;
    };
    auto const& rank = rank_of(s);
    if (k == weight) return done(backward, s) > number;
    if (k == backward && problem_.costs(s).output_gradient > rank.limit - rank.held) return false;
    if (k == backward) return done(forward, s) > number && (s == last_ || has(s + 1));
    return problem_.costs(s).activation <= rank.limit - rank.held && (s == 0 || has(s - 1));
  }

  [[nodiscard]] bool can_fuse_next(int s) const {
    auto const number = done(backward, s);
    return may_fuse(s) && left(backward, s) > 0 && done(weight, s) == number &&
           done(forward, s) > number &&
           (s == last_ || rank_number(s + 1) != rank_number(s) || done(backward, s + 1) > number);
  }

  // A W that can be next has its B on its own rank, and so has its input.
  [[nodiscard]] input input_of(next_pass next) const {
    return next.what == weight ? input{0, true}
                               : stages_[index(next.stage)].inputs[counted_as(next.what)];
  }
  [[nodiscard]] option option_of(next_pass next) const {
    auto const in = input_of(next);
    auto const start = std::max(rank_of(next.stage).clock, in.time);
    return {next, start, start + time(next.what, next.stage), in.known};
  }

  [[nodiscard]] ticks earliest_input(kind k, int s) const {
    return std::max(rank_of(s).free, input_of({k, s}).time);
  }
  [[nodiscard]] ticks earliest_end(kind k, int s) const {
    auto const& rank = rank_of(s);
    next_pass const committed{counted_as(rank.committed.what), rank.committed.stage};
    bool const is_rest = committed.stage >= 0 && committed != next_pass{k, s};
    return std::max(is_rest ? rank.free_for_rest : rank.free, input_of({k, s}).time) + time(k, s);
  }

  [[nodiscard]] ticks soonest_start(int r) const {
    auto const next = rank(r).committed;
    if (next.stage >= 0) return earliest_input(next.what, next.stage);
    auto soonest = none;
    for (auto k : all_kinds)
      for (int s : problem_.placement().stages_of(r))
        if (can_be_next(k, s)) soonest = std::min(soonest, earliest_input(k, s));
    for (int s : problem_.placement().stages_of(r))
      if (can_fuse_next(s)) soonest = std::min(soonest, earliest_input(backward, s));
    return soonest;
  }

  void find_input(kind k, int s) {
    if (left(k, s) == 0) return;
    auto const number = done(k, s);
    auto const from = [&](kind made, int other) -> input {
      bool const known = done(made, other) > number;
      auto const at = known ? ends_[made](other, number) : earliest_end(made, other);
      return {at + hop(other, s), known};
    };
    auto& in = stages_[index(s)].inputs[k];
    if (k == forward)
      in = s == 0 ? input{0, true} : from(forward, s - 1);
    else
      in = s == last_ ? from(forward, s) : from(backward, s + 1);
  }

  void find_last_ends() {
    ticks before = 0;  // when the last microbatch reaches a stage
    for (int s = 0; s <= last_; ++s) {
      auto const n = left(forward, s);
      auto& end = stages_[index(s)].last[forward];
      if (s > 0) before += hop(s - 1, s);
      end = n == 0 ? ends_[forward](s, m_ - 1)
                   : std::max(
                         earliest_end(forward, s) + (n - 1) * time(forward, s),
                         before + time(forward, s));
      before = end;
    }
    std::vector<ticks> work(ranks_.size());  // of all F, and the B of this stage and later ones
    for (std::size_t r = 0; r < ranks_.size(); ++r) work[r] = ranks_[r].forwards_left;
    for (int s = last_; s >= 0; --s) {
      auto const n = left(backward, s);
      auto& end = stages_[index(s)].last[backward];
      auto& needed = work[index(rank_number(s))];
      needed += n * time(backward, s);
      if (s < last_) before += hop(s + 1, s);
      end = n == 0 ? ends_[backward](s, m_ - 1)
                   : std::max(
                         {rank_of(s).free + needed,
                          earliest_input(backward, s) + n * time(backward, s),
                          before + time(backward, s)});
      before = end;
    }
  }

  problem const& problem_;
  int last_;
  int m_;
  std::vector<rank_state> ranks_;
  std::vector<stage_state> stages_;
  std::array<grid<ticks>, 2> ends_;  // of B and F
  std::vector<std::vector<pass>> rows_;
  std::vector<taken> taken_;
};

}  // namespace zbpp::test
