// SPDX-License-Identifier: Apache-2.0
//
// What mpi/rendezvous.hpp declares: rank 0 listens on a port of the system's choice, and tells the
// others where, with a token that it makes, by MPI.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/token.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/mpi/detail/call.hpp>
#include <zbpp/mpi/rendezvous.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mpi.h>
#include <string>
#include <utility>

namespace zbpp::mpi {

namespace detail {

ZBPP_INLINE void initialize() {
  zbpp::detail::require(
      !is_finalized(),
      "MPI is finalized; make the rendezvous before MPI_Finalize, and destroy it before, too");
  int is_initialized = 0;
  check(MPI_Initialized(&is_initialized), "MPI_Initialized");
  if (is_initialized != 0) return;
  int level = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  std::atexit([] {
    if (!is_finalized()) MPI_Finalize();
  });
}

ZBPP_INLINE own_communicator::own_communicator(MPI_Comm among) {
  initialize();
  zbpp::detail::require(
      among != MPI_COMM_NULL, "the communicator is MPI_COMM_NULL; this process is not in it");
  check(MPI_Comm_dup(among, &own_), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(own_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

// MPI_Comm_free is a collective call, in which a rank would wait for one that failed.
ZBPP_INLINE own_communicator::~own_communicator() = default;

/// Says where rank 0 listens; the same bytes on all ranks.
struct meeting_place {
  std::array<char, MPI_MAX_PROCESSOR_NAME> host{};
  asio::challenge secret{};
  std::int32_t port = 0;  // 0 where rank 0 could not listen
};

ZBPP_INLINE void broadcast(meeting_place& place, MPI_Comm among) {
  check(MPI_Bcast(&place, sizeof(place), MPI_BYTE, 0, among), "MPI_Bcast");
}

/// @return the token that all ranks share
[[nodiscard]] ZBPP_INLINE asio::run_token token_of(meeting_place const& place) {
  return asio::run_token::from_text(
      {reinterpret_cast<char const*>(place.secret.data()), place.secret.size()});
}

/// Finds out which rank of how many this process is, and which of its machine.
/// @param is_one_machine  set to whether all ranks are on one
[[nodiscard]] ZBPP_INLINE asio::launch place_in(MPI_Comm among, bool& is_one_machine) {
  asio::launch start;
  start.source = "MPI";
  check(MPI_Comm_rank(among, &start.rank), "MPI_Comm_rank");
  check(MPI_Comm_size(among, &start.ranks), "MPI_Comm_size");
  MPI_Comm machine = MPI_COMM_NULL;
  check(
      MPI_Comm_split_type(among, MPI_COMM_TYPE_SHARED, start.rank, MPI_INFO_NULL, &machine),
      "MPI_Comm_split_type");
  int here = 0;
  check(MPI_Comm_rank(machine, &start.local_rank), "MPI_Comm_rank");
  check(MPI_Comm_size(machine, &here), "MPI_Comm_size");
  check(MPI_Comm_free(&machine), "MPI_Comm_free");
  is_one_machine = here == start.ranks;
  return start;
}

[[nodiscard]] ZBPP_INLINE asio::rendezvous meet(
    MPI_Comm among, asio::rendezvous_settings settings) {
  bool is_one_machine = false;
  auto start = place_in(among, is_one_machine);
  if (!is_one_machine && settings.bind == asio::rendezvous_settings().bind)
    settings.bind = "0.0.0.0";
  start.port = 0;
  meeting_place place;
  if (start.rank != 0) {
    broadcast(place, among);
    if (place.port == 0)
      throw error(
          errc::no_rendezvous,
          "rank 0 could not listen for the others; its own message says why",
          {start.rank, -1, -1, -1});
    start.host = place.host.data();
    start.port = static_cast<std::uint16_t>(place.port);
    return asio::rendezvous(std::move(start), std::move(settings), token_of(place));
  }
  // On several machines others reach rank 0 by the name that MPI has for its machine.
  if (!is_one_machine) {
    int length = 0;
    check(MPI_Get_processor_name(place.host.data(), &length), "MPI_Get_processor_name");
    start.host = settings.advertise.empty() ? place.host.data() : settings.advertise;
  }
  place.host.fill('\0');
  start.host.copy(place.host.data(), place.host.size() - 1);
  bool is_told = false;
  auto const tell = [&](int port) {
    place.port = port;
    is_told = true;
    broadcast(place, among);
  };
  settings.on_listening = [&, call = std::move(settings.on_listening)](std::uint16_t port) {
    tell(port);
    if (call) call(port);
  };
  try {
    place.secret = asio::make_challenge();
    return asio::rendezvous(std::move(start), std::move(settings), token_of(place));
  } catch (...) {
    if (!is_told) tell(0);
    throw;
  }
}

}  // namespace detail

ZBPP_INLINE rendezvous::rendezvous(MPI_Comm among, asio::rendezvous_settings settings)
    : own_communicator(among), asio::rendezvous(detail::meet(get(), std::move(settings))) {}

ZBPP_INLINE rendezvous::~rendezvous() {
  auto& run = control_channel();
  if (run.loop().exclusively([&] { return run.has_stopped(); })) detail::fail_at_finalize();
}

ZBPP_INLINE int rendezvous::take_tags(int count) {
  int* most = nullptr;
  int is_set = 0;
  detail::check(
      MPI_Comm_get_attr(get(), MPI_TAG_UB, static_cast<void*>(&most), &is_set),
      "MPI_Comm_get_attr");
  if (is_set == 0 || *most - next_tag_ < count)
    throw error(
        errc::bad_argument,
        "all tags of the communicator are in use after " + std::to_string(next_tag_) +
            "; make a new rendezvous, or fewer pipelines");
  return std::exchange(next_tag_, next_tag_ + count);
}

}  // namespace zbpp::mpi
