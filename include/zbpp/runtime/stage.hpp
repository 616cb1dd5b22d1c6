// SPDX-License-Identifier: Apache-2.0
//
// What can be a stage of a pipeline: any class whose call operator turns a microbatch into a flow.
// Plain functions will do as well, through `as_flow`.
#pragma once

#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace zbpp {

/// Models a stage: called with a microbatch, it returns the flow of that microbatch.
///
/// Models also promise: the result does not depend on the order of passes of different
/// microbatches. The only state that flows of a stage both share and change is the gradient that W
/// accumulates; W runs in ascending microbatch.
template <class Stage>
concept stage = requires(Stage& s, microbatch mb) {
  { s(mb) } -> std::same_as<flow>;
};

namespace detail {

/// True if the optimizer step of `Type` takes how it is to step.
template <class Type>
concept updates_by_settings =
    requires(Type& t, step_settings const& settings, pass_context ctx) { t.update(settings, ctx); };
/// True if `Type` has an optimizer step of its own.
template <class Type>
concept has_update =
    updates_by_settings<Type> || requires(Type& t, pass_context ctx) { t.update(ctx); };

}  // namespace detail

/// Models a stage with an optimizer step of its own, which the program runs after its last W, or
/// after that of the last step whose gradients are added up: `update(ctx)`, or, to be given the
/// learning rate, `update(settings, ctx)`. Where it has both, the latter counts.
template <class Stage>
concept updating_stage = stage<Stage> && detail::has_update<Stage>;

/// Models a stage with an `optimizer`, by which ranks can agree before they step.
template <class Stage>
concept optimized_stage = stage<Stage> && requires(Stage& s) {
  { s.optimizer() } -> std::convertible_to<optimizer&>;
};

/// Models a stage that gets ready before the first step: what is slow the first time, such as
/// loading a kernel, happens there. Stages of ranks on different threads do so at the same time.
template <class Stage>
concept warming_stage = stage<Stage> && requires(Stage& s, pass_context ctx) { s.warm_up(ctx); };

/// Models a stage that is in another mode under `evaluate()`: from the call of
/// `evaluation_scope()`, before the first F, until what that gave ends, even after a failure.
template <class Stage>
concept evaluating_stage = stage<Stage> && requires(Stage& s) {
  { s.evaluation_scope() } -> std::convertible_to<std::shared_ptr<void>>;
};

namespace detail {

/// True if `Type` has an `update` that cannot be called as its optimizer step.
template <class Type>
concept has_wrong_update = requires { &Type::update; } && !has_update<Type>;
/// True if `Type` has an `optimizer()` that gives no `zbpp::optimizer`, and no `update` either.
template <class Type>
concept has_wrong_optimizer =
    requires(Type& t) { t.optimizer(); } && !has_update<Type> && !requires(Type& t) {
      { t.optimizer() } -> std::convertible_to<optimizer&>;
    };

}  // namespace detail

/// Refers to a stage of any type, which must outlive it; a pipeline may have stages of many types.
class stage_ref {
 public:
  /// Refers to `stage`.
  template <stage Stage>
    requires(std::is_object_v<Stage> && !std::same_as<std::remove_const_t<Stage>, stage_ref>)
  stage_ref(Stage& stage) noexcept
      : object_(const_cast<std::remove_const_t<Stage>*>(std::addressof(stage))),
        start_([](void* object, microbatch mb) -> flow {
          return (*static_cast<Stage*>(object))(mb);
        }) {
    static_assert(
        !detail::has_wrong_update<Stage>,
        "the update of a stage is its optimizer step: void update(zbpp::pass_context), or void "
        "update(zbpp::step_settings const&, zbpp::pass_context)");
    takes_settings_ = detail::updates_by_settings<Stage>;
    if constexpr (updating_stage<Stage>)
      update_ = [](void* object, step_settings const& settings, pass_context ctx) {
        if constexpr (detail::updates_by_settings<Stage>)
          static_cast<Stage*>(object)->update(settings, ctx);
        else
          static_cast<Stage*>(object)->update(ctx);
      };
    static_assert(
        !(updating_stage<Stage> && optimized_stage<Stage>),
        "a stage has update() or optimizer(), not both");
    static_assert(
        !detail::has_wrong_optimizer<Stage>,
        "the optimizer() of a stage gives a reference to its optimizer, whose class derives from "
        "zbpp::optimizer");
    if constexpr (optimized_stage<Stage>)
      optimizer_ = [](void* object) -> zbpp::optimizer* {
        return &static_cast<zbpp::optimizer&>(static_cast<Stage*>(object)->optimizer());
      };
    if constexpr (warming_stage<Stage>)
      warm_up_ = [](void* object, pass_context ctx) { static_cast<Stage*>(object)->warm_up(ctx); };
    if constexpr (evaluating_stage<Stage>)
      evaluation_scope_ = [](void* object) -> std::shared_ptr<void> {
        return static_cast<Stage*>(object)->evaluation_scope();
      };
  }

  /// Makes the flow of a microbatch.
  [[nodiscard]] flow operator()(microbatch mb) const { return start_(object_, mb); }
  /// Runs the optimizer step, if the stage has one.
  void update(step_settings const& settings, pass_context ctx) const {
    if (update_ != nullptr) update_(object_, settings, ctx);
  }
  [[nodiscard]] bool has_update() const noexcept { return update_ != nullptr; }
  /// @return whether that takes how it is to step
  [[nodiscard]] bool takes_settings() const noexcept { return takes_settings_; }
  /// @return its optimizer; null where it has none
  [[nodiscard]] zbpp::optimizer* optimizer() const {
    return optimizer_ == nullptr ? nullptr : optimizer_(object_);
  }
  /// Gets ready for the first step, if the stage has something to do for that.
  void warm_up(pass_context ctx) const {
    if (warm_up_ != nullptr) warm_up_(object_, ctx);
  }
  /// @return what keeps the stage in the mode of evaluations; nothing where it has one mode
  [[nodiscard]] std::shared_ptr<void> evaluation_scope() const {
    return evaluation_scope_ == nullptr ? nullptr : evaluation_scope_(object_);
  }

 private:
  void* object_;
  flow (*start_)(void*, microbatch);
  void (*update_)(void*, step_settings const&, pass_context) = nullptr;
  zbpp::optimizer* (*optimizer_)(void*) = nullptr;
  void (*warm_up_)(void*, pass_context) = nullptr;
  std::shared_ptr<void> (*evaluation_scope_)(void*) = nullptr;
  bool takes_settings_ = false;
};

/// Models an object with plain passes instead of a flow. `Object::saved` is what one microbatch
/// keeps between its passes; each pass gets its own.
template <class Object>
concept plain_passes =
    std::default_initializable<typename Object::saved> && requires(
                                                              Object& o,
                                                              typename Object::saved& kept,
                                                              message const& input,
                                                              microbatch mb,
                                                              pass_context ctx) {
      { o.forward(kept, input, mb, ctx) } -> std::convertible_to<message>;
      { o.backward_input(kept, input, mb, ctx) } -> std::convertible_to<message>;
      o.backward_weight(kept, mb, ctx);
    };

/// Models plain passes with one that makes both gradients at once, for programs with BW.
template <class Object>
concept plain_fused_pass = plain_passes<Object> && requires(
                                                       Object& o,
                                                       typename Object::saved& kept,
                                                       message const& gradient,
                                                       microbatch mb,
                                                       pass_context ctx) {
  { o.backward(kept, gradient, mb, ctx) } -> std::convertible_to<message>;
};

/// Models plain passes with one that makes again what `forward` did not keep, for programs with R.
template <class Object>
concept plain_recompute_pass =
    plain_passes<Object> &&
    requires(Object& o, typename Object::saved& kept, microbatch mb, pass_context ctx) {
      o.recompute(kept, mb, ctx);
    };

/// Turns an object with plain passes into a stage; it refers to the object, which must outlive it.
/// Objects convert to it, so a `std::vector<as_flow<Object>>` can be made of them.
template <plain_passes Object>
class as_flow {
 public:
  /// Refers to `object`.
  as_flow(Object& object) noexcept : object_(&object) {
    static_assert(
        !detail::has_wrong_update<Object>,
        "the update of an object is its optimizer step: void update(zbpp::pass_context), or void "
        "update(zbpp::step_settings const&, zbpp::pass_context)");
  }

  /// Runs the passes of one microbatch in the order of a flow.
  flow operator()(microbatch mb) {
    auto* const object = object_;
    typename Object::saved kept{};
    message msg = co_await mb.recv_activation();
    co_await F([&](pass_context ctx) { msg = object->forward(kept, msg, mb, ctx); });
    co_await mb.send_activation(std::move(msg));
    if constexpr (plain_recompute_pass<Object>)
      co_await R([&](pass_context ctx) { object->recompute(kept, mb, ctx); });
    msg = co_await mb.recv_gradient();
    if constexpr (plain_fused_pass<Object>) {
      if (mb.is_fused()) {
        co_await BW([&](pass_context ctx) { msg = object->backward(kept, msg, mb, ctx); });
        co_await mb.send_gradient(std::move(msg));
        co_return;
      }
    }
    co_await B([&](pass_context ctx) { msg = object->backward_input(kept, msg, mb, ctx); });
    co_await mb.send_gradient(std::move(msg));
    co_await W([&](pass_context ctx) { object->backward_weight(kept, mb, ctx); });
  }

  /// Runs the object's optimizer step.
  void update(pass_context ctx)
    requires requires(Object& o) { o.update(ctx); }
  {
    object_->update(ctx);
  }
  /// Runs the object's optimizer step as the settings say.
  void update(step_settings const& settings, pass_context ctx)
    requires detail::updates_by_settings<Object>
  {
    object_->update(settings, ctx);
  }
  [[nodiscard]] auto& optimizer()
    requires requires(Object& o) { o.optimizer(); }
  {
    return object_->optimizer();
  }
  /// Lets the object get ready.
  void warm_up(pass_context ctx)
    requires requires(Object& o) { o.warm_up(ctx); }
  {
    object_->warm_up(ctx);
  }
  [[nodiscard]] auto evaluation_scope()
    requires requires(Object& o) { o.evaluation_scope(); }
  {
    return object_->evaluation_scope();
  }

 private:
  Object* object_;
};

}  // namespace zbpp
