// SPDX-License-Identifier: Apache-2.0
//
// What mpi/rendezvous.hpp declares: rank 0 listens on a port of the system's choice, and tells the
// others where, with a token that it makes, by MPI.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/token.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/mpi/detail/call.hpp>
#include <zbpp/mpi/rendezvous.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <mpi.h>
#include <thread>
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
      throw error(errc::no_rendezvous, {.rank = start.rank}) +
          "rank 0 could not listen for the others; its own message says why";
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

/// What MPI_Finalize has to know of a rendezvous. It stays, as processes make few.
struct at_finalize {
  MPI_Comm among;
  std::atomic<rendezvous*> alive;  // null once it is destroyed
  std::thread::id thread = std::this_thread::get_id();
  MPI_Request all_are_here = MPI_REQUEST_NULL;
  at_finalize* before = nullptr;  // of the rendezvous made before
};

[[nodiscard]] ZBPP_INLINE std::atomic<at_finalize*>& last_of_process() {
  static std::atomic<at_finalize*> last{nullptr};
  return last;
}

// Others would wait for a rank that waits for them in MPI_Finalize.
ZBPP_INLINE void leave(rendezvous& by, std::thread::id thread) {
  auto& run = by.control_channel();
  bool const is_in_step = run.board().read().phase != asio::progress_phase::outside;
  // On another thread nobody is told: that of the run may be in a call that waits for others.
  if (std::this_thread::get_id() != thread) {
    if (is_in_step) abort_together();
    return;
  }
  if (is_in_step) {
    run.loop().exclusively([&] { run.on_failure({}); });  // what it calls may be destroyed
    by.fail("left the run: its program called std::exit or MPI_Finalize in a step");
  }
  run.leave();
  if (run.is_told_of_failure()) abort_together();
}

// Where some ranks abort while others are further in MPI_Finalize, mpirun of Open MPI may hang; so
// all wait for each other, for a while.
ZBPP_INLINE int end_together(MPI_Comm, int, void*, void*) noexcept {
  auto* const last = last_of_process().load(std::memory_order_acquire);  // sees what is in the list
  try {
    for (auto* each = last; each != nullptr; each = each->before)
      if (auto* const alive = each->alive.load(std::memory_order_relaxed); alive != nullptr)
        leave(*alive, each->thread);
  } catch (...) {  // MPI, which calls, knows no exceptions
    abort_together();
  }
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (auto* each = last; each != nullptr; each = each->before)
    MPI_Ibarrier(each->among, &each->all_are_here);
  for (auto* each = last; each != nullptr; each = each->before) await(each->all_are_here, end);
  return MPI_SUCCESS;
}

/// Has MPI_Finalize end a run.
[[nodiscard]] ZBPP_INLINE at_finalize* note(MPI_Comm among, rendezvous& alive) {
  auto* const added = new at_finalize{among, &alive};
  auto& last = last_of_process();
  added->before = last.load(std::memory_order_relaxed);
  while (!last.compare_exchange_weak(
      added->before, added, std::memory_order_release, std::memory_order_relaxed)) {
  }  // released: whoever reads the list sees what is in it
  if (added->before == nullptr) call_at_finalize(end_together);
  return added;
}

}  // namespace detail

ZBPP_INLINE rendezvous::rendezvous(MPI_Comm among, asio::rendezvous_settings settings)
    : own_communicator(among),
      asio::rendezvous(detail::meet(get(), std::move(settings))),
      ending_(detail::note(get(), *this)) {}

ZBPP_INLINE rendezvous::~rendezvous() {
  ending_->alive.store(nullptr, std::memory_order_relaxed);  // on the thread that may end the run
  if (control_channel().is_told_of_failure()) detail::fail_at_finalize();
}

ZBPP_INLINE int rendezvous::take_tags(int count) {
  int* most = nullptr;
  int is_set = 0;
  detail::check(
      MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&most), &is_set),
      "MPI_Comm_get_attr");
  if (is_set == 0 || *most - next_tag_ < count)
    throw error(errc::bad_argument) + "all tags of the communicator are in use after " + next_tag_ +
        "; make a new rendezvous, or fewer pipelines";
  return std::exchange(next_tag_, next_tag_ + count);
}

}  // namespace zbpp::mpi
