// SPDX-License-Identifier: Apache-2.0
//
// What passes and transfers cost: time in whole nanoseconds, so that simulation, engine and bounds
// agree to the tick, and memory in whole bytes.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/pass.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace zbpp {

/// Counts nanoseconds.
using ticks = std::int64_t;
/// Counts bytes, or any one unit that all sizes of a problem share.
using bytes = std::int64_t;

/// Rounds a time in milliseconds to the nearest tick.
/// @throws error (bad_argument) when it is negative, not finite, or over 10^12 ms
[[nodiscard]] ticks from_milliseconds(double milliseconds);

/// @return a time in milliseconds
[[nodiscard]] constexpr double to_milliseconds(ticks time) noexcept {
  return static_cast<double>(time) / 1e6;
}

/// States what the passes of one stage take and keep, for one microbatch, and what its optimizer
/// step takes.
///
/// F keeps `activation`. B adds `output_gradient` when it starts; when it ends, it frees all that
/// the stage keeps but `weight_gradient_input`, and W frees that. BW makes each gradient and uses
/// it up, so it adds nothing and frees `activation`. With R, F keeps `recompute_input` and R adds
/// the rest.
struct stage_costs {
  ticks forward = 0;
  ticks backward_input = 0;
  ticks backward_weight = 0;
  std::optional<ticks> backward_fused = {};  ///< of BW; B + W where it is not given
  std::optional<ticks> recompute = {};       ///< of R; a stage without it keeps its activation
  /// Of F and B of two microbatches together, from max(F, B) to F + B; F + B where it is not given.
  std::optional<ticks> overlapped = {};
  /// Of F and BW of two microbatches together, from max(F, BW) to F + BW. Where it is not given, an
  /// F and a BW hide as much as an F and a B.
  std::optional<ticks> overlapped_fused = {};
  ticks norm = 0;            ///< to look at its gradients, where ranks agree on optimizer steps
  ticks optimizer_step = 0;  ///< to step its weights
  bytes activation = 0;
  bytes weight_gradient_input = 0;  ///< all that W needs, `output_gradient` included
  /// What B adds for W: gradients of the outputs of layers with weights.
  bytes output_gradient = 0;
  bytes recompute_input = 0;
  bytes edge = 0;           ///< what it sends forward; the gradient that comes back is as large
  bytes static_memory = 0;  ///< weights and optimizer state, unless that is stated apart
  bytes workspace = 0;      ///< while a pass runs
  /// Gradients of the tied weights, once. All stages where this is not 0 have them, such as the
  /// first and the last one of a language model whose embedding is its output layer too; what W
  /// adds up in each is summed over all of them before the optimizer steps.
  bytes tied = 0;
  /// Gradients of all its weights, which the replicas of a pipeline add up.
  bytes gradients = 0;
  /// What its optimizer keeps of the weights, beside `static_memory`; replicas may divide it.
  bytes optimizer_state = 0;

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

  /// @return what F and B or BW of this stage take less together than one after the other
  [[nodiscard]] constexpr ticks saved_by_pairing(pass_kind backward) const noexcept {
    bool const is_own = backward == pass_kind::backward && overlapped_fused;
    auto const& together = is_own ? overlapped_fused : overlapped;
    auto const alone = is_own ? of(pass_kind::backward) : backward_input;
    return together ? forward - (*together - alone) : 0;
  }
  /// @return the more of what F and B and what F and BW take less together
  [[nodiscard]] constexpr ticks most_saved_by_pairing() const noexcept {
    auto const apart = saved_by_pairing(pass_kind::backward_input);
    auto const fused = saved_by_pairing(pass_kind::backward);
    return apart < fused ? fused : apart;
  }

  /// @return whether BW takes less time than B and W apart
  [[nodiscard]] constexpr bool gains_by_fusing() const noexcept {
    return backward_fused && *backward_fused - backward_input < backward_weight;
  }

  /// @throws error (bad_argument) naming `stage` when a number is negative or two contradict
  void check(int stage) const;

  friend bool operator==(stage_costs const&, stage_costs const&) = default;
};

/// Says how long F of one stage and B or BW of a stage of the same rank take together: what both
/// take less the time that each of the two stages can hide, the lesser of both. So it lies between
/// the longer pass and the sum, and one stage that hides nothing leaves the sum.
[[nodiscard]] constexpr ticks pair_time(
    stage_costs const& of_forward, stage_costs const& of_backward, pass_kind backward) noexcept {
  auto const a = of_forward.saved_by_pairing(backward);
  auto const b = of_backward.saved_by_pairing(backward);
  return of_forward.forward + of_backward.of(backward) - (a < b ? a : b);
}

/// States how many replicas of a pipeline train side by side, and what a message between two ranks
/// takes that have the same stages.
struct replica_costs {
  int count = 1;             ///< 1: there are no others, and nothing is added up
  ticks latency = 0;         ///< of a message
  double time_per_byte = 0;  ///< nanoseconds, of all that a rank sends to the other replicas
  /// Whether each replica keeps the state of the optimizer for a share of the layers of a stage
  /// alone, steps that share, and gives its weights to the others (ZeRO-1).
  /// @source Rajbhandari et al., arXiv 1910.02054 sec. 5.1
  bool shards_optimizer = false;

  /// @return what it takes to add up gradients over the replicas, so that each has the sums: the
  ///         exchange of everything between two, else that of the parts that each adds up, and then
  ///         of their sums. With a sharded optimizer each needs those of its share alone
  /// @source Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in
  ///         MPICH (2005), sec. 4.5, with all pairs at once
  [[nodiscard]] ticks operator()(bytes gradients) const noexcept;
  /// @return what it takes until each replica has all weights, where it has stepped a share of
  /// them;
  ///         0 where each steps all
  [[nodiscard]] ticks gather_time(bytes weights) const noexcept;
  /// @return what a rank keeps of the state of an optimizer
  [[nodiscard]] constexpr bytes share_of_state(bytes state) const noexcept {
    return shards_optimizer ? (state + count - 1) / count : state;
  }
  /// @throws error (bad_argument) when a number is out of range
  void check() const;

  friend bool operator==(replica_costs const&, replica_costs const&) = default;
};

/// Says how long a message takes from one rank to another: latency plus size times a rate.
class transfer_costs {
 public:
  /// Makes every hop between two ranks take `latency`.
  /// @throws error (bad_argument) when it is out of range
  transfer_costs(ticks latency = 0);

  /// Gives each directed pair its own latency, and optionally nanoseconds per byte;
  /// both row by row, `[from * ranks + to]`.
  /// @throws error (bad_argument) when a list does not have ranks*ranks entries, or an entry is
  ///         out of range
  transfer_costs(int ranks, std::vector<ticks> latency, std::vector<double> time_per_byte = {});

  /// @return the time of a message of `size` bytes; 0 when it stays on its rank, and 2^62 when it
  ///         is more than that, which no problem takes
  [[nodiscard]] ticks operator()(int from, int to, bytes size) const noexcept {
    if (from == to) return 0;
    auto const pair = detail::index(std::int64_t{from} * ranks_ + to);
    auto const latency = ranks_ == 0 ? latency_.front() : latency_[pair];
    return time_per_byte_.empty() ? latency : with_rate(latency, time_per_byte_[pair], size);
  }
  /// @return the same of a message whose size is `factor` times `size`
  [[nodiscard]] ticks operator()(int from, int to, bytes size, double factor) const noexcept;

  /// @return how many ranks the table is for; 0 when every pair is the same
  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  /// @return the latency of every directed pair, row by row; of all pairs where ranks() is 0
  [[nodiscard]] std::span<ticks const> latency() const noexcept { return latency_; }
  /// @return nanoseconds per byte of every directed pair, row by row; empty where sizes do not
  /// matter
  [[nodiscard]] std::span<double const> time_per_byte() const noexcept { return time_per_byte_; }

  friend bool operator==(transfer_costs const&, transfer_costs const&) = default;

 private:
  static constexpr ticks most = ticks{1} << 62;

  void check() const;
  [[nodiscard]] static ticks with_rate(ticks latency, double rate, bytes size) noexcept;

  int ranks_ = 0;
  std::vector<ticks> latency_;
  std::vector<double> time_per_byte_;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/model/impl/costs.ipp>
#endif
