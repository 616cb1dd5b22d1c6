// SPDX-License-Identifier: Apache-2.0
//
// How what the runs of a layer may change is found, kept and put back.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/torch/detail/graph_cut.hpp>
#include <zbpp/torch/detail/layer_keeper.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <torch/version.h>

namespace zbpp::torch::detail {

struct layer_keeper::made_memory::addresses : c10::MemoryReportingInfoBase {
#if TORCH_VERSION_MAJOR >= 2
  using total = std::size_t;
#else
  using total = std::int64_t;
#endif
  void reportMemoryUsage(void* data, std::int64_t size, total, total, c10::Device) override {
    if (size > 0)
      all.insert(data);
    else
      all.erase(data);
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }

  std::unordered_set<void const*> all;
};

inline layer_keeper::made_memory::made_memory()
    : made_(std::make_shared<addresses>()), guard_(c10::DebugInfoKind::PROFILER_STATE, made_) {}

inline bool layer_keeper::made_memory::has(void const* data) const {
  return made_->all.contains(data);
}

inline bool layer_keeper::tensor_watch::begin(at::RecordFunction const& operation) {
  for (auto const& each : inputs_of(operation)) see(each);
  return false;
}

inline void layer_keeper::tensor_watch::see(c10::IValue const& value) {
  if (value.isTensor()) {
    auto const& tensor = value.toTensor();
    if (tensor.defined() && tensor.has_storage() &&
        !made_->has(tensor.storage().unsafeGetStorageImpl()->data()))
      keeper_->keep(tensor);
  } else if (value.isList()) {
    for (auto const& each : value.toListRef()) see(each);
  }
}

inline layer_keeper::layer_keeper(std::function<tensors()> state, std::string name)
    : state_(std::move(state)), name_(std::move(name)) {
  for (auto const& each : state_()) {
    before_.push_back(each.defined() ? each.detach() : each);
    if (each.defined() && each.has_storage()) keep(each);
  }
}

inline layer_keeper::~layer_keeper() {
  if (is_back_) return;
  try {
    put_back();
  } catch (...) {  // what ends this scope is told instead
  }
}

inline void layer_keeper::keep(at::Tensor const& tensor) {
  auto const storage = tensor.storage();
  if (storage.nbytes() == 0 || !known_.insert(storage.unsafeGetStorageImpl()).second) return;
  c10::AutoGradMode const off(false);
  auto all = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(tensor.device()));
  all.set_(storage);
  auto copy = all.clone();
  bytes_.emplace_back(std::move(all), std::move(copy));
}

inline void layer_keeper::put_grads_aside(tensors const& inputs, tensors const& outputs) {
  graph_walk walk({});
  for (auto const& each : outputs)
    if (each.defined() && each.requires_grad())
      walk.visit(autograd::impl::gradient_edge(each).function);
  for (auto const& each : walk.nodes()) {
    auto* const leaf = dynamic_cast<autograd::AccumulateGrad*>(each.node.get());
    if (leaf == nullptr) continue;
    auto& parameter = leaf->variable;
    bool const is_input =
        std::ranges::any_of(inputs, [&](auto const& x) { return x.is_same(parameter); });
    if (is_input || !known_.insert(parameter.unsafeGetTensorImpl()).second) continue;
    grads_.emplace_back(parameter, parameter.grad());
    parameter.mutable_grad() = at::Tensor();
  }
}

inline void layer_keeper::put_bytes_back() const {
  for (auto const& [now, before] : bytes_)
    if (!now.equal(before)) now.copy_(before);
}

inline void layer_keeper::put_back() {
  is_back_ = true;
  c10::AutoGradMode const off(false);
  put_bytes_back();
  for (auto const& [parameter, before] : grads_) parameter.mutable_grad() = before;
  auto const now = state_();
  if (now.size() != before_.size())
    throw error(errc::bad_argument) + name_ + " has " + now.size() +
        " parameters and buffers after its runs, and had " + before_.size() +
        " before; make them when the module is made, so that it can be left as it was";
  for (std::size_t i = 0; i < now.size(); ++i) {
    auto const& before = before_[i];
    if (!now[i].defined() || !before.defined() || !before.has_storage()) continue;
    bool const is_there = now[i].is_alias_of(before) && now[i].sizes() == before.sizes() &&
                          now[i].strides() == before.strides() &&
                          now[i].storage_offset() == before.storage_offset();
    if (!is_there) now[i].set_data(before);  // F put another tensor in its place
  }
}

}  // namespace zbpp::torch::detail
