// SPDX-License-Identifier: Apache-2.0
//
// The autograd graph of one microbatch on one stage, cut into what B runs and what W runs.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/torch/detail/engine_run.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace zbpp::torch::detail {

/// Which pass may run a node that both passes run.
enum class node_phase : std::uint8_t { input, between, weight };

/// What a node that both passes run got in B.
struct arrived_gradients {
  node_phase phase = node_phase::input;
  std::vector<at::Tensor> gradients;
};

/// Keeps the gradients that arrive at a node in B, after what the hooks of the user make of them.
/// Afterwards it refuses runs that are not the W of this microbatch.
class arrival_hook : public autograd::FunctionPreHook {
 public:
  explicit arrival_hook(std::shared_ptr<arrived_gradients> arrived)
      : arrived_(std::move(arrived)) {}

  autograd::variable_list operator()(autograd::variable_list const& gradients) override {
    if (arrived_->phase == node_phase::between) {
      throw error(
          errc::bad_argument,
          "a backward pass came to a node of a graph that split_backward has cut: compute what "
          "depends on the inputs anew for each microbatch, and run backward passes only by its "
          "split_backward");
    }
    if (arrived_->phase == node_phase::input) arrived_->gradients = gradients;
    return gradients;
  }

 private:
  std::shared_ptr<arrived_gradients> arrived_;
};

/// Frees what a node has saved as soon as it has run.
class release_hook : public autograd::FunctionPostHook {
 public:
  explicit release_hook(autograd::Node* node) : node_(node) {}

  autograd::variable_list operator()(
      autograd::variable_list const& outputs, autograd::variable_list const&) override {
    node_->release_variables();
    return outputs;
  }

 private:
  autograd::Node* node_;
};

/// Takes the hooks of the user off a node. Those that LibTorch 2 runs apart have run in B as well.
template <class Node>
void drop_hooks(Node& node) {
  node.pre_hooks().clear();
  if constexpr (requires { node.tensor_pre_hooks(); }) node.tensor_pre_hooks().clear();
  if constexpr (requires { node.retains_grad_hooks(); }) node.retains_grad_hooks().clear();
}

/// Keeps the gradients that a node gives for its own parameters, after what the hooks of the user
/// make of them, and cuts the node off from these.
class keeping_hook : public autograd::FunctionPostHook {
 public:
  /// @param edges  shared, because the hook stays on the node where B fails
  keeping_hook(
      autograd::Node& node, std::vector<bool> own, std::shared_ptr<autograd::edge_list> edges)
      : node_(&node), own_(std::move(own)), edges_(std::move(edges)) {}

  autograd::variable_list operator()(
      autograd::variable_list const& outputs, autograd::variable_list const&) override {
    auto passed_on = outputs;
    kept_.resize(outputs.size());
    edges_->resize(outputs.size());
    for (std::size_t i = 0; i < outputs.size() && i < own_.size(); ++i) {
      if (!own_[i]) continue;
      std::swap(kept_[i], passed_on[i]);
      std::swap((*edges_)[i], node_->next_edges()[i]);  // the engine looks at it afterwards
    }
    node_->release_variables();
    return passed_on;
  }
  /// @return the gradients, one for each edge
  [[nodiscard]] std::vector<at::Tensor>& kept() noexcept { return kept_; }

 private:
  autograd::Node* node_;
  std::vector<bool> own_;
  std::shared_ptr<autograd::edge_list> edges_;
  std::vector<at::Tensor> kept_;
};

/// A node as a `shared_node`, behind which the user has put hooks. They have to run once and see
/// all gradients that it gives, so B runs it as a whole, and W hands its own gradients on.
class whole_node {
 public:
  /// @param own for each edge of the node, whether it leads to parameters alone
  whole_node(node_handle node, std::vector<bool> own) : node_(std::move(node)) {
    auto hook = std::make_unique<keeping_hook>(*node_, std::move(own), edges_);
    hook_ = hook.get();
    node_->add_post_hook(std::move(hook));
  }

  /// After B: lets no other run come here.
  void turn_to_weights() {
    gradients_ = std::move(hook_->kept());
    std::erase_if(node_->post_hooks(), [this](auto const& each) { return each.get() == hook_; });
    node_->release_variables();  // where no gradient came
    auto const ended = std::make_shared<arrived_gradients>();
    ended->phase = node_phase::between;
    node_->add_pre_hook(std::make_unique<arrival_hook>(ended));
  }

  /// For W: says where gradients enter, and hands over what makes them.
  void start_weights(autograd::edge_list& edges, std::vector<at::Tensor>& gradients) {
    if (gradients_.empty()) return;  // no gradient came here
    auto trigger = at::empty({0});
    edges.emplace_back(
        make_node<replay_node>(
            node_->sequence_nr(), std::move(*edges_), std::move(gradients_), trigger),
        0);
    gradients.push_back(std::move(trigger));
  }

 private:
  node_handle node_;
  std::shared_ptr<autograd::edge_list> edges_ = std::make_shared<autograd::edge_list>();
  keeping_hook* hook_ = nullptr;
  std::vector<at::Tensor> gradients_;
};

/// A node that leads both to inputs and to parameters without passing an input's side: B runs it
/// for the inputs, W for its own parameters.
class shared_node {
 public:
  /// @param own for each edge of the node, whether it leads to parameters alone
  shared_node(node_handle node, std::vector<bool> own)
      : node_(std::move(node)), own_(std::move(own)) {
    node_->add_pre_hook(std::make_unique<arrival_hook>(arrived_));
    own_edges_ = take_edges(*node_, true);
    if (autograd::Node* inner = inner_of(*node_)) inner_edges_ = take_edges(*inner, true);
  }

  /// After B: cuts off what W must not run, and puts the node's own edges back.
  void turn_to_weights() {
    turn(*node_, own_edges_);
    if (autograd::Node* inner = inner_of(*node_)) turn(*inner, inner_edges_);
    drop_hooks(*node_);
    node_->add_pre_hook(std::make_unique<arrival_hook>(arrived_));
    arrived_->phase = node_phase::between;
  }

  /// For W: says where gradients enter this node, and hands them over.
  void start_weights(autograd::edge_list& edges, std::vector<at::Tensor>& gradients) {
    arrived_->phase = node_phase::weight;
    for (std::size_t i = 0; i < arrived_->gradients.size(); ++i) {
      edges.emplace_back(node_, static_cast<std::uint32_t>(i));
      gradients.push_back(std::move(arrived_->gradients[i]));
    }
    arrived_->gradients.clear();
  }

  /// After W: frees what is left.
  void end() {
    arrived_->phase = node_phase::between;
    arrived_->gradients.clear();
    node_->release_variables();
  }

 private:
  // An operation in place on a view is a node within a node, which has the same parameters.
  static autograd::Node* inner_of(autograd::Node& node) {
    auto* slices = dynamic_cast<autograd::CopySlices*>(&node);
    return slices == nullptr ? nullptr : slices->fn.get();
  }

  autograd::edge_list take_edges(autograd::Node& node, bool own) const {
    autograd::edge_list taken(node.next_edges().size());
    for (std::size_t i = 0; i < taken.size() && i < own_.size(); ++i) {
      if (own_[i] == own) std::swap(taken[i], node.next_edges()[i]);
    }
    return taken;
  }

  void turn(autograd::Node& node, autograd::edge_list& own_edges) const {
    static_cast<void>(take_edges(node, false));
    for (std::size_t i = 0; i < own_edges.size(); ++i) {
      if (own_edges[i].is_valid()) node.next_edges()[i] = std::move(own_edges[i]);
    }
    own_edges.clear();
  }

  node_handle node_;
  std::vector<bool> own_;
  std::shared_ptr<arrived_gradients> arrived_ = std::make_shared<arrived_gradients>();
  autograd::edge_list own_edges_;
  autograd::edge_list inner_edges_;
};

/// Finds which nodes lead to inputs.
class graph_walk {
 public:
  struct found_node {
    node_handle node;
    bool is_input = false;
    bool leads_to_inputs = false;
    bool has_own = false;  ///< an edge leads to no input
  };

  /// @param inputs edges to the inputs; invalid ones stand for inputs that need no gradient
  explicit graph_walk(autograd::edge_list const& inputs) {
    for (autograd::Edge const& input : inputs) {
      if (!input.is_valid() || index_.contains(input.function.get())) continue;
      add(input.function);
      nodes_.back().is_input = nodes_.back().leads_to_inputs = true;
    }
  }

  /// Goes through all that can be reached from a node.
  /// @return whether it leads to an input
  bool visit(node_handle const& from) {
    if (auto const known = index_.find(from.get()); known != index_.end()) {
      return nodes_[known->second].leads_to_inputs;
    }
    std::size_t const first = add(from);
    std::vector<std::pair<std::size_t, std::size_t>> path{{first, 0}};  // node, its next edge
    while (!path.empty()) {
      auto& [at, edge] = path.back();
      auto const& edges = nodes_[at].node->next_edges();
      if (edge == edges.size()) {
        path.pop_back();
        if (!path.empty()) note(path.back().first, at);
        continue;
      }
      node_handle const& next = edges[edge++].function;
      if (!next) continue;
      if (auto const known = index_.find(next.get()); known != index_.end()) {
        note(at, known->second);
      } else {
        path.emplace_back(add(next), 0);
      }
    }
    return nodes_[first].leads_to_inputs;
  }

  /// @return for each edge of a node, whether it leads to parameters alone
  [[nodiscard]] std::vector<bool> own_edges(found_node const& of) const {
    std::vector<bool> own;
    for (autograd::Edge const& edge : of.node->next_edges()) {
      own.push_back(edge.is_valid() && !nodes_[index_.at(edge.function.get())].leads_to_inputs);
    }
    return own;
  }

  /// @return all nodes, in the order in which they were found
  [[nodiscard]] std::vector<found_node> const& nodes() const { return nodes_; }

 private:
  std::size_t add(node_handle const& node) {
    index_.emplace(node.get(), nodes_.size());
    nodes_.push_back({.node = node});
    return nodes_.size() - 1;
  }

  void note(std::size_t at, std::size_t child) {
    if (nodes_[child].leads_to_inputs) {
      nodes_[at].leads_to_inputs = true;
    } else {
      nodes_[at].has_own = true;
    }
  }

  std::vector<found_node> nodes_;
  std::unordered_map<autograd::Node*, std::size_t> index_;
};

}  // namespace zbpp::torch::detail
