// SPDX-License-Identifier: Apache-2.0
//
// Shapes of building blocks on a V: where a search begins, and how it goes on.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/detail/v_block.hpp>
#include <zbpp/planner/detail/work.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>

namespace zbpp::detail {

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
          hop_ = std::max(hop_, problem.transfer_time(s, next));
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
  static void split(ticks sum, int how, ticks& down, ticks& up) noexcept {
    if (sum <= 0) return;
    down = how == 0 ? sum : how == 1 ? 0 : sum / 2;
    up = sum - down;
  }

  std::mt19937_64 random_;
  ticks work_ = 1;  // of one microbatch on the rank that has most
  ticks forward_ = 0;
  ticks backward_ = 0;
  ticks hop_ = 0;
};

}  // namespace zbpp::detail
