// SPDX-License-Identifier: Apache-2.0
//
// Checks settings, and makes the transports of a rank.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/mpi/detail/call.hpp>
#include <zbpp/mpi/detail/channel_ends.hpp>
#include <zbpp/mpi/detail/transport.hpp>
#include <zbpp/mpi/ranks.hpp>

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

/// @return plain, unless a program only has forward passes: in evaluations nothing comes back
[[nodiscard]] ZBPP_INLINE send_mode mode_of(program const& program) {
  for (int rank = 0; rank < program.ranks(); ++rank)
    for (auto const& i : program.instructions(rank))
      if (i.is_pass() && i.kind != instruction_kind::forward) return send_mode::plain;
  return send_mode::synchronous;
}

/// @return what goes by sockets has of the settings
[[nodiscard]] ZBPP_INLINE asio::tcp_settings socket_settings(ranks_settings const& settings) {
  return {
      .largest_undeclared_message = settings.largest_undeclared_message,
      .share_losses = settings.share_losses,
      .on_thread_start = settings.on_thread_start,
      .records_messages = settings.records_messages};
}

}  // namespace detail

ZBPP_INLINE ranks::ranks(rendezvous& run, ranks_settings settings)
    : process_backend(run, detail::socket_settings(settings)),
      meeting_(&run),
      settings_(std::move(settings)) {}

ZBPP_INLINE ranks::ranks(rendezvous& run, grid_layout layout, ranks_settings settings)
    : process_backend(run, std::move(layout), detail::socket_settings(settings)),
      meeting_(&run),
      settings_(std::move(settings)) {}

ZBPP_INLINE void ranks::check() const {
  zbpp::detail::require(
      settings_.largest_undeclared_message > 0,
      "ranks_settings::largest_undeclared_message is 0 bytes or less; set it above 0");
  zbpp::detail::require(
      !settings_.progress_thread || settings_.progress_interval > std::chrono::microseconds(0),
      "ranks_settings::progress_interval is 0 or less; set it above 0, or progress_thread to "
      "false");
  zbpp::detail::require(
      settings_.spin >= std::chrono::microseconds(0),
      "ranks_settings::spin is below 0; set it to 0 or more");
  int level = 0;
  detail::check(MPI_Query_thread(&level), "MPI_Query_thread");
  auto const needed = settings_.progress_thread ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED;
  if (level < needed)
    throw error(errc::bad_argument) + "MPI was initialized with " + detail::level_name(level) +
        "; mpi::ranks needs " + detail::level_name(needed) + ": ask MPI_Init_thread for it" +
        (settings_.progress_thread ? ", or set ranks_settings::progress_thread to false" : "");
  int is_main = 0;
  detail::check(MPI_Is_thread_main(&is_main), "MPI_Is_thread_main");
  if (level == MPI_THREAD_FUNNELED && is_main == 0)
    throw error(errc::bad_argument) +
        "MPI was initialized with MPI_THREAD_FUNNELED, and this is another thread; make the "
        "pipeline on the thread that initialized MPI";
  if (layout() != nullptr && layout()->size(grid_axis::pipeline) < meeting_->ranks())
    zbpp::detail::require(
        settings_.progress_thread,
        "ranks_settings::progress_thread is false in a grid of several pipelines; set it to true, "
        "so that messages go on while a pass waits for a rank beside its own");
}

ZBPP_INLINE std::unique_ptr<detail::transport> ranks::make_transport(
    asio::rank_program const& of) const {
  std::vector<int> places;
  for (int rank = 0; rank < of.costs.ranks(); ++rank) places.push_back(of.ranks.in_run(rank));
  return std::make_unique<detail::transport>(
      meeting_->communicator(),
      meeting_->take_tags(detail::transport::tags),
      of.rank,
      places,
      of.messages.channels(),
      of.largest(),
      detail::mode_of(of.code),
      settings_);
}

}  // namespace zbpp::mpi
