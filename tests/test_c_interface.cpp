// SPDX-License-Identifier: Apache-2.0
//
// The C interface: its answers are those of the library, a refusal is a status and a line, and
// every text is given back, which AddressSanitizer looks at.
#include "../python/zbpp_c.h"
#include <zbpp/io/csv.hpp>
#include <zbpp/io/svg.hpp>
#include <zbpp/json/json.hpp>
#include <zbpp/planner/auto_placement.hpp>
#include <zbpp/planner/auto_plan.hpp>
#include <zbpp/planner/chunk_policies.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/partition_by_name.hpp>
#include <zbpp/planner/registry.hpp>

#include <support/catch.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace test_c_interface {

using namespace zbpp;

namespace {

zbpp_text text_of(std::string_view text) { return {text.data(), text.size()}; }

struct answer {
  zbpp_status status;
  std::string text;
  friend bool operator==(answer const&, answer const&) = default;
};

template <class Call>
answer ask(Call call) {
  char* out = nullptr;
  auto const status = call(&out);
  answer found{status, out == nullptr ? "<nothing>" : out};
  zbpp_free(out);
  return found;
}

answer plan_with(std::string_view problem, std::string_view policy, double seconds = 0.01) {
  return ask([&](char** out) {
    return zbpp_plan(text_of(problem), text_of(policy), seconds, 3, nullptr, out);
  });
}

search_settings short_search() {
  search_settings search;
  search.seconds = 0.01;
  return search;
}

problem on(placement placement) {
  stage_costs const costs{
      .forward = 10'000'000,
      .backward_input = 9'000'001,
      .backward_weight = 8'000'000,
      .activation = 10,
      .weight_gradient_input = 4};
  return {std::move(placement), 8, costs, 500'000};
}

// A text that the library wrote, and one of the interface, without the time that planning took.
std::string without_seconds(std::string const& plan) {
  time_unit unit{};
  auto read = json::read_plan(plan, "plan", &unit);
  read.plan_seconds = 0;
  return json::write_plan(read, unit);
}

}  // namespace

TEST_CASE("the C interface plans as the library does", "[long]") {
  for (auto const& placement :
       {placement::linear(4), placement::v_shape(4), placement::looped(4, 2)})
    for (auto const& policy : builtin_policies(short_search())) {
      auto const asked = on(placement);
      auto const found = plan_with(json::write_problem(asked), policy.name());
      CAPTURE(placement.name(), policy.name(), found.text);
      try {
        auto const right =
            json::make_plan_report(std::string(policy.title()), policy(asked), asked);
        REQUIRE(found.status == ZBPP_OK);
        CHECK(without_seconds(found.text) == json::write_plan(right));
      } catch (error const& refused) {
        CHECK(found == answer{ZBPP_UNSUPPORTED_PROBLEM, refused.what()});
      }
    }
}

TEST_CASE("the C interface chooses a placement, and answers in the unit of the problem") {
  auto const asked = on(placement::linear(4));
  auto const found = plan_with(json::write_problem(asked, time_unit::seconds), "auto-placement");
  REQUIRE(found.status == ZBPP_OK);
  auto right = auto_placement{.search = short_search()}(asked);
  auto const report =
      json::make_plan_report("auto-placement", std::move(right.schedule), std::move(right.problem));
  CHECK(without_seconds(found.text) == json::write_plan(report, time_unit::seconds));
}

TEST_CASE("the C interface cuts layers as the library does") {
  layer_costs const block{
      .forward = 3000,
      .backward_input = 4000,
      .backward_weight = 2000,
      .recompute = 3000,
      .activation = 10,
      .weight_gradient_input = 4};
  std::vector<layer_costs> layers(9, block);
  layers.back().forward *= 3;
  layered_problem const model(placement::linear(2), 4, layers, 500, {400});
  auto const text = json::write_layers(model, time_unit::microseconds);
  auto const read = ask([&](char** out) { return zbpp_read_layers(text_of(text), out); });
  CHECK(read == answer{ZBPP_OK, text});
  auto const partition = [&](std::string_view of, std::string_view policy, int schedules) {
    return ask([&](char** out) {
      return zbpp_partition(text_of(of), text_of(policy), schedules, 0.01, 3, nullptr, out);
    });
  };
  for (auto const* policy : {"zb_h1", "greedy_auto"}) {
    auto const cut = partition(text, policy, 20);
    REQUIRE(cut.status == ZBPP_OK);
    auto const plan = json::read_plan(cut.text);
    auto const found = partition_by_name(model, policy, short_search(), 20);
    CHECK(plan.schedule == found.schedule);
    CHECK(plan.first_layer == found.first_layer);
    CHECK(json::check_claims(plan).empty());
  }
  auto const all = [&](std::string_view of, int chunks) {
    return ask(
        [&](char** out) { return zbpp_auto_plan(text_of(of), chunks, 0.01, 3, nullptr, out); });
  };
  auto const planned = all(text, 2);
  REQUIRE(planned.status == ZBPP_OK);
  auto const found = auto_plan{.search = short_search(), .most_chunks = 2}(model);
  CHECK(json::read_plan(planned.text).schedule == found.schedule);
  CHECK(json::read_plan(planned.text).first_layer == found.first_layer);

  CHECK(all(text, 1).status == ZBPP_BAD_ARGUMENT);
  CHECK(all(text, -1).status == ZBPP_BAD_ARGUMENT);
  CHECK(all("{}", 2).status == ZBPP_BAD_FORMAT);
  CHECK(partition(text, "zb_v", 20).status == ZBPP_UNSUPPORTED_PROBLEM);
  CHECK(partition(text, "none", 20).status == ZBPP_BAD_ARGUMENT);
  CHECK(partition(text, "zb_h1", -1).status == ZBPP_BAD_ARGUMENT);
  CHECK(
      partition(json::write_problem(on(placement::linear(2))), "zb_h1", 1).status ==
      ZBPP_BAD_FORMAT);
}

TEST_CASE("the C interface simulates, draws, writes and checks what it planned") {
  auto const asked = on(placement::linear(4));
  auto const problem = json::write_problem(asked);
  auto const plan = plan_with(problem, "zb_h1").text;
  auto const report = json::read_plan(plan);

  auto const csv = ask([&](char** out) { return zbpp_csv(text_of(plan), 0, out); });
  CHECK(csv == answer{ZBPP_OK, to_csv(report.schedule)});
  auto const again = ask([&](char** out) {
    return zbpp_simulate(text_of(csv.text), text_of(problem), text_of("ZB-H1"), out);
  });
  CHECK(again == answer{ZBPP_OK, without_seconds(plan)});
  std::vector<zbpp_text> const two(2, text_of(plan));
  auto const drawn = ask([&](char** out) { return zbpp_svg(two.data(), two.size(), 600, out); });
  CHECK(drawn.status == ZBPP_OK);
  CHECK(drawn.text.starts_with("<svg"));
  CHECK(
      ask([&](char** out) { return zbpp_lower_bound(text_of(problem), out); }) ==
      answer{ZBPP_OK, number_text(lower_bound(report.problem).cost, time_unit::milliseconds)});
  CHECK(ask([&](char** out) {
          return zbpp_read_problem(text_of(problem), out);
        }) == answer{ZBPP_OK, problem});
  CHECK(
      ask([&](char** out) { return zbpp_read_plan(text_of(plan), out); }) == answer{ZBPP_OK, plan});
  CHECK(ask([&](char** out) {
          return zbpp_verify_plan(text_of(plan), out);
        }) == answer{ZBPP_OK, "[]"});
  for (auto const& limits : {problem, std::string()})
    CHECK(ask([&](char** out) {
            return zbpp_verify(text_of(csv.text), text_of(limits), out);
          }) == answer{ZBPP_OK, "[]"});
}

TEST_CASE("the C interface names faults and wrong claims") {
  CHECK(ask([](char** out) {
          return zbpp_verify(text_of("0F0,0B0\n1B0,1F0\n"), {}, out);
        }).text.find(R"([{"kind": "dependence", "rank": 1,)") == 0);
  auto report =
      json::read_plan(plan_with(json::write_problem(on(placement::linear(2))), "gpipe").text);
  ++report.cost;
  auto const wrong = json::write_plan(report);
  auto const found = ask([&](char** out) { return zbpp_verify_plan(text_of(wrong), out); });
  CHECK(found.status == ZBPP_OK);
  CHECK(
      found.text.find(
          R"([{"kind": "claim", "rank": -1, "position": -1, "stage": -1, "microbatch": -1, "text": "cost: )") ==
      0);
}

TEST_CASE("the C interface refuses in one line") {
  auto const good = json::write_problem(on(placement::linear(2)));
  CHECK(plan_with("{", "gpipe").status == ZBPP_BAD_FORMAT);
  CHECK(plan_with({}, "gpipe").status == ZBPP_BAD_FORMAT);
  CHECK(plan_with(good, std::string_view("gpipe\0", 6)).status == ZBPP_BAD_ARGUMENT);
  CHECK(plan_with(good, "no\nsuch")
            .text.starts_with("no policy is called 'no such'; there are gpipe one_f_one_b "));
  CHECK(
      plan_with(good, "gpipe", -1) ==
      answer{ZBPP_BAD_ARGUMENT, "seconds: found -1; expected a number from 0 to 1000000"});
  CHECK(plan_with(good, "zb_v").status == ZBPP_UNSUPPORTED_PROBLEM);
  auto const csv = ask(
      [&](char** out) { return zbpp_simulate(text_of("0F0"), text_of(good), text_of(""), out); });
  CHECK(csv.status == ZBPP_BAD_FORMAT);

  problem const tight(placement::linear(2), 8, on(placement::linear(2)).costs(0), 0, {20});
  CHECK(
      plan_with(json::write_problem(tight), "gpipe") ==
      answer{
          ZBPP_UNSUPPORTED_PROBLEM,
          "rank 0: GPipe needs 80, its limit is 20; the least limit that works for it on every "
          "rank "
          "is 80"});
  problem const large(placement::linear(5000), 8, on(placement::linear(2)).costs(0));
  CHECK(plan_with(json::write_problem(large), "gpipe").status == ZBPP_BAD_ARGUMENT);
}

TEST_CASE("the C interface gives budget and seed to every policy that searches", "[long]") {
  auto const costs = [](int i) {
    return stage_costs{
        .forward = 300 + 71 * (i % 5),
        .backward_input = 300 + 53 * (i % 7),
        .backward_weight = 200 + 97 * (i % 4),
        .activation = 10};
  };
  for (std::string const policy : {"greedy_auto", "v_half", "v_min", "interleaved_zb"}) {
    CAPTURE(policy);
    auto const placement =
        policy == "interleaved_zb" ? placement::looped(6, 2) : placement::v_shape(6);
    std::vector<stage_costs> stages;
    for (int s = 0; s < placement.stages(); ++s) stages.push_back(costs(s));
    auto const asked = json::write_problem({placement, 24, stages, 70, {50}});
    auto const order = [&](double seconds, std::uint64_t seed) {
      auto const found = ask([&](char** out) {
        return zbpp_plan(text_of(asked), text_of(policy), seconds, seed, nullptr, out);
      });
      REQUIRE(found.status == ZBPP_OK);
      return json::read_plan(found.text).schedule;
    };
    CHECK(order(0.002, 3) == order(0.002, 3));
    CHECK(order(0.002, 3) != order(0.05, 3));
    CHECK(order(0.2, 3) != order(0.2, 4));
  }
}

TEST_CASE("the C interface stops a search that runs, with the best so far") {
  // With so little memory the bound is not met, so this search would take days.
  auto const asked = on(placement::linear(4));
  auto const problem = json::write_problem(
      {asked.placement(), asked.microbatches(), asked.costs(0), asked.transfer(), {30}});
  auto* const search = zbpp_search_new();
  answer found;
  {
    std::jthread const planner([&] {
      found = ask([&](char** out) {
        return zbpp_plan(text_of(problem), text_of("greedy_auto"), 1e6, 3, search, out);
      });
    });
    zbpp_progress now{};
    while (now.spent == 0) {
      std::this_thread::yield();
      zbpp_search_progress(search, &now);
    }
    CHECK(now.cost > now.lower_bound);
    zbpp_search_stop(search);
  }
  CHECK(found.status == ZBPP_OK);
  zbpp_search_free(search);
  zbpp_search_free(nullptr);
}

}  // namespace test_c_interface
