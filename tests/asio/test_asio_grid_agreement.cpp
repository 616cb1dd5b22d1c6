// SPDX-License-Identifier: Apache-2.0
//
// What test_grid_agreement.cpp says of pipelines in one process, over sockets: what differs ends
// the calls of all ranks, with the thing, both values and both ranks.
#include <zbpp/asio/tcp.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/checked_ranks.hpp>
#include <support/differing_pipelines.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace test_asio_grid_agreement {

using namespace zbpp::test;
using namespace zbpp::test::differing;
using zbpp::grid_layout;
using zbpp::pipeline;
using zbpp::step_kind;
using zbpp::training_options;
using zbpp::asio::rendezvous;
using zbpp::asio::tcp;

namespace {

using texts = std::vector<std::string>;
constexpr step_kind kinds[]{
    step_kind::unchecked, step_kind::synchronous, step_kind::post_validated};

// Runs two replicas, each with its own options and calls; gives what ranks threw.
texts run_replicas(
    step_kind kind,
    std::function<training_options(int replica)> const& options_of,
    std::function<void(int replica, pipeline<tcp>&)> const& calls,
    std::function<void(int replica, checked::model&)> const& change = {}) {
  auto const planned = replicated_plan(kind);
  grid_layout const layout({.pipeline = ranks, .data = 2}, 2 * ranks);
  return run_ranks(layout.ranks(), patient_settings(), [&](rendezvous& run) {
    auto const at = layout.coordinates(run.rank());
    checked::model all({.stages = ranks, .first_batch = 100 * at.data});
    if (change) change(at.data, all);
    std::array own{all.stages()[static_cast<std::size_t>(at.pipeline)]};
    pipeline replica(planned, tcp(run, layout), own, options_of(at.data));
    calls(at.data, replica);
  });
}

training_options no_options(int) { return {}; }

void check_all(texts const& all, std::vector<std::string> const& parts) {
  for (auto const& text : all) {
    INFO(text);
    CHECK_FALSE(text.empty());
    for (auto const& part : parts) CHECK(text.find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("replicas over sockets that begin with other weights are told which", "[asio][grid]") {
  for (auto const kind : kinds) {
    auto const told = [&](training_options const& options) {
      return run_replicas(
          kind,
          [&](int) { return options; },
          [](int, pipeline<tcp>& pipe) { pipe.run(4); },
          [](int replica, checked::model& own) {
            if (replica == 1) own.maths(1).optimized().back().weights[5] += 0x1p-20F;
          });
    };
    check_all(
        told({}), {"weights of layer 1 of stage 1 (", " on rank 2 (pipeline 1, replica 0), "});
    check_all(
        run_replicas(
            kind,
            no_options,
            [](int, pipeline<tcp>& pipe) {
              pipe.run(2);
              pipe.resume(pipe.state());
              pipe.run(2);
              throw std::runtime_error("all trained");
            }),
        {"all trained"});
    for (auto const& text : told({.compares_weights = false})) CHECK(text.empty());
  }
}

TEST_CASE("replicas over sockets that step by other options are told which", "[asio][grid]") {
  for (auto const kind : kinds) {
    auto const run_four = [](int, pipeline<tcp>& pipe) { pipe.run(4); };
    check_all(
        run_replicas(
            kind,
            [](int replica) { return training_options{.accumulate = 1 + replica}; },
            run_four),
        {"training_options::accumulate is ",
         "1 on rank ",
         "2 on rank ",
         "; give all ranks the same"});
    // In a later step of a run, ranks are on their way.
    auto const later = [](int replica) {
      return training_options{.learning_rate = [=](std::int64_t updates) {
        return updates == 2 ? 0.25 + replica : 0.125;
      }};
    };
    check_all(
        run_replicas(kind, later, run_four),
        {"training_options::learning_rate is ", "0.25 on rank ", "1.25 on rank "});
  }
}

TEST_CASE("replicas over sockets that run different numbers of steps are told", "[asio][grid]") {
  for (auto const kind : kinds) {
    CAPTURE(static_cast<int>(kind));
    check_all(
        run_replicas(
            kind, no_options, [](int replica, pipeline<tcp>& pipe) { pipe.run(3 + replica); }),
        {" called run(3) for step 0", " called run(4) for step 0"});
    auto const steps = run_replicas(kind, no_options, [](int replica, pipeline<tcp>& pipe) {
      for (int step = 0; step < 3 + replica; ++step) pipe.step();
    });
    std::string all;
    for (auto const& text : steps) all += text + "\n";
    INFO(all);
    CHECK(all.find("called step() for step 3") != std::string::npos);
  }
}

TEST_CASE("a collective call over sockets that one leaves out is named", "[asio][grid]") {
  auto const fault = GENERATE(left_out::sum_in_f, left_out::exchange_in_f, left_out::last_sum_in_b);
  for (auto const kind : kinds)
    for (int const faulty : {0, 1}) {
      CAPTURE(static_cast<int>(kind), faulty, static_cast<int>(fault));
      auto const planned = summing_plan(kind);
      grid_layout const layout({.pipeline = ranks, .tensor = 2}, 2 * ranks);
      auto const all = run_ranks(layout.ranks(), patient_settings(), [&](rendezvous& run) {
        auto const at = layout.coordinates(run.rank());
        bool const is_faulty = at.tensor == 1 && at.pipeline == faulty;
        std::vector<summing_stage> own;
        own.emplace_back(is_faulty ? fault : left_out::nothing, first_weights(at.pipeline), true);
        pipeline pipe(planned, tcp(run, layout), own);
        for (int step = 0; step < 2; ++step) pipe.step();
      });
      auto const s = std::to_string(faulty);
      check_all(
          all,
          {"in the tensor group ",
           "rank " + std::to_string(2 * faulty) + " (pipeline " + s + ", tensor 0)",
           "rank " + std::to_string(2 * faulty + 1) + " (pipeline " + s + ", tensor 1)",
           fault == left_out::last_sum_in_b ? "all_reduce of 8 numbers in " + s + "B2 "
           : fault == left_out::sum_in_f    ? "all_reduce of 8 numbers in " + s + "F1 "
                                            : "all_to_all in " + s + "F1 "});
    }
}

}  // namespace test_asio_grid_agreement
