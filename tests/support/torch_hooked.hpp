// SPDX-License-Identifier: Apache-2.0
//
// Models with what depends on how often a pass runs: hooks of all kinds, and random numbers of
// LibTorch's default generators.
#pragma once

#include <support/torch_training.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Counts how often hooks run.
struct hook_counts {
  std::atomic<int> received{0};
  std::atomic<int> between{0};
  std::atomic<int> given{0};
  std::atomic<int> parameter{0};
  std::atomic<int> before_node{0};
  std::atomic<int> behind_node{0};

  [[nodiscard]] std::vector<int> all() const {
    return {received, between, given, parameter, before_node, behind_node};
  }
};

/// Adds to a counter and scales gradients, before a node.
class counting_pre_hook : public ::torch::autograd::FunctionPreHook {
 public:
  explicit counting_pre_hook(std::atomic<int>& count) : count_(&count) {}
  std::vector<at::Tensor> operator()(std::vector<at::Tensor> const& gradients) override {
    ++*count_;
    auto changed = gradients;
    for (auto& each : changed)
      if (each.defined()) each = each * 0.5 + 0.25;
    return changed;
  }

 private:
  std::atomic<int>* count_;
};

/// Does so behind a node, to the gradients of its inputs, and looks at those of its outputs.
class counting_post_hook : public ::torch::autograd::FunctionPostHook {
 public:
  explicit counting_post_hook(std::atomic<int>& count) : count_(&count) {}
  std::vector<at::Tensor> operator()(
      std::vector<at::Tensor> const& outputs, std::vector<at::Tensor> const& inputs) override {
    ++*count_;
    auto changed = outputs;
    for (auto& each : changed)
      if (each.defined()) each = each * 0.5 + inputs.front().mean();
    return changed;
  }

 private:
  std::atomic<int>* count_;
};

inline void count_hook(at::Tensor const& t, std::atomic<int>& count, double factor, double more) {
  if (!t.requires_grad()) return;
  t.register_hook([&count, factor, more](at::Tensor const& gradient) {
    ++count;
    return gradient * factor + more;
  });
}

/// What slices saw, at each place.
struct seen_tensors {
  std::mutex mutex;
  std::vector<std::vector<at::Tensor>> at_place;

  void add(std::size_t place, at::Tensor const& t) {
    std::lock_guard const lock(mutex);
    if (at_place.size() <= place) at_place.resize(place + 1);
    at_place[place].push_back(t);
  }
  /// @return the gradients that the tensors of a place have, in the order of their sums
  [[nodiscard]] std::vector<at::Tensor> grads(std::size_t place) const {
    std::vector<at::Tensor> all;
    if (place >= at_place.size()) return all;
    for (auto const& each : at_place[place])
      if (each.grad().defined()) all.push_back(each.grad());
    std::ranges::sort(all, {}, [](auto const& each) { return each.sum().template item<float>(); });
    return all;
  }
};

/// An MLP each slice of which has hooks on what it receives, computes and gives, on a parameter,
/// and before and behind nodes, of inputs alone, of parameters alone and of both. In a plain loop
/// the hooks of two slices are on one tensor, and those of the slice that gives it, which multiply
/// by `given_factor`, run first; in a pipeline they run last, which gives the same here.
constexpr double given_factor = 4;
[[nodiscard]] inline torch_model hooked_model(
    int slices,
    std::shared_ptr<hook_counts> const& counts,
    std::shared_ptr<seen_tensors> const& seen) {
  constexpr std::int64_t width = 6;
  torch_model model{"hooked", {}, random_batch(run_seed(), {3, width})};
  for (int s = 0; s < slices; ++s) {
    auto& slice = model.slices.emplace_back();
    parameter_maker make(run_seed(), slice, s);
    auto const w = make.normal({width, width}, 0.4);
    auto const v = make.normal({width, width}, 0.4);
    auto const b = make.normal({width}, 0.4);
    bool const is_last = s + 1 == slices;
    b.register_hook([counts](at::Tensor const& gradient) {
      ++counts->parameter;
      return gradient * 3 - 0.125;
    });
    slice.forward = [=](at::Tensor const& x) {
      count_hook(x, counts->received, 2, 0);
      if (x.requires_grad()) x.retain_grad();
      auto const h = at::linear(x, w, b);
      count_hook(h, counts->between, 3, 1);
      auto const scaled = v.tanh();
      auto y = at::gelu(h.matmul(scaled));
      if (h.requires_grad()) {
        h.retain_grad();
        h.grad_fn()->add_pre_hook(std::make_unique<counting_pre_hook>(counts->before_node));
        h.grad_fn()->add_post_hook(std::make_unique<counting_post_hook>(counts->behind_node));
        y.grad_fn()->add_post_hook(std::make_unique<counting_post_hook>(counts->behind_node));
        scaled.grad_fn()->add_post_hook(std::make_unique<counting_post_hook>(counts->behind_node));
        auto const place = 2 * static_cast<std::size_t>(s);
        seen->add(place, h);
        if (x.requires_grad()) seen->add(place + 1, x);
      }
      if (is_last) y = y.pow(2).mean();
      count_hook(y, counts->given, given_factor, 0);
      return y;
    };
  }
  return model;
}

/// What F and R of slices made, in the order in which each slice ran.
struct made_twice {
  std::mutex mutex;
  std::vector<std::vector<at::Tensor>> first;   // by slice, without autograd
  std::vector<std::vector<at::Tensor>> second;  // by slice, with it

  explicit made_twice(int slices)
      : first(static_cast<std::size_t>(slices)), second(static_cast<std::size_t>(slices)) {}
  void add(std::size_t slice, at::Tensor const& t) {
    std::lock_guard const lock(mutex);
    (c10::GradMode::is_enabled() ? second : first)[slice].push_back(t.detach().clone());
  }
};

/// An MLP with random numbers of many kinds of the default generator, and some of a generator of
/// their own.
[[nodiscard]] inline torch_model noisy_model(int slices, std::shared_ptr<made_twice> const& made) {
  constexpr std::int64_t width = 8;
  torch_model model{"noisy", {}, random_batch(run_seed(), {3, width})};
  for (int s = 0; s < slices; ++s) {
    auto& slice = model.slices.emplace_back();
    parameter_maker make(run_seed(), slice, s);
    auto const w = make.normal({width, width}, 0.4);
    bool const is_last = s + 1 == slices;
    slice.forward = [=](at::Tensor const& x) {
      auto h = at::dropout(x.matmul(w), 0.4, true);
      h = zbpp::torch::dropout(h, 0.1, {.seed = 5, .stage = s});
      h = h + 0.1 * at::randn({1, 3}).sum() + at::rand_like(h) * at::bernoulli(at::full({1}, 0.5));
      h = at::rrelu(h, 0.1, 0.4, true).index_select(1, at::randperm(width));
      if (is_last) h = h.pow(2).mean();
      made->add(static_cast<std::size_t>(s), h);
      return h;
    };
  }
  return model;
}

/// @return the order with R before each B, or without any
[[nodiscard]] inline schedule with_all_r(schedule const& order, bool recomputes) {
  rows<pass> result;
  for (int rank = 0; rank < order.ranks(); ++rank) {
    for (auto const& p : order.passes(rank)) {
      if (p.kind == pass_kind::recompute) continue;
      if (recomputes && p.makes_input_gradient())
        result.push({pass_kind::recompute, p.stage, p.microbatch});
      result.push(p);
    }
    result.end_row();
  }
  return {order.placement(), order.microbatches(), std::move(result)};
}

}  // namespace zbpp::test
