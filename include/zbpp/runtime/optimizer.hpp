// SPDX-License-Identifier: Apache-2.0
//
// The base class of the optimizers of stages, by which ranks can step before they know all
// gradients and go back to the very bits they had. `optim/` has some; a trainer's own needs six
// functions.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace zbpp {

/// Says how an optimizer is to step. The same values give the same bits, whenever it is asked.
struct step_settings {
  std::int64_t updates = 0;   ///< steps taken before; those that were skipped do not count
  double learning_rate = 0;   ///< of this step
  double coefficient = 1;     ///< by which gradients are multiplied; 1 multiplies nothing
  double gradient_scale = 1;  ///< by which gradients are too large, a power of two
  bool is_final = true;       ///< nothing will undo the step, and `commit` is not called

  /// @return what gradients are multiplied by, loss scale and clipping together
  [[nodiscard]] ZBPP_HOST_DEVICE float factor() const noexcept {
    return static_cast<float>(coefficient) / static_cast<float>(gradient_scale);
  }
};

/// Steps the weights of a stage, layer by layer. Derive from it; the functions that are not pure
/// are for what not every optimizer has.
///
/// All run on the rank of the stage, while none of its passes do. On GPUs passes are enqueued by
/// then, and not over: functions enqueue their work after them, and wait for what they copy to the
/// host.
class optimizer {
 public:
  virtual ~optimizer() = default;

  /// @return how many layers it has, always the same
  [[nodiscard]] virtual int layers() const = 0;
  /// Writes the state of the gradients of each layer, which is zero before.
  virtual void measure(std::span<gradient_state> states, pass_context ctx) = 0;
  /// Takes a step. If it is final, the gradients are 0 after it; else `commit` or `undo` follows.
  virtual void step(step_settings const& settings, pass_context ctx) = 0;
  /// Makes the last step final, and the gradients 0.
  virtual void commit(pass_context ctx) = 0;
  /// Brings back the bits that there were before the last step, or before `hold`, gradients
  /// included.
  virtual void undo(pass_context ctx) = 0;
  /// Takes no step, and makes the gradients 0.
  virtual void skip(pass_context ctx) = 0;

  /// Keeps the gradients as they are, where others can reach them, such as those of tensors: passes
  /// of the next step run before `step` or `skip` takes them, or a failure has `undo` give them
  /// back.
  /// @return false where nobody else can reach them, so nothing is to be done
  virtual bool hold(pass_context) { return false; }

  /// @return whether a layer is tied: it has the weights of all other tied layers of the model, and
  ///         their gradients are added up before `measure`
  [[nodiscard]] virtual bool is_tied(int /*layer*/) const { return false; }
  /// @return how many weights each tied layer has; 0 where none is tied
  [[nodiscard]] virtual std::int64_t tied_weights() const { return 0; }
  /// Copies the gradients of the tied layers to the host, one after another.
  virtual void read_tied(std::span<float> /*copy*/, pass_context) { refuse("read_tied"); }
  /// Replaces the gradients of each tied layer by the sum. On GPUs takes a copy before it returns.
  virtual void write_tied(std::span<float const> /*sum*/, pass_context) { refuse("write_tied"); }

  /// @return how many numbers `read_gradients` copies, always as many: the gradients of all layers,
  ///         and perhaps one number more for each; none where replicas cannot add them up
  [[nodiscard]] virtual std::optional<std::int64_t> gradient_count() const { return {}; }
  /// Copies the gradients to the host, layer after layer; 0 for those of a layer that is frozen.
  virtual void read_gradients(std::span<float> /*copy*/, pass_context) { refuse("read_gradients"); }
  /// Replaces the gradients by their sums over replicas.
  virtual void write_gradients(std::span<float const> /*sums*/, pass_context) {
    refuse("write_gradients");
  }
  /// @return where the gradients of a layer lie in memory of the device, always the same, for a
  ///         backend that adds them up there; none where they move or lie elsewhere
  [[nodiscard]] virtual std::optional<std::span<float>> gradients(int /*layer*/) const {
    return {};
  }

  /// @return how many weights a layer has; none where they cannot be read
  [[nodiscard]] virtual std::optional<std::int64_t> layer_size(int /*layer*/) const { return {}; }
  /// Copies the weights of a layer to the host, for ranks that hold the same to compare them.
  virtual void read_weights(int /*layer*/, std::span<float> /*copy*/, pass_context) {
    refuse("read_weights");
  }
  /// @return whether it can `share` its work and its state with replicas (ZeRO-1). It then has as
  ///         many gradients as weights, and reads and writes both.
  [[nodiscard]] virtual bool can_share() const { return false; }
  /// Measures and steps the layers from `first` to before `last` alone from now on, and keeps state
  /// for no other; before the first step.
  virtual void share(int /*first*/, int /*last*/) { refuse("share"); }
  /// Replaces the weights of a layer, from the host.
  virtual void write_weights(int /*layer*/, std::span<float const> /*values*/, pass_context) {
    refuse("write_weights");
  }

  /// @return whether each member of a tensor group has all of a layer, such as a norm, with the
  /// same
  ///         gradients, which the norm of the model counts once; else each has a part of its own.
  ///         None where the optimizer does not know.
  [[nodiscard]] virtual std::optional<bool> is_replicated(int /*layer*/) const { return {}; }

 protected:
  optimizer() = default;
  optimizer(optimizer const&) = default;
  optimizer(optimizer&&) = default;
  optimizer& operator=(optimizer const&) = default;
  optimizer& operator=(optimizer&&) = default;

 private:
  [[noreturn]] static void refuse(char const* name) {
    throw error(errc::bad_argument) + "the optimizer of a stage needs " + name +
        "() for what it says of itself; override it";
  }
};

namespace detail {

/// @return how many layers of an optimizer are tied
[[nodiscard]] inline int tied_layers(optimizer const& from) {
  int count = 0;
  for (int layer = 0; layer < from.layers(); ++layer) count += from.is_tied(layer) ? 1 : 0;
  return count;
}

}  // namespace detail
}  // namespace zbpp
