// SPDX-License-Identifier: Apache-2.0
//
// A module of LibTorch, or any part of a model, as a stage of a pipeline.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/torch/detail/forward_call.hpp>
#include <zbpp/torch/detail/random_draws.hpp>
#include <zbpp/torch/named_tensor.hpp>
#include <zbpp/torch/split_backward.hpp>
#include <zbpp/torch/tensors.hpp>

#include <concepts>
#include <functional>
#include <memory>
#include <utility>

namespace zbpp::torch {

namespace detail {

[[nodiscard]] tensors defined(tensors all);

/// Gives a pass LibTorch's usual state of a thread while it lives, since backends differ in which
/// threads run passes: with autograd, without autocast.
struct pass_scope {
  c10::InferenceMode usual{false};
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

}  // namespace detail

class module_flow;

/// Models what computes the outputs of a stage from its inputs: a module holder or a pointer to a
/// module, or a callable. It takes one to four tensors, or `tensors`, and gives `stage_outputs`. A
/// stage itself is none.
template <class Module>
concept stage_module = !std::derived_from<Module, module_flow> && std::copy_constructible<Module> &&
                       detail::takes_tensors<Module>;

/// States what the first and the last stage of a model need.
struct stage_ends {
  /// Gives the inputs of the first stage for a microbatch; called in F.
  std::function<tensors(microbatch)> batch = {};
  /// Gives the loss of a microbatch, one number, from the outputs of the last stage; called in F.
  /// In a plain loop it is what `backward()` is called on, already divided by the number of
  /// microbatches where the gradients are to be a mean.
  std::function<at::Tensor(tensors const& outputs, microbatch)> loss = {};
};

namespace detail {

/// @throws error (bad_argument) when there is no batch
[[nodiscard]] tensors batch_of(stage_ends const& ends, microbatch mb);
/// @return the loss of the outputs of the last stage
/// @throws error (bad_argument) when it is not one number
[[nodiscard]] at::Tensor loss_of(stage_ends const& ends, tensors const& outputs, microbatch mb);

}  // namespace detail

/// Says what F and R of a stage do where a plan recomputes.
struct recompute_options {
  /// Whether R draws from LibTorch's default generators what F drew, and leaves them as they were.
  /// Without it, R of a module with an `nn::Dropout` computes something else than F.
  bool restore_generators = true;
  /// Whether R compares what it made with what F sent, and fails where a bit differs. F then keeps
  /// a copy of that until R.
  bool check = false;
};

/// Runs the passes of a part of a model.
///
/// F calls the module on what the stage received; B and W are the halves of a `split_backward`, BW
/// is both, R is F once more. Without R, what F made stays as autograd keeps it. Under
/// `evaluate()` autograd is off, modules are in evaluation mode, and the last stage sends its
/// outputs to whom evaluates. The module must be the same function when R calls it again, but for
/// what it draws from LibTorch's default generators; what R writes to buffers, such as running
/// statistics, is put back. It must not write to its inputs in place.
///
/// It knows no modules within a callable; give a `layer` of it and its module. Passes begin without
/// autocast, on all backends.
///
/// To the module, what the stage received is no leaf, as in a plain loop: hooks on it and
/// `retain_grad()` work. With R, F runs without autograd, and what it computes needs no gradient.
///
/// The passes of a stage run on the thread of its rank. Use as `module_stage`.
class module_flow {
 public:
  /// Takes what computes the outputs.
  template <stage_module Module>
  explicit module_flow(Module module, stage_ends ends = {}, recompute_options recompute = {})
      : modules_(detail::modules_of(module)),
        forward_(detail::forward_of(std::move(module))),
        ends_(std::move(ends)),
        recompute_(recompute) {}
  /// Refuses what is no module of a stage, in words.
  template <class Other>
    requires(!stage_module<Other> && !std::derived_from<Other, module_flow>)
  explicit module_flow(Other const&, stage_ends = {}, recompute_options = {}) {
    static_assert(
        stage_module<Other>,
        "a stage's module is a holder of a module, a std::shared_ptr to one, or a callable that "
        "can be copied; it takes one to four at::Tensor, or zbpp::torch::tensors");
  }

  /// Runs the passes of one microbatch.
  /// @throws error (bad_argument) in F when the first stage has no batch, or the last no loss; when
  ///         the loss is not one number, or there are other gradients than outputs; in R, when it
  ///         is checked and made something else than F
  flow operator()(microbatch mb) {
    work kept;
    message out;
    auto from_before = co_await mb.recv_activation();
    co_await F([&](pass_context ctx) { out = forward(kept, from_before, mb, ctx); });
    co_await mb.send_activation(std::move(out));
    co_await R([&] { recompute(kept, mb); });
    auto from_after = co_await mb.recv_gradient();
    if (mb.is_fused()) {
      co_await BW([&](pass_context ctx) { out = backward(kept, from_after, mb, ctx); });
      co_await mb.send_gradient(std::move(out));
    } else {
      co_await B([&](pass_context ctx) { out = backward(kept, from_after, mb, ctx); });
      co_await mb.send_gradient(std::move(out));
      co_await W([&] {
        detail::pass_scope const scope;
        kept.graph.backward_weight();
      });
    }
  }
  /// Puts the modules into evaluation mode until what it gives ends.
  [[nodiscard]] std::shared_ptr<void> evaluation_scope() const {
    return zbpp::torch::evaluation_scope(modules_);
  }

 private:
  // What a microbatch keeps between its passes.
  struct work {
    edge_tensors in;
    split_backward graph;
    at::Tensor loss;  // detached
    detail::random_draws draws;
    tensors made;  // by F, where R is checked
  };

  [[nodiscard]] tensors batch(microbatch mb) const;
  [[nodiscard]] message forward(
      work& kept, message& from_before, microbatch mb, pass_context ctx) const;
  [[nodiscard]] message backward(
      work& kept, message& from_after, microbatch mb, pass_context ctx) const;
  void recompute(work& kept, microbatch mb) const;
  // Computes the outputs, or the loss where there is one, and keeps the graph if it has one.
  // R needs the draws of F.
  [[nodiscard]] tensors run(work& kept, microbatch mb, bool has_graph) const;
  // Copies what F made, to check R.
  [[nodiscard]] static tensors copies_of_made(work const& kept, tensors const& outputs);
  static void check_made(work const& kept, tensors const& outputs, bool has_loss);
  [[nodiscard]] static tensors gradients(
      work const& kept, message const& from_after, microbatch mb);

  module_list modules_;  // which forward_ keeps
  std::function<tensors(tensors const&)> forward_;
  stage_ends ends_;
  recompute_options recompute_;
};

/// Stands for no optimizer.
struct no_step {};

/// Models a pointer to an optimizer of LibTorch, such as a `std::shared_ptr<torch::optim::AdamW>`.
template <class Pointer>
concept optimizer_pointer = requires(Pointer& to) {
  to->step();
  to->zero_grad();
};

/// A part of a model as a stage, with what steps its parameters.
/// @tparam Step  an optimizer of zbpp, by which ranks agree before they step; or a pointer to an
///               optimizer of LibTorch; or a callable that is the optimizer step; or `no_step`
template <class Step = no_step>
class module_stage : public module_flow {
 public:
  /// Takes what computes the outputs, and what steps.
  /// @throws error (bad_argument) when the pointer to an optimizer is null
  template <stage_module Module>
  explicit module_stage(
      Module module, stage_ends ends = {}, Step step = {}, recompute_options recompute = {})
      : module_flow(std::move(module), std::move(ends), recompute), step_(std::move(step)) {
    if constexpr (optimizer_pointer<Step>)
      zbpp::detail::require(step_ != nullptr, "a module_stage got a null pointer to an optimizer");
  }

  /// Refuses what is no module of a stage, in words.
  template <class Other>
    requires(!stage_module<Other> && !std::derived_from<Other, module_flow>)
  explicit module_stage(Other const& other, stage_ends = {}, Step step = {}, recompute_options = {})
      : module_flow(other), step_(std::move(step)) {}
  [[nodiscard]] Step const& step() const noexcept { return step_; }
  [[nodiscard]] Step& optimizer()
    requires std::derived_from<Step, zbpp::optimizer>
  {
    return step_;
  }
  /// Steps the parameters; by an optimizer of LibTorch, clears their gradients, too.
  void update(pass_context)
    requires(std::invocable<Step&> || optimizer_pointer<Step>)
  {
    detail::pass_scope const scope;
    if constexpr (optimizer_pointer<Step>) {
      step_->step();
      step_->zero_grad();
    } else {
      step_();
    }
  }

 private:
  Step step_;
};

}  // namespace zbpp::torch

#include <zbpp/torch/impl/module_stage.ipp>
