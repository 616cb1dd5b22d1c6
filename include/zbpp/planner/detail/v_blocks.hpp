// SPDX-License-Identifier: Apache-2.0
//
// Building blocks on a V: one microbatch's way through all ranks that can be repeated, interval
// after interval, without two passes meeting on a rank; their shapes, and the orders they make. How
// long a block stays on the ranks is how much memory it takes: short ones take little.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/detail/list_scheduler.hpp>
#include <zbpp/planner/detail/stage_work.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace zbpp::detail {

// ---- blocks ------------------------------------------------------------------------------------

/// Says how a block is built, and how the first and the last microbatches differ from it. A leg is
/// one way along all ranks: F down and up the V, then B down and up.
struct v_block_shape {
  ticks interval = 0;            ///< from one microbatch to the next
  bool leaves_weights = true;    ///< every W has a place in the interval as well
  std::array<ticks, 4> legs{};   ///< what passes of a leg wait beyond what they must
  std::array<ticks, 3> turns{};  ///< the same for the first pass of each later leg
  std::array<int, 3> rounds{};   ///< intervals more for a turn; the second in microbatches to spare
  ticks forward_interval = 0;    ///< between the first F, until they meet the block
  ticks backward_interval = 0;   ///< between the last B
  ticks slack = 0;               ///< how much later than they might the last B end

  friend bool operator==(v_block_shape const&, v_block_shape const&) = default;
};

/// Builds blocks of one problem, again and again; it allocates in its constructor only.
///
/// A block is placed pass by pass along the way of the microbatch, each as early as its input is
/// there and as what is placed on its rank, repeated every interval, leaves a gap; never so that
/// the passes still to come, or the W, find none. Memory that is left lengthens the turns by whole
/// intervals, which keeps the passes apart. The first F need not wait that long: they follow each
/// other as fast as F can until they meet the block, and so do the last B, seen from the end.
/// @source arXiv 2405.15362 sec. 3 has the repeated block; times of their own for every pass, and
///         the fast ends, are ours
class v_block {
 public:
  /// The legs, in the order of the way.
  static constexpr std::size_t legs = 4;

  /// @param room  bytes that the passes of each rank may hold
  v_block(problem const& problem, std::vector<bytes> room)
      : problem_(problem),
        room_(std::move(room)),
        ranks_(index(problem.ranks())),
        forth_(2 * ranks_.size()),
        back_(2 * ranks_.size()) {}

  /// Builds a block.
  /// @param rules  which stages run BW or R
  /// @return whether one with this shape repeats, and the memory has room for it
  [[nodiscard]] bool place(v_block_shape const& shape, std::vector<stage_rule> const& rules) {
    take_times(rules);
    interval_ = shape.interval;
    ticks ready = 0;
    for (std::size_t leg = 0; leg < legs; ++leg)
      for (int i = 0; i < problem_.ranks(); ++i) {
        auto const rank = leg % 2 == 0 ? i : problem_.ranks() - 1 - i;
        ready += i > 0 ? shape.legs[leg] : leg > 0 ? shape.turns[leg - 1] : 0;
        auto const at = earliest(ranks_[index(rank)], leg, ready, shape.leaves_weights);
        if (at == never_fits) return false;
        auto& way = ranks_[index(rank)];
        way.at[leg] = at;
        ready = at + way.time[leg];
        if (i + 1 < problem_.ranks())
          ready += problem_.transfer_time(stage_of(leg, rank), stage_after(leg, rank), 0);
      }
    return lengthen(shape);
  }

  [[nodiscard]] ticks start(std::size_t leg, int rank) const noexcept {
    return ranks_[index(rank)].at[leg];
  }
  [[nodiscard]] ticks time(std::size_t leg, int rank) const noexcept {
    return ranks_[index(rank)].time[leg];
  }
  /// @return the most bytes that a rank keeps between F and B, while blocks follow each other
  [[nodiscard]] bytes most_held(int rank) const noexcept {
    auto const& way = ranks_[index(rank)];
    bytes most = 0;
    for (auto const now : {way.at[0], way.at[1]})  // what a rank holds grows where F start
      most = std::max(
          most,
          alive(way.at[0], way.at[3], now) * way.kept[0] +
              alive(way.at[1], way.at[2], now) * way.kept[1]);
    return most;
  }

  /// Lists the F and B of all microbatches for each rank, in the order of their times: those of the
  /// block, the first F earlier, the last B as well.
  void order(v_block_shape const& shape, std::vector<std::vector<fb_code>>& fb_orders) {
    auto const m = problem_.microbatches();
    auto const last = 2 * ranks_.size() - 1;
    auto const forward_interval = std::min(shape.forward_interval, interval_);
    auto const backward_interval = std::min(shape.backward_interval, interval_);
    // B begin when the first microbatch is through at its fastest.
    auto const ahead = start(2, 0) - forth_[last] - time(1, 0);
    auto const forward = [&](std::size_t stage, ticks at, int k) {
      return std::max(at - ahead + k * interval_, forth_[stage] + k * forward_interval);
    };
    ticks end = 0;
    for (int k = 0; k < m; ++k)
      end = std::max(
          end,
          forward(last, start(1, 0), k) + time(1, 0) + back_[last] +
              (m - 1 - k) * backward_interval);
    end += shape.slack;
    auto const backward = [&](std::size_t stage, ticks at, int k) {
      return std::min(
          at - ahead + k * interval_, end - back_[stage] - (m - 1 - k) * backward_interval);
    };
    fb_orders.resize(ranks_.size());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      auto& row = fb_orders[rank];
      row.clear();
      auto const& at = ranks_[rank].at;
      std::array<int, legs> count{};
      std::array<ticks, legs> next{};
      auto const look = [&](std::size_t leg) {
        auto const stage = leg == 0 || leg == 3 ? rank : last - rank;
        auto const k = count[leg];
        next[leg] = k == m    ? std::numeric_limits<ticks>::max()
                    : leg < 2 ? forward(stage, at[leg], k)
                              : backward(stage, at[leg], k);
      };
      for (std::size_t leg = 0; leg < legs; ++leg) look(leg);
      for (int left = 4 * m; left > 0; --left) {
        std::size_t first = next[1] < next[0] ? 1 : 0;
        // A B goes first where both are due: it frees memory. Its own F goes before it.
        if (count[2] < count[1] && next[2] <= next[first]) first = 2;
        if (count[3] < count[0] && next[3] <= next[first]) first = 3;
        constexpr std::array<fb_code, legs> codes{0, 2, 3, 1};
        row.push_back(codes[first]);
        ++count[first];
        look(first);
      }
    }
  }

 private:
  static constexpr ticks never_fits = -1;

  struct rank_legs {
    std::array<ticks, legs> at{};
    std::array<ticks, legs> time{};
    std::array<ticks, 2> weight{};  // of both chunks
    std::array<bytes, 2> kept{};
  };

  [[nodiscard]] int stage_of(std::size_t leg, int rank) const noexcept {
    return leg == 0 || leg == 3 ? rank : problem_.stages() - 1 - rank;
  }
  [[nodiscard]] int stage_after(std::size_t leg, int rank) const noexcept {
    return stage_of(leg, rank) + (leg < 2 ? 1 : -1);
  }
  [[nodiscard]] static ticks remainder(ticks time, ticks interval) noexcept {
    auto const rest = time % interval;
    return rest < 0 ? rest + interval : rest;
  }

  void take_times(std::vector<stage_rule> const& rules) {
    for (int s = 0; s < problem_.stages(); ++s) {
      auto const& c = problem_.costs(s);
      auto const& rule = rules[index(s)];
      auto const chunk = index(problem_.placement().chunk_of(s));
      auto& way = ranks_[index(problem_.placement().rank_of(s))];
      way.time[chunk] = c.forward;
      way.time[3 - chunk] = (rule.fuses ? c.of(pass_kind::backward) : c.backward_input) +
                            (rule.recomputes ? c.recompute.value_or(0) : 0);
      way.weight[chunk] = rule.fuses ? 0 : c.backward_weight;
      way.kept[chunk] = rule.recomputes ? c.recompute_input : c.activation;
    }
    ticks forth = 0;
    ticks back = 0;
    for (int s = 0; s < problem_.stages(); ++s) {
      auto const chunk = index(problem_.placement().chunk_of(s));
      auto const& way = ranks_[index(problem_.placement().rank_of(s))];
      back += way.time[3 - chunk];
      forth_[index(s)] = forth;
      back_[index(s)] = back;
      forth += way.time[chunk];
      if (s + 1 == problem_.stages()) break;
      forth += problem_.transfer_time(s, s + 1, 0);
      back += problem_.transfer_time(s + 1, s, 0);
    }
  }

  // The first time from `ready` on at which a pass keeps clear of those placed on its rank, and
  // after which what is left finds gaps. Candidates: when it is ready, and times that leave no gap,
  // or one for W, before or after it.
  [[nodiscard]] ticks earliest(
      rank_legs const& way, std::size_t leg, ticks ready, bool leaves_weights) const {
    ticks best = never_fits;
    auto const consider = [&](ticks at) {
      if ((best == never_fits || at < best) && is_free(way, leg, at) &&
          leaves_gaps(way, leg, at, leaves_weights))
        best = at;
    };
    consider(ready);
    auto const [w0, w1] = way.weight;
    for (std::size_t i = 0; i < leg && best != ready; ++i)
      for (ticks const gap : {ticks{0}, w0, w1, w0 + w1}) {
        consider(ready + remainder(way.at[i] + way.time[i] + gap - ready, interval_));
        consider(ready + remainder(way.at[i] - way.time[leg] - gap - ready, interval_));
      }
    return best;
  }

  [[nodiscard]] bool is_free(rank_legs const& way, std::size_t leg, ticks at) const noexcept {
    if (way.time[leg] > interval_) return false;
    for (std::size_t i = 0; i < leg; ++i) {
      auto const since = remainder(at - way.at[i], interval_);
      if (since < way.time[i] || since + way.time[leg] > interval_) return false;
    }
    return true;
  }

  // Whether the passes after `leg` find gaps once it is at `at`; the longest take the tightest.
  [[nodiscard]] bool leaves_gaps(
      rank_legs const& way, std::size_t leg, ticks at, bool leaves_weights) const noexcept {
    std::array<std::pair<ticks, ticks>, legs> placed{};  // when, in the interval, and how long
    for (std::size_t i = 0; i < leg; ++i)
      placed[i] = {remainder(way.at[i], interval_), way.time[i]};
    placed[leg] = {remainder(at, interval_), way.time[leg]};
    std::sort(placed.begin(), placed.begin() + static_cast<std::ptrdiff_t>(leg) + 1);
    std::array<ticks, legs> gaps{};
    for (std::size_t i = 0; i <= leg; ++i) {
      auto const next = i < leg ? placed[i + 1].first : placed[0].first + interval_;
      gaps[i] = next - placed[i].first - placed[i].second;
    }
    std::array<ticks, legs + 2> left{};
    std::size_t n = 0;
    for (std::size_t i = leg + 1; i < legs; ++i) left[n++] = way.time[i];
    if (leaves_weights)
      for (auto const w : way.weight) left[n++] = w;
    // All, with zeros at the end: g++ 12 takes a sort of the first few for one beyond the end.
    std::sort(left.begin(), left.end(), std::greater<>{});
    for (std::size_t i = 0; i < n; ++i) {
      ticks* tightest = nullptr;
      for (std::size_t g = 0; g <= leg; ++g)
        if (gaps[g] >= left[i] && (tightest == nullptr || gaps[g] < *tightest)) tightest = &gaps[g];
      if (tightest == nullptr) return false;
      *tightest -= left[i];
    }
    return true;
  }

  // How many of a stage's microbatches are between `from` and `to`, one starting every interval.
  [[nodiscard]] std::int64_t alive(ticks from, ticks to, ticks now) const noexcept {
    auto const since = remainder(now - from, interval_);
    return since > to - from ? 0 : (to - from - since) / interval_ + 1;
  }

  // Makes the turns longer by whole intervals, as the memory allows.
  // @return false where there is no memory even without
  [[nodiscard]] bool lengthen(v_block_shape const& shape) {
    auto rounds = shape.rounds;
    std::int64_t whole = problem_.ranks();  // microbatches that every rank can keep besides
    std::int64_t first = 2 * whole;         // the same of its first chunk
    auto const fit = [&] {
      for (int r = 0; r < problem_.ranks(); ++r) {
        auto const left = room_[index(r)] - most_held(r);
        if (left < 0) return false;
        auto const& kept = ranks_[index(r)].kept;
        if (kept[0] > 0) first = std::min(first, left / kept[0]);
        if (kept[0] + kept[1] > 0) whole = std::min(whole, left / (kept[0] + kept[1]));
      }
      return true;
    };
    if (!fit()) return false;
    rounds[0] = static_cast<int>(std::min<std::int64_t>(rounds[0], first));
    rounds[2] = static_cast<int>(std::min<std::int64_t>(rounds[2], first - rounds[0]));
    move(1, rounds[0]);
    move(3, rounds[2]);
    if (rounds[0] + rounds[2] > 0 && !fit()) return false;
    move(2, static_cast<int>(std::max<std::int64_t>(0, whole - rounds[1])));
    return true;
  }

  // Moves a leg and those that follow it.
  void move(std::size_t leg, int intervals) noexcept {
    for (auto& way : ranks_)
      for (std::size_t i = leg; i < legs; ++i) way.at[i] += intervals * interval_;
  }

  problem const& problem_;
  std::vector<bytes> room_;
  std::vector<rank_legs> ranks_;
  std::vector<ticks> forth_;  // of each stage: from the start to its F, at the fastest
  std::vector<ticks> back_;   // from the start of its B to the end
  ticks interval_ = 1;
};

// ---- shapes ------------------------------------------------------------------------------------
//
// Shapes of building blocks on a V: where a search begins, and how it goes on.

/// Makes and changes shapes for one problem. The same seed gives the same shapes.
class v_block_shapes {
 public:
  v_block_shapes(problem const& problem, std::uint64_t seed) : random_(seed) {
    work_ = 1;
    for (int r = 0; r < problem.ranks(); ++r) {
      ticks work = 0;
      ticks forward = 0;
      ticks backward = 0;
      for (int s : problem.placement().stages_of(r)) {
        auto const& c = problem.costs(s);
        work += work_of(c);
        forward += c.forward;
        backward += c.backward_input;
        if (r + 1 < problem.ranks()) {
          auto const next = s < problem.ranks() ? s + 1 : s - 1;
          hop_ = std::max(hop_, problem.transfer_time(s, next, 0));
        }
      }
      work_ = std::max(work_, work);
      forward_ = std::max(forward_, forward);
      backward_ = std::max(backward_, backward);
    }
  }

  /// @return any shape; those without needless waiting are the likeliest
  [[nodiscard]] v_block_shape sample() {
    v_block_shape shape;
    shape.interval = some_interval();
    shape.leaves_weights = below(4) > 0;
    set_legs(shape);
    for (auto& turn : shape.turns) turn = some_turn();
    shape.forward_interval = forward_ + hop_ * below(5);
    shape.backward_interval = backward_ + hop_ * below(5);
    shape.slack = below(2) == 0 ? 0 : work_ * below(4) / 4;
    for (auto& rounds : shape.rounds) rounds = below(4) == 0 ? below(3) : 0;
    return shape;
  }

  /// Changes a shape in one or two places.
  void change(v_block_shape& shape) {
    for (int n = 1 + below(2); n > 0; --n) switch (below(9)) {
        case 0: shape.interval = some_interval(); break;
        case 1: shape.leaves_weights = !shape.leaves_weights; break;
        case 2: set_legs(shape); break;
        case 3: shape.legs[index(below(4))] = below(2) == 0 ? 0 : work_ * below(33) / 64; break;
        case 4: shape.turns[index(below(3))] = some_turn(); break;
        case 5: shape.forward_interval = some_end_interval(forward_, shape.interval); break;
        case 6: shape.backward_interval = some_end_interval(backward_, shape.interval); break;
        case 7: shape.slack = work_ * below(16) / 8; break;
        case 8: shape.rounds = {below(4), below(3), below(4)}; break;
      }
  }

  /// @return a whole number from 0 to `end` - 1
  [[nodiscard]] int below(int end) {
    return static_cast<int>(random_() % static_cast<std::uint64_t>(end));
  }

 private:
  // Most often as short as the work, else longer; V-Min needs three times both legs of F, or of B,
  // from a rank to the next.
  [[nodiscard]] ticks some_interval() {
    auto const dice = below(12);
    if (dice == 0) return std::max(work_, 3 * (std::max(forward_, backward_) + 2 * hop_));
    return work_ + (dice > 4 ? 0 : work_ * below(17) / 64);
  }
  [[nodiscard]] ticks some_turn() { return below(2) == 0 ? 0 : work_ * below(25) / 24; }
  [[nodiscard]] ticks some_end_interval(ticks least, ticks interval) {
    auto const rest = std::max<ticks>(0, interval - least);
    return least + hop_ * below(9) / 2 + (below(2) == 0 ? 0 : rest * below(9) / 8);
  }

  // Where both legs of F from a rank to the next take a whole, a half or a third of the interval,
  // the passes of every rank, of every second or of every third are at the same places in it. So do
  // the blocks of ZB-V, V-Half and V-Min in unit times.
  // @source arXiv 2405.15362 sec. 3
  void set_legs(v_block_shape& shape) {
    shape.legs = {};
    auto const mode = below(6);
    if (mode == 0) return;
    if (mode == 1) {
      for (auto& leg : shape.legs) leg = below(3) > 0 ? 0 : work_ * below(25) / 48;
      return;
    }
    constexpr std::array<int, 4> sixths{2, 3, 4, 6};
    auto const sum = shape.interval * sixths[index(mode - 2)] / 6;
    auto const forward = below(3);
    auto const backward = below(2) == 0 ? forward : below(3);
    split(sum - forward_ - 2 * hop_, forward, shape.legs[0], shape.legs[1]);
    split(sum - backward_ - 2 * hop_, backward, shape.legs[2], shape.legs[3]);
  }
  static void split(ticks sum, int mode, ticks& down, ticks& up) noexcept {
    if (sum <= 0) return;
    down = mode == 0 ? sum : mode == 1 ? 0 : sum / 2;
    up = sum - down;
  }

  std::mt19937_64 random_;
  ticks work_ = 1;  // of one microbatch on the rank that has most
  ticks forward_ = 0;
  ticks backward_ = 0;
  ticks hop_ = 0;
};

// ---- orders ------------------------------------------------------------------------------------
//
// Candidates of a search on a V that come from building blocks: a change of one block moves passes
// of all microbatches on all ranks at once.

/// Makes candidates from blocks, and remembers the best one's shape.
class v_block_orders {
 public:
  /// @param room  bytes that the passes of each rank may hold
  v_block_orders(problem const& problem, std::vector<bytes> room, std::uint64_t seed)
      : weight_(mean_weight(problem)),
        block_(problem, std::move(room)),
        shapes_(problem, seed),
        seen_(remembered) {}

  /// Makes the order of any block, and any rules for its W.
  /// @return whether there is such a block, and its order was not made a short while ago
  [[nodiscard]] bool sample(planner_rules& rules) {
    shape_ = shapes_.sample();
    auto const ranks = static_cast<int>(rules.ranks.size());
    auto const step = 1 + shapes_.below(3);
    for (int first = 0; first < step; ++first) set_overrun(rules, first, ranks - 1, step);
    return make(rules);
  }
  /// Changes the best shape, or where its W may go.
  [[nodiscard]] bool change(planner_rules& rules) {
    shape_ = best_;
    if (shapes_.below(3) == 0) {
      auto const ranks = static_cast<int>(rules.ranks.size());
      auto const a = shapes_.below(ranks);
      auto const b = shapes_.below(3) == 0 ? ranks - 1 : shapes_.below(ranks);
      set_overrun(rules, std::min(a, b), std::max(a, b), 1 + shapes_.below(3));
    } else {
      shapes_.change(shape_);
    }
    return make(rules);
  }
  /// @return a whole number from 0 to `end` - 1
  [[nodiscard]] int below(int end) { return shapes_.below(end); }
  /// Takes the last shape for the best.
  void keep() noexcept { best_ = shape_; }

  /// @return what making one costs, in passes of the list scheduler
  [[nodiscard]] static double work(problem const& problem) noexcept {
    return 10.0 * problem.stages() + 0.2 * problem.stages() * problem.microbatches();
  }

 private:
  static constexpr std::size_t remembered = 4096;

  [[nodiscard]] static ticks mean_weight(problem const& problem) {
    ticks sum = 0;
    for (auto const& c : problem.all_costs()) sum += c.backward_weight;
    return sum / problem.stages();
  }

  // Ranks whose passes are at the same places of the interval, every `step`-th, want the same.
  void set_overrun(planner_rules& rules, int first, int last, int step) {
    auto const overrun = weight_ * shapes_.below(9) / 8;
    bool const to_the_end = shapes_.below(8) == 0;
    for (int rank = first; rank <= last; rank += step) {
      rules.ranks[index(rank)].overrun = overrun;
      rules.ranks[index(rank)].overruns_to_the_end = to_the_end;
    }
  }

  // Different shapes often give the same order.
  [[nodiscard]] bool make(planner_rules& rules) {
    if (!block_.place(shape_, rules.stages)) return false;
    block_.order(shape_, rules.fb_orders);
    std::uint64_t sum = 0xcbf29ce484222325U;
    auto const add = [&](std::uint64_t value) { sum = (sum ^ value) * 0x100000001b3U; };
    for (auto const& row : rules.fb_orders)
      for (auto const step : row) add(step);
    for (auto const& r : rules.ranks) {
      add(static_cast<std::uint64_t>(r.overrun));
      add(static_cast<std::uint64_t>(r.weights_kept));
      add(static_cast<std::uint64_t>(r.idle_allowance));
      add(r.overruns_to_the_end ? 1 : 0);
    }
    for (auto const& s : rules.stages) add((s.fuses ? 1U : 0U) + (s.recomputes ? 2U : 0U));
    return std::exchange(seen_[sum % remembered], sum) != sum;
  }

  ticks weight_;
  v_block block_;
  v_block_shapes shapes_;
  v_block_shape shape_;
  v_block_shape best_;
  std::vector<std::uint64_t> seen_;  // sums of orders and rules, the last of each place
};

}  // namespace zbpp::detail
