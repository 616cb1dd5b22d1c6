// SPDX-License-Identifier: Apache-2.0
//
// What F draws from LibTorch's default generators, so that R draws the same; the states of these,
// and the observers of operations, that it needs.
//
// These generators belong to the process, and ranks that are threads of it draw from them in turns.
// So not a pass is bracketed, but each operation that draws: under a lock, as no other may draw
// between reading a state and drawing.
#pragma once

#include <zbpp/torch/detail/libtorch.hpp>

#include <ATen/record_function.h>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace zbpp::torch::detail {

/// Holds the states of the default generators of the CPU and of other devices.
class generator_states {
 public:
  /// Holds none.
  generator_states() = default;
  /// Reads those of the CPU and of the devices of tensors.
  explicit generator_states(std::vector<at::Tensor> const& on) {
    for (auto const& each : on) {
      if (!each.defined() || each.device().is_cpu()) continue;
      auto const& generator = at::globalContext().defaultGenerator(each.device());
      bool is_known = false;
      for (auto const& [known, state] : others_) is_known = is_known || known == generator;
      if (!is_known) others_.emplace_back(generator, at::Tensor());
    }
    read();
  }

  /// Reads the states again.
  void read();
  /// Gives the generators these states.
  void write() const;

  friend bool operator==(generator_states const& a, generator_states const& b);

 private:
  at::mt19937_data_pod cpu_{};
  // Normal numbers come in pairs; these are left.
  decltype(std::declval<at::CPUGeneratorImpl&>().next_float_normal_sample()) float_sample_;
  decltype(std::declval<at::CPUGeneratorImpl&>().next_double_normal_sample()) double_sample_;
  std::vector<std::pair<at::Generator, at::Tensor>> others_;
};

/// Reaches what `at::RecordFunction::inputs()` gives. That asserts, where NDEBUG is not defined,
/// what libraries compiled with it never set.
template <auto Member>
struct inputs_of_operation {
  friend auto const& inputs_of(at::RecordFunction const& operation) { return operation.*Member; }
};
auto const& inputs_of(at::RecordFunction const& operation);
template struct inputs_of_operation<&at::RecordFunction::inputs_>;

/// Hears of the operations that this thread runs while it lives, of the innermost of several.
class operation_watch {
 public:
  operation_watch(operation_watch const&) = delete;
  operation_watch& operator=(operation_watch const&) = delete;
  virtual ~operation_watch() {
    at::removeCallback(handle_);
    current_ = outer_;
  }

  /// Hears that an operation begins, which may be part of another one.
  /// @return whether to hear of its end, too
  virtual bool begin(at::RecordFunction const& operation) = 0;
  /// Hears that an operation ends, or fails.
  virtual void end() noexcept = 0;

 protected:
  operation_watch() : outer_(current_) {
    current_ = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&on_begin, &on_end)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }

 private:
  struct watched_operation : at::ObserverContext {
    explicit watched_operation(operation_watch* by) : watch(by) {}
    operation_watch* watch;
  };

  static std::unique_ptr<at::ObserverContext> on_begin(at::RecordFunction const& operation) {
    auto* const watch = current_;
    if (watch == nullptr || watch->is_busy_) return nullptr;
    struct busy_scope {  // operations of its own are not watched
      explicit busy_scope(bool& flag) : is_busy(flag) { is_busy = true; }
      ~busy_scope() { is_busy = false; }
      bool& is_busy;
    } const scope(watch->is_busy_);
    auto context = std::make_unique<watched_operation>(watch);
    return watch->begin(operation) ? std::move(context) : nullptr;
  }
  static void on_end(at::RecordFunction const&, at::ObserverContext* context) {
    if (context != nullptr) static_cast<watched_operation*>(context)->watch->end();
  }

  static inline thread_local operation_watch* current_ = nullptr;
  operation_watch* outer_;
  at::CallbackHandle handle_{};
  at::RecordFunctionGuard on_{true};
  bool is_busy_ = false;
};

/// Says from which states the draws of an F went on: where it is one alone, nothing else drew.
struct random_draws {
  struct turn {
    std::size_t draw;  ///< the first that goes on from the states
    generator_states states;
  };
  std::vector<turn> turns;
};

/// While it lives, draws of this thread take turns with those that are recorded or made again.
class draw_turns : public operation_watch {
 public:
  bool begin(at::RecordFunction const& operation) override;
  void end() noexcept override { drawing_ = {}; }

 private:
  std::unique_lock<std::mutex> drawing_;
};

/// Records the draws of this thread while it lives.
class draw_recorder : public operation_watch {
 public:
  /// @param in  tensors on whose devices the pass computes; they must outlive it
  draw_recorder(random_draws& to, std::vector<at::Tensor> const& in) : draws_(&to), in_(&in) {
    to.turns.clear();
  }

  bool begin(at::RecordFunction const& operation) override;
  void end() noexcept override;

 private:
  random_draws* draws_;
  std::vector<at::Tensor> const* in_;
  std::size_t count_ = 0;
  generator_states last_;
  std::unique_lock<std::mutex> drawing_;  // held while an operation draws
};

/// While it lives, draws of this thread are those recorded. Others draw as if it drew nothing.
class draw_replay : public operation_watch {
 public:
  /// @param in  as for the recorder
  draw_replay(random_draws const& from, std::vector<at::Tensor> const& in)
      : draws_(&from), in_(&in) {}

  bool begin(at::RecordFunction const& operation) override;
  void end() noexcept override;

 private:
  random_draws const* draws_;
  std::vector<at::Tensor> const* in_;
  std::size_t count_ = 0;
  std::size_t turn_ = 0;
  generator_states outside_;
  generator_states last_;
  std::unique_lock<std::mutex> drawing_;  // held while an operation draws
};

}  // namespace zbpp::torch::detail

#include <zbpp/torch/impl/random_draws.ipp>
