// SPDX-License-Identifier: Apache-2.0
//
// A problem: what a policy is asked to schedule. Placement, microbatches, measured costs of every
// stage, transfers, and how much memory each rank has; of a model of layers also those, and how
// they are cut into stages.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/scaled_costs.hpp>

#include <optional>
#include <span>
#include <vector>

namespace zbpp {

/// States what the layers of a model run on, and how often in a step.
struct step_setup {
  int ranks = 1;
  int microbatches = 1;
  transfer_costs transfer = {};
  std::vector<bytes> memory_limits = {};  ///< none, one for all ranks, or one per rank
  /// How fast each rank is, where they differ: passes of a rank with 0.5 take twice what the layers
  /// state. One per rank, from 0.001 to 1000, or none.
  std::vector<double> rank_speeds = {};
};

/// States one step of a pipeline: sizes, costs and limits. Valid once made.
///
/// A problem has stages, or layers that are cut into stages: at first, and on each new placement,
/// so that the longest stage takes the least time. `with_cut` cuts them elsewhere, and `find_plan`
/// searches for the cut.
///
/// The microbatches of a step may differ in size: `with_microbatch_factors` gives each a factor, by
/// which the times of its passes and what its messages take per byte are multiplied. Memory is not:
/// state the costs of the largest microbatch, and give it the factor 1, so that its sizes and the
/// limits hold for every one.
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

  /// Takes what each layer costs, from the input on, and places them one stage per rank.
  /// @throws error (bad_argument) saying what is wrong and what to do
  problem(std::vector<layer_costs> layers, step_setup setup);

  [[nodiscard]] zbpp::placement const& placement() const noexcept { return placement_; }
  [[nodiscard]] int ranks() const noexcept { return placement_.ranks(); }
  [[nodiscard]] int stages() const noexcept { return placement_.stages(); }
  [[nodiscard]] int microbatches() const noexcept { return microbatches_; }
  [[nodiscard]] stage_costs const& costs(int stage) const noexcept {
    return stages_[detail::index(stage)];
  }
  [[nodiscard]] std::span<stage_costs const> all_costs() const noexcept { return stages_; }
  /// @return the layers that are cut into stages; none where stages were stated
  [[nodiscard]] std::span<layer_costs const> layers() const noexcept { return layers_; }
  /// @return the first layer of each stage; none where stages were stated
  [[nodiscard]] std::span<int const> first_layer() const noexcept { return first_layer_; }
  /// @return the layer after the last one of a stage
  [[nodiscard]] int end_layer(int stage) const noexcept {
    auto const next = detail::index(stage) + 1;
    return next < first_layer_.size() ? first_layer_[next] : static_cast<int>(layers_.size());
  }
  /// @return the speeds of ranks as given with layers: none, or one per rank
  [[nodiscard]] std::span<double const> rank_speeds() const noexcept { return rank_speeds_; }
  [[nodiscard]] double rank_speed(int rank) const noexcept {
    return rank_speeds_.empty() ? 1 : rank_speeds_[detail::index(rank)];
  }
  /// @return the factor of each microbatch; none where all are of one size
  [[nodiscard]] std::span<double const> microbatch_factors() const noexcept { return factors_; }
  [[nodiscard]] double microbatch_factor(int microbatch) const noexcept {
    return factors_.empty() ? 1 : factors_[detail::index(microbatch)];
  }
  /// @return how many microbatches, from the first on, tell the times of all: 1 if of one size
  [[nodiscard]] int distinct_microbatches() const noexcept {
    return factors_.empty() ? 1 : microbatches_;
  }
  /// @return the costs of a stage with the times that its passes of one microbatch take
  [[nodiscard]] stage_costs costs(int stage, int microbatch) const noexcept {
    return times_factor(costs(stage), microbatch_factor(microbatch));
  }
  [[nodiscard]] ticks time(pass const& p) const noexcept {
    return factors_.empty() ? costs(p.stage).of(p.kind) : scaled_time(p);
  }
  [[nodiscard]] ticks pair_time(pass const& forward, pass const& backward) const noexcept {
    return factors_.empty()
               ? zbpp::pair_time(costs(forward.stage), costs(backward.stage), backward.kind)
               : scaled_pair_time(forward, backward);
  }
  /// @return whether any stage takes less time for F and B together than for both in turn
  [[nodiscard]] bool gains_by_pairing() const noexcept;
  [[nodiscard]] transfer_costs const& transfer() const noexcept { return transfer_; }
  [[nodiscard]] ticks transfer_time(int from_stage, int to_stage, int microbatch) const noexcept {
    if (!factors_.empty()) return scaled_transfer_time(from_stage, to_stage, microbatch);
    auto const size = costs(from_stage < to_stage ? from_stage : to_stage).edge;
    return transfer_(placement_.rank_of(from_stage), placement_.rank_of(to_stage), size);
  }
  [[nodiscard]] std::vector<int> tied_stages() const;
  /// @return the gradients of the tied weights, once; 0 where there are none
  [[nodiscard]] bytes tied_size() const noexcept;
  [[nodiscard]] replica_costs const& replicas() const noexcept { return replicas_; }
  /// @return what it takes to add up a stage's gradients over the replicas; 0 where there is one
  [[nodiscard]] ticks reduction_time(int stage) const noexcept {
    return replicas_(costs(stage).gradients);
  }
  /// @return what it takes until each replica has all weights of a stage, where each steps a share
  [[nodiscard]] ticks gather_time(int stage) const noexcept {
    return replicas_.gather_time(costs(stage).gradients);
  }
  /// @return what a stage takes on its rank as long as the pipeline lives: weights, and what the
  ///         rank keeps of the state of the optimizer
  [[nodiscard]] bytes fixed_memory(int stage) const noexcept {
    return costs(stage).static_memory + replicas_.share_of_state(costs(stage).optimizer_state);
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
  friend problem with_stages(problem, std::vector<stage_costs>);
  friend problem with_layers(problem, std::vector<layer_costs>);
  friend problem with_cut(problem, std::vector<int>, std::vector<bool> const&);
  friend problem with_placement(problem, zbpp::placement const&);
  friend problem with_memory_limits(problem, std::vector<bytes>);
  friend problem with_microbatches(problem, int);
  friend problem with_transfer(problem, transfer_costs);
  friend problem with_microbatch_factors(problem, std::vector<double>);
  friend problem with_replicas(problem, replica_costs);

  [[nodiscard]] ticks scaled_time(pass const& p) const noexcept;
  [[nodiscard]] ticks scaled_pair_time(pass const& forward, pass const& backward) const noexcept;
  [[nodiscard]] ticks scaled_transfer_time(
      int from_stage, int to_stage, int microbatch) const noexcept;
  void cut_evenly();
  void cut(std::vector<int> first_layer, std::vector<bool> const& recompute);
  void check() const;
  [[nodiscard]] double check_speeds() const;
  void check_factors() const;
  void check_sums() const;

  zbpp::placement placement_;
  int microbatches_;
  std::vector<stage_costs> stages_;
  transfer_costs transfer_;
  std::vector<bytes> memory_limits_;
  std::vector<layer_costs> layers_;  // those of the stages; or empty
  std::vector<int> first_layer_;     // of each stage
  std::vector<double> rank_speeds_;
  std::vector<double> factors_;  // of the microbatches; empty where all are 1
  replica_costs replicas_;
};

namespace detail {

/// Refuses layers that cannot be cut into the stages of a placement.
/// @param slowest  the least speed of a rank
/// @throws error (bad_argument) saying what is wrong and what to do
void check_layers(
    std::span<layer_costs const> layers, placement const& placement, double slowest = 1);

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

/// @return the same problem with stages that cost something else, and no layers
/// @throws error (bad_argument) as the constructor, as do those below
[[nodiscard]] problem with_stages(problem changed, std::vector<stage_costs> stages);
/// @return the same problem with other layers, cut into stages again
[[nodiscard]] problem with_layers(problem changed, std::vector<layer_costs> layers);
/// @return the same layers cut elsewhere
/// @param first_layer  the first layer of each stage
/// @param recompute  for each stage, whether it recomputes; none does when it is empty
/// @throws error (bad_argument) also when it has no layers, naming a stage without a layer, and one
///         that is to recompute and has no layer that can
[[nodiscard]] problem with_cut(
    problem changed, std::vector<int> first_layer, std::vector<bool> const& recompute = {});
/// Puts a model on another placement with as many ranks. Layers are cut into stages again.
///
/// Of a problem without layers, neighbouring stages are merged; where they do not come out even,
/// each is divided into equal parts first, whose times and sizes add up to it: what does not divide
/// evenly goes to the first parts. What is sent keeps its size, also between parts. Tied weights
/// stay at the ends of the model; all else stays.
/// @throws error (bad_argument) also when it has another number of ranks, or too many stages
[[nodiscard]] problem with_placement(problem changed, placement const& placement);
/// @return the same problem with other memory limits: none, one for all ranks, or one for each
[[nodiscard]] problem with_memory_limits(problem changed, std::vector<bytes> limits);
[[nodiscard]] problem with_memory_limit(problem changed, bytes limit);
/// @throws error (bad_argument) also where the microbatches have factors: another number of them
///         needs its own
[[nodiscard]] problem with_microbatches(problem changed, int microbatches);
[[nodiscard]] problem with_transfer(problem changed, transfer_costs transfer);
/// @return the same problem with microbatches of other sizes: the passes of each, and what its
///         messages take per byte, last `factors` times as long as the costs state. Lower bounds
///         are then those of orders with microbatches in turn
/// @param factors  one for each microbatch, above 0 and at most 10^6; none, or all 1: as stated
/// @throws error (bad_argument) also when there is another number of them, or one is out of range
[[nodiscard]] problem with_microbatch_factors(problem changed, std::vector<double> factors);
/// @return the same problem for a pipeline that trains beside others like it: `gradients` of each
///         stage are added up over the replicas, beside the passes that follow
/// @throws error (bad_argument) also when a number of `replicas` is out of range
[[nodiscard]] problem with_replicas(problem changed, replica_costs replicas);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/model/impl/problem.ipp>
#endif
