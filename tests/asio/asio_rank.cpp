// SPDX-License-Identifier: Apache-2.0
//
// One rank of a run of the toy network, as a program; with a fault where it is told to have one.
//
//   asio_rank steps=20 policy=zb_h1 microbatches=5 deadline=2000 fault=throw rank=1 at=3:2:B
//
// replicas=2 has half of the ranks each train a network of their own, and wait for each other
// behind each step. fault=hold is none: the pass waits for SIGUSR1, so that a test finds the run in
// the middle. fails=connect:3 has the third and every later call of connect fail on the rank that
// `rank` names. Ends with 0 and prints digests of all losses and of its gradients; or with 3 and
// one line that says what failed.
#include <zbpp/asio/socket_grid.hpp>
#include <zbpp/asio/tcp.hpp>

#include <support/failing_calls.hpp>
#include <support/faulty_rank.hpp>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

using namespace zbpp::test;

namespace {

// Has calls of this process fail, where it is told so.
void arm_failing_calls(std::string const& given) {
  auto const colon = given.find(':');
  if (colon == std::string::npos) return;
  auto& calls = failures_of_calls();
  calls.name = given.substr(0, colon);
  calls.from = std::stoi(given.substr(colon + 1));
  if (calls.name == "socket" || calls.name == "accept") calls.reason = EMFILE;
}

int run(int argc, char** argv) {
  auto const given = read_arguments("asio_rank", argc, argv);
  auto const start = zbpp::asio::find_launch();
  if (start.rank == std::stoi(given.at("rank"))) arm_failing_calls(given.at("fails"));
  zbpp::asio::rendezvous meeting(
      start,
      {.bind = given.at("bind"),
       .join_deadline = std::chrono::milliseconds(std::stoi(given.at("join_deadline"))),
       .connect_deadline = std::chrono::milliseconds(std::stoi(given.at("connect_deadline"))),
       .deadline = std::chrono::milliseconds(std::stoi(given.at("deadline"))),
       .stall_deadline = std::chrono::milliseconds(std::stoi(given.at("stall_deadline")))});
  if (given.at("replicas") == "1") {
    train_faulty(meeting, zbpp::asio::tcp(meeting), given);
  } else {
    auto const layout = layout_of(meeting, given);
    zbpp::wakeup wake{0};
    zbpp::asio::socket_grid groups(meeting, layout, wake);
    groups.connect();
    train_faulty(
        meeting, zbpp::asio::tcp(meeting, layout), given, [&] { groups.grid().data().barrier(); });
  }
  meeting.barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto const set = release();
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);  // of all threads, until `hold` takes it
    return run(argc, argv);
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "asio_rank: %s\n", failed.what());
    return 3;
  }
}
