// SPDX-License-Identifier: Apache-2.0
//
// Open MPI beside the TCP transport and bare Asio: two processes that take turns with all of them.
// Started without mpirun it starts itself twice, the second time with Open MPI kept to TCP. Prints
// a table each time: medians over the turns, where ratios are those of neighbouring turns; and in
// brackets the best turn, or the ratio of the best ones, which other work disturbs less.
#include "between_processes.hpp"
#include <zbpp/asio/detail/data_connector.hpp>
#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/token.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mpi.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

using zbpp::bench::exchange;
using zbpp::bench::give_up;
using zbpp::bench::median;
using zbpp::bench::median_ratio;
using zbpp::bench::side;
using zbpp::bench::time_turns;

constexpr int rounds = 12;

void by_mpi(int rank, exchange const& what, side& me) {
  auto const count = static_cast<int>(what.size);
  what.run(
      rank,
      [&] { MPI_Send(me.data(), count, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD); },
      [&] {
        MPI_Recv(me.into(), count, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      });
}

// Seconds a turn, of each contestant.
struct contestant {
  std::string name;
  std::vector<std::vector<double>> times{};  // by exchange
};

std::string load() {
  double average = 0;
  ::getloadavg(&average, 1);
  std::string text(16, '\0');
  text.resize(static_cast<std::size_t>(std::snprintf(text.data(), text.size(), "%.1f", average)));
  return text;
}

std::string kind_of_mpi() {
  auto const kept_to = zbpp::asio::environment("OMPI_MCA_btl");
  return "Open MPI, " + (kept_to ? "`btl " + *kept_to + "`" : "its own choice");
}

// The run of a process that mpirun started.
class run {
 public:
  run() : meeting_(launch(), settings()), reception_(meeting_.control_channel()) {}

  void measure(exchange const& what, std::vector<contestant>& into) {
    std::atomic<bool> is_over = false;
    auto const channels = zbpp::bench::there_and_back(what.writes);
    auto of_transport = reception_.connect(channels);
    auto of_bare = reception_.connect(channels);
    side me(
        meeting_.rank(),
        what,
        meeting_.control_channel().loop(),
        {std::move(of_transport[0]), std::move(of_transport[1])},
        {std::move(of_bare[0]), std::move(of_bare[1])},
        [&is_over](int, std::string const& why) {
          if (!is_over) give_up(why);
        });
    for (auto& c : into) c.times.emplace_back();
    for (int round = -1; round < rounds; ++round) {
      std::vector<double> warm_up;
      // Each comes first as often as the others: who comes after Open MPI has used up the
      // scheduler's favour, for Open MPI waits without sleeping.
      for (std::size_t turn = 0; turn < into.size(); ++turn) {
        auto const c = (turn + static_cast<std::size_t>(round + 1)) % into.size();
        MPI_Barrier(MPI_COMM_WORLD);
        time_turns(round < 0 ? warm_up : into[c].times.back(), what, [&] {
          if (c == 3) return by_mpi(meeting_.rank(), what, me);
          if (c == 0) return me.ours();
          me.bare(3 - c);
        });
      }
    }
    is_over = true;
    MPI_Barrier(MPI_COMM_WORLD);
    me.close();
  }

  [[nodiscard]] int rank() const { return meeting_.rank(); }

 private:
  // The port is the first free one; Open MPI tells it to rank 1.
  static zbpp::asio::launch launch() {
    auto me = zbpp::asio::find_launch({.port = 0});
    if (me.rank == 1) MPI_Recv(&me.port, 1, MPI_UINT16_T, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return me;
  }
  static zbpp::asio::rendezvous_settings settings() {
    zbpp::asio::rendezvous_settings s;
    s.on_listening = [](std::uint16_t port) {
      MPI_Send(&port, 1, MPI_UINT16_T, 1, 0, MPI_COMM_WORLD);
    };
    return s;
  }

  zbpp::asio::rendezvous meeting_;
  zbpp::asio::detail::data_connector reception_;
};

void print(
    std::vector<exchange> const& exchanges,
    std::vector<contestant> const& of,
    std::string const& load_before) {
  std::printf(
      "\n| load %s to %s | 64 B there and back, us | 1 MB, GB/s | 16 MB, GB/s | 64 MB, GB/s |\n"
      "|---|---|---|---|---|\n",
      load_before.c_str(),
      load().c_str());
  auto const row = [&](std::string const& name, auto values) {
    std::printf("| %s", name.c_str());
    for (std::size_t e = 0; e < exchanges.size(); ++e) {
      auto const [middle, best] = values(e);
      std::printf(" | %.2f (%.2f)", middle, best);
    }
    std::printf(" |\n");
  };
  auto const show = [&](std::size_t e, double took) {
    return e == 0 ? took * 1e6 : exchanges[e].volume() / took / 1e9;
  };
  for (auto const& c : of)
    row(c.name, [&](std::size_t e) {
      return std::pair(show(e, median(c.times[e])), show(e, std::ranges::min(c.times[e])));
    });
  auto const& ours = of.front();
  for (std::size_t c = 1; c < of.size(); ++c)
    row("ours over " + of[c].name, [&](std::size_t e) {
      auto const& one = e == 0 ? ours.times[e] : of[c].times[e];
      auto const& other = e == 0 ? of[c].times[e] : ours.times[e];
      return std::pair(median_ratio(one, other), std::ranges::min(one) / std::ranges::min(other));
    });
  std::fflush(stdout);
}

void run_rank() {
  auto const load_before = load();
  std::vector<exchange> const exchanges{
      exchange::ping_pong(64),
      exchange::stream(std::size_t{1} << 20),
      exchange::stream(std::size_t{16} << 20),
      exchange::stream(std::size_t{64} << 20)};
  std::vector<contestant> all{
      {"tcp_transport"},
      {"bare Asio, 2 connections"},
      {"bare Asio, 1 connection"},
      {kind_of_mpi()}};
  run me;
  for (auto const& e : exchanges) me.measure(e, all);
  if (me.rank() == 0) print(exchanges, all, load_before);
}

// Starts this program under mpirun. @return whether that went well
bool start(std::string program, std::vector<std::string> words) {
  words.insert(words.begin(), {"mpirun", "-n", "2", "--oversubscribe", "--timeout", "300"});
  if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
  words.push_back(std::move(program));
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  auto const child = ::fork();
  if (child == 0) {
    ::execvp(arguments.front(), arguments.data());
    std::fprintf(stderr, "bench_asio_mpi: there is no mpirun (Debian and Ubuntu: openmpi-bin)\n");
    ::_exit(2);
  }
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && status == 0;
}

// A secret that the ranks find in their environment.
void make_token() {
  if (zbpp::asio::environment("ZBPP_TOKEN") || zbpp::asio::environment("ZBPP_TOKEN_FILE")) return;
  std::string token;
  for (auto const byte : zbpp::asio::make_challenge())
    token += std::to_string(std::to_integer<int>(byte)) + '.';
  ::setenv("ZBPP_TOKEN", token.c_str(), 0);
}

}  // namespace

int main(int argc, char** argv) try {
  if (!zbpp::asio::environment("OMPI_COMM_WORLD_RANK")) {
    make_token();
    bool const is_fine =
        start(argv[0], {"--bind-to", "none"}) &&
        start(argv[0], {"--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self"});
    return is_fine ? 0 : 1;
  }
  int provided = 0;
  int ranks = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != 2) give_up("it takes two: mpirun -n 2 bench_asio_mpi");
  run_rank();
  MPI_Finalize();
  return 0;
} catch (std::exception const& failed) {
  give_up(failed.what());
}
