// SPDX-License-Identifier: Apache-2.0
//
// One run of LibTorch's autograd engine, from edges of a graph with the gradients that arrive
// there, and what comes out at the inputs.
#pragma once

#include <zbpp/torch/detail/libtorch.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace zbpp::torch::detail {

namespace autograd = ::torch::autograd;

/// What an edge holds a node by: a shared_ptr up to some version of LibTorch, then an
/// intrusive_ptr.
using node_handle = decltype(autograd::Edge::function);

template <class Node, class... Arguments>
[[nodiscard]] node_handle make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<node_handle, std::shared_ptr<autograd::Node>>) {
    return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
}

/// The node where a run starts. It gives its gradients away, so that each is freed after its last
/// use; and some of them may be undefined, which the engine does not take from its caller.
class source_node : public autograd::Node {
 public:
  source_node(
      autograd::edge_list&& edges, std::vector<at::Tensor>&& gradients, at::Tensor const& trigger)
      : Node(std::move(edges)), gradients_(std::move(gradients)) {
    add_input_metadata(trigger);
    for (at::Tensor const& gradient : gradients_) {
      if (gradient.defined() && !gradient.device().is_cpu()) {
        add_input_metadata(gradient);  // the engine takes the caller's stream from it
        break;
      }
    }
  }

  autograd::variable_list apply(autograd::variable_list&&) override {
    return std::move(gradients_);
  }

 private:
  std::vector<at::Tensor> gradients_;
};

/// @return whether others may read the tensor's memory, or own it. LibTorch makes a gradient that
/// only
///         it refers to the `grad` of a parameter, and adds later ones into its memory.
[[nodiscard]] inline bool is_memory_of_others(at::Tensor const& tensor) {
  return tensor.defined() && tensor.has_storage() &&
         (tensor.storage().use_count() > 1 || tensor.storage().allocator() == nullptr);
}

/// Stands in W for a node that ran as a whole in B: hands on the gradients that it gave for its
/// parameters, at its place in the order of nodes.
class replay_node : public autograd::Node {
 public:
  replay_node(
      std::uint64_t place,
      autograd::edge_list&& edges,
      std::vector<at::Tensor>&& gradients,
      at::Tensor const& trigger)
      : Node(place, std::move(edges)), gradients_(std::move(gradients)) {
    add_input_metadata(trigger);
    for (at::Tensor const& gradient : gradients_)
      if (is_memory_of_others(gradient)) others_.push_back(gradient);
  }

  autograd::variable_list apply(autograd::variable_list&&) override {
    return std::move(gradients_);
  }

 private:
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> others_;  // held, so that none becomes a `grad`
};

/// @return what the hooks of the user on a leaf make of its gradient. LibTorch 2 has run them when
/// a
///         gradient arrives at the node; before, the node itself did.
template <class Leaf>
[[nodiscard]] at::Tensor after_hooks(Leaf& leaf, at::Tensor gradient) {
  if constexpr (requires { leaf.tensor_pre_hooks(); })
    return gradient;
  else
    return Leaf::callHooks(leaf.variable, std::move(gradient));
}

/// Takes the gradient of an input as it arrives, so that none is added to its `grad`, which might
/// change its strides.
class catching_hook : public autograd::FunctionPreHook {
 public:
  explicit catching_hook(autograd::AccumulateGrad& leaf) : leaf_(&leaf) {}

  autograd::variable_list operator()(autograd::variable_list const& gradients) override {
    if (gradients.front().defined()) caught_ = after_hooks(*leaf_, gradients.front());
    return {at::Tensor()};
  }
  /// @return what came; undefined where nothing did
  [[nodiscard]] at::Tensor const& caught() const noexcept { return caught_; }

 private:
  autograd::AccumulateGrad* leaf_;
  at::Tensor caught_;
};

/// Takes the gradients of inputs from a run while it lives.
class input_gradients {
 public:
  /// @param inputs  edges to leaves, of which some may be the same; invalid ones get none
  explicit input_gradients(autograd::edge_list inputs) : inputs_(std::move(inputs)) {
    for (autograd::Edge const& input : inputs_) {
      catching_hook* hook = nullptr;
      for (std::size_t i = 0; i < hooks_.size() && hook == nullptr; ++i)
        if (inputs_[i].function == input.function) hook = hooks_[i];
      auto* const leaf = dynamic_cast<autograd::AccumulateGrad*>(input.function.get());
      if (leaf != nullptr && hook == nullptr) {
        auto made = std::make_unique<catching_hook>(*leaf);
        hook = made.get();
        leaf->add_pre_hook(std::move(made));
      }
      hooks_.push_back(hook);
    }
  }
  input_gradients(input_gradients const&) = delete;
  input_gradients& operator=(input_gradients const&) = delete;
  ~input_gradients() {
    for (std::size_t i = 0; i < hooks_.size(); ++i)
      if (hooks_[i] != nullptr)
        std::erase_if(inputs_[i].function->pre_hooks(), [&](auto const& each) {
          return each.get() == hooks_[i];
        });
  }

  /// @return the gradient of each input
  [[nodiscard]] std::vector<at::Tensor> caught() const {
    std::vector<at::Tensor> all;
    for (auto const* hook : hooks_) all.push_back(hook != nullptr ? hook->caught() : at::Tensor());
    return all;
  }

 private:
  autograd::edge_list inputs_;
  std::vector<catching_hook*> hooks_;  // nodes own them
};

/// Runs a graph from `edges`, where `gradients` arrive, and adds to the `grad` of every leaf but
/// those whose gradients are taken.
inline void run_engine(
    autograd::edge_list edges, std::vector<at::Tensor> gradients, bool keep_graph) {
  std::vector<at::Tensor> others;
  for (at::Tensor const& gradient : gradients) {
    if (is_memory_of_others(gradient)) others.push_back(gradient);
  }
  at::Tensor const trigger = at::empty({0});
  autograd::Edge const start(
      make_node<source_node>(std::move(edges), std::move(gradients), trigger), 0);
  autograd::Engine::get_default_engine().execute(
      {start}, {trigger}, keep_graph, /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace zbpp::torch::detail
