// SPDX-License-Identifier: Apache-2.0
//
// Watches the operations of LibTorch that a thread runs, by LibTorch's observers.
#pragma once

#include <zbpp/torch/detail/libtorch.hpp>

#include <ATen/record_function.h>
#include <memory>
#include <utility>

namespace zbpp::torch::detail {

/// Reaches what `at::RecordFunction::inputs()` gives. That asserts, where NDEBUG is not defined,
/// what libraries compiled with it never set.
template <auto Member>
struct inputs_of_operation {
  friend auto const& inputs_of(at::RecordFunction const& operation) { return operation.*Member; }
};
auto const& inputs_of(at::RecordFunction const& operation);
template struct inputs_of_operation<&at::RecordFunction::inputs_>;

/// Is told of the operations that this thread runs while it lives, of the innermost one if there
/// are several.
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
  struct heard : at::ObserverContext {
    explicit heard(operation_watch* by) : watch(by) {}
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
    auto context = std::make_unique<heard>(watch);
    return watch->begin(operation) ? std::move(context) : nullptr;
  }
  static void on_end(at::RecordFunction const&, at::ObserverContext* context) {
    if (context != nullptr) static_cast<heard*>(context)->watch->end();
  }

  static inline thread_local operation_watch* current_ = nullptr;
  operation_watch* outer_;
  at::CallbackHandle handle_{};
  at::RecordFunctionGuard on_{true};
  bool is_busy_ = false;
};

}  // namespace zbpp::torch::detail
