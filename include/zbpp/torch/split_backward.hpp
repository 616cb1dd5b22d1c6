// SPDX-License-Identifier: Apache-2.0
//
// Splits the backward pass of LibTorch's autograd into B and W, with the bits of `backward()`.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/torch/detail/graph_cut.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::torch {

/// The backward pass of one microbatch on one stage, in two parts.
///
/// B runs the graph from the outputs to the inputs once, and keeps the gradients that arrive at
/// nodes with parameters of their own. W runs only what lies between those nodes and the
/// parameters, in one run of the engine, and adds to their `grad`. Neither computes what the other
/// does. What B alone needs is freed while B runs, what W needs while W runs.
///
/// If the stage computed its outputs on one thread, gradients have the bits of `backward()` on the
/// same graph, provided that the microbatches' W run in the order in which `backward()` would.
///
/// Three things about memory. A gradient given to B may be kept until W, as it is: do not write to
/// it meanwhile. So may one that B returned, if the stage hands it through (as `x + parameter`
/// does). And LibTorch may make a gradient the `grad` of a parameter of the same shape without a
/// copy; it does not so with memory that is not its own, or that another tensor shares.
///
/// Hooks on tensors of the graph, its inputs and outputs included, and hooks on its nodes run once,
/// with the gradients that `backward()` gives them. For this B runs a node of its own parameters as
/// a whole where a hook stands after it. A function of the user that computes the gradients of an
/// input and of a parameter together runs in both passes.
///
/// The `grad` of inputs stays as it is.
///
/// @source arXiv 2401.10241 sec. 2 (the split); LibTorch's engine runs the nodes that are ready in
///         descending order of their making, which neither part changes, nor the order of sums.
class split_backward {
 public:
  /// Holds nothing.
  split_backward() = default;

  /// Takes the graph between inputs and outputs, right after F. It keeps nodes, not tensors.
  /// @param inputs what the stage received, as leaves: `x.detach().requires_grad_()`. Those that
  ///        need no gradient, such as tokens, get none. Nothing else may be computed from them.
  /// @param outputs what it sends on, or the loss; do not change them in place afterwards
  /// @throws error (bad_argument) when an input is no leaf, or an output is undefined
  split_backward(at::TensorList inputs, at::TensorList outputs) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      bool const needed = inputs[i].defined() && inputs[i].requires_grad();
      if (needed && !inputs[i].is_leaf()) {
        throw error(errc::bad_argument) + "input " + i +
            " of a split_backward is no leaf; compute the outputs from x.detach().requires_grad_()";
      }
      inputs_.push_back(needed ? edge_of(inputs[i]) : detail::autograd::Edge());
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined()) {
        throw error(errc::bad_argument) + "output " + i + " of a split_backward is undefined";
      }
      outputs_.push_back(edge_of(outputs[i]));
      sizes_.push_back(outputs[i].sizes().vec());
    }
    next_ = pass::input;
  }

  split_backward(split_backward&& from) noexcept { *this = std::move(from); }
  split_backward& operator=(split_backward&& from) noexcept {
    inputs_ = std::move(from.inputs_);
    outputs_ = std::move(from.outputs_);
    sizes_ = std::move(from.sizes_);
    shared_ = std::move(from.shared_);
    whole_ = std::move(from.whole_);
    weight_edges_ = std::move(from.weight_edges_);
    weight_gradients_ = std::move(from.weight_gradients_);
    next_ = std::exchange(from.next_, pass::none);
    return *this;
  }
  ~split_backward() = default;

  /// B: computes the gradients of the inputs.
  /// @param gradients one for each output; undefined ones stand for zero, as for outputs that the
  ///        loss does not depend on. For a loss give `at::ones_like(loss)`.
  /// @return one for each input; undefined where an input needs none, or no output depends on it
  /// @throws error (bad_argument) when B ran before, or gradients do not fit; what LibTorch throws
  std::vector<at::Tensor> backward_input(std::vector<at::Tensor> gradients) {
    begin("backward_input", gradients);
    std::vector<at::Tensor> found = run_input(std::move(gradients));
    outputs_.clear();
    inputs_.clear();
    next_ = pass::weight;
    return found;
  }

  /// W: adds the gradients of all parameters to their `grad`.
  /// @throws error (bad_argument) when B has not run, or W has; what LibTorch throws
  void backward_weight() {
    if (next_ != pass::weight) {
      refuse("backward_weight", next_ == pass::input ? "before backward_input()" : nullptr);
    }
    next_ = pass::failed;
    detail::autograd::edge_list edges = std::move(weight_edges_);
    std::vector<at::Tensor> gradients = std::move(weight_gradients_);
    for (detail::shared_node& node : shared_) node.start_weights(edges, gradients);
    for (detail::whole_node& node : whole_) node.start_weights(edges, gradients);
    if (!edges.empty()) detail::run_engine(std::move(edges), std::move(gradients), false);
    for (detail::shared_node& node : shared_) node.end();
    shared_.clear();
    whole_.clear();
    next_ = pass::none;
  }

  /// BW: both at once, in one run of the engine, as `backward()`.
  /// @param gradients as for `backward_input`
  /// @return as `backward_input`
  /// @throws error (bad_argument) as `backward_input`; what LibTorch throws
  std::vector<at::Tensor> backward(std::vector<at::Tensor> gradients) {
    begin("backward", gradients);
    detail::autograd::edge_list edges;
    std::vector<at::Tensor> defined;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (!outputs_[i].is_valid() || !gradients[i].defined()) continue;
      edges.push_back(std::move(outputs_[i]));
      defined.push_back(std::move(gradients[i]));
    }
    outputs_.clear();

    detail::input_gradients const arriving(inputs_);
    if (!edges.empty()) detail::run_engine(std::move(edges), std::move(defined), false);
    auto found = arriving.caught();
    inputs_.clear();
    next_ = pass::none;
    return found;
  }

 private:
  enum class pass : std::uint8_t { none, input, weight, failed };

  // A tensor that needs no gradient has an edge that leads nowhere.
  static detail::autograd::Edge edge_of(at::Tensor const& tensor) {
    return detail::autograd::impl::gradient_edge(tensor);
  }

  [[noreturn]] void refuse(std::string const& label, char const* why) const {
    std::string text = label + "() of a split_backward was called ";
    if (why != nullptr) {
      text += why;
    } else if (next_ == pass::failed) {
      text += "after a pass of it failed";
    } else if (next_ == pass::weight) {
      text += "after backward_input(); only backward_weight() is left";
    } else {
      text += "and nothing is left to do: each is made of a forward pass, and used once";
    }
    throw error(errc::bad_argument, text);
  }

  void begin(char const* name, std::vector<at::Tensor> const& gradients) {
    if (next_ != pass::input) refuse(name, nullptr);
    if (gradients.size() != outputs_.size()) {
      throw error(errc::bad_argument) + name + "() got " + gradients.size() +
          " gradients; it needs one for each of " + outputs_.size() +
          " outputs, if only an undefined tensor";
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined() || gradients[i].sizes() == at::IntArrayRef(sizes_[i])) continue;
      std::ostringstream text;
      text << name << "() got a gradient of sizes " << gradients[i].sizes() << " for output " << i
           << ", whose sizes are " << at::IntArrayRef(sizes_[i]);
      throw error(errc::bad_argument, text.str());
    }
    next_ = pass::failed;  // until it is done
  }

  std::vector<at::Tensor> run_input(std::vector<at::Tensor> gradients) {
    detail::graph_walk walk(inputs_);
    detail::autograd::edge_list edges;
    std::vector<at::Tensor> defined;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (!outputs_[i].is_valid() || !gradients[i].defined()) continue;
      bool const for_inputs = !walk.nodes().empty() && walk.visit(outputs_[i].function);
      (for_inputs ? edges : weight_edges_).push_back(outputs_[i]);
      (for_inputs ? defined : weight_gradients_).push_back(std::move(gradients[i]));
    }
    if (walk.nodes().empty()) return std::vector<at::Tensor>(inputs_.size());

    for (auto const& each : walk.nodes()) {
      if (each.is_input || !each.leads_to_inputs) continue;
      if (each.has_own && each.node->post_hooks().empty()) {
        shared_.emplace_back(each.node, walk.own_edges(each));
      } else if (each.has_own) {
        whole_.emplace_back(each.node, walk.own_edges(each));
      } else {
        each.node->add_post_hook(std::make_unique<detail::release_hook>(each.node.get()));
      }
    }
    detail::input_gradients const arriving(inputs_);
    if (!edges.empty()) detail::run_engine(std::move(edges), std::move(defined), true);
    for (detail::shared_node& node : shared_) node.turn_to_weights();
    for (detail::whole_node& node : whole_) node.turn_to_weights();
    release_rest(walk);
    return arriving.caught();
  }

  // No pass will run what leads only to outputs that got no gradient.
  void release_rest(detail::graph_walk& walk) {
    std::size_t const run = walk.nodes().size();
    for (detail::autograd::Edge const& output : outputs_) {
      if (output.is_valid()) walk.visit(output.function);
    }
    for (std::size_t i = run; i < walk.nodes().size(); ++i) {
      auto const& each = walk.nodes()[i];
      if (each.leads_to_inputs) each.node->release_variables();
    }
  }

  detail::autograd::edge_list inputs_;
  detail::autograd::edge_list outputs_;
  std::vector<std::vector<std::int64_t>> sizes_;
  std::vector<detail::shared_node> shared_;
  std::vector<detail::whole_node> whole_;
  detail::autograd::edge_list weight_edges_;  // of outputs that no input leads to
  std::vector<at::Tensor> weight_gradients_;
  pass next_ = pass::none;
};

}  // namespace zbpp::torch
