// SPDX-License-Identifier: Apache-2.0
//
// Leaves a layer as it was, whatever its runs change.
#pragma once

#include <zbpp/torch/detail/random_draws.hpp>
#include <zbpp/torch/tensors.hpp>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace zbpp::torch::detail {

/// Keeps what the runs of a layer may change, and puts it back: the bytes of all tensors that it
/// uses and has not made itself, and the `grad` of its parameters.
class layer_keeper {
 public:
  /// @param state  gives the parameters and buffers, in order, as far as they are known
  /// @param name   of the layer, for messages
  layer_keeper(std::function<tensors()> state, std::string name);
  layer_keeper(layer_keeper const&) = delete;
  layer_keeper& operator=(layer_keeper const&) = delete;
  /// Puts back what can be, if `put_back` has not.
  ~layer_keeper();

  /// Runs something, and keeps what its operations are given as it was before.
  template <class Run>
  void watch(Run run) {
    made_memory made;
    tensor_watch const watched(*this, made);
    run();
  }
  /// Takes the `grad` off all leaves of a graph but its inputs, where it is not done yet.
  void put_grads_aside(tensors const& inputs, tensors const& outputs);
  /// Puts everything back.
  /// @throws error (bad_argument) naming the layer when it has other parameters or buffers now
  void put_back();

 private:
  // Knows the memory that this thread allocated while it lives.
  class made_memory {
   public:
    made_memory();
    [[nodiscard]] bool has(void const* data) const;

   private:
    struct addresses;
    std::shared_ptr<addresses> made_;
    c10::DebugInfoGuard guard_;
  };
  class tensor_watch : public operation_watch {
   public:
    tensor_watch(layer_keeper& keeper, made_memory const& made) : keeper_(&keeper), made_(&made) {}
    bool begin(at::RecordFunction const& operation) override;
    void end() noexcept override {}

   private:
    void see(c10::IValue const& value);
    layer_keeper* keeper_;
    made_memory const* made_;
  };

  void keep(at::Tensor const& tensor);
  void put_bytes_back() const;

  std::function<tensors()> state_;
  std::string name_;
  tensors before_;  // what state_ gave, apart from tensors that are given other data
  std::vector<std::pair<at::Tensor, at::Tensor>> bytes_;  // of memory, and a copy of them
  std::unordered_set<void const*> known_;                 // whose bytes or grads are kept
  std::vector<std::pair<at::Tensor, at::Tensor>> grads_;  // leaves, and what they had
  bool is_back_ = false;
};

/// Puts the default generators back when it ends.
class generator_keeper {
 public:
  explicit generator_keeper(tensors const& on) : states_(on) {}
  generator_keeper(generator_keeper const&) = delete;
  generator_keeper& operator=(generator_keeper const&) = delete;
  ~generator_keeper() { states_.write(); }

 private:
  generator_states states_;
};

}  // namespace zbpp::torch::detail

#include <zbpp/torch/impl/layer_keeper.ipp>
