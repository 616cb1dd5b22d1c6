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
#include <zbpp/torch/split_backward.hpp>
#include <zbpp/torch/tensors.hpp>

#include <concepts>
#include <functional>
#include <utility>

namespace zbpp::torch {

namespace detail {

template <class Result>
[[nodiscard]] tensors as_list(Result&& result) {
  if constexpr (std::convertible_to<Result, at::Tensor>)
    return {at::Tensor(std::forward<Result>(result))};
  else
    return tensors(std::forward<Result>(result));
}

[[nodiscard]] at::Tensor only(tensors const& all);
[[nodiscard]] tensors defined(tensors all);

template <class Call>
[[nodiscard]] auto call_with(Call& call, tensors const& in) {
  if constexpr (std::invocable<Call&, tensors const&>)
    return as_list(call(in));
  else
    return as_list(call(only(in)));
}

/// Makes one function of whatever computes outputs from inputs.
template <class Module>
[[nodiscard]] std::function<tensors(tensors const&)> forward_of(Module module) {
  if constexpr (requires(at::Tensor x) { module->forward(x); })
    return [module](tensors const& in) mutable { return as_list(module->forward(only(in))); };
  else if constexpr (requires(tensors x) { module->forward(x); })
    return [module](tensors const& in) mutable { return as_list(module->forward(in)); };
  else
    return [module](tensors const& in) mutable { return call_with(module, in); };
}

}  // namespace detail

class module_flow;

/// Models what computes the outputs of a stage from its inputs: a module holder or a pointer to a
/// module, or a callable. It takes one tensor or `tensors`, and gives one of these. A stage itself
/// is none.
template <class Module>
concept stage_module =
    !std::derived_from<Module, module_flow> && std::copy_constructible<Module> &&
    requires(Module module, tensors in) {
      requires requires { module->forward(in.front()); } || requires {
        module->forward(in);
      } || std::invocable<Module&, tensors const&> || std::invocable<Module&, at::Tensor const&>;
    };

/// States what the first and the last stage of a model need.
struct stage_ends {
  /// Gives the inputs of the first stage for a microbatch; called in F.
  std::function<tensors(microbatch)> batch = {};
  /// Gives the loss of a microbatch, one number, from the outputs of the last stage; called in F.
  /// In a plain loop it is what `backward()` is called on, already divided by the number of
  /// microbatches where the gradients are to be a mean.
  std::function<at::Tensor(tensors const& outputs, microbatch)> loss = {};
};

/// Runs the passes of a part of a model.
///
/// F calls the module on what the stage received; B and W are the halves of a `split_backward`, BW
/// is both, R is F once more. Without R, what F made stays as autograd keeps it. Under
/// `evaluate()` autograd is off, and the last stage sends its outputs to whom evaluates. The module
/// must be the same function when R calls it again: let dropout draw from `generator_for`. It must
/// not write to its inputs in place.
///
/// The passes of a stage run on the thread of its rank. Use as `module_stage`.
class module_flow {
 public:
  /// Takes what computes the outputs.
  template <stage_module Module>
  explicit module_flow(Module module, stage_ends ends = {})
      : forward_(detail::forward_of(std::move(module))), ends_(std::move(ends)) {}

  /// Runs the passes of one microbatch.
  /// @throws error (bad_argument) in F when the first stage has no batch, or the last no loss; when
  ///         the loss is not one number, or there are other gradients than outputs
  flow operator()(microbatch mb) {
    work kept;
    message out;
    auto from_before = co_await mb.recv_activation();
    co_await F([&](pass_context ctx) {
      kept.in = mb.is_first_stage() ? edge_tensors{batch(mb), {}} : from_before.get<edge_tensors>();
      from_before.clear();  // or it would keep the tensors until W has ended
      out = forward(kept, mb, ctx);
    });
    co_await mb.send_activation(std::move(out));
    co_await R([&] { recompute(kept, mb); });
    auto from_after = co_await mb.recv_gradient();
    if (mb.is_fused()) {
      co_await BW([&](pass_context ctx) {
        out = to_edge(unshared(kept.graph.backward(gradients(kept, from_after, mb))), false, ctx);
        kept.in = {};
        from_after.clear();
      });
      co_await mb.send_gradient(std::move(out));
    } else {
      co_await B([&](pass_context ctx) {
        out = to_edge(
            unshared(kept.graph.backward_input(gradients(kept, from_after, mb))), false, ctx);
        kept.in = {};
        from_after.clear();
      });
      co_await mb.send_gradient(std::move(out));
      co_await W([&] { kept.graph.backward_weight(); });
    }
  }

 private:
  // What a microbatch keeps between its passes.
  struct work {
    edge_tensors in;
    split_backward graph;
    at::Tensor loss;  // detached
  };

  [[nodiscard]] tensors batch(microbatch mb) const;
  [[nodiscard]] message forward(work& kept, microbatch mb, pass_context ctx) const;
  void recompute(work& kept, microbatch mb) const;
  // Computes the outputs, or the loss where there is one, and keeps the graph if it has one.
  [[nodiscard]] tensors run(work& kept, microbatch mb, bool has_graph) const;
  [[nodiscard]] static tensors gradients(
      work const& kept, message const& from_after, microbatch mb);
  [[nodiscard]] static tensors unshared(tensors gradients);
  [[nodiscard]] static message to_edge(tensors values, bool wants_gradients, pass_context ctx);

  std::function<tensors(tensors const&)> forward_;
  stage_ends ends_;
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
  explicit module_stage(Module module, stage_ends ends = {}, Step step = {})
      : module_flow(std::move(module), std::move(ends)), step_(std::move(step)) {
    if constexpr (optimizer_pointer<Step>)
      zbpp::detail::require(step_ != nullptr, "a module_stage got a null pointer to an optimizer");
  }

  /// @return the optimizer
  [[nodiscard]] Step& optimizer()
    requires zbpp::optimizer<Step>
  {
    return step_;
  }
  /// Steps the parameters.
  void update(pass_context)
    requires std::invocable<Step&>
  {
    step_();
  }
  /// Steps the parameters, then clears their gradients.
  void update(pass_context)
    requires optimizer_pointer<Step>
  {
    step_->step();
    step_->zero_grad();
  }

 private:
  Step step_;
};

template <class Module>
module_stage(Module) -> module_stage<>;
template <class Module>
module_stage(Module, stage_ends) -> module_stage<>;
template <class Module, class Step>
module_stage(Module, stage_ends, Step) -> module_stage<Step>;

}  // namespace zbpp::torch

#include <zbpp/torch/impl/module_stage.ipp>
