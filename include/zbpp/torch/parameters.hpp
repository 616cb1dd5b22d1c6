// SPDX-License-Identifier: Apache-2.0
//
// Parameters of LibTorch: as layers of zbpp's optimizers, and shared between stages; and the number
// of threads that the kernels of a rank use.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/optim/layer.hpp>
#include <zbpp/torch/detail/libtorch.hpp>
#include <zbpp/torch/named_tensor.hpp>
#include <zbpp/torch/tensors.hpp>

#include <functional>
#include <span>
#include <vector>

namespace zbpp::torch {

/// Makes layers for `optim::adamw` or `optim::sgd` of a stage's parameters, one for each, in order.
///
/// A layer keeps the tensor, and no address: memory that moved, such as by `zero_grad(true)`,
/// `torch::load` or `set_data`, is found again in each step. Whether a parameter is trained is what
/// its `requires_grad` says in the step: while it is frozen, it has no gradient, and neither it nor
/// its moments change. Weight decay leaves out parameters of one dimension.
///
/// Before a step that is taken early or put off is validated, a parameter has no `grad`, as after
/// `zero_grad(true)`: what is done to gradients meanwhile belongs to the next step.
/// @param tied  those that stages share, of this stage or of any: `tied_parameter::leaves()`; they
///              are frozen together
/// @throws error (bad_argument) naming a parameter that is trained and is not a dense tensor of
///         floats on the host. A step throws it, too, where that or its size has changed.
[[nodiscard]] std::vector<optim::layer> layers_of(
    tensors const& parameters, tensors const& tied = {});
/// Makes the layers of parameters that have names, such as in errors.
[[nodiscard]] std::vector<optim::layer> layers_of(
    std::vector<named_tensor> const& parameters, tensors const& tied = {});
/// Makes the layers of a module's parameters, which errors name.
template <module_pointer Module>
[[nodiscard]] std::vector<optim::layer> layers_of(Module const& module, tensors const& tied = {}) {
  std::vector<named_tensor> named;
  detail::append_named(named, module->named_parameters());
  return layers_of(named, tied);
}

/// Holds a parameter that a model uses in several places, such as an embedding that is the output
/// layer too: one leaf for each use, all with the same values.
///
/// A leaf of its own has a gradient of its own, so that stages do not wait for one another to add
/// to it; and the gradients are summed in the same order whatever stages the uses are on.
class tied_parameter {
 public:
  /// Gives all leaves the values of the first.
  /// @param leaves  of all uses, in the order of the model: parameters of modules, or what `leaf`
  ///                made. A process that has some of them only gives those; their values then have
  ///                to be the same as elsewhere.
  /// @throws error (bad_argument) when there is none, when one is no leaf that is trained, when
  ///         they differ in type or sizes, or when two of them are the same memory
  explicit tied_parameter(tensors leaves);

  /// Makes a leaf for a use of a parameter, with its values.
  [[nodiscard]] static at::Tensor leaf(at::Tensor const& parameter);

  [[nodiscard]] tensors const& leaves() const noexcept { return leaves_; }
  /// @return bytes of one gradient: what `stage_costs::tied` has to be where a use is
  [[nodiscard]] bytes size() const { return static_cast<bytes>(leaves_.front().nbytes()); }

  /// Gives each leaf the sum of all gradients, added from the first to the last: what pipelines do
  /// where ranks agree on optimizer steps. Call it between the last backward and the step, in a
  /// plain loop, or before optimizers of LibTorch step. Gradients that are undefined are not added.
  void sum_gradients() const;

 private:
  tensors leaves_;
};

/// Gives an `on_thread_start` that has kernels of LibTorch use `count` threads. Without it, each
/// rank's kernels use as many as there are cores, and ranks get in each other's way. Some sums of
/// LibTorch depend on the number, so a plain loop has the same bits only if it calls
/// `at::set_num_threads` with the same one.
/// @throws error (bad_argument) unless there is at least one
[[nodiscard]] std::function<void(std::span<int const>)> intra_op_threads(int count);

}  // namespace zbpp::torch

#include <zbpp/torch/impl/parameters.ipp>
