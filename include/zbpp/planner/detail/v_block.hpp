// SPDX-License-Identifier: Apache-2.0
//
// Building blocks on a V: one microbatch's way through all ranks, in unit times, that can be
// repeated every six units without two passes meeting on a rank. How long it stays on the ranks is
// how much memory it takes, so short blocks run where memory is short.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/planner/detail/rank_rules.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Holds one microbatch's way down and up the V, twice: how many units each leg takes from a rank
/// to the next, and how many each turn takes.
/// @source arXiv 2405.15362 sec. 3
class v_block {
 public:
  static constexpr int period = 6;  // F, B and W of two chunks

  v_block(int ranks, std::array<int, 4> legs, std::array<int, 3> turns)
      : ranks_(ranks), legs_(legs) {
    begin_[0] = 0;
    for (std::size_t i = 1; i < 4; ++i)
      begin_[i] = begin_[i - 1] + (ranks - 1) * legs[i - 1] + turns[i - 1];
  }

  /// @return when F of chunk 0, F of chunk 1, B of chunk 1 and B of chunk 0 run on a rank
  [[nodiscard]] std::array<int, 4> times(int rank) const noexcept {
    auto const last = ranks_ - 1;
    return {
        begin_[0] + rank * legs_[0],
        begin_[1] + (last - rank) * legs_[1],
        begin_[2] + rank * legs_[2],
        begin_[3] + (last - rank) * legs_[3]};
  }
  /// @return units from the first F to the last B
  [[nodiscard]] int length() const noexcept { return times(0)[3] + 1; }

  /// @return whether no two passes of a rank meet, once blocks follow each other, and no rank holds
  ///         more than `most` chunks between F and B
  [[nodiscard]] bool fits(int most) const noexcept {
    for (int rank = 0; rank < ranks_; ++rank) {
      auto const t = times(rank);
      for (std::size_t i = 0; i < 4; ++i)
        for (std::size_t j = 0; j < i; ++j)
          if ((t[i] - t[j]) % period == 0) return false;
      if (chunks_held(t) > most) return false;
    }
    return true;
  }

  /// @return for each rank the order of its F and B
  [[nodiscard]] std::vector<std::vector<step_code>> steps(int microbatches) const {
    constexpr std::array<step_code, 4> codes{0, 2, 3, 1};  // in the order of `times`
    std::vector<std::vector<step_code>> result;
    std::vector<std::pair<int, step_code>> at;
    for (int rank = 0; rank < ranks_; ++rank) {
      at.clear();
      auto const t = times(rank);
      for (int k = 0; k < microbatches; ++k)
        for (std::size_t i = 0; i < 4; ++i) at.emplace_back(t[i] + period * k, codes[i]);
      std::sort(at.begin(), at.end());
      auto& row = result.emplace_back();
      for (auto const& [when, code] : at) row.push_back(code);
    }
    return result;
  }

 private:
  [[nodiscard]] static int chunks_held(std::array<int, 4> const& t) noexcept {
    int most = 0;
    auto const alive = [](int from, int to, int now) {  // in [from, to], every period anew
      auto const since = ((now - from) % period + period) % period;
      return since > to - from ? 0 : (to - from - since) / period + 1;
    };
    for (int now = 0; now < period; ++now)
      most = std::max(most, alive(t[0], t[3], now) + alive(t[1], t[2], now));
    return most;
  }

  int ranks_;
  std::array<int, 4> legs_;
  std::array<int, 4> begin_{};
};

/// Lists building blocks that hold no more than `chunks` on any rank, the shortest first.
[[nodiscard]] inline std::vector<v_block> v_blocks(int ranks, int chunks, std::size_t most) {
  std::vector<v_block> found;
  int shortest = std::numeric_limits<int>::max() / 2;
  auto const shorter = [](v_block const& a, v_block const& b) { return a.length() < b.length(); };
  constexpr int longest_leg = 4;
  for (int code = 0; code < longest_leg * longest_leg * longest_leg * longest_leg; ++code) {
    std::array<int, 4> legs{};
    for (int rest = code; auto& leg : legs) {
      leg = 1 + rest % longest_leg;
      rest /= longest_leg;
    }
    for (int turns = 0; turns < 6 * 6 * 6; ++turns) {
      v_block const block(ranks, legs, {1 + turns % 6, 1 + turns / 6 % 6, 1 + turns / 36});
      if (block.length() > shortest + 4 * ranks || !block.fits(chunks)) continue;
      shortest = std::min(shortest, block.length());
      found.push_back(block);
    }
  }
  std::stable_sort(found.begin(), found.end(), shorter);
  if (found.size() > most)
    found.erase(found.begin() + static_cast<std::ptrdiff_t>(most), found.end());
  return found;
}

}  // namespace zbpp::detail
