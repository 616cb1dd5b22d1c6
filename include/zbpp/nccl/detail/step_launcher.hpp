// SPDX-License-Identifier: Apache-2.0
//
// Puts the steps of one rank on its device: pass by pass, or as a graph that is captured once and
// replayed, alone or behind steps that are under way.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/tcp_states.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/cuda/detail/step_order.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/launcher.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/nccl/detail/agreement.hpp>
#include <zbpp/nccl/detail/host_wait.hpp>
#include <zbpp/nccl/detail/step_replay.hpp>
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

namespace zbpp::nccl::detail {

/// Holds a program of a rank, and what carries its messages.
struct rank_program {
  program const* code = nullptr;
  detail::transport* transport = nullptr;
  std::unique_ptr<asio::detail::tcp_states> states;  // null where ranks exchange none
};

/// Issues the steps of one rank, or replays them. Used by the thread that runs steps.
class step_launcher {
 public:
  /// What it refers to outlives it.
  /// @param at_once  how many steps may be under way
  step_launcher(
      asio::step_supervisor& supervisor,
      cuda::launcher& launcher,
      host_wait& wait,
      std::size_t at_once) noexcept
      : supervisor_(supervisor), launcher_(launcher), wait_(wait), at_once_(at_once) {}

  /// Replays the steps of a program, which trains; makes what that takes.
  /// @throws cuda_error
  void replay_with(transport& trains) {
    replay_ =
        &trains.replay_with(supervisor_.rank(), std::make_unique<step_replay>(context(), at_once_));
  }
  /// @return whether steps are replayed
  [[nodiscard]] bool replays() const noexcept { return replay_ != nullptr; }
  /// Makes what puts the steps of a program in order on the device, if it was not made.
  /// @throws cuda_error
  void put_in_order(transport const& trains) {
    if (!order_)
      order_.emplace(std::vector{&context()}, at_once_, trains.streams_of(supervisor_.rank()));
  }

  /// Says how all ranks run a step. They agree with no step under way: those before are issued, or
  /// of another graph, and a rank that waits for others in a collective call follows no device.
  /// @param turn    of the step among those at once
  /// @param before  of the step under way that was issued last, if there is one
  /// @return how; anything when the step has failed
  /// @throws cuda_error; nccl_error; the failure of the run
  template <class Engine>
  [[nodiscard]] step_way choose(
      std::vector<Engine> const& engines, std::size_t turn, std::optional<std::size_t> before) {
    if (replay_ == nullptr) return step_way::issue;
    if (!engines.front().is_training()) {
      replay_->unsettle();
      return step_way::issue;
    }
    if (replay_->is_settled(turn)) return step_way::replay;
    if (before && !wait_.until([&] { return is_done(*before); })) return step_way::issue;
    return agree_on_step(supervisor_.channel(), *replay_, engines, turn);
  }

  /// Issues steps where none is under way, and waits until the device is done with them, or one has
  /// failed.
  /// @throws cuda_error; nccl_error
  template <class Engine>
  void issue_alone(
      std::vector<Engine>& engines, rank_program const& what, step_status const& status) {
    launcher_.issue(engines, wait_of(engines.front(), what));
    if (!status.has_failed()) wait_.until_done(context(), *what.transport, what.states.get());
  }
  /// Issues a step behind those that are under way, unless it fails.
  /// @param turn  of the step among those at once
  /// @throws cuda_error; nccl_error
  template <class Engine>
  void issue_behind(
      std::vector<Engine>& engines,
      rank_program const& what,
      step_status const& status,
      std::size_t turn) {
    order_->wait_for_callers();
    order_->fork();
    launcher_.issue_in_order(engines, wait_of(engines.front(), what));
    if (status.has_failed()) return;
    order_->join();
    order_->mark_end(turn);
  }
  /// Launches a step behind those that are under way; captures it first, unless it is a replay.
  /// @param turn  of the step among those at once
  /// @throws as `step_graph::start`
  template <class Engine>
  void launch(
      step_way way,
      std::vector<Engine>& engines,
      transport& by,
      step_status const& status,
      std::size_t turn) {
    replay_->start(way, engines, *order_, turn, [&] {
      launcher_.issue_in_order(engines);
      by.drain();
      return !status.has_failed();
    });
  }
  /// Lets what callers enqueue from now on wait for the end of a step.
  /// @throws cuda_error
  void hold_callers(std::size_t turn) const { order_->hold_callers(turn); }

  /// @return whether a step is done that was launched, or issued behind others
  /// @throws cuda_error
  [[nodiscard]] bool is_done(std::size_t turn) const { return order_->is_done(turn); }
  /// @return whether any step of those is still waiting or running
  [[nodiscard]] bool is_busy() const noexcept { return order_ && order_->is_busy(); }
  /// Drops all graphs.
  void discard() noexcept {
    if (replay_ != nullptr) replay_->discard();
  }

 private:
  [[nodiscard]] cuda::device_context& context() noexcept {
    return launcher_.at(supervisor_.rank());
  }
  // @return what waits where an engine waits for other ranks
  template <class Engine>
  [[nodiscard]] auto wait_of(Engine& engine, rank_program const& what) {
    return [&](wakeup const& wake, std::uint32_t seen) {
      try {
        wait_.until_told(engine.blocked_by(), what.states.get(), wake, seen);
      } catch (...) {
        engine.fail(std::current_exception());
      }
    };
  }

  asio::step_supervisor& supervisor_;
  cuda::launcher& launcher_;
  host_wait& wait_;
  std::size_t at_once_;
  std::optional<cuda::detail::step_order> order_;  // where steps are started or replayed
  step_replay* replay_ = nullptr;                  // of the transport that trains
};

}  // namespace zbpp::nccl::detail
