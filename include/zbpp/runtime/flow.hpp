// SPDX-License-Identifier: Apache-2.0
//
// A flow: the life of one microbatch on one stage, written as a coroutine that awaits its passes.
//
//   co_await zbpp::F([&](zbpp::pass_context ctx) { y = layer.forward(x, ctx); });
//
// Only passes resume flows. When the program of a rank comes to a pass, its engine resumes the
// flow, the closure runs inside that resume, and the flow goes on up to the first await that
// belongs to a later pass. A flow is resumed on its rank's thread only, by its rank's engine only.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/runtime/detail/awaiters.hpp>
#include <zbpp/runtime/detail/flow_state.hpp>
#include <zbpp/runtime/detail/frame_pool.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <type_traits>
#include <utility>

namespace zbpp {

class microbatch;

#define ZBPP_CHECK_CLOSURE(Closure)                                                                \
  static_assert(                                                                                   \
      detail::is_safe_temporary<Closure>,                                                          \
      "g++ 12 destroys this temporary closure twice: name it first, `auto work = [...] {...};`, "  \
      "and write co_await zbpp::F(work)")

/// Awaits the forward pass and runs `closure(ctx)` or `closure()` in it.
///
/// The operation will suspend the flow if another pass is running. The rank's engine resumes it, on
/// the rank's thread, when the program comes to F of this flow. The closure must live until then,
/// as a temporary in the co_await expression does. What the closure throws ends the step.
template <class Closure>
[[nodiscard]] auto F(Closure&& closure) noexcept {
  ZBPP_CHECK_CLOSURE(Closure);
  return detail::request<pass_kind::forward>(closure);
}

/// Awaits the gradient of the input; suspends and resumes as F does.
template <class Closure>
[[nodiscard]] auto B(Closure&& closure) noexcept {
  ZBPP_CHECK_CLOSURE(Closure);
  return detail::request<pass_kind::backward_input>(closure);
}

/// Awaits the gradient of the weights; suspends and resumes as F does.
template <class Closure>
[[nodiscard]] auto W(Closure&& closure) noexcept {
  ZBPP_CHECK_CLOSURE(Closure);
  return detail::request<pass_kind::backward_weight>(closure);
}

/// Awaits both gradients at once, where `microbatch::is_fused()`; suspends and resumes as F does.
template <class Closure>
[[nodiscard]] auto BW(Closure&& closure) noexcept {
  ZBPP_CHECK_CLOSURE(Closure);
  return detail::request<pass_kind::backward>(closure);
}

/// Awaits the recomputation of what F did not keep; it stands before `recv_gradient()`. Does
/// nothing where the program does not recompute; else suspends and resumes as F does.
template <class Closure>
[[nodiscard]] auto R(Closure&& closure) noexcept {
  ZBPP_CHECK_CLOSURE(Closure);
  return detail::request<pass_kind::recompute>(closure);
}

#undef ZBPP_CHECK_CLOSURE

/// Owns the coroutine of one microbatch on one stage: what a stage's call operator returns.
///
/// Its frame comes from the engine's pool. It starts when the program comes to its F, and the
/// engine destroys it after its last pass. It may await F, B, W, BW, R and the messages of its
/// `microbatch`, nothing else.
class [[nodiscard]] flow {
 public:
  /// The coroutine's side of a flow.
  class promise_type {
   public:
    static void* operator new(std::size_t size) { return frame_pool::allocate(size); }
    static void operator delete(void* frame, std::size_t) noexcept { frame_pool::release(frame); }

    [[nodiscard]] flow get_return_object() noexcept {
      return flow(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
    [[nodiscard]] std::suspend_always final_suspend() const noexcept {
      state_->point = flow_point::end;
      return {};
    }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { state_->failure = std::current_exception(); }

    template <pass_kind Kind, class Closure>
    [[nodiscard]] auto await_transform(detail::pass_request<Kind, Closure> request) const noexcept {
      return detail::pass_awaiter<Kind, Closure>(*state_, request.closure());
    }
    template <class Result, flow_point Point>
    [[nodiscard]] auto await_transform(
        detail::message_awaiter<Result, Point> awaiter) const noexcept {
      return awaiter;
    }

    template <class Other>
    void await_transform(Other const&) const noexcept {
      static_assert(
          sizeof(Other) == 0,
          "a flow awaits zbpp::F, B, W, BW, R and the messages of its microbatch, nothing else");
    }

    void bind(detail::flow_state& state) noexcept { state_ = &state; }

   private:
    detail::flow_state* state_ = nullptr;
  };

  flow(flow&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  flow& operator=(flow other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~flow() {
    if (handle_) handle_.destroy();
  }

  /// Hands the coroutine to whoever runs it; for engines.
  [[nodiscard]] std::coroutine_handle<> release(detail::flow_state& state) && noexcept {
    handle_.promise().bind(state);
    return std::exchange(handle_, nullptr);
  }

 private:
  explicit flow(std::coroutine_handle<promise_type> handle) noexcept : handle_(handle) {}

  std::coroutine_handle<promise_type> handle_;
};

namespace detail {

/// True if a parameter is a reference to a microbatch, which ends before the flow does.
template <class Parameter>
inline constexpr bool is_microbatch_reference =
    std::is_reference_v<Parameter> && std::same_as<std::remove_cvref_t<Parameter>, microbatch>;

}  // namespace detail
}  // namespace zbpp

/// Makes a function that returns a flow a coroutine, and checks that the flow can outlive the call.
template <class... Parameters>
struct std::coroutine_traits<zbpp::flow, Parameters...> {
  static_assert(
      (!zbpp::detail::is_microbatch_reference<Parameters> && ...),
      "a flow takes its microbatch by value: it starts after the call that made it has returned");
  using promise_type = zbpp::flow::promise_type;
};
