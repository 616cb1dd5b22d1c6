// SPDX-License-Identifier: Apache-2.0
//
// A model as its layers, before anybody has said which stage has which: what each layer costs, what
// a run of layers costs as a stage, and the problem that follows once the stages are cut.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>

#include <span>
#include <vector>

namespace zbpp {

/// States what one layer costs: what a stage of this layer alone would.
using layer_costs = stage_costs;

/// Adds up the layers of a stage, of which there is at least one.
///
/// Times and sizes add up; `edge` is the last layer's, `workspace` the greatest. With R, layers
/// that state a time for it are made again, and those that do not keep their activation: of each
/// run of layers that are made again the stage keeps the `recompute_input` of the first.
[[nodiscard]] stage_costs merge_layers(std::span<layer_costs const> layers);

namespace detail {

/// Refuses layers that cannot be cut into the stages of a placement.
/// @param slowest  the least speed of a rank
/// @throws error (bad_argument) saying what is wrong and what to do
void check_layers(
    std::span<layer_costs const> layers, placement const& placement, double slowest = 1);

}  // namespace detail

/// States one step of a pipeline whose stages are not cut yet. Valid once made.
class layered_problem {
 public:
  /// Takes the costs of each layer from the input on; `memory_limits` is as in `problem`.
  /// @param rank_speeds  how fast each rank is, where they differ: passes of a rank with 0.5 take
  ///                     twice what the layers state. One per rank, from 0.001 to 1000, or none
  /// @throws error (bad_argument) saying what is wrong and what to do
  layered_problem(
      zbpp::placement placement,
      int microbatches,
      std::vector<layer_costs> layers,
      transfer_costs transfer = {},
      std::vector<bytes> memory_limits = {},
      std::vector<double> rank_speeds = {});

  [[nodiscard]] zbpp::placement const& placement() const noexcept { return placement_; }
  [[nodiscard]] int stages() const noexcept { return placement_.stages(); }
  [[nodiscard]] int microbatches() const noexcept { return microbatches_; }
  [[nodiscard]] std::span<layer_costs const> layers() const noexcept { return layers_; }
  [[nodiscard]] transfer_costs const& transfer() const noexcept { return transfer_; }
  /// @return the memory limits as given: none, one for all ranks, or one per rank
  [[nodiscard]] std::span<bytes const> memory_limits() const noexcept { return memory_limits_; }
  [[nodiscard]] bool has_limits() const noexcept { return !memory_limits_.empty(); }
  [[nodiscard]] replica_costs const& replicas() const noexcept { return replicas_; }
  /// @return the speeds of ranks as given: none, or one per rank
  [[nodiscard]] std::span<double const> rank_speeds() const noexcept { return rank_speeds_; }
  [[nodiscard]] double rank_speed(int rank) const noexcept {
    return rank_speeds_.empty() ? 1 : rank_speeds_[detail::index(rank)];
  }

  /// Cuts the layers into stages, which take what they do on their ranks.
  /// @param first_layer  the first layer of each stage
  /// @param recompute  for each stage, whether it recomputes; none does when it is empty
  /// @throws error (bad_argument) naming a stage without a layer, or one that is to recompute
  ///         and has no layer that can
  [[nodiscard]] problem with(
      std::vector<int> const& first_layer, std::vector<bool> const& recompute = {}) const;

  friend bool operator==(layered_problem const&, layered_problem const&) = default;

 private:
  friend layered_problem with_layers(layered_problem, std::vector<layer_costs>);
  friend layered_problem with_memory_limits(layered_problem, std::vector<bytes>);
  friend layered_problem with_placement(layered_problem, zbpp::placement const&);
  friend layered_problem with_microbatches(layered_problem, int);
  friend layered_problem with_replicas(layered_problem, replica_costs);

  void check() const;

  zbpp::placement placement_;
  int microbatches_;
  std::vector<layer_costs> layers_;
  transfer_costs transfer_;
  std::vector<bytes> memory_limits_;
  std::vector<double> rank_speeds_;
  replica_costs replicas_;
};

/// @throws error (bad_argument) as the constructor, as do those below
[[nodiscard]] layered_problem with_layers(layered_problem model, std::vector<layer_costs> layers);
[[nodiscard]] layered_problem with_memory_limits(layered_problem model, std::vector<bytes> limits);
/// @return the same model on another placement with as many ranks
[[nodiscard]] layered_problem with_placement(layered_problem model, placement const& placement);
[[nodiscard]] layered_problem with_microbatches(layered_problem model, int microbatches);
[[nodiscard]] layered_problem with_replicas(layered_problem model, replica_costs replicas);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/model/impl/layers.ipp>
#endif
