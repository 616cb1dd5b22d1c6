// SPDX-License-Identifier: Apache-2.0
//
// Runs of LibTorch's autograd engine over a part of a graph, and the cut of a graph in B and W.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/torch/detail/libtorch.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace zbpp::torch::detail {

namespace autograd = ::torch::autograd;

/// What an edge holds a node by: in older LibTorch a shared_ptr, then an intrusive_ptr.
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
///         only it refers to the `grad` of a parameter, and adds later ones into its memory.
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
///         a gradient arrives at the node; before, the node itself did.
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
      throw error(errc::bad_argument) +
          "a backward pass came to a node of a graph that split_backward has cut: compute what "
          "depends on the inputs anew for each microbatch, and run backward passes only by its "
          "split_backward";
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
