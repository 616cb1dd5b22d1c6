// SPDX-License-Identifier: Apache-2.0
//
// One rank of a run of the toy network, as a program; with a fault where it is told to have one.
//
//   asio_rank steps=20 policy=zb_h1 microbatches=5 deadline=2000 fault=throw rank=1 at=3:2:B
//
// fault=hold is none: the pass waits for SIGUSR1, so that a test finds the run in the middle.
// fails=connect:3 has the third and every later call of connect fail on the rank that `rank` names.
// Ends with 0 and prints digests of all losses and of its gradients; or with 3 and one line that
// says what failed.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/failing_calls.hpp>
#include <support/sockets_of_process.hpp>
#include <support/toy_mlp.hpp>
#include <support/toy_run.hpp>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

using namespace zbpp::test;

namespace {

std::map<std::string, std::string> read(int argc, char** argv) {
  std::map<std::string, std::string> given{
      {"steps", "4"},
      {"policy", "zb_h1"},
      {"microbatches", "5"},
      {"deadline", "5000"},
      {"stall_deadline", "60000"},
      {"join_deadline", "60000"},
      {"connect_deadline", "20000"},
      {"bind", "127.0.0.1"},
      {"fault", "none"},
      {"fails", ""},
      {"rank", "-1"},
      {"at", "0:0:F"}};
  for (int i = 1; i < argc; ++i) {
    std::string const word = argv[i];
    auto const mark = word.find('=');
    if (mark == std::string::npos || !given.contains(word.substr(0, mark)))
      throw std::invalid_argument("asio_rank: '" + word + "' is no NAME=VALUE that it knows");
    given[word.substr(0, mark)] = word.substr(mark + 1);
  }
  return given;
}

::sigset_t release() {
  ::sigset_t set{};
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGUSR1);
  return set;
}

// Says that it is here, and goes on when SIGUSR1 has come.
void hold() {
  std::printf("holds\n");
  std::fflush(stdout);
  auto const set = release();
  int came = 0;
  ::sigwait(&set, &came);
}

// What goes wrong, and in which pass.
struct fault {
  std::string kind = "none";
  std::int64_t step = 0;
  int microbatch = 0;
  char pass = 'F';

  void strike() const {
    if (kind == "throw") throw std::runtime_error("the toy broke");
    if (kind == "kill") ::raise(SIGKILL);
    if (kind == "stop") ::raise(SIGSTOP);
    if (kind == "hold") hold();
    if (kind == "hang")
      for (;;) ::pause();
    if (kind == "cut") for_data_sockets(break_connection);
    if (kind == "half")
      for_data_sockets([](int s) {
        write_into(s, std::string(7, '\0'));
        break_connection(s);
      });
    if (kind == "garbage") for_data_sockets([](int s) { write_into(s, std::string(400, '\x5a')); });
  }
};

// A stage of the toy in which a fault strikes once.
class faulty : public toy::passes {
 public:
  faulty(toy::stage_model& stage, fault const& fault) : toy::passes(stage), fault_(fault) {}

  zbpp::message forward(
      saved& kept, zbpp::message const& in, zbpp::microbatch mb, zbpp::pass_context ctx) {
    strike(mb, 'F');
    return toy::passes::forward(kept, in, mb, ctx);
  }
  zbpp::message backward_input(
      saved& kept, zbpp::message const& in, zbpp::microbatch mb, zbpp::pass_context ctx) {
    strike(mb, 'B');
    return toy::passes::backward_input(kept, in, mb, ctx);
  }
  void backward_weight(saved& kept, zbpp::microbatch mb, zbpp::pass_context ctx) {
    strike(mb, 'W');
    toy::passes::backward_weight(kept, mb, ctx);
  }

  zbpp::message backward(
      saved& kept, zbpp::message const& in, zbpp::microbatch mb, zbpp::pass_context ctx) {
    strike(mb, 'B');
    strike(mb, 'W');
    return toy::passes::backward(kept, in, mb, ctx);
  }

 private:
  void strike(zbpp::microbatch mb, char pass) const {
    static bool has_struck = false;  // of two stages of a rank the first one is enough
    if (mb.step() != fault_.step || mb.index() != fault_.microbatch || pass != fault_.pass) return;
    if (!std::exchange(has_struck, true)) fault_.strike();
  }

  fault fault_;
};

fault read_fault(std::map<std::string, std::string> const& given, int rank) {
  if (std::stoi(given.at("rank")) != rank) return {};
  auto const& at = given.at("at");
  auto const first = at.find(':');
  auto const second = at.find(':', first + 1);
  return {
      given.at("fault"),
      std::stoll(at.substr(0, first)),
      std::stoi(at.substr(first + 1, second - first - 1)),
      at.at(second + 1)};
}

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
  auto const given = read(argc, argv);
  auto const start = zbpp::asio::find_launch();
  if (start.rank == std::stoi(given.at("rank"))) arm_failing_calls(given.at("fails"));
  zbpp::asio::rendezvous meeting(
      start,
      {.bind = given.at("bind"),
       .join_deadline = std::chrono::milliseconds(std::stoi(given.at("join_deadline"))),
       .connect_deadline = std::chrono::milliseconds(std::stoi(given.at("connect_deadline"))),
       .deadline = std::chrono::milliseconds(std::stoi(given.at("deadline"))),
       .stall_deadline = std::chrono::milliseconds(std::stoi(given.at("stall_deadline")))});
  auto const planned =
      toy_plan(given.at("policy"), meeting.ranks(), std::stoi(given.at("microbatches")));
  auto all = toy::make_model(planned.problem().stages());
  auto const strikes = read_fault(given, meeting.rank());
  std::vector<faulty> objects;
  for (int s : planned.problem().placement().stages_of(meeting.rank()))
    objects.emplace_back(all[static_cast<std::size_t>(s)], strikes);
  std::vector<zbpp::as_flow<faulty>> stages;
  for (auto& o : objects) stages.emplace_back(o);
  zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting), stages);
  digest losses;
  for (int i = std::stoi(given.at("steps")); i > 0; --i) losses.add(pipe.step().losses);
  digest gradients;
  for (int s : planned.problem().placement().stages_of(meeting.rank()))
    for (auto const& l : all[static_cast<std::size_t>(s)].layers) gradients.add(l.gradient);
  std::printf(
      "rank %d losses %016llx gradients %016llx\n",
      meeting.rank(),
      losses.value(),
      gradients.value());
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
