// SPDX-License-Identifier: Apache-2.0
//
// A program: what each rank does in a step, transfers and optimizer steps in place. Messages carry
// no tags: the k-th send of a channel meets the k-th receive, so order is all there is.
#pragma once

#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/placement.hpp>

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp {

/// Says what an instruction does; the first five are the passes, in the order of `pass_kind`.
enum class instruction_kind : std::uint8_t {
  forward,
  backward_input,
  backward_weight,
  backward,
  recompute,
  send_activation,     ///< ships what the flow of (stage, microbatch) deposited to stage + 1
  receive_activation,  ///< opens the slot for what stage - 1 sends
  send_gradient,       ///< ships what the flow deposited to stage - 1
  receive_gradient,    ///< opens the slot for what stage + 1 sends
  optimizer_step,      ///< applies the gradients of a stage; its microbatch is 0
  reduce_norm,       ///< adds this rank's part of the gradient norm; sends the sum to the next rank
  validate,          ///< receives the norm of all ranks, and sends it to the rank before
  send_tied,         ///< ships the gradients of tied weights to the other ranks that have them
  add_tied,          ///< waits for the gradients of the other stages; gives a stage the sum
  immediate_step,    ///< applies the gradients of a stage by what the stage knows itself
  start_reduction,   ///< gives the gradients of a stage to the sum over all replicas
  finish_reduction,  ///< waits for that sum; gives it to the stage
  gather_weights,    ///< gives a stage the weights that the other replicas have stepped
};

/// Counts the kinds of instructions.
inline constexpr int instruction_kinds = static_cast<int>(pass_kinds) + 13;
static_assert(
    static_cast<std::size_t>(instruction_kind::send_activation) == pass_kinds &&
    static_cast<int>(instruction_kind::gather_weights) == instruction_kinds - 1);

/// Tells a pass from other instructions.
[[nodiscard]] constexpr bool is_pass(instruction_kind kind) noexcept {
  return static_cast<std::size_t>(kind) < pass_kinds;
}

/// @return the short form of a kind: F, B, W, BW, R, SEND_F, RECV_F, SEND_B, RECV_B, STEP, NORM,
///         VALIDATE, SEND_T, ADD_T, STEP_NOW, REDUCE, REDUCED or GATHER
[[nodiscard]] constexpr std::string_view to_string(instruction_kind kind) noexcept {
  switch (kind) {
    case instruction_kind::send_activation: return "SEND_F";
    case instruction_kind::receive_activation: return "RECV_F";
    case instruction_kind::send_gradient: return "SEND_B";
    case instruction_kind::receive_gradient: return "RECV_B";
    case instruction_kind::optimizer_step: return "STEP";
    case instruction_kind::reduce_norm: return "NORM";
    case instruction_kind::validate: return "VALIDATE";
    case instruction_kind::send_tied: return "SEND_T";
    case instruction_kind::add_tied: return "ADD_T";
    case instruction_kind::immediate_step: return "STEP_NOW";
    case instruction_kind::start_reduction: return "REDUCE";
    case instruction_kind::finish_reduction: return "REDUCED";
    case instruction_kind::gather_weights: return "GATHER";
    default: return to_string(static_cast<pass_kind>(kind));
  }
}

/// Holds one instruction of a rank.
struct instruction {
  instruction_kind kind = instruction_kind::forward;
  std::int32_t stage = 0;
  std::int32_t microbatch = 0;
  bool is_paired = false;  ///< of B or BW: it runs together with the F right in front of it

  [[nodiscard]] constexpr bool is_pass() const noexcept { return zbpp::is_pass(kind); }
  /// @return whether this belongs to the rank as a whole; its stage is then the first of the rank
  [[nodiscard]] constexpr bool is_of_rank() const noexcept {
    return kind == instruction_kind::reduce_norm || kind == instruction_kind::validate;
  }
  [[nodiscard]] constexpr bool is_step() const noexcept {
    return kind == instruction_kind::optimizer_step || kind == instruction_kind::immediate_step;
  }
  [[nodiscard]] constexpr bool is_of_tied() const noexcept {
    return kind == instruction_kind::send_tied || kind == instruction_kind::add_tied;
  }
  [[nodiscard]] constexpr bool is_of_reduction() const noexcept {
    return kind == instruction_kind::start_reduction ||
           kind == instruction_kind::finish_reduction || kind == instruction_kind::gather_weights;
  }
  /// @return whether this is about one microbatch; the microbatch of others is 0
  [[nodiscard]] constexpr bool has_microbatch() const noexcept {
    return !is_step() && !is_of_rank() && !is_of_tied() && !is_of_reduction();
  }
  [[nodiscard]] constexpr bool is_send() const noexcept {
    return kind == instruction_kind::send_activation || kind == instruction_kind::send_gradient;
  }
  [[nodiscard]] constexpr bool is_receive() const noexcept {
    return kind == instruction_kind::receive_activation ||
           kind == instruction_kind::receive_gradient;
  }
  [[nodiscard]] constexpr bool moves_activation() const noexcept {
    return kind == instruction_kind::send_activation ||
           kind == instruction_kind::receive_activation;
  }
  [[nodiscard]] constexpr pass as_pass() const noexcept {
    return {static_cast<pass_kind>(kind), stage, microbatch, is_paired};
  }
  /// @return the neighbouring stage at the other end of a send or receive
  [[nodiscard]] constexpr std::int32_t other_stage() const noexcept {
    bool const next =
        kind == instruction_kind::send_activation || kind == instruction_kind::receive_gradient;
    return next ? stage + 1 : stage - 1;
  }

  friend constexpr bool operator==(instruction const&, instruction const&) = default;
  friend constexpr auto operator<=>(instruction const&, instruction const&) = default;
};

[[nodiscard]] constexpr instruction to_instruction(pass const& p) noexcept {
  return {static_cast<instruction_kind>(p.kind), p.stage, p.microbatch, p.is_paired};
}

/// Writes an instruction as stage, kind, microbatch: `1F2`, `1SEND_F2`, `0STEP`, `0VALIDATE`.
[[nodiscard]] std::string to_string(instruction const& i);

/// Describes one directed FIFO between two ranks and how deep its program uses it.
struct channel {
  int from = 0;
  int to = 0;
  int slots = 0;      ///< most messages that the receiver holds at once, opened but not consumed
  int in_flight = 0;  ///< most messages that the sender cannot yet know to be consumed

  friend bool operator==(channel const&, channel const&) = default;
};

/// Holds the instructions of every rank and the channels they use. Any rows are taken as they are:
/// `verify` says whether they may run.
class program {
 public:
  /// Takes the instructions of each rank; `channels` states what the ranks must set aside.
  /// @throws error (bad_argument) unless there is a row per rank, and microbatches is in range
  program(
      zbpp::placement placement,
      int microbatches,
      rows<instruction> instructions,
      std::vector<channel> channels);

  [[nodiscard]] zbpp::placement const& placement() const noexcept { return placement_; }
  [[nodiscard]] int ranks() const noexcept { return placement_.ranks(); }
  [[nodiscard]] int stages() const noexcept { return placement_.stages(); }
  [[nodiscard]] int microbatches() const noexcept { return microbatches_; }
  [[nodiscard]] rows<instruction> const& instructions() const noexcept { return instructions_; }
  [[nodiscard]] std::span<instruction const> instructions(int rank) const noexcept {
    return instructions_[rank];
  }
  [[nodiscard]] std::vector<channel> const& channels() const noexcept { return channels_; }

  friend bool operator==(program const&, program const&) = default;

 private:
  zbpp::placement placement_;
  int microbatches_;
  rows<instruction> instructions_;
  std::vector<channel> channels_;
};

[[nodiscard]] bool agrees_on_steps(program const& program);

/// @return whether the ranks of a program tell each other of gradients besides their messages
[[nodiscard]] bool exchanges_states(program const& program);

[[nodiscard]] bool reduces_gradients(program const& program);

[[nodiscard]] bool shards_optimizer(program const& program);

/// @return the stages whose weights are tied, in ascending order: those with a SEND_T
[[nodiscard]] std::vector<int> tied_stages(program const& program);

/// @return whether a rank validates the step before, rather than its own: it begins a step before
///         it knows how the last one came out
[[nodiscard]] bool validates_step_before(program const& program, int rank);
/// @return whether all ranks do, so that they may have to go back to the step before
[[nodiscard]] bool validates_step_before(program const& program);

/// @return by stage, whether it steps at once, by what it knows itself: those with a STEP_NOW
[[nodiscard]] std::vector<bool> steps_at_once(program const& program);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/model/impl/program.ipp>
#endif
