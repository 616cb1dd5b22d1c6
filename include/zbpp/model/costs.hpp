// SPDX-License-Identifier: Apache-2.0
//
// What passes and transfers cost: time in whole nanoseconds, so that simulation, engine and bounds
// agree to the tick, and memory in whole bytes.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/pass.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

/// Counts nanoseconds.
using ticks = std::int64_t;
/// Counts bytes, or any one unit that all sizes of a problem share.
using bytes = std::int64_t;

/// Rounds a time in milliseconds to the nearest tick.
/// @throws error (bad_argument) when it is negative, not finite, or over 10^12 ms
[[nodiscard]] inline ticks from_milliseconds(double milliseconds) {
  if (!(milliseconds >= 0 && milliseconds <= 1e12))
    throw error(
        errc::bad_argument,
        "a time of " + std::to_string(milliseconds) + " ms; times go from 0 to 10^12 ms");
  return static_cast<ticks>(std::llround(milliseconds * 1e6));
}

/// @return a time in milliseconds
[[nodiscard]] constexpr double to_milliseconds(ticks time) noexcept {
  return static_cast<double>(time) / 1e6;
}

/// States what the passes of one stage take and keep, for one microbatch.
///
/// F keeps `activation`, B frees all of it but `weight_gradient_input`, and W frees that. With R, F
/// keeps `recompute_input` and R adds the rest.
struct stage_costs {
  ticks forward = 0;
  ticks backward_input = 0;
  ticks backward_weight = 0;
  std::optional<ticks> backward_fused = {};  ///< of BW; B + W where it is not given
  std::optional<ticks> recompute = {};       ///< of R; a stage without it keeps its activation
  bytes activation = 0;
  bytes weight_gradient_input = 0;
  bytes recompute_input = 0;
  bytes edge = 0;           ///< what it sends forward; the gradient that comes back is as large
  bytes static_memory = 0;  ///< weights and optimizer state
  bytes workspace = 0;      ///< while a pass runs

  /// @return how long a pass of this stage takes
  [[nodiscard]] constexpr ticks of(pass_kind kind) const noexcept {
    switch (kind) {
      case pass_kind::forward: return forward;
      case pass_kind::backward_input: return backward_input;
      case pass_kind::backward_weight: return backward_weight;
      case pass_kind::backward: return backward_fused.value_or(backward_input + backward_weight);
      case pass_kind::recompute: return recompute.value_or(0);
    }
    return 0;
  }

  /// @return whether BW takes less time than B and W apart
  [[nodiscard]] constexpr bool gains_by_fusing() const noexcept {
    return backward_fused && *backward_fused - backward_input < backward_weight;
  }

  /// @throws error (bad_argument) naming `stage` when a number is negative or two contradict
  void check(int stage) const {
    auto refuse = [stage](std::string const& text) {
      throw error(errc::bad_argument, text, {.stage = stage});
    };
    auto not_negative = [&](char const* name, std::int64_t value) {
      if (value < 0) refuse(std::string(name) + " is " + std::to_string(value) + "; at least 0");
    };
    not_negative("forward", forward);
    not_negative("backward_input", backward_input);
    not_negative("backward_weight", backward_weight);
    not_negative("recompute", recompute.value_or(0));
    not_negative("activation", activation);
    not_negative("weight_gradient_input", weight_gradient_input);
    not_negative("recompute_input", recompute_input);
    not_negative("edge", edge);
    not_negative("static_memory", static_memory);
    not_negative("workspace", workspace);
    if (weight_gradient_input > activation)
      refuse("weight_gradient_input is more than activation; W keeps a part of what F kept");
    if (recompute_input > activation)
      refuse("recompute_input is more than activation; R adds what F did not keep");
    if (backward_fused && (*backward_fused < std::max(backward_input, backward_weight) ||
                           *backward_fused - backward_input > backward_weight))
      refuse("backward_fused must lie between max(B, W) and B + W");
  }

  friend bool operator==(stage_costs const&, stage_costs const&) = default;
};

/// Says how long a message takes from one rank to another: latency plus size times a rate.
class transfer_costs {
 public:
  /// Makes every hop between two ranks take `latency`.
  /// @throws error (bad_argument) when it is out of range
  transfer_costs(ticks latency = 0) : latency_{latency} { check(); }

  /// Gives each directed pair its own latency, and optionally nanoseconds per byte;
  /// both row by row, `[from * ranks + to]`.
  /// @throws error (bad_argument) when a list does not have ranks*ranks entries, or an entry is
  ///         out of range
  transfer_costs(int ranks, std::vector<ticks> latency, std::vector<double> time_per_byte = {})
      : ranks_(ranks), latency_(std::move(latency)), time_per_byte_(std::move(time_per_byte)) {
    if (ranks < 1)
      throw error(
          errc::bad_argument,
          "transfer: a table for " + std::to_string(ranks) + " ranks; at least 1");
    auto const pairs = detail::index(ranks) * detail::index(ranks);
    auto const check_size = [&](char const* name, std::size_t size) {
      if (size != pairs)
        throw error(
            errc::bad_argument,
            std::string("transfer: ") + name + " has " + std::to_string(size) + " entries; " +
                std::to_string(ranks) + " ranks need " + std::to_string(pairs));
    };
    check_size("latency", latency_.size());
    if (!time_per_byte_.empty()) check_size("time_per_byte", time_per_byte_.size());
    check();
  }

  /// @return the time of a message of `size` bytes; 0 when it stays on its rank, and 2^62 when it
  ///         is more than that, which no problem takes
  [[nodiscard]] ticks operator()(int from, int to, bytes size) const noexcept {
    if (from == to) return 0;
    auto const pair = detail::index(std::int64_t{from} * ranks_ + to);
    auto const latency = ranks_ == 0 ? latency_.front() : latency_[pair];
    if (time_per_byte_.empty()) return latency;
    auto const moving = time_per_byte_[pair] * static_cast<double>(size);
    if (moving >= static_cast<double>(most)) return most;
    return std::min(most, latency + static_cast<ticks>(std::llround(moving)));
  }

  /// @return how many ranks the table is for; 0 when every pair is the same
  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  /// @return the latency of every directed pair, row by row; of all pairs where ranks() is 0
  [[nodiscard]] std::span<ticks const> latency() const noexcept { return latency_; }
  /// @return nanoseconds a byte of every directed pair, row by row; empty where sizes do not matter
  [[nodiscard]] std::span<double const> time_per_byte() const noexcept { return time_per_byte_; }

  friend bool operator==(transfer_costs const&, transfer_costs const&) = default;

 private:
  static constexpr ticks most = ticks{1} << 62;

  void check() const {
    for (auto latency : latency_)
      if (latency < 0 || latency > most)
        throw error(
            errc::bad_argument,
            "transfer: a latency of " + std::to_string(latency) +
                " ns; a latency lies between 0 and 2^62 ns");
    for (auto rate : time_per_byte_)
      if (!(rate >= 0 && rate <= 1e9))
        throw error(
            errc::bad_argument,
            "transfer: " + std::to_string(rate) +
                " ns a byte; a rate lies between 0 and 10^9 ns a byte");
  }

  int ranks_ = 0;
  std::vector<ticks> latency_;
  std::vector<double> time_per_byte_;
};

}  // namespace zbpp
