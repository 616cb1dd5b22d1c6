// SPDX-License-Identifier: Apache-2.0
//
// The transport of mpi::ranks beside bare calls of MPI: two processes send a message there and
// back, in turns with both. Started without mpirun it starts itself under it. Prints a table:
// medians over the turns, half of there and back; the ratio is that of neighbouring turns, and in
// brackets that of the fastest ones, which other work disturbs less.
#include "median.hpp"
#include <zbpp/model/program.hpp>
#include <zbpp/mpi/detail/channel_ends.hpp>
#include <zbpp/mpi/detail/transport.hpp>
#include <zbpp/mpi/rendezvous.hpp>
#include <zbpp/runtime/arena.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mpi.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using zbpp::mpi::detail::transport;

constexpr int rounds = 12;

// How often a message of some size goes there and back in a turn: for some milliseconds.
int turns_of(std::size_t size) {
  return static_cast<int>(std::clamp<std::size_t>((std::size_t{32} << 20) / size, 3, 1000));
}

// Runs there and back; `send` and `receive` move one message.
template <class Send, class Receive>
double seconds(int rank, int turns, Send const& send, Receive const& receive) {
  MPI_Barrier(MPI_COMM_WORLD);
  auto const start = std::chrono::steady_clock::now();
  for (int i = 0; i < turns; ++i) {
    if (rank == 0) send();
    receive();
    if (rank == 1) send();
  }
  std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
  return took.count() / turns / 2;
}

// As a rank does: the messages of a step are retired as the other rank's answers are taken.
double by_transport(zbpp::mpi::rendezvous& run, std::size_t size) {
  zbpp::arena memory;
  zbpp::wakeup wake{0};
  auto const most = static_cast<zbpp::bytes>(size);
  transport own(
      run.communicator(),
      run.take_tags(transport::tags),
      run.rank(),
      std::array{0, 1},
      {{0, 1, 1, 2}, {1, 0, 1, 2}},
      {most, most},
      zbpp::mpi::detail::send_mode::plain,
      {});
  own.bind(run.rank(), memory, &wake);
  auto const out = run.rank();
  auto const in = 1 - run.rank();
  auto const edge = memory.allocate(size, zbpp::purpose::edge);
  std::memset(edge.data(), 1, size);
  std::int32_t sent = 0;
  std::int32_t taken = 0;
  auto const run_turns = [&](int turns) {
    return seconds(
        run.rank(),
        turns,
        [&] {
          own.send(out, zbpp::message(edge), 0);
          if (run.rank() == 1) own.retire(out, sent);
          ++sent;
        },
        [&] {
          own.post_receive(in, most);
          for (own.poll(); own.arrival(in, taken) == transport::not_yet; own.poll())
            std::this_thread::yield();
          static_cast<void>(own.take(in, taken++, most));
          if (run.rank() == 0) own.retire(out, sent);
        });
  };
  static_cast<void>(run_turns(4));  // until all memory has been touched
  auto const took = run_turns(turns_of(size));
  while (!own.is_flushed()) own.poll();
  own.drain();
  MPI_Barrier(MPI_COMM_WORLD);
  return took;
}

// With a receive that is open ahead, and polling with a yield, as above.
double by_mpi(
    int rank, std::size_t size, std::vector<std::byte>& from, std::vector<std::byte>& to) {
  auto const count = static_cast<int>(size);
  MPI_Request ahead = MPI_REQUEST_NULL;
  auto const open = [&] {
    MPI_Irecv(to.data(), count, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, &ahead);
  };
  auto const wait = [](MPI_Request& one) {
    for (int is_done = 0; is_done == 0;) {
      MPI_Test(&one, &is_done, MPI_STATUS_IGNORE);
      if (is_done == 0) std::this_thread::yield();
    }
  };
  open();
  MPI_Request sent = MPI_REQUEST_NULL;
  auto const took = seconds(
      rank,
      turns_of(size),
      [&] {
        wait(sent);
        MPI_Isend(from.data(), count, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, &sent);
      },
      [&] {
        wait(ahead);
        open();
      });
  wait(sent);
  MPI_Cancel(&ahead);
  MPI_Wait(&ahead, MPI_STATUS_IGNORE);
  MPI_Barrier(MPI_COMM_WORLD);
  return took;
}

std::string text_of(std::size_t size) {
  if (size >= std::size_t{1} << 20) return std::to_string(size >> 20) + " MB";
  return size >= 1024 ? std::to_string(size >> 10) + " KB" : std::to_string(size) + " B";
}

void measure() {
  zbpp::mpi::rendezvous run;
  if (run.ranks() != 2) throw zbpp::error(zbpp::errc::bad_argument, "it takes two ranks");
  if (run.rank() == 0)
    std::printf("\n| size | mpi::ranks, us | bare MPI, us | ratio |\n|---|---|---|---|\n");
  for (std::size_t size = 64; size <= std::size_t{64} << 20; size *= 4) {
    std::vector<double> ours;
    std::vector<double> bare;
    std::vector<std::byte> from(size, std::byte{1});
    std::vector<std::byte> to(size, std::byte{1});
    for (int round = -1; round < rounds; ++round) {
      double const one = by_transport(run, size);
      double const other = by_mpi(run.rank(), size, from, to);
      if (round < 0) continue;
      ours.push_back(one);
      bare.push_back(other);
    }
    if (run.rank() != 0) continue;
    std::printf(
        "| %s | %.2f | %.2f | %.2f (%.2f) |\n",
        text_of(size).c_str(),
        zbpp::bench::median(ours) * 1e6,
        zbpp::bench::median(bare) * 1e6,
        zbpp::bench::median_ratio(ours, bare),
        std::ranges::min(ours) / std::ranges::min(bare));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int /*argc*/, char** argv) try {
  bool const is_started =
      std::getenv("OMPI_COMM_WORLD_RANK") != nullptr || std::getenv("PMI_RANK") != nullptr;
  if (!is_started) {
    // Open MPI asks root for these; MPICH does not know them.
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    ::execlp("mpirun", "mpirun", "-n", "2", argv[0], nullptr);
    std::fprintf(stderr, "bench_mpi: there is no mpirun (Debian and Ubuntu: openmpi-bin)\n");
    return 2;
  }
  measure();
  return 0;
} catch (std::exception const& failed) {
  std::fprintf(stderr, "bench_mpi: %s\n", failed.what());
  return 1;
}
