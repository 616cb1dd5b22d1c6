// SPDX-License-Identifier: Apache-2.0
//
// What passes and transfers cost: time in whole nanoseconds, so that simulation, engine and bounds
// agree to the tick, and memory in whole bytes.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/pass.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
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

namespace detail {

// The members of `stage_costs` as a table, for all that treats them alike: checks, sums, files, and
// what ranks tell each other.

/// Says what a cost is.
enum class cost_kind : std::uint8_t {
  pass,       ///< time of a pass
  joint,      ///< time of two passes in one; lies between the longer one and both in turn
  optimizer,  ///< time of a part of the optimizer step
  kept,       ///< size of what a stage keeps beside all else that is of this kind
  size,       ///< any other size
};

/// Says how a stage gets a cost from those of its layers; `own`: from several of theirs.
enum class cost_merge : std::uint8_t { own, sum, greatest, last };

// Without these names nvcc writes parentheses around the members below, of which g++ warns.
using cost_number = std::int64_t stage_costs::*;
using cost_optional = std::optional<std::int64_t> stage_costs::*;

/// Describes a member of `stage_costs`, which is either a number or an optional one.
struct cost_field {
  std::string_view name;
  cost_number number = nullptr;
  cost_kind kind = cost_kind::size;
  cost_merge merge = cost_merge::own;
  std::size_t place = 0;            ///< among the keys of a file, as messages list them
  std::string_view other_key = {};  ///< in a file, where that is not the name
  cost_optional optional = nullptr;
  pass_kind one = {};    ///< of two passes together
  pass_kind other = {};  ///< the second of them

  /// @return how a file calls it
  [[nodiscard]] constexpr std::string_view key() const noexcept {
    return other_key.empty() ? name : other_key;
  }
  [[nodiscard]] constexpr bool is_time() const noexcept { return kind < cost_kind::kept; }
  [[nodiscard]] constexpr std::optional<std::int64_t> of(stage_costs const& costs) const noexcept {
    return optional != nullptr ? costs.*optional : costs.*number;
  }
  constexpr void set(stage_costs& costs, std::int64_t value) const noexcept {
    if (optional != nullptr)
      costs.*optional = value;
    else
      costs.*number = value;
  }
};

/// How many keys a file has to have, the first of them.
inline constexpr std::size_t required_costs = 5;

/// Lists all members, in the order in which `stage_costs` has them.
inline constexpr auto cost_fields = [] {
  using enum cost_kind;
  using enum cost_merge;
  using enum pass_kind;
  using c = stage_costs;
  return std::to_array<cost_field>({
      {"forward", &c::forward, pass, sum, 0},
      {"backward_input", &c::backward_input, pass, sum, 1},
      {"backward_weight", &c::backward_weight, pass, sum, 2},
      {"backward_fused",
       {},
       joint,
       own,
       5,
       {},
       &c::backward_fused,
       backward_input,
       backward_weight},
      {"recompute", {}, pass, own, 6, {}, &c::recompute},
      {"overlapped", {}, joint, own, 17, {}, &c::overlapped, forward, backward_input},
      {"overlapped_fused", {}, joint, own, 18, {}, &c::overlapped_fused, forward, backward},
      {"norm", &c::norm, optimizer, sum, 7},
      {"optimizer_step", &c::optimizer_step, optimizer, sum, 8},
      {"activation", &c::activation, kept, sum, 3},
      {"weight_gradient_input", &c::weight_gradient_input, size, sum, 4},
      {"output_gradient", &c::output_gradient, kept, sum, 16},
      {"recompute_input", &c::recompute_input, size, own, 9},
      {"edge", &c::edge, size, last, 10},
      {"static_memory", &c::static_memory, kept, sum, 11, "static"},
      {"workspace", &c::workspace, size, greatest, 12},
      {"tied", &c::tied, size, greatest, 13},  // one stage needs them once
      {"gradients", &c::gradients, size, sum, 14},
      {"optimizer_state", &c::optimizer_state, kept, sum, 15},
  });
}();

// Each of the 4 that are optional is as large as two numbers.
static_assert(
    sizeof(stage_costs) == (cost_fields.size() + 4) * sizeof(std::int64_t),
    "cost_fields lacks a member of stage_costs; add it, and what it is");

}  // namespace detail

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
