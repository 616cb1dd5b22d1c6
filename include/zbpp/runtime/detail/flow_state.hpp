// SPDX-License-Identifier: Apache-2.0
//
// What an engine and the flow of one microbatch on one stage share: which pass is running, what the
// flow awaits, and the messages on their way in and out.
#pragma once

#include <zbpp/model/pass.hpp>
#include <zbpp/runtime/detail/callback.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <coroutine>
#include <cstdint>
#include <exception>
#include <string_view>

namespace zbpp {

struct evaluation_output;
class rank_grid;

/// Names the places at which a flow can stand between two passes.
enum class flow_point : std::uint8_t {
  start,
  receive_activation,
  forward,
  send_activation,
  recompute,
  receive_gradient,
  backward_input,
  backward,
  send_gradient,
  backward_weight,
  end,
};

/// Names a point as a flow writes it.
[[nodiscard]] constexpr std::string_view to_string(flow_point point) noexcept {
  switch (point) {
    case flow_point::start: return "its start";
    case flow_point::receive_activation: return "recv_activation()";
    case flow_point::forward: return "F";
    case flow_point::send_activation: return "send_activation()";
    case flow_point::recompute: return "R";
    case flow_point::receive_gradient: return "recv_gradient()";
    case flow_point::backward_input: return "B";
    case flow_point::backward: return "BW";
    case flow_point::send_gradient: return "send_gradient()";
    case flow_point::backward_weight: return "W";
    case flow_point::end: return "its end";
  }
  return "?";
}

namespace detail {

/// Works as a set of pass kinds: those that the running instruction still lets the flow do.
class open_passes {
 public:
  constexpr open_passes() = default;

  /// Opens what one pass of the program lets a flow do; BW is B and then W, or both at once.
  constexpr explicit open_passes(pass_kind running) noexcept
      : set_(
            running == pass_kind::backward
                ? static_cast<std::uint8_t>(
                      bit(pass_kind::backward_input) | bit(pass_kind::backward_weight) |
                      bit(pass_kind::backward))
                : bit(running)) {}

  /// @return whether the flow may do a pass of this kind now; W waits for B
  [[nodiscard]] constexpr bool allows(pass_kind kind) const noexcept {
    if (kind == pass_kind::backward_weight && (set_ & bit(pass_kind::backward_input)) != 0)
      return false;
    return (set_ & bit(kind)) != 0;
  }
  /// Marks a pass as done.
  constexpr void close(pass_kind kind) noexcept {
    if (kind == pass_kind::backward) {
      set_ = 0;
      return;
    }
    set_ = static_cast<std::uint8_t>(set_ & ~(bit(kind) | bit(pass_kind::backward)));
  }
  [[nodiscard]] constexpr bool empty() const noexcept { return set_ == 0; }

 private:
  [[nodiscard]] static constexpr std::uint8_t bit(pass_kind kind) noexcept {
    return static_cast<std::uint8_t>(1U << static_cast<unsigned>(kind));
  }

  std::uint8_t set_ = 0;
};

[[nodiscard]] constexpr bool may_begin(pass_kind kind, flow_point at) noexcept {
  switch (kind) {
    case pass_kind::forward: return at == flow_point::start;
    case pass_kind::recompute: return at == flow_point::recompute;
    case pass_kind::backward_weight: return at == flow_point::backward_weight;
    case pass_kind::backward_input:
      return at == flow_point::receive_gradient || at == flow_point::backward_input;
    case pass_kind::backward:
      return at == flow_point::receive_gradient || at == flow_point::backward_input ||
             at == flow_point::backward;
  }
  return false;
}

/// Holds what all flows of one stage have in common.
struct stage_context {
  int stage = 0;
  int stages = 0;
  int microbatches = 0;
  bool is_training = true;
  bool recomputes = false;   // the program, on any rank
  bool is_captured = false;  // and replayed in later steps, so what the host knows does not count
  std::int64_t step = 0;
  std::int64_t evaluation = 0;
  double* losses = nullptr;            // one per microbatch
  double const* loss_scale = nullptr;  // null: 1
  rank_grid* grid = nullptr;           // of the rank
  // Who gets what the last stage sends in an evaluation; null in training.
  callback<evaluation_output> const* outputs = nullptr;
};

/// Holds one flow and its messages.
struct flow_state {
  std::coroutine_handle<> flow;
  stage_context const* common = nullptr;
  std::int32_t microbatch = 0;
  bool is_recomputed = false;
  pass_kind running = pass_kind::forward;
  bool is_running = false;
  bool has_loss = false;  // somebody has asked where its loss goes
  open_passes open;
  flow_point point = flow_point::start;  // where the flow stands
  bool has_received = false;             // in the running pass
  // One message each way is enough: no gradient comes back for an activation that has not left.
  flow_point sent_at = flow_point::start;  // which send filled `outgoing`; start: none
  message received;
  message outgoing;
  std::exception_ptr failure;
  pass_context const* context = nullptr;

  /// Gets ready for another flow; this one is gone and its messages were delivered.
  void reset() noexcept { point = flow_point::start; }

  [[nodiscard]] bool is_first_stage() const noexcept { return common->stage == 0; }
  [[nodiscard]] bool is_last_stage() const noexcept { return common->stage + 1 == common->stages; }
  [[nodiscard]] bool has_output_listener() const noexcept {
    return common->outputs != nullptr && *common->outputs;
  }
};

}  // namespace detail
}  // namespace zbpp
