// SPDX-License-Identifier: Apache-2.0
//
// What the optimizer of a stage offers, so that ranks can step before they know all gradients and
// go back to the very bits they had. `optim/` has some; a trainer's own needs six functions.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

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

/// Models the optimizer of a stage.
///
/// `layers()` says how many layers it has; `measure` writes the state of the gradients of each,
/// which is zero before.
/// `step` changes what the passes read. If the step is not final, either `commit` or `undo`
/// follows: `undo` brings back the bits that there were before, gradients included. After a final
/// step, after `commit` and after `skip` the gradients are 0. The functions run on the rank of the
/// stage, while none of its passes do. On GPUs passes are enqueued by then, and not over: `step`
/// and `skip` enqueue their work after them, and `measure` waits for what it needs on the host.
template <class T>
concept optimizer = requires(
    T& o,
    T const& fixed,
    std::span<gradient_state> states,
    step_settings const& settings,
    pass_context ctx) {
  { fixed.layers() } -> std::convertible_to<int>;
  o.measure(states, ctx);
  o.step(settings, ctx);
  o.commit(ctx);
  o.undo(ctx);
  o.skip(ctx);
};

/// Models an optimizer whose gradients could change before its step is final, because others can
/// reach them, such as those of tensors.
///
/// `hold` is called where a step is put off: until `step`, `skip` or `undo`, passes of the next
/// step run. `step` and `skip` then take the gradients that there were; `undo`, which follows a
/// failure, brings them back.
template <class T>
concept holding_optimizer = optimizer<T> && requires(T& o, pass_context ctx) { o.hold(ctx); };

/// Models an optimizer that may have tied layers. All tied layers of a model have the same weights,
/// and their gradients are summed before `measure`.
///
/// `is_tied` says so of a layer; `tied_weights()` says how many weights each of them has, 0 where
/// there is none. `read_tied` copies their gradients out, layer after layer; `write_tied` replaces
/// those of each by the sum. What they copy is host memory: on GPUs `read_tied` waits for the
/// passes before, and `write_tied` takes a copy of its own before it returns.
template <class T>
concept tying_optimizer = optimizer<T> && requires(
                                              T& o,
                                              T const& fixed,
                                              int layer,
                                              std::span<float> copy,
                                              std::span<float const> sum,
                                              pass_context ctx) {
  { fixed.is_tied(layer) } -> std::convertible_to<bool>;
  { fixed.tied_weights() } -> std::convertible_to<std::int64_t>;
  o.read_tied(copy, ctx);
  o.write_tied(sum, ctx);
};

/// Models an optimizer whose gradients can be added up over the replicas of a model.
///
/// `gradient_count()` says how many it has, over all layers, always the same; it may count a number
/// more for each layer. `read_gradients` copies them out, layer after layer, with 0 for those of a
/// layer that is not trained now; `write_gradients` replaces them by the sums; both in host memory.
template <class T>
concept reducing_optimizer = optimizer<T> && requires(
                                                 T& o,
                                                 T const& fixed,
                                                 std::span<float> copy,
                                                 std::span<float const> sums,
                                                 pass_context ctx) {
  { fixed.gradient_count() } -> std::convertible_to<std::int64_t>;
  o.read_gradients(copy, ctx);
  o.write_gradients(sums, ctx);
};

/// Models an optimizer whose gradients a backend can add up over replicas where they lie: on GPUs
/// in memory of the device.
///
/// `gradients(layer)` says where those of a layer are, always in the same place.
template <class T>
concept exposing_optimizer = optimizer<T> && requires(T const& fixed, int layer) {
  { fixed.gradients(layer) } -> std::convertible_to<std::span<float>>;
};

/// Models an optimizer whose weights can be read, for ranks that hold the same to compare them.
///
/// `layer_size` is the number of weights of a layer; `read_weights` copies them to the host.
template <class T>
concept readable_optimizer =
    optimizer<T> &&
    requires(T& o, T const& fixed, int layer, std::span<float> copy, pass_context ctx) {
      { fixed.layer_size(layer) } -> std::convertible_to<std::int64_t>;
      o.read_weights(layer, copy, ctx);
    };

/// Models an optimizer that can step some of its layers alone, so that replicas share its work and
/// its state (ZeRO-1). The sizes of its layers are together as many as gradients.
///
/// `share(first, last)` has it measure and step the layers from `first` to before `last` alone from
/// now on, and keep state for no other; before the first step. `write_weights` replaces the weights
/// of a layer, from memory of the host.
template <class T>
concept sharding_optimizer =
    reducing_optimizer<T> && readable_optimizer<T> &&
    requires(T& o, int layer, std::span<float const> values, pass_context ctx) {
      o.share(layer, layer);
      o.write_weights(layer, values, ctx);
    };

/// Models an optimizer that may have layers which each member of a tensor group has whole, such as
/// norms, and biases after a sum over the group. Their gradients are the same on all members, and
/// the norm of the model counts them once; every other layer is a part of its own.
template <class T>
concept replicating_optimizer = optimizer<T> && requires(T const& fixed, int layer) {
  { fixed.is_replicated(layer) } -> std::convertible_to<bool>;
};

/// Refers to an optimizer of any type; to none at first.
class optimizer_ref {
 public:
  /// Refers to none.
  optimizer_ref() noexcept = default;
  /// Refers to `optimizer`, which must outlive it.
  template <optimizer Optimizer>
    requires(!std::same_as<std::remove_const_t<Optimizer>, optimizer_ref>)
  explicit optimizer_ref(Optimizer& optimizer) noexcept
      : object_(&optimizer), calls_(&calls_of<Optimizer>) {}
  [[nodiscard]] explicit operator bool() const noexcept { return calls_ != nullptr; }
  /// @return how many layers it has; 0 where there is none
  [[nodiscard]] int layers() const { return calls_ == nullptr ? 0 : calls_->layers(object_); }
  /// Writes the state of the gradients of each layer.
  void measure(std::span<gradient_state> states, pass_context ctx) const {
    calls_->measure(object_, states, ctx);
  }
  /// Takes a step.
  void step(step_settings const& settings, pass_context ctx) const {
    calls_->step(object_, settings, ctx);
  }
  /// Keeps the gradients as they are until `step`, `skip` or `undo`.
  void hold(pass_context ctx) const {
    if (calls_->hold != nullptr) calls_->hold(object_, ctx);
  }
  [[nodiscard]] bool holds() const noexcept { return calls_ != nullptr && calls_->hold != nullptr; }
  /// Makes the last step final.
  void commit(pass_context ctx) const { calls_->commit(object_, ctx); }
  /// Takes the last step back.
  void undo(pass_context ctx) const { calls_->undo(object_, ctx); }
  /// Drops the gradients.
  void skip(pass_context ctx) const { calls_->skip(object_, ctx); }
  [[nodiscard]] bool is_tied(int layer) const {
    return calls_->is_tied != nullptr && calls_->is_tied(object_, layer);
  }
  [[nodiscard]] std::int64_t tied_weights() const {
    bool const ties = calls_ != nullptr && calls_->is_tied != nullptr;
    return ties ? calls_->tied_weights(object_) : 0;
  }
  [[nodiscard]] bool is_replicated(int layer) const {
    return calls_->is_replicated != nullptr && calls_->is_replicated(object_, layer);
  }
  /// @return whether it may have replicated layers
  [[nodiscard]] bool marks_replicated() const noexcept { return calls_->is_replicated != nullptr; }
  [[nodiscard]] int tied_layers() const {
    int count = 0;
    for (int layer = 0; layer < layers(); ++layer) count += is_tied(layer) ? 1 : 0;
    return count;
  }
  /// Copies the gradients of the tied layers, of which there are some.
  void read_tied(std::span<float> copy, pass_context ctx) const {
    calls_->read_tied(object_, copy, ctx);
  }
  /// Replaces the gradients of each tied layer, of which there are some.
  void write_tied(std::span<float const> sum, pass_context ctx) const {
    calls_->write_tied(object_, sum, ctx);
  }
  [[nodiscard]] bool reduces() const noexcept {
    return calls_ != nullptr && calls_->gradient_count != nullptr;
  }
  /// @return how many gradients it has; 0 where they cannot be added up
  [[nodiscard]] std::int64_t gradient_count() const {
    return reduces() ? calls_->gradient_count(object_) : 0;
  }
  /// Copies the gradients of all layers, where they can be added up.
  void read_gradients(std::span<float> copy, pass_context ctx) const {
    if (reduces()) calls_->read_gradients(object_, copy, ctx);
  }
  /// Replaces the gradients of all layers, where they can be added up.
  void write_gradients(std::span<float const> sums, pass_context ctx) const {
    if (reduces()) calls_->write_gradients(object_, sums, ctx);
  }
  /// @return whether it says where its gradients lie
  [[nodiscard]] bool exposes() const noexcept {
    return calls_ != nullptr && calls_->gradients != nullptr;
  }
  /// @return where those of a layer lie, where it says so
  [[nodiscard]] std::span<float> gradients(int layer) const {
    return calls_->gradients(object_, layer);
  }
  [[nodiscard]] bool shards() const noexcept {
    return calls_ != nullptr && calls_->share != nullptr;
  }
  [[nodiscard]] bool reads() const noexcept {
    return calls_ != nullptr && calls_->layer_size != nullptr;
  }
  [[nodiscard]] std::int64_t layer_size(int layer) const {
    return calls_->layer_size(object_, layer);
  }
  /// Has it step the layers from `first` to before `last` alone.
  void share(int first, int last) const { calls_->share(object_, first, last); }
  /// Copies the weights of a layer, where they can be read.
  void read_weights(int layer, std::span<float> copy, pass_context ctx) const {
    calls_->read_weights(object_, layer, copy, ctx);
  }
  /// Replaces the weights of a layer.
  void write_weights(int layer, std::span<float const> values, pass_context ctx) const {
    calls_->write_weights(object_, layer, values, ctx);
  }

 private:
  struct calls {
    int (*layers)(void const*);
    void (*measure)(void*, std::span<gradient_state>, pass_context);
    void (*step)(void*, step_settings const&, pass_context);
    void (*commit)(void*, pass_context);
    void (*undo)(void*, pass_context);
    void (*skip)(void*, pass_context);
    void (*hold)(void*, pass_context) = nullptr;  // null where nobody else reaches the gradients
    // Null unless the optimizer can have tied layers.
    bool (*is_tied)(void const*, int) = nullptr;
    std::int64_t (*tied_weights)(void const*) = nullptr;
    void (*read_tied)(void*, std::span<float>, pass_context) = nullptr;
    void (*write_tied)(void*, std::span<float const>, pass_context) = nullptr;
    // Null unless its gradients can be added up over replicas.
    std::int64_t (*gradient_count)(void const*) = nullptr;
    void (*read_gradients)(void*, std::span<float>, pass_context) = nullptr;
    void (*write_gradients)(void*, std::span<float const>, pass_context) = nullptr;
    std::span<float> (*gradients)(void const*, int) = nullptr;  // null unless it exposes them
    // Null unless its weights can be read.
    std::int64_t (*layer_size)(void const*, int) = nullptr;
    void (*read_weights)(void*, int, std::span<float>, pass_context) = nullptr;
    // Null unless it can step some of its layers alone.
    void (*share)(void*, int, int) = nullptr;
    void (*write_weights)(void*, int, std::span<float const>, pass_context) = nullptr;
    bool (*is_replicated)(void const*, int) = nullptr;  // null where no layer is
  };

  template <class T>
  [[nodiscard]] static constexpr calls make_calls() {
    calls result{
        .layers =
            [](void const* o) { return static_cast<int>(static_cast<T const*>(o)->layers()); },
        .measure = [](void* o,
                      std::span<gradient_state> states,
                      pass_context ctx) { static_cast<T*>(o)->measure(states, ctx); },
        .step = [](void* o,
                   step_settings const& settings,
                   pass_context ctx) { static_cast<T*>(o)->step(settings, ctx); },
        .commit = [](void* o, pass_context ctx) { static_cast<T*>(o)->commit(ctx); },
        .undo = [](void* o, pass_context ctx) { static_cast<T*>(o)->undo(ctx); },
        .skip = [](void* o, pass_context ctx) { static_cast<T*>(o)->skip(ctx); }};
    if constexpr (holding_optimizer<T>)
      result.hold = [](void* o, pass_context ctx) { static_cast<T*>(o)->hold(ctx); };
    if constexpr (tying_optimizer<T>) {
      result.is_tied = [](void const* o, int layer) -> bool {
        return static_cast<T const*>(o)->is_tied(layer);
      };
      result.tied_weights = [](void const* o) -> std::int64_t {
        return static_cast<T const*>(o)->tied_weights();
      };
      result.read_tied = [](void* o, std::span<float> copy, pass_context ctx) {
        static_cast<T*>(o)->read_tied(copy, ctx);
      };
      result.write_tied = [](void* o, std::span<float const> sum, pass_context ctx) {
        static_cast<T*>(o)->write_tied(sum, ctx);
      };
    }
    if constexpr (reducing_optimizer<T>) {
      result.gradient_count = [](void const* o) -> std::int64_t {
        return static_cast<T const*>(o)->gradient_count();
      };
      result.read_gradients = [](void* o, std::span<float> copy, pass_context ctx) {
        static_cast<T*>(o)->read_gradients(copy, ctx);
      };
      result.write_gradients = [](void* o, std::span<float const> sums, pass_context ctx) {
        static_cast<T*>(o)->write_gradients(sums, ctx);
      };
    }
    if constexpr (exposing_optimizer<T>)
      result.gradients = [](void const* o, int layer) -> std::span<float> {
        return static_cast<T const*>(o)->gradients(layer);
      };
    if constexpr (readable_optimizer<T>) {
      result.layer_size = [](void const* o, int layer) -> std::int64_t {
        return static_cast<T const*>(o)->layer_size(layer);
      };
      result.read_weights = [](void* o, int layer, std::span<float> copy, pass_context ctx) {
        static_cast<T*>(o)->read_weights(layer, copy, ctx);
      };
    }
    if constexpr (sharding_optimizer<T>) {
      result.share = [](void* o, int first, int last) { static_cast<T*>(o)->share(first, last); };
      result.write_weights =
          [](void* o, int layer, std::span<float const> values, pass_context ctx) {
            static_cast<T*>(o)->write_weights(layer, values, ctx);
          };
    }
    if constexpr (replicating_optimizer<T>)
      result.is_replicated = [](void const* o, int layer) -> bool {
        return static_cast<T const*>(o)->is_replicated(layer);
      };
    return result;
  }
  template <class T>
  static constexpr calls calls_of = make_calls<T>();

  void* object_ = nullptr;
  calls const* calls_ = nullptr;
};

}  // namespace zbpp
