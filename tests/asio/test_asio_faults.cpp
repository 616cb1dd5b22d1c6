// SPDX-License-Identifier: Apache-2.0
//
// What happens when something goes wrong in one of several processes: every other one ends in time,
// with a message that names the culprit.
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>

#include <support/catch.hpp>
#include <support/rank_processes.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>
#include <support/toy_run.hpp>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace test_asio_faults {

using namespace zbpp::test;

namespace {

constexpr std::array<char const*, 4> policies{"one_f_one_b", "zb_h1", "zb_h2", "zb_v"};

// How often each fault is tried; ZBPP_FAULT_RUNS says more.
int runs() {
  char const* const text = std::getenv("ZBPP_FAULT_RUNS");
  return text == nullptr ? thinned(12, 6) : std::stoi(text);
}

struct tried {
  int ranks;
  int culprit;
  std::vector<std::string> arguments;
};

// A random place of a random run for a fault.
tried somewhere(seeded_random& random, std::string const& fault) {
  auto const between = [&random](int low, int high) {
    return static_cast<int>(random.integer(low, high));
  };
  int const ranks = between(2, 4);
  int const culprit = between(0, ranks - 1);
  int const microbatches = between(1, 6);
  // A broken connection is a failure when a later step needs it.
  bool const is_of_socket = fault == "cut" || fault == "half" || fault == "garbage";
  int const steps = between(2, 4);
  std::string const pass(1, "FBW"[between(0, 2)]);
  return {
      ranks,
      culprit,
      {"policy=" + std::string(policies[static_cast<std::size_t>(between(0, 3))]),
       "microbatches=" + std::to_string(microbatches),
       "steps=" + std::to_string(steps),
       "deadline=3000",
       "fault=" + fault,
       "rank=" + std::to_string(culprit),
       "at=" + std::to_string(between(0, steps - (is_of_socket ? 2 : 1))) + ":" +
           std::to_string(between(0, microbatches - 1)) + ":" + pass}};
}

}  // namespace

TEST_CASE("processes give the bits of one process", "[asio][faults]") {
  for (auto const* policy : policies)
    for (int ranks : {1, 2, 3, 4}) {
      constexpr int microbatches = 5;
      constexpr int steps = 3;
      auto all = start_ranks(
          ranks,
          {"policy=" + std::string(policy),
           "microbatches=" + std::to_string(microbatches),
           "steps=" + std::to_string(steps)});
      auto const planned = toy_plan(policy, ranks, microbatches);
      auto model = toy::make_model(planned.problem().stages());
      std::vector<toy::passes> objects;
      for (auto& s : model) objects.emplace_back(s);
      std::vector<zbpp::as_flow<toy::passes>> stages;
      for (auto& o : objects) stages.emplace_back(o);
      zbpp::pipeline pipe(planned, zbpp::threads{}, stages);
      digest losses;
      for (int i = 0; i < steps; ++i) losses.add(pipe.step().losses);
      for (int rank = 0; rank < ranks; ++rank) {
        auto& p = all[static_cast<std::size_t>(rank)];
        auto const status = p.wait_until(soon());
        INFO(policy << ", " << ranks << " ranks\n" << everything(all));
        REQUIRE(status == 0);
        digest gradients;
        for (int s : planned.problem().placement().stages_of(rank))
          for (auto const& l : model[static_cast<std::size_t>(s)].layers) gradients.add(l.gradient);
        std::array<char, 64> text{};
        std::snprintf(text.data(), text.size(), "gradients %016llx", gradients.value());
        CHECK(p.output().find(text.data()) != std::string::npos);
        if (planned.problem().placement().rank_of(planned.problem().stages() - 1) == rank) {
          std::snprintf(text.data(), text.size(), "losses %016llx", losses.value());
          CHECK(p.output().find(text.data()) != std::string::npos);
        }
      }
    }
}

TEST_CASE(
    "a fault in one process ends all others with a message that names it", "[asio][faults][long]") {
  auto const kind = GENERATE(
      std::string("throw"),
      std::string("kill"),
      std::string("stop"),
      std::string("cut"),
      std::string("half"),
      std::string("garbage"));
  ZBPP_SEEDED(random, 1);
  // That a rank is stopped is noticed only after the deadline, and so takes long.
  int const count = kind == "stop" ? (runs() + 5) / 6 : runs();
  for (int run = 0; run < count; ++run) {
    auto const at = somewhere(random, kind);
    auto all = start_ranks(at.ranks, at.arguments);
    std::string command = std::to_string(at.ranks) + " ranks:";
    for (auto const& a : at.arguments) command += " " + a;
    std::vector<std::optional<int>> ended;
    for (int rank = 0; rank < at.ranks; ++rank) {
      bool const stays = kind == "stop" && rank == at.culprit;
      ended.push_back(
          stays ? std::nullopt : all[static_cast<std::size_t>(rank)].wait_until(soon()));
    }
    auto const name = "rank " + std::to_string(at.culprit);
    INFO(command << "\n" << everything(all));
    for (int rank = 0; rank < at.ranks; ++rank) {
      auto& p = all[static_cast<std::size_t>(rank)];
      auto const& status = ended[static_cast<std::size_t>(rank)];
      bool const is_culprit = rank == at.culprit;
      if (is_culprit && kind == "stop") {
        p.signal(SIGCONT);
        CHECK(p.wait_until(soon()) == 3);
      } else if (is_culprit && kind == "kill") {
        CHECK(status == 128 + SIGKILL);
      } else {
        CHECK(status == 3);
        // A rank that throws ends with its own exception. Broken connections have two ends; either
        // may be named.
        bool const is_broken = kind == "cut" || kind == "half" || kind == "garbage";
        auto const telling = kind == "throw" && is_culprit ? std::string("the toy broke")
                             : is_broken                   ? std::string("channel ")
                                                           : name;
        CHECK(p.output().find(telling) != std::string::npos);
        if (kind == "throw") CHECK(p.output().find("the toy broke") != std::string::npos);
      }
    }
  }
}

TEST_CASE("a fault in one replica ends the processes of all", "[asio][faults]") {
  for (auto const* kind : {"throw", "kill"})
    for (int culprit = 0; culprit < 4; ++culprit) {
      auto all = start_ranks(
          4,
          {"replicas=2",
           "steps=3",
           "deadline=10000",
           "fault=" + std::string(kind),
           "rank=" + std::to_string(culprit),
           "at=1:2:F"});
      std::vector<std::optional<int>> ended;
      for (auto& each : all) ended.push_back(each.wait_until(soon()));
      INFO(kind << ", rank " << culprit << "\n" << everything(all));
      auto const place = "(rank " + std::to_string(culprit) + " is pipeline " +
                         std::to_string(culprit / 2) + ", replica " + std::to_string(culprit % 2) +
                         ")";
      for (int rank = 0; rank < 4; ++rank) {
        auto const& status = ended[static_cast<std::size_t>(rank)];
        auto const output = all[static_cast<std::size_t>(rank)].output();
        if (rank == culprit) {
          CHECK(status == (kind == std::string("kill") ? 128 + SIGKILL : 3));
          continue;
        }
        CHECK(status == 3);
        CHECK(output.starts_with("asio_rank: rank " + std::to_string(culprit)));
        CHECK(output.find(place) != std::string::npos);
      }
    }
}

TEST_CASE(
    "a rank that was suspended for longer than the deadline blames itself", "[asio][faults]") {
  for (auto const* at : {"1:0:F", "1:2:B"})
    for (int culprit : {0, 1, 2}) {
      auto all = start_ranks(
          3,
          {"steps=3",
           "fault=stop",
           "rank=" + std::to_string(culprit),
           "at=" + std::string(at),
           "deadline=2000"});
      for (int rank = 0; rank < 3; ++rank)
        if (rank != culprit) all[static_cast<std::size_t>(rank)].wait_until(soon());
      auto& stopped = all[static_cast<std::size_t>(culprit)];
      stopped.signal(SIGCONT);
      CHECK(stopped.wait_until(soon()) == 3);
      INFO("rank " << culprit << " at " << at << "\n" << everything(all));
      CHECK(stopped.output().starts_with("asio_rank: rank " + std::to_string(culprit) + ": "));
    }
}

TEST_CASE("socket calls that fail from any moment on end all ranks in time", "[asio][faults]") {
  auto const call = GENERATE(
      std::string("socket"),
      std::string("bind"),
      std::string("listen"),
      std::string("connect"),
      std::string("accept"),
      std::string("setsockopt"),
      std::string("getsockname"),
      std::string("getpeername"),
      std::string("sendmsg"),
      std::string("recvmsg"),
      std::string("send"),
      std::string("recv"));
  // At once: most of them wait for deadlines.
  std::vector<std::pair<std::string, std::vector<process>>> all;
  for (int culprit : {0, 1})
    for (int from : thinned<std::vector<int>>({1, 2, 3, 5, 9}, {1, 2, 5})) {
      std::vector<std::string> const arguments{
          "fails=" + call + ":" + std::to_string(from),
          "rank=" + std::to_string(culprit),
          "join_deadline=3000",
          "connect_deadline=2000",
          "deadline=2000"};
      all.emplace_back(arguments[0] + " " + arguments[1], start_ranks(2, arguments));
    }
  for (auto& [text, ranks] : all)
    for (auto& p : ranks) {
      auto const status = p.wait_until(soon());
      INFO(text << "\n" << everything(ranks));
      CHECK((status == 0 || status == 3));
      CHECK(p.output().find("/boost/") == std::string::npos);
    }
}

TEST_CASE("too few file descriptors end all ranks, with how to allow more", "[asio][faults]") {
  struct attempt {
    int limited;
    int limit;
    std::vector<process> ranks;
  };
  std::vector<attempt> all;
  for (int limited : {0, 1})
    for (int limit = 5; limit <= 16; ++limit) {
      auto const port = free_port();
      attempt one{limited, limit, {}};
      for (int rank : {0, 1}) {
        rank_process settings{
            rank, 2, {"join_deadline=3000", "connect_deadline=2000", "deadline=2000"}};
        if (rank == limited)
          settings.wrapper = {
              "/bin/sh", "-c", "ulimit -n " + std::to_string(limit) + "; exec \"$0\" \"$@\""};
        one.ranks.push_back(start_rank(settings, port));
      }
      all.push_back(std::move(one));
    }
  for (auto& one : all) {
    std::vector<std::optional<int>> ended;
    for (auto& p : one.ranks) ended.push_back(p.wait_until(soon()));
    INFO("rank " << one.limited << ", " << one.limit << " descriptors\n" << everything(one.ranks));
    CHECK(ended[0] == ended[1]);
    CHECK((ended[0] == 0 || ended[0] == 3));
    auto const& own = one.ranks[static_cast<std::size_t>(one.limited)];
    if (ended[0] == 3) CHECK(own.output().find("ulimit -n") != std::string::npos);
    for (auto const& p : one.ranks) CHECK(p.output().find("/boost/") == std::string::npos);
  }
}

TEST_CASE("a pass that never ends is named by all ranks' watchdog", "[asio][faults]") {
  auto all = start_ranks(
      3, {"steps=3", "fault=hang", "rank=1", "at=1:2:F", "deadline=10000", "stall_deadline=3000"});
  for (int rank : {0, 2}) {
    auto& p = all[static_cast<std::size_t>(rank)];
    auto const status = p.wait_until(soon());
    INFO(everything(all));
    CHECK(status == 3);
    CHECK(p.output().find("rank 1") != std::string::npos);
    CHECK(p.output().find("F 2") != std::string::npos);
  }
}

}  // namespace test_asio_faults
