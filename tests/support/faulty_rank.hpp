// SPDX-License-Identifier: Apache-2.0
//
// A rank of the toy network with a fault where it is told to have one, for programs that tests
// start.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/stage.hpp>

#include <support/sockets_of_process.hpp>
#include <support/toy_mlp.hpp>
#include <support/toy_run.hpp>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Reads arguments NAME=VALUE.
/// @param program  whose name stands in the message of what is thrown
[[nodiscard]] inline std::map<std::string, std::string> read_arguments(
    std::string const& program, int argc, char** argv) {
  std::map<std::string, std::string> given{
      {"steps", "4"},
      {"policy", "zb_h1"},
      {"replicas", "1"},
      {"microbatches", "5"},
      {"deadline", "5000"},
      {"stall_deadline", "60000"},
      {"join_deadline", "60000"},
      {"connect_deadline", "20000"},
      {"bind", "127.0.0.1"},
      {"fault", "none"},
      {"fails", ""},
      {"level", "none"},
      {"rank", "-1"},
      {"at", "0:0:F"}};
  for (int i = 1; i < argc; ++i) {
    std::string const word = argv[i];
    auto const mark = word.find('=');
    if (mark == std::string::npos || !given.contains(word.substr(0, mark)))
      throw std::invalid_argument(program + ": '" + word + "' is no NAME=VALUE that it knows");
    given[word.substr(0, mark)] = word.substr(mark + 1);
  }
  return given;
}

/// @return the signal that ends a `hold`
[[nodiscard]] inline ::sigset_t release() {
  ::sigset_t set{};
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGUSR1);
  return set;
}

/// Says that it is here, and goes on when SIGUSR1 has come.
inline void hold() {
  std::printf("holds\n");
  std::fflush(stdout);
  auto const set = release();
  int came = 0;
  ::sigwait(&set, &came);
}

/// Says what goes wrong, and in which pass.
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
    if (kind == "exit") std::exit(0);
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

/// Is a stage of the toy in which a fault strikes once.
class faulty : public toy::passes {
 public:
  faulty(toy::stage_model& stage, fault const& fault) : toy::passes(stage), fault_(fault) {}

  message forward(saved& kept, message const& in, microbatch mb, pass_context ctx) {
    strike(mb, 'F');
    return toy::passes::forward(kept, in, mb, ctx);
  }
  message backward_input(saved& kept, message const& in, microbatch mb, pass_context ctx) {
    strike(mb, 'B');
    return toy::passes::backward_input(kept, in, mb, ctx);
  }
  void backward_weight(saved& kept, microbatch mb, pass_context ctx) {
    strike(mb, 'W');
    toy::passes::backward_weight(kept, mb, ctx);
  }

  message backward(saved& kept, message const& in, microbatch mb, pass_context ctx) {
    strike(mb, 'B');
    strike(mb, 'W');
    return toy::passes::backward(kept, in, mb, ctx);
  }

 private:
  void strike(microbatch mb, char pass) const {
    static bool has_struck = false;  // of two stages of a rank the first one is enough
    if (mb.step() != fault_.step || mb.index() != fault_.microbatch || pass != fault_.pass) return;
    if (!std::exchange(has_struck, true)) fault_.strike();
  }

  fault fault_;
};

/// @return the fault of a rank, if it is to have one
[[nodiscard]] inline fault read_fault(std::map<std::string, std::string> const& given, int rank) {
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

/// @return the grid of a run of as many replicas of the network as are asked for
[[nodiscard]] inline grid_layout layout_of(
    asio::rendezvous const& meeting, std::map<std::string, std::string> const& given) {
  auto const replicas = std::stoi(given.at("replicas"));
  return grid_layout({.pipeline = meeting.ranks() / replicas, .data = replicas}, meeting.ranks());
}

/// Trains the stages of a rank, and prints digests of losses and gradients.
/// @param after_step  called behind each step
template <class Backend>
void train_faulty(
    asio::rendezvous const& meeting,
    Backend backend,
    std::map<std::string, std::string> const& given,
    std::function<void()> const& after_step = [] {}) {
  auto const layout = layout_of(meeting, given);
  auto const own_rank = layout.coordinates(meeting.rank()).pipeline;
  auto const planned = toy_plan(
      given.at("policy"), layout.size(grid_axis::pipeline), std::stoi(given.at("microbatches")));
  auto all = toy::make_model(planned.problem().stages());
  auto const strikes = read_fault(given, meeting.rank());
  std::vector<faulty> objects;
  for (int s : planned.problem().placement().stages_of(own_rank))
    objects.emplace_back(all[static_cast<std::size_t>(s)], strikes);
  std::vector<as_flow<faulty>> stages;
  for (auto& o : objects) stages.emplace_back(o);
  pipeline pipe(planned, std::move(backend), stages);
  digest losses;
  for (int i = std::stoi(given.at("steps")); i > 0; --i) {
    losses.add(pipe.step().losses);
    after_step();
  }
  digest gradients;
  for (int s : planned.problem().placement().stages_of(own_rank))
    for (auto const& l : all[static_cast<std::size_t>(s)].layers) gradients.add(l.gradient);
  std::printf(
      "rank %d losses %016llx gradients %016llx\n",
      meeting.rank(),
      losses.value(),
      gradients.value());
}

}  // namespace zbpp::test
