// SPDX-License-Identifier: Apache-2.0
//
// Checks settings, and makes the transports of a rank.
#pragma once

#include <zbpp/analysis/largest_messages.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/one_rank.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/socket_grid.hpp>
#include <zbpp/asio/socket_states.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/mpi/detail/call.hpp>
#include <zbpp/mpi/detail/channel_ends.hpp>
#include <zbpp/mpi/detail/transport.hpp>
#include <zbpp/mpi/ranks.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mpi.h>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::mpi {

namespace detail {

[[nodiscard]] ZBPP_INLINE std::string level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE: return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED: return "MPI_THREAD_SERIALIZED";
    default: return "MPI_THREAD_MULTIPLE";
  }
}

ZBPP_INLINE void check_settings(ranks_settings const& settings) {
  zbpp::detail::require(
      settings.largest_undeclared_message > 0,
      "ranks_settings::largest_undeclared_message is 0 bytes or less; set it above 0");
  zbpp::detail::require(
      !settings.progress_thread || settings.progress_interval > std::chrono::microseconds(0),
      "ranks_settings::progress_interval is 0 or less; set it above 0, or progress_thread to "
      "false");
  zbpp::detail::require(
      settings.spin >= std::chrono::microseconds(0),
      "ranks_settings::spin is below 0; set it to 0 or more");
  int level = 0;
  check(MPI_Query_thread(&level), "MPI_Query_thread");
  auto const needed = settings.progress_thread ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED;
  if (level < needed)
    throw error(errc::bad_argument) + "MPI was initialized with " + level_name(level) +
        "; mpi::ranks needs " + level_name(needed) +
        (settings.progress_thread
             ? ": ask MPI_Init_thread for it, or set ranks_settings::progress_thread to false"
             : ": ask MPI_Init_thread for it");
  int is_main = 0;
  check(MPI_Is_thread_main(&is_main), "MPI_Is_thread_main");
  if (level == MPI_THREAD_FUNNELED && is_main == 0)
    throw error(errc::bad_argument) +
        "MPI was initialized with MPI_THREAD_FUNNELED, and this is another thread; make the "
        "pipeline on the thread that initialized MPI";
}

/// @return plain, unless a program only has forward passes: in evaluations nothing comes back
[[nodiscard]] ZBPP_INLINE send_mode mode_of(program const& program) {
  for (int rank = 0; rank < program.ranks(); ++rank)
    for (auto const& i : program.instructions(rank))
      if (i.is_pass() && i.kind != instruction_kind::forward) return send_mode::plain;
  return send_mode::synchronous;
}

}  // namespace detail

ZBPP_INLINE ranks::executor::executor(mpi::ranks by, plan const& planned)
    : one_rank(
          *by.run_,
          planned,
          {.on_failure = [this](asio::rank_failure const&) { notify(&wakeup_); }},
          by.settings_.share_losses,
          {},
          by.layout_ ? asio::pipeline_ranks(*by.layout_, by.run_->rank(), by.run_->ranks())
                     : asio::pipeline_ranks()),
      run_(by.run_),
      settings_(std::move(by.settings_)) {
  prepare([&] {
    detail::check_settings(settings_);
    if (settings_.progress_thread) progress_thread_.emplace(settings_.progress_interval);
    if (!by.layout_) return;
    if (by.layout_->size(grid_axis::pipeline) < run_->ranks())
      zbpp::detail::require(
          settings_.progress_thread,
          "ranks_settings::progress_thread is false in a grid of several pipelines; set it to "
          "true, so that messages go on while a pass waits for a rank beside its own");
    groups_ = std::make_unique<asio::socket_grid>(
        *run_,
        *by.layout_,
        wakeup_,
        asio::tcp_settings{.largest_undeclared_message = settings_.largest_undeclared_message});
    groups_->connect();
  });
}

ZBPP_INLINE std::unique_ptr<detail::transport> ranks::executor::make_transport(
    program const& program, traffic const& messages, problem const& problem) {
  std::vector<int> places;
  for (int rank = 0; rank < problem.ranks(); ++rank)
    places.push_back(supervisor().places().in_run(rank));
  auto made = std::make_unique<detail::transport>(
      run_->communicator(),
      run_->take_tags(detail::transport::tags),
      supervisor().rank(),
      places,
      messages.channels(),
      largest_messages(messages, problem),
      detail::mode_of(program),
      settings_);
  // A transport whose program could not be prepared is destroyed; its address may be in use again.
  parts_.remove_if([&](program_part const& gone) { return gone.messages == made.get(); });
  auto& own = parts_.emplace_back(program_part{&program, made.get(), nullptr});
  if (exchanges_states(program)) {
    own.states = std::make_unique<asio::socket_states>(
        *run_, program, problem, wakeup_, asio::tcp_settings(), supervisor().places());
    made->link_states(*own.states);
  }
  return made;
}

ZBPP_INLINE void ranks::executor::connect(detail::transport&) {
  auto& own = parts_.back();
  supervisor().watch(*own.code);
  if (own.states == nullptr) return;
  asio::call_name const named(control_channel(), supervisor().connecting(parts_.size() == 1));
  own.states->connect();
}

ZBPP_INLINE void ranks::executor::settle(std::vector<failure>& failures) {
  detail::fail_at_finalize();
  one_rank::settle(failures);
  for (auto const& each : parts_)
    if (each.states != nullptr) each.states->close();
  if (groups_ != nullptr) groups_->close();
}

ZBPP_INLINE ranks::executor::program_part& ranks::executor::part_of(
    detail::transport const& transport) {
  return *std::ranges::find(parts_, &transport, &program_part::messages);
}

}  // namespace zbpp::mpi
