// SPDX-License-Identifier: Apache-2.0
#include <zbpp/adapt/auto_pipeline.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/runtime/in_process_grid.hpp>

#include <support/backends.hpp>
#include <support/plain_flow.hpp>

namespace test_auto_pipeline {

using namespace zbpp;
using namespace zbpp::test;

namespace {

// Eight layers of different costs on four ranks.
problem model(int ranks = 4) {
  std::vector<layer_costs> layers;
  for (int l = 0; l < 8; ++l)
    layers.push_back(
        {.forward = 1000 + 200 * l,
         .backward_input = 1100,
         .backward_weight = 900,
         .activation = 10,
         .weight_gradient_input = 5,
         .edge = 8});
  return {layers, {.ranks = ranks, .microbatches = 8, .transfer = 10, .memory_limits = {4000}}};
}

// A stage that neither moves nor is copied, and knows its layers.
struct owned_stage {
  owned_stage(int first_layer, int last_layer, std::vector<std::pair<int, int>>& made)
      : first(first_layer), end(last_layer) {
    made.emplace_back(first, end);
  }
  owned_stage(owned_stage const&) = delete;
  owned_stage& operator=(owned_stage const&) = delete;

  flow operator()(microbatch mb) { return plain(mb); }

  plain_flow plain;
  int first;
  int end;
};

auto_settings brief(std::vector<std::string>& lines) {
  return {.plan = {.seconds = 0.05}, .on_report = [&lines](std::string const& line) {
            lines.push_back(line);
          }};
}

}  // namespace

TEST_CASE("layers become a running pipeline that takes what was planned", "[auto_pipeline]") {
  for (bool const adapts : {false, true}) {
    std::vector<std::pair<int, int>> made;
    std::vector<std::string> lines;
    auto settings = brief(lines);
    if (!adapts) settings.replan.reset();
    auto_pipeline pipe{
        model(),
        virtual_time{},
        [&](int first, int end) { return owned_stage(first, end, made); },
        settings};
    // The stages have all layers, each once, in order.
    REQUIRE(pipe.stages() == static_cast<int>(made.size()));
    int next = 0;
    for (int s = 0; s < pipe.stages(); ++s) {
      CHECK(made[detail::index(s)].first == next);
      CHECK(pipe.stage_at(s).first == next);
      CHECK(pipe.stage_at(s).end > next);
      next = pipe.stage_at(s).end;
    }
    CHECK(next == 8);
    for (int i = 0; i < 3; ++i) {
      auto const& result = pipe.step();
      CHECK(cost(result.measured) == pipe.chosen().cost);
      CHECK(plain_flow::are_expected(result.losses, pipe.stages()));
    }
    CHECK(pipe.current().steps() == 3);
    CHECK(pipe.current().planned().problem() == pipe.chosen().problem);
    REQUIRE(lines.size() == 1);
    CHECK(lines.front() == to_text(pipe.chosen()));
  }
}

TEST_CASE("a step may have another number of microbatches", "[auto_pipeline]") {
  for (bool const adapts : {false, true}) {
    std::vector<std::string> lines;
    auto settings = brief(lines);
    if (!adapts) settings.replan.reset();
    auto_pipeline pipe{model(), virtual_time{}, [](int, int) { return plain_flow{}; }, settings};
    int taken = 0;
    for (int const count : {8, 3, 3, 8, 1, 11, 8}) {
      auto const& result = count == 8 ? pipe.step() : pipe.step(count);
      REQUIRE(result.losses.size() == detail::index(count));
      CHECK(plain_flow::are_expected(result.losses, pipe.stages()));
      CHECK(pipe.current().steps() == ++taken);
    }
    CHECK(pipe.current().planned().problem() == pipe.chosen().problem);
    CHECK_THROWS_AS(pipe.step(0), error);
    pipe.prepare(2);
  }
}

TEST_CASE("replicas in one process follow one plan", "[auto_pipeline]") {
  stage_costs const even{.forward = 100, .backward_input = 100, .backward_weight = 90, .edge = 8};
  auto const model = with_replicas(
      problem(std::vector<layer_costs>(6, even), {.ranks = 2, .microbatches = 6}), {.count = 2});
  std::vector<std::optional<schedule>> ran(2);
  auto const run = [&](replan_settings const& replan) {
    in_process_grid whole({.pipeline = 2, .data = 2});
    whole.run([&](grid_place const& place) {
      auto_settings settings{.plan = {.seconds = 0.05}, .replan = replan};
      // One of them is slow at its first rank.
      virtual_noise const noise{.pass_time = [&](int rank, pass const&, ticks stated) {
        return rank == 0 && place.data() == 1 ? 2 * stated : stated;
      }};
      auto_pipeline pipe{
          model,
          virtual_time{.noise = noise, .place = place},
          [](int, int) { return plain_flow(); },
          settings};
      for (int i = 0; i < 12; ++i) static_cast<void>(pipe.step());
      ran[detail::index(place.data())] = pipe.current().planned().schedule();
    });
  };
  CHECK(refusal(errc::bad_argument, [&] {
          run({});
        }).ends_with("set in_background and moves_stages to false"));
  run({.first_steps = 1, .window = 2, .in_background = false, .seconds = 0.05});
  REQUIRE(ran[0].has_value());
  CHECK(ran[0] == ran[1]);
}

TEST_CASE("ranks that are not there are refused", "[auto_pipeline]") {
  for (int rank : {-1, 2})
    CHECK(refusal(errc::bad_argument, [&] {
            auto const one = [](int, int) { return plain_flow{}; };
            auto_settings settings{.plan = {.seconds = 0.001}, .rank = rank};
            auto_pipeline pipe{model(2), threads{}, one, settings};
          }) == "auto_settings::rank is no rank of the placement; ranks count from 0");
}

TEST_CASE("layers are measured one by one", "[auto_pipeline]") {
  auto const truth = model();
  int made = 0;
  auto const one = [&](int first, int end) {
    CHECK(end == first + 1);
    ++made;
    return plain_flow{};
  };
  auto const measured = measure_layers(truth, virtual_time{}, one, {.first_steps = 1, .steps = 2});
  CHECK(measured == truth);
  CHECK(made == 8);
  auto const on_threads = measure_layers(truth, threads{}, one, {.steps = 3});
  CHECK(on_threads.layers().size() == 8);
  CHECK(on_threads.transfer() == truth.transfer());
  for (auto const& layer : on_threads.layers()) CHECK(layer.activation == 10);
}

TEST_CASE("a pipeline of measured layers trains on threads", "[auto_pipeline]") {
  auto const one = [](int, int) { return plain_flow{}; };
  std::vector<std::string> lines;
  auto settings = brief(lines);
  auto_pipeline pipe{measure_layers(model(2), threads{}, one), threads{}, one, settings};
  for (int i = 0; i < 30; ++i) {
    auto const& result = pipe.step();
    CHECK(plain_flow::are_expected(result.losses, pipe.stages()));
  }
  CHECK(!lines.empty());
}

}  // namespace test_auto_pipeline
