// SPDX-License-Identifier: Apache-2.0
//
// What a flow awaits: passes and messages. None of it allocates; an awaiter only notes at which
// point the flow stands.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/runtime/detail/flow_state.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <concepts>
#include <coroutine>
#include <type_traits>

namespace zbpp::detail {

[[nodiscard]] constexpr flow_point point_of(pass_kind kind) noexcept {
  switch (kind) {
    case pass_kind::forward: return flow_point::forward;
    case pass_kind::backward_input: return flow_point::backward_input;
    case pass_kind::backward_weight: return flow_point::backward_weight;
    case pass_kind::backward: return flow_point::backward;
    case pass_kind::recompute: return flow_point::recompute;
  }
  return flow_point::end;
}

/// Holds the closure of `F(closure)` or of one of its siblings until the flow's promise takes it.
template <pass_kind Kind, class Closure>
class [[nodiscard]] pass_request {
 public:
  explicit pass_request(Closure& closure) noexcept : closure_(&closure) {}
  [[nodiscard]] Closure& closure() const noexcept { return *closure_; }

 private:
  Closure* closure_;
};

/// Awaits a pass.
///
/// Suspends the flow unless the running instruction lets it do this pass. The rank's engine resumes
/// it, on the rank's thread, when the program comes to the pass; the closure runs right after that.
/// Closure and flow state must live until then.
template <pass_kind Kind, class Closure>
class [[nodiscard]] pass_awaiter {
 public:
  pass_awaiter(flow_state& state, Closure& closure) noexcept : state_(&state), closure_(&closure) {}

  [[nodiscard]] bool await_ready() const noexcept {
    return state_->open.allows(Kind) || is_skipped();
  }
  ZBPP_SUSPEND void await_suspend(std::coroutine_handle<>) const noexcept {
    state_->point = point_of(Kind);
  }
  void await_resume() const {
    if (is_skipped()) return;
    state_->open.close(Kind);
    if constexpr (std::invocable<Closure&, pass_context>) {
      (*closure_)(*state_->context);
    } else {
      (*closure_)();
    }
  }

 private:
  // What the program does not recompute is still there.
  [[nodiscard]] bool is_skipped() const noexcept {
    return Kind == pass_kind::recompute && !state_->is_recomputed;
  }

  flow_state* state_;
  Closure* closure_;
};

/// Makes the request for a pass.
template <pass_kind Kind, class Closure>
[[nodiscard]] auto request(Closure& closure) noexcept {
  static_assert(
      std::invocable<Closure&, pass_context> || std::invocable<Closure&>,
      "a pass takes a closure that can be called with a zbpp::pass_context, or with nothing");
  return pass_request<Kind, Closure>(closure);
}

/// True if a temporary of this type survives a co_await expression.
template <class Closure>
inline constexpr bool is_safe_temporary =
    ZBPP_BROKEN_TEMPORARY_CLOSURES == 0 || std::is_lvalue_reference_v<Closure> ||
    std::is_trivially_destructible_v<std::remove_reference_t<Closure>>;

/// Awaits a message: what the member functions of `microbatch` return.
///
/// Is ready while the pass that the message belongs to runs. Suspends the flow otherwise, at
/// `Point`; the rank's engine resumes it when the program comes to that pass. The flow state must
/// live until then.
template <class Result, flow_point Point>
class [[nodiscard]] message_awaiter {
 public:
  explicit message_awaiter(flow_state& state) noexcept : state_(&state) {}

  [[nodiscard]] bool await_ready() const noexcept {
    if (!state_->is_running) return false;
    auto const& open = state_->open;
    bool const backward =
        state_->running == pass_kind::backward_input || state_->running == pass_kind::backward;
    switch (Point) {
      case flow_point::receive_activation: return open.allows(pass_kind::forward);
      case flow_point::receive_gradient: return open.allows(pass_kind::backward_input);
      case flow_point::send_activation:
        return state_->running == pass_kind::forward && open.empty();
      default: return backward && !open.allows(pass_kind::backward_input);
    }
  }
  ZBPP_SUSPEND void await_suspend(std::coroutine_handle<>) const noexcept { state_->point = Point; }
  Result await_resume() const noexcept {
    if constexpr (!std::is_void_v<Result>) {
      state_->has_received = true;
      return state_->received;
    }
  }

 private:
  flow_state* state_;
};

}  // namespace zbpp::detail
