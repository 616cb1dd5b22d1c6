// SPDX-License-Identifier: Apache-2.0
//
// A problem: what a policy is asked to schedule. Placement, microbatches, measured costs of every
// stage, transfers, and how much memory each rank has.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/placement.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

/// States one step of a pipeline: sizes, costs and limits. Valid once made.
class problem {
 public:
  /// Gives every stage the same costs.
  /// @throws error (bad_argument) saying what is wrong and what would be right
  problem(
      zbpp::placement const& placement,
      int microbatches,
      stage_costs every_stage,
      transfer_costs transfer = {},
      std::vector<bytes> memory_limits = {})
      : problem(
            placement,
            microbatches,
            std::vector<stage_costs>(detail::index(placement.stages()), every_stage),
            std::move(transfer),
            std::move(memory_limits)) {}

  /// Gives each stage its own costs; `memory_limits` is empty (no limit), one number for all ranks,
  /// or one per rank.
  /// @throws error (bad_argument) saying what is wrong and what would be right
  problem(
      zbpp::placement placement,
      int microbatches,
      std::vector<stage_costs> stages,
      transfer_costs transfer = {},
      std::vector<bytes> memory_limits = {})
      : placement_(std::move(placement)),
        microbatches_(microbatches),
        stages_(std::move(stages)),
        transfer_(std::move(transfer)),
        memory_limits_(std::move(memory_limits)) {
    check();
  }

  /// @return which rank runs which stage
  [[nodiscard]] zbpp::placement const& placement() const noexcept { return placement_; }
  /// @return how many ranks there are
  [[nodiscard]] int ranks() const noexcept { return placement_.ranks(); }
  /// @return how many stages there are
  [[nodiscard]] int stages() const noexcept { return placement_.stages(); }
  /// @return how many microbatches make a step
  [[nodiscard]] int microbatches() const noexcept { return microbatches_; }
  /// @return the costs of a stage
  [[nodiscard]] stage_costs const& costs(int stage) const noexcept {
    return stages_[detail::index(stage)];
  }
  /// @return the costs of all stages
  [[nodiscard]] std::span<stage_costs const> all_costs() const noexcept { return stages_; }
  /// @return what messages between ranks take
  [[nodiscard]] transfer_costs const& transfer() const noexcept { return transfer_; }
  /// @return the time of the message that crosses the boundary between two neighbouring stages
  [[nodiscard]] ticks transfer_time(int from_stage, int to_stage) const noexcept {
    auto const size = costs(std::min(from_stage, to_stage)).edge;
    return transfer_(placement_.rank_of(from_stage), placement_.rank_of(to_stage), size);
  }
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
  void check() const {
    detail::check_microbatches(placement_, microbatches_);
    if (stages_.size() != detail::index(placement_.stages()))
      throw error(
          errc::bad_argument,
          "costs are given for " + std::to_string(stages_.size()) + " stages; the placement has " +
              std::to_string(placement_.stages()));
    for (int s = 0; s < stages(); ++s) costs(s).check(s);
    if (transfer_.ranks() != 0 && transfer_.ranks() != ranks())
      throw error(
          errc::bad_argument,
          "transfer: the table is for " + std::to_string(transfer_.ranks()) +
              " ranks; the placement has " + std::to_string(ranks()));
    if (memory_limits_.size() > 1 && memory_limits_.size() != detail::index(ranks()))
      throw error(
          errc::bad_argument,
          "memory_limit has " + std::to_string(memory_limits_.size()) + " entries; 1 or " +
              std::to_string(ranks()) + " would be right");
    for (auto limit : memory_limits_)
      if (limit < 0)
        throw error(
            errc::bad_argument,
            "memory_limit is " + std::to_string(limit) + "; a limit is at least 0 bytes");
    check_sums();
  }

  // Whatever the order, no clock and no memory count can pass these sums, so keeping them within 62
  // bits keeps every later addition within 64.
  void check_sums() const {
    long double time = 0;
    long double memory = 0;
    for (int s = 0; s < stages(); ++s) {
      auto const& c = costs(s);
      time += static_cast<long double>(c.forward) + static_cast<long double>(c.backward_input) +
              static_cast<long double>(c.backward_weight) +
              static_cast<long double>(c.recompute.value_or(0));
      if (s > 0)
        time += static_cast<long double>(transfer_time(s - 1, s)) +
                static_cast<long double>(transfer_time(s, s - 1));
      memory += static_cast<long double>(c.activation) + 4 * static_cast<long double>(c.edge) +
                static_cast<long double>(c.static_memory) + static_cast<long double>(c.workspace);
    }
    auto const most = static_cast<long double>(std::numeric_limits<std::int64_t>::max() / 2);
    if (time * microbatches_ > most || memory * microbatches_ > most)
      throw error(
          errc::bad_argument,
          "times or sizes add up to more than 2^62 over a step; a coarser unit would be right");
  }

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
/// @return the same problem with one memory limit for every rank
/// @throws error (bad_argument) when the limit is negative
[[nodiscard]] inline problem with_memory_limit(problem const& problem, bytes limit) {
  return {
      problem.placement(),
      problem.microbatches(),
      {problem.all_costs().begin(), problem.all_costs().end()},
      problem.transfer(),
      {limit}};
}

}  // namespace zbpp
