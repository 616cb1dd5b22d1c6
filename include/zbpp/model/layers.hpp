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
/// @throws error (bad_argument) saying what is wrong and what to do
void check_layers(std::span<layer_costs const> layers, placement const& placement);

}  // namespace detail

/// States one step of a pipeline whose stages are not cut yet. Valid once made.
class layered_problem {
 public:
  /// Takes the costs of each layer from the input on; `memory_limits` is as in `problem`.
  /// @throws error (bad_argument) saying what is wrong and what to do
  layered_problem(
      zbpp::placement placement,
      int microbatches,
      std::vector<layer_costs> layers,
      transfer_costs transfer = {},
      std::vector<bytes> memory_limits = {});

  /// @return which rank runs which stage
  [[nodiscard]] zbpp::placement const& placement() const noexcept { return placement_; }
  /// @return how many stages the layers are cut into
  [[nodiscard]] int stages() const noexcept { return placement_.stages(); }
  [[nodiscard]] int microbatches() const noexcept { return microbatches_; }
  [[nodiscard]] std::span<layer_costs const> layers() const noexcept { return layers_; }
  /// @return what messages between ranks take
  [[nodiscard]] transfer_costs const& transfer() const noexcept { return transfer_; }
  /// @return the memory limits as given: none, one for all ranks, or one per rank
  [[nodiscard]] std::span<bytes const> memory_limits() const noexcept { return memory_limits_; }
  [[nodiscard]] bool has_limits() const noexcept { return !memory_limits_.empty(); }

  /// Cuts the layers into stages.
  /// @param first_layer  the first layer of each stage
  /// @param recompute  for each stage, whether it recomputes; none does when it is empty
  /// @throws error (bad_argument) naming a stage without a layer, or one that is to recompute
  ///         and has no layer that can
  [[nodiscard]] problem with(
      std::vector<int> const& first_layer, std::vector<bool> const& recompute = {}) const;

  friend bool operator==(layered_problem const&, layered_problem const&) = default;

 private:
  zbpp::placement placement_;
  int microbatches_;
  std::vector<layer_costs> layers_;
  transfer_costs transfer_;
  std::vector<bytes> memory_limits_;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/model/impl/layers.ipp>
#endif
