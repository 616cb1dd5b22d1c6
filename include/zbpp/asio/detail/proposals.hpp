// SPDX-License-Identifier: Apache-2.0
//
// What ranks ask for behind a step, as rank 0 collects it: one round for each step, and no rank
// begins the next round before it knows what came of the last.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/runtime/run_options.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

/// Collects the proposals of all ranks.
class proposals {
 public:
  explicit proposals(int ranks) : has_(zbpp::detail::index(ranks)) {}

  /// Takes that of a rank.
  /// @throws error (bad_format) when it has made one in this round
  void add(int rank, after_step next) {
    if (has(rank)) throw error(errc::bad_format, "a second proposal for one step");
    has_[zbpp::detail::index(rank)] = true;
    ++count_;
    most_ = std::max(most_, next);
  }
  [[nodiscard]] bool has(int rank) const noexcept { return has_[zbpp::detail::index(rank)]; }
  [[nodiscard]] bool is_empty() const noexcept { return count_ == 0; }
  [[nodiscard]] bool is_complete() const noexcept { return count_ == has_.size(); }
  /// Ends the round. @return the most that a rank has asked for
  [[nodiscard]] after_step finish() {
    std::fill(has_.begin(), has_.end(), false);
    count_ = 0;
    return std::exchange(most_, after_step::go_on);
  }

 private:
  std::vector<bool> has_;
  std::size_t count_ = 0;
  after_step most_ = after_step::go_on;
};

}  // namespace zbpp::asio::detail
