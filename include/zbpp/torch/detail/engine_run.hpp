// SPDX-License-Identifier: Apache-2.0
//
// One run of LibTorch's autograd engine, from edges of a graph with the gradients that arrive
// there.
#pragma once

#include <zbpp/torch/detail/libtorch.hpp>

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

/// Runs a graph from `edges`, where `gradients` arrive. With `wanted`, computes and returns only
/// the gradients that arrive there; without, adds to the `grad` of every leaf.
inline std::vector<at::Tensor> run_engine(
    autograd::edge_list edges,
    std::vector<at::Tensor> gradients,
    bool keep_graph,
    autograd::edge_list const& wanted = {}) {
  std::vector<at::Tensor> others;
  for (at::Tensor const& gradient : gradients) {
    if (is_memory_of_others(gradient)) others.push_back(gradient);
  }
  at::Tensor const trigger = at::empty({0});
  autograd::Edge const start(
      make_node<source_node>(std::move(edges), std::move(gradients), trigger), 0);
  return autograd::Engine::get_default_engine().execute(
      {start}, {trigger}, keep_graph, /*create_graph=*/false, wanted.empty(), wanted);
}

}  // namespace zbpp::torch::detail
