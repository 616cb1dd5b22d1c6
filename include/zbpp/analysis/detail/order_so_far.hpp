// SPDX-License-Identifier: Apache-2.0
//
// The first passes of each rank's order and when they run: a state of the exhaustive search. It
// knows which passes can be next, and a lower bound on what the rest costs.
#pragma once

#include <zbpp/model/containers.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace zbpp::detail {

/// Grows an order by one pass at a time, and takes them back. Each stage takes its microbatches in
/// turn, so what is chosen is a kind and a stage.
class order_so_far {
 public:
  static constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  /// A lean F keeps no more than R needs, and R makes up for that.
  enum kind : std::uint8_t { backward, forward, weight, fused, recompute, lean_forward };
  static constexpr std::size_t kinds = 6;

  /// Names the next pass of a kind on a stage; stage -1 stands for "not decided".
  struct next_pass {
    kind does = forward;
    int stage = -1;
    // nvcc warns of the equality that a defaulted <=> declares by itself.
    friend bool operator==(next_pass const&, next_pass const&) = default;
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

  /// @throws error (unsupported_problem) where there are too many microbatches
  explicit order_so_far(problem const& problem);

  [[nodiscard]] rank_state const& rank(int r) const { return ranks_[index(r)]; }
  [[nodiscard]] std::vector<std::vector<pass>> const& rows() const { return rows_; }
  [[nodiscard]] bool all_settled() const;

  /// Lets a rank run a pass.
  void run(int r, option const& chosen);
  /// Takes the last pass back.
  void take_back();

  /// Decides what a rank runs next although its input has no time yet; `{}` takes that back.
  void commit(int r, next_pass next) { ranks_[index(r)].committed = next; }

  /// @return the pass that a rank is committed to, as soon as its input has a time
  [[nodiscard]] std::optional<option> ready(int r) const;

  /// Adds the passes that can be the next of a rank: what they need of this rank stands in the
  /// order, and memory suffices. It leaves out lean F of a rank that needs none.
  /// @param settled  whether all first starts are
  void add_options(int r, bool settled, std::vector<option>& to) const;

  /// @return whether more memory is held after a pass than before
  [[nodiscard]] bool adds(next_pass next) const { return terms(next.stage, 0).kept[next.does] > 0; }

  /// Finds how soon inputs can be there and ranks can go on. Ranks that wait for each other raise
  /// each other for ever, so it ends after a few rounds.
  /// @return false when a rank has passes left and none that can be next
  [[nodiscard]] bool look_ahead();

  /// Gives a lower bound on the cost of all orders that begin like this; needs `look_ahead`. It is
  /// exact when no pass is left. For each rank it is the greater of
  ///  - the work that is left, from when the rank can go on;
  ///  - the way of the last microbatch. Once the last F of a stage is over, it goes on to the last
  ///    stage and comes back, and a W follows. Before the last B of a stage its rank has run all F,
  ///    all B of the stages that come no earlier in the model, and the R that these wait for.
  [[nodiscard]] ticks bound();

  /// Describes the state: equal keys have the same passes in the order and the same left. Of two
  /// states with the same key, one has its times no later than the other's if whatever follows can
  /// cost no more. Both need that all first starts are settled.
  void describe(std::string& key, std::vector<ticks>& times) const;

 private:
  // What the passes of a stage take for a microbatch, by kind.
  struct stage_terms {
    std::array<ticks, kinds> time{};
    std::array<ticks, kinds> work{};    // how much less is left to do once it has run, at least
    std::array<bytes, kinds> during{};  // what it adds while it runs
    std::array<bytes, kinds> kept{};    // and when it is over; what it frees is negative
    ticks least_weight = 0;             // what W takes, or what it adds to B in BW
    bool may_fuse = false;
    bool may_recompute = false;
  };
  struct input {
    ticks time = 0;  // when it is there; a lower bound if that is not known
    bool known = false;
  };
  struct stage_state {
    std::array<int, 3> done{};      // B, F and W
    std::uint64_t lean = 0;         // a bit for each microbatch whose R has yet to run
    std::array<input, 2> inputs{};  // of the next B and F
    std::array<ticks, 2> last{};    // lower bounds on the ends of the last B and F
  };
  struct taken {
    int rank;
    next_pass next;
    std::uint64_t lean;  // before
    rank_state before;
  };

  [[nodiscard]] static stage_terms terms_of(stage_costs const& c);
  // The kind whose microbatches a pass counts among, and whose input it needs.
  [[nodiscard]] static kind counted_as(kind k) {
    return k == fused ? backward : k == lean_forward ? forward : k;
  }
  [[nodiscard]] bool are_alike() const { return step_ == 0; }
  [[nodiscard]] std::size_t at(int s, int n) const { return index(n * step_ + s); }
  [[nodiscard]] stage_terms const& terms(int s, int n) const { return terms_[at(s, n)]; }
  [[nodiscard]] ticks time(kind k, int s, int n) const { return terms(s, n).time[k]; }
  [[nodiscard]] ticks next_time(kind k, int s) const { return time(k, s, next(k, s)); }
  // Of B or F from microbatch `n` on.
  [[nodiscard]] ticks time_from(kind k, int s, int n) const {
    return are_alike() ? (m_ - n) * time(k, s, 0) : times_from_[k][at(s, n)];
  }
  [[nodiscard]] ticks down(int s, int n) const { return hops_down_[at(s, n)]; }  // to a stage
  [[nodiscard]] ticks up(int s, int n) const { return hops_up_[at(s, n)]; }      // to a stage
  [[nodiscard]] int done(kind k, int s) const { return stages_[index(s)].done[k]; }
  [[nodiscard]] int left(kind k, int s) const { return m_ - done(k, s); }
  // The microbatch of the next pass of a kind; there must be one.
  [[nodiscard]] int next(kind k, int s) const {
    return k == recompute ? std::countr_zero(stages_[index(s)].lean) : done(counted_as(k), s);
  }
  [[nodiscard]] int rank_number(int s) const { return rank_numbers_[index(s)]; }
  [[nodiscard]] rank_state const& rank_of(int s) const { return ranks_[index(rank_number(s))]; }
  // Whether R of the next microbatch that runs B has yet to run.
  [[nodiscard]] bool is_lean(int s) const {
    return (stages_[index(s)].lean >> done(backward, s) & 1) != 0;
  }

  void settle_first_starts();
  [[nodiscard]] bool can_be_next(kind k, int s) const;
  [[nodiscard]] bool has_room_for_all(int r) const;
  [[nodiscard]] input input_of(next_pass next) const;
  [[nodiscard]] option option_of(next_pass next) const;
  [[nodiscard]] ticks earliest_input(kind k, int s) const;
  [[nodiscard]] ticks earliest_end(kind k, int s) const;
  [[nodiscard]] ticks soonest_start(int r) const;
  void find_input(kind k, int s);
  void find_last_ends();

  problem const& problem_;
  int last_;
  int m_;
  bool has_lean_ = false;  // whether any stage may run lean F
  int step_;               // from one microbatch to the next in what follows; 0: all are alike
  std::vector<stage_terms> terms_;
  std::vector<ticks> hops_down_;  // to each stage
  std::vector<ticks> hops_up_;
  std::array<std::vector<ticks>, 2> times_from_;  // of B and F, where microbatches differ
  std::vector<int> rank_numbers_;
  std::vector<std::vector<int>> stages_of_;  // by rank
  std::vector<rank_state> ranks_;
  std::vector<stage_state> stages_;
  std::array<cells<ticks>, 2> ends_;  // of B and F
  std::vector<ticks> rank_work_;      // of `find_last_ends`
  std::vector<std::vector<pass>> rows_;
  std::vector<taken> taken_;
};

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/order_so_far.ipp>
#endif
