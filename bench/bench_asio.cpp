// SPDX-License-Identifier: Apache-2.0
//
// What messages between processes cost: the TCP transport beside bare Asio, in turns within one
// run, and steps of a pipeline over TCP beside threads. The peer is a process of its own. Reports
// medians over the turns; ratios are those of neighbouring turns.
#include "between_processes.hpp"
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/zbpp.hpp>

#include <benchmark/benchmark.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address_v4.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

namespace net = boost::asio;
using zbpp::bench::exchange;
using zbpp::bench::give_up;
using zbpp::bench::median;
using zbpp::bench::median_ratio;
using zbpp::bench::time_turns;

// A process that is made to be rank 1, and hears what rank 0 writes into a pipe.
class peer {
 public:
  // `act` gets the end of the pipe to read from.
  template <class Act>
  explicit peer(Act act) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) give_up("no pipe");
    id_ = ::fork();
    if (id_ < 0) give_up("no second process");
    if (id_ == 0) {
      ::close(ends[1]);
      try {
        act(ends[0]);
      } catch (std::exception const& failed) {
        give_up(std::string("rank 1: ") + failed.what());
      }
      ::_exit(0);
    }
    ::close(ends[0]);
    to_ = ends[1];
  }
  peer(peer const&) = delete;
  peer& operator=(peer const&) = delete;
  ~peer() {
    ::close(to_);
    int status = 0;
    ::waitpid(id_, &status, 0);
  }

  template <class Value>
  void tell(Value const& value) const {
    if (::write(to_, &value, sizeof(value)) != sizeof(value)) give_up("rank 1 is gone");
  }

 private:
  int to_ = -1;
  int id_ = -1;
};

// @return whether rank 0 told something, rather than end
template <class Value>
bool hear(int from, Value& into) {
  return ::read(from, &into, sizeof(into)) == sizeof(into);
}

zbpp::bench::connections join(int rank, net::ip::tcp::acceptor& door, net::io_context& io) {
  zbpp::bench::connections ends{net::ip::tcp::socket(io), net::ip::tcp::socket(io)};
  for (auto& end : ends) {
    if (rank == 0)
      door.accept(end);
    else
      end.connect(door.local_endpoint());
  }
  return ends;
}

// Seconds a turn.
struct times {
  std::vector<double> ours;
  std::vector<double> bare;      // a connection each way
  std::vector<double> bare_one;  // one for both
};

// One of the two processes.
class rank {
 public:
  rank(int number, exchange const& what, net::ip::tcp::acceptor& door)
      : what_(what), side_(make(number, door)) {}

  void round(times& into) {
    time_turns(into.ours, what_, [&] { side_.ours(); });
    time_turns(into.bare, what_, [&] { side_.bare(2); });
    time_turns(into.bare_one, what_, [&] { side_.bare(1); });
  }
  void close() { side_.close(); }

 private:
  zbpp::bench::side make(int number, net::ip::tcp::acceptor& door) {
    auto of_transport = join(number, door, sockets_.io());
    auto of_bare = join(number, door, sockets_.io());
    return zbpp::bench::side(
        number,
        what_,
        sockets_,
        std::move(of_transport),
        std::move(of_bare),
        [number](int, std::string const& why) {
          if (number == 0) give_up("rank 0: " + why);
          ::_exit(0);  // rank 0 has closed, or says what happened
        });
  }

  exchange what_;
  zbpp::asio::io_loop sockets_;
  zbpp::bench::side side_;
};

// Measures an exchange with a process that is made for it.
times measure(benchmark::State& state, exchange const& what) {
  net::io_context here;
  net::ip::tcp::acceptor door(here, {net::ip::address_v4::loopback(), 0});
  peer const other([&](int commands) {
    rank me(1, what, door);
    times unused;
    for (char byte = 0; hear(commands, byte);) me.round(unused);
  });
  rank me(0, what, door);
  auto const round = [&](times& into) {
    other.tell('g');
    me.round(into);
  };
  times warm_up;
  round(warm_up);
  times result;
  for (auto _ : state) {
    round(result);
    state.SetIterationTime(result.ours.back() * what.turns);
  }
  me.close();
  return result;
}

void ping_pong(benchmark::State& state) {
  auto const took = measure(state, exchange::ping_pong(static_cast<std::size_t>(state.range(0))));
  state.counters["round_trip_us"] = median(took.ours) * 1e6;
  state.counters["bare_us"] = median(took.bare) * 1e6;
  state.counters["bare_one_us"] = median(took.bare_one) * 1e6;
  state.counters["latency_of_bare"] = median_ratio(took.ours, took.bare);
  state.counters["latency_of_bare_one"] = median_ratio(took.ours, took.bare_one);
}

void stream(benchmark::State& state) {
  auto const what = exchange::stream(static_cast<std::size_t>(state.range(0)) << 20);
  auto const took = measure(state, what);
  auto const gigabytes = what.volume() / 1e9;
  state.counters["gb_a_second"] = gigabytes / median(took.ours);
  state.counters["bare_gb_a_second"] = gigabytes / median(took.bare);
  state.counters["bare_one_gb_a_second"] = gigabytes / median(took.bare_one);
  state.counters["rate_of_bare"] = median_ratio(took.bare, took.ours);
  state.counters["rate_of_bare_one"] = median_ratio(took.bare_one, took.ours);
}

// Passes that do nothing, and messages of one size.
struct idle_stage {
  std::size_t size;

  zbpp::flow operator()(zbpp::microbatch mb) {
    auto in = co_await mb.recv_activation();
    zbpp::buffer out;
    co_await zbpp::F([&](zbpp::pass_context ctx) { out = ctx.allocate_edge(size); });
    co_await mb.send_activation(std::move(out));
    auto back = co_await mb.recv_gradient();
    zbpp::buffer down;
    co_await zbpp::B([&](zbpp::pass_context ctx) { down = ctx.allocate_edge(size); });
    co_await mb.send_gradient(std::move(down));
    co_await zbpp::W([] {});
  }
};

constexpr int microbatches = 8;

zbpp::plan plan_of_steps(std::size_t size) {
  zbpp::stage_costs const costs{
      .forward = 1,
      .backward_input = 1,
      .backward_weight = 1,
      .edge = static_cast<zbpp::bytes>(size)};
  return zbpp::make_plan(
      zbpp::zb_h1{}, zbpp::problem(zbpp::placement::linear(2), microbatches, costs));
}

// One step of two ranks: over TCP, and on threads in rank 0 while the other process waits.
void step(benchmark::State& state) {
  auto const size = static_cast<std::size_t>(state.range(0));
  auto const plan = plan_of_steps(size);
  auto const token = zbpp::asio::run_token::from_text("one run of the benchmark");
  auto const steps = state.max_iterations + 1;
  peer const other([&](int ports) {
    std::uint16_t port = 0;
    if (!hear(ports, port)) return;
    zbpp::asio::rendezvous run({.rank = 1, .ranks = 2, .port = port}, {}, token);
    std::vector<idle_stage> stages(1, idle_stage{size});
    zbpp::pipeline pipe{plan, zbpp::asio::tcp(run), stages};
    for (benchmark::IterationCount done = 0; done < steps; ++done) pipe.step();
    run.barrier();
  });
  zbpp::asio::rendezvous_settings settings;
  settings.on_listening = [&](std::uint16_t port) { other.tell(port); };
  zbpp::asio::rendezvous run({.rank = 0, .ranks = 2, .port = 0}, std::move(settings), token);
  std::vector<idle_stage> stages(1, idle_stage{size});
  zbpp::pipeline over_tcp{plan, zbpp::asio::tcp(run), stages};
  std::vector<idle_stage> here(2, idle_stage{size});
  zbpp::pipeline on_threads{plan, zbpp::threads{}, here};
  over_tcp.step();
  on_threads.step();
  std::vector<double> tcp;
  std::vector<double> threads;
  for (auto _ : state) {
    time_turns(tcp, {}, [&] { over_tcp.step(); });
    time_turns(threads, {}, [&] { on_threads.step(); });
    state.SetIterationTime(tcp.back());
  }
  run.barrier();
  constexpr double messages = 2 * microbatches;
  state.counters["tcp_us"] = median(tcp) * 1e6;
  state.counters["threads_us"] = median(threads) * 1e6;
  state.counters["tcp_ns_a_message"] = median(tcp) * 1e9 / messages;
  state.counters["threads_ns_a_message"] = median(threads) * 1e9 / messages;
}

}  // namespace

BENCHMARK(ping_pong)->ArgName("bytes")->Arg(64)->Arg(4096)->UseManualTime()->Iterations(100);
BENCHMARK(stream)->ArgName("MB")->Arg(1)->Arg(16)->Arg(64)->UseManualTime()->Iterations(15)->Unit(
    benchmark::kMillisecond);
BENCHMARK(step)->ArgName("bytes")->Arg(64)->Arg(1 << 20)->UseManualTime()->Iterations(500)->Unit(
    benchmark::kMicrosecond);
