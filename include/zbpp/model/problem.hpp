// SPDX-License-Identifier: Apache-2.0
//
// A problem: what a policy is asked to schedule. Placement, microbatches, measured costs of every
// stage, transfers, and how much memory each rank has.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/placement.hpp>

#include <optional>
#include <span>
#include <vector>

namespace zbpp {

/// States one step of a pipeline: sizes, costs and limits. Valid once made.
class problem {
 public:
  /// Gives every stage the same costs.
  /// @throws error (bad_argument) saying what is wrong and what to do
  problem(
      zbpp::placement const& placement,
      int microbatches,
      stage_costs every_stage,
      transfer_costs transfer = {},
      std::vector<bytes> memory_limits = {});

  /// Gives each stage its own costs; `memory_limits` is empty (no limit), one number for all ranks,
  /// or one per rank.
  /// @throws error (bad_argument) saying what is wrong and what to do
  problem(
      zbpp::placement placement,
      int microbatches,
      std::vector<stage_costs> stages,
      transfer_costs transfer = {},
      std::vector<bytes> memory_limits = {});

  /// @return which rank runs which stage
  [[nodiscard]] zbpp::placement const& placement() const noexcept { return placement_; }
  [[nodiscard]] int ranks() const noexcept { return placement_.ranks(); }
  [[nodiscard]] int stages() const noexcept { return placement_.stages(); }
  [[nodiscard]] int microbatches() const noexcept { return microbatches_; }
  [[nodiscard]] stage_costs const& costs(int stage) const noexcept {
    return stages_[detail::index(stage)];
  }
  [[nodiscard]] std::span<stage_costs const> all_costs() const noexcept { return stages_; }
  /// @return what an F and the B or BW beside it on the same rank take together
  [[nodiscard]] ticks pair_time(pass const& forward, pass const& backward) const noexcept {
    return zbpp::pair_time(costs(forward.stage), costs(backward.stage), backward.kind);
  }
  /// @return whether any stage takes less time for F and B together than for both in turn
  [[nodiscard]] bool gains_by_pairing() const noexcept;
  /// @return what messages between ranks take
  [[nodiscard]] transfer_costs const& transfer() const noexcept { return transfer_; }
  /// @return the time of the message that crosses the boundary between two neighbouring stages
  [[nodiscard]] ticks transfer_time(int from_stage, int to_stage) const noexcept {
    auto const size = costs(from_stage < to_stage ? from_stage : to_stage).edge;
    return transfer_(placement_.rank_of(from_stage), placement_.rank_of(to_stage), size);
  }
  /// @return the stages with tied weights, in ascending order
  [[nodiscard]] std::vector<int> tied_stages() const;
  /// @return the gradients of the tied weights, once; 0 where there are none
  [[nodiscard]] bytes tied_size() const noexcept;
  /// @return the memory of a rank in bytes; nothing when there is no limit
  [[nodiscard]] std::optional<bytes> memory_limit(int rank) const noexcept {
    if (memory_limits_.empty()) return std::nullopt;
    return memory_limits_.size() == 1 ? memory_limits_.front()
                                      : memory_limits_[detail::index(rank)];
  }
  /// @return the memory limits as given: none, one for all ranks, or one per rank
  [[nodiscard]] std::span<bytes const> memory_limits() const noexcept { return memory_limits_; }

  friend bool operator==(problem const&, problem const&) = default;

 private:
  void check() const;
  void check_sums() const;

  zbpp::placement placement_;
  int microbatches_;
  std::vector<stage_costs> stages_;
  transfer_costs transfer_;
  std::vector<bytes> memory_limits_;
};

namespace detail {

/// Says whether a schedule or program was made for the placement and the microbatches of a problem.
template <class Order>
[[nodiscard]] bool fits(Order const& order, problem const& problem) noexcept {
  return order.placement() == problem.placement() && order.microbatches() == problem.microbatches();
}

/// Throws `errc::bad_argument` unless `order` fits the problem.
template <class Order>
void require_fit(Order const& order, problem const& problem) {
  require(
      fits(order, problem),
      "made for another placement or another number of microbatches than the problem's");
}

}  // namespace detail

/// @return the same problem with other memory limits: none, one for all ranks, or one for each
/// @throws error (bad_argument) when one is negative, or there is another number of them
[[nodiscard]] problem with_memory_limits(problem const& problem, std::vector<bytes> limits);
/// @return the same problem with one memory limit for every rank
/// @throws error (bad_argument) when the limit is negative
[[nodiscard]] problem with_memory_limit(problem const& problem, bytes limit);
/// @return the same problem with another number of microbatches
/// @throws error (bad_argument) when it is below 1 or too large
[[nodiscard]] problem with_microbatches(problem const& problem, int microbatches);
/// @return the same problem with other times of messages
/// @throws error (bad_argument) when they are for another number of ranks
[[nodiscard]] problem with_transfer(problem const& problem, transfer_costs transfer);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/model/impl/problem.ipp>
#endif
