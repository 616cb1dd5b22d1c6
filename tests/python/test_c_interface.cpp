// SPDX-License-Identifier: Apache-2.0
//
// The C interface: its answers are those of the library, a refusal is a status and a line, and
// every text is given back, which AddressSanitizer looks at.
#include "../../python/zbpp_c.h"
#include <zbpp/io/csv.hpp>
#include <zbpp/io/svg.hpp>
#include <zbpp/json/json.hpp>
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/registry.hpp>

#include <support/catch.hpp>

#include <cstddef>
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

problem on(placement placement) {
  stage_costs const costs{
      .forward = 10'000'000,
      .backward_input = 9'000'001,
      .backward_weight = 8'000'000,
      .activation = 10,
      .weight_gradient_input = 4};
  return {std::move(placement), 8, costs, 500'000};
}

// One plan or several, without the time that planning took.
std::string without_seconds(std::string text) {
  std::string_view const key = "\"plan_seconds\": ";
  for (auto at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
    auto const begin = at + key.size();
    text.replace(begin, text.find(',', begin) - begin, "0");
  }
  return text;
}

}  // namespace

TEST_CASE("the C interface plans as the library does", "[long]") {
  search_settings const search{.seconds = 0.01};
  for (auto const& placement :
       {placement::linear(4), placement::v_shape(4), placement::looped(4, 2)})
    for (auto const& policy : builtin_policies()) {
      auto const asked = on(placement);
      auto const found = plan_with(json::write_problem(asked), policy.name());
      CAPTURE(placement.name(), policy.name(), found.text);
      try {
        auto const right =
            json::make_plan_report(std::string(policy.title()), policy(asked, search), asked);
        REQUIRE(found.status == ZBPP_OK);
        CHECK(without_seconds(found.text) == json::write_plan(right));
      } catch (error const& refused) {
        CHECK(found == answer{ZBPP_UNSUPPORTED_PROBLEM, refused.what()});
      }
    }
}

TEST_CASE("the C interface finds the plans that the library finds") {
  layer_costs const block{
      .forward = 3000,
      .backward_input = 4000,
      .backward_weight = 2000,
      .recompute = 3000,
      .activation = 10,
      .weight_gradient_input = 4};
  std::vector<layer_costs> layers(9, block);
  layers.back().forward *= 3;
  problem const model(
      layers, {.ranks = 2, .microbatches = 4, .transfer = 500, .memory_limits = {400}});
  auto const text = json::write_problem(model, time_unit::microseconds);
  CHECK(ask([&](char** out) {
          return zbpp_read_problem(text_of(text), out);
        }) == answer{ZBPP_OK, text});
  auto const report = [](found_plan found, std::string_view title) {
    return json::make_plan_report(
        std::string(title), std::move(found.schedule), std::move(found.problem));
  };
  auto const check = [&](problem const& of, std::string_view said, plan_choices const& choices) {
    CAPTURE(said);
    auto const asked = json::write_problem(of, time_unit::microseconds);
    auto const found = ask(
        [&](char** out) { return zbpp_find_plan(text_of(asked), text_of(said), nullptr, out); });
    REQUIRE(found.status == ZBPP_OK);
    auto const title = choices.policy ? choices.policy->title() : "find_plan";
    CHECK(
        without_seconds(found.text) ==
        json::write_plan(report(find_plan(of, choices), title), time_unit::microseconds));
    CHECK(json::check_claims(json::read_plan(found.text)).empty());
  };
  check(model, R"({"seconds": 0.01, "most_chunks": 2})", {.most_chunks = 2, .seconds = 0.01});
  check(on(placement::linear(4)), R"({"seconds": 0.01, "seed": 5})", {.seconds = 0.01, .seed = 5});
  check(
      model,
      R"({"placement": "v", "seconds": 0.01, "most_memory_for": 0.5})",
      {.placement = placement::v_shape(2), .most_memory_for = 0.5, .seconds = 0.01});
  check(
      model,
      R"({"policy": "1F1B-I", "placement": "looped", "chunks": 3, "most_cuts": 5})",
      {.placement = placement::looped(2, 3), .policy = interleaved{}, .most_cuts = 5});
  check(
      model,
      R"({"placement": [1, 0], "first_layer": [0, 4], "recompute": [true, false],
          "policy": "greedy_auto", "seconds": 0.01})",
      {.placement = placement::custom({1, 0}),
       .first_layer = {0, 4},
       .recompute = {true, false},
       .policy = greedy_auto{},
       .seconds = 0.01});

  std::vector<bytes> const limits{400, 10, 300};
  auto const several = ask([&](char** out) {
    return zbpp_find_plans(
        text_of(text),
        limits.data(),
        limits.size(),
        text_of(R"({"placement": "linear", "policy": "zb_h1"})"),
        nullptr,
        out);
  });
  REQUIRE(several.status == ZBPP_OK);
  auto const found =
      find_plans(model, limits, {.placement = placement::linear(2), .policy = zb_h1{}});
  REQUIRE(found.size() == 2);
  auto const right = [&](std::size_t i) {
    return json::write_plan(report(found[i], zb_h1::title), time_unit::microseconds);
  };
  CHECK(without_seconds(several.text) == "[" + right(0) + ", " + right(1) + "]");
}

TEST_CASE("the C interface refuses choices in one line") {
  auto const model = json::write_problem(on(placement::linear(2)));
  auto const refusal = [&](std::string_view choices) {
    return ask(
        [&](char** out) { return zbpp_find_plan(text_of(model), text_of(choices), nullptr, out); });
  };
  auto const format = [](std::string const& line) {
    return answer{ZBPP_BAD_FORMAT, "choices: " + line};
  };
  CHECK(refusal("[]") == format("found an array of 0; expected an object"));
  CHECK(refusal("{").status == ZBPP_BAD_FORMAT);
  CHECK(
      refusal(R"({"stage_per_layer": true})")
          .text.find("a key that is unknown here; expected placement, chunks,") !=
      std::string::npos);
  CHECK(
      refusal(R"({"chunks": 2})") ==
      format("chunks: found 2; expected 'placement' beside 'chunks'"));
  CHECK(
      refusal(R"({"seed": -1})") ==
      format("seed: found -1; expected a whole number from 0 to 2^64 - 1"));
  CHECK(
      refusal(R"({"policy": "none"})").text.starts_with("no policy is called 'none'; there are "));
  CHECK(refusal(R"({"placement": "linear", "policy": "zb_v"})").status == ZBPP_UNSUPPORTED_PROBLEM);
  // Stages are not cut.
  CHECK(refusal(R"({"placement": "linear", "first_layer": [0, 1]})").status == ZBPP_BAD_ARGUMENT);
  bytes const negative = -1;
  CHECK(ask([&](char** out) {
          return zbpp_find_plans(text_of(model), &negative, 1, {}, nullptr, out);
        }).status == ZBPP_BAD_ARGUMENT);
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
