// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/lower.hpp>
#include <zbpp/io/file.hpp>
#include <zbpp/json/json.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/catch.hpp>
#include <support/policy_grid.hpp>
#include <support/random_pairs.hpp>
#include <support/random_problem.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace test_json_plan {

using namespace zbpp;
using json::check_claims;
using json::make_plan_report;
using json::plan_report;
using json::read_plan;
using json::write_plan;

namespace {

problem two_ranks(std::vector<bytes> limits = {}) {
  stage_costs const costs{
      .forward = 10'000,
      .backward_input = 20'000,
      .backward_weight = 30'000,
      .activation = 10,
      .weight_gradient_input = 4,
      .edge = 1};
  return {placement::linear(2), 2, costs, 1000, std::move(limits)};
}

plan_report zb_h1_plan() {
  return make_plan_report("ZB-H1", zb_h1{}(two_ranks()), two_ranks(), 0.004);
}

// A text of `from` in which `old_text`, which stands there once, is replaced.
std::string edited(std::string from, std::string const& old_text, std::string const& by) {
  auto const at = from.find(old_text);
  REQUIRE(at != std::string::npos);
  REQUIRE(from.find(old_text, at + 1) == std::string::npos);
  return from.replace(at, old_text.size(), by);
}

std::string refusal(std::string const& text) {
  return test::refusal(errc::bad_format, [&] { static_cast<void>(read_plan(text)); });
}

std::vector<std::string> faults_after(std::function<void(plan_report&)> const& change) {
  auto plan = zb_h1_plan();
  change(plan);
  return check_claims(plan);
}

}  // namespace

TEST_CASE("a plan file says what the format says", "[json]") {
  auto const text = read_file(std::filesystem::path(ZBPP_TEST_DATA_DIR) / "plan.json");
  auto unit = time_unit::seconds;
  auto const plan = read_plan(text, "plan.json", &unit);
  CHECK(unit == time_unit::microseconds);
  CHECK(plan == zb_h1_plan());
  CHECK(write_plan(plan, unit) == text);
  CHECK(check_claims(plan).empty());
}

TEST_CASE(
    "plans of all policies read back to the same value, and all they say holds", "[json][long]") {
  test::for_each_schedule(
      test::thinned<std::vector<int>>({1, 2, 3, 5}, {1, 3}),
      [](any_policy const& policy, problem const& problem, schedule const& order) {
        if (problem.microbatches() > test::thinned(6, 3)) return;
        INFO(test::name_of(policy, problem));
        for (auto const& variant : {order, fuse_backward(order), test::with_recompute(order)}) {
          auto const plan = make_plan_report(std::string(policy.title()), variant, problem, 0.25);
          CHECK(check_claims(plan).empty());
          for (auto unit : {time_unit::nanoseconds, time_unit::milliseconds, time_unit::seconds})
            CHECK(read_plan(write_plan(plan, unit)) == plan);
        }
      });
}

TEST_CASE("plans with pairs read back to the same value, and all they say holds", "[json][long]") {
  std::ptrdiff_t pairs = 0;
  auto const ranks = test::thinned<std::vector<int>>({2, 3}, {2});
  test::for_each_schedule(ranks, [&](any_policy const& policy, problem const& plain, auto order) {
    if (plain.microbatches() > 4) return;
    INFO(test::name_of(policy, plain));
    ZBPP_SEEDED(values, plain.microbatches());
    auto const problem = test::with_overlapped(plain, values);
    auto const paired = test::pair_at_random(order, problem, values);
    pairs += test::pairs_in(paired);
    auto const plan = make_plan_report(std::string(policy.title()), paired, problem, 0.25);
    CHECK(check_claims(plan).empty());
    CHECK(read_plan(write_plan(plan, time_unit::milliseconds)) == plan);
  });
  CHECK(pairs > 0);
}

TEST_CASE("plans that say anything at all read back to the same value", "[json]") {
  for (int trial = 0; trial < test::thinned(200, 50); ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const order = test::random_schedule(values);
    auto const line = test::random_timeline(values, order, 1'000'000'000'000);
    problem const problem(order.placement(), order.microbatches(), test::random_costs(values));
    std::vector<bytes> peaks(static_cast<std::size_t>(order.ranks()));
    for (auto& peak : peaks) peak = test::random_magnitude(values, 18);
    plan_report const plan{
        "a \"title\"\n\t\\ \xC3\xA9 \x01",
        problem,
        order,
        line,
        test::random_magnitude(values, 18),
        test::random_magnitude(values, 18),
        std::numeric_limits<ticks>::max(),
        values.chance(0.5),
        values.real(),
        values.real(0, 1e6),
        peaks};
    auto const text = write_plan(plan, time_unit::milliseconds);
    CAPTURE(text);
    CHECK(read_plan(text) == plan);
  }
}

TEST_CASE("a plan may say which layers its stages have", "[json]") {
  auto plan = zb_h1_plan();
  auto const text = write_plan(plan);
  CHECK(text.find("first_layer") == std::string::npos);
  plan.first_layer = {0, 3};
  auto const with_layers = write_plan(plan);
  CHECK(
      with_layers == edited(text, "  \"ranks\": [", "  \"first_layer\": [0, 3],\n  \"ranks\": ["));
  CHECK(read_plan(with_layers) == plan);
  CHECK(check_claims(plan).empty());
  for (std::string const bad : {"[0]", "[0, 0]", "[1, 2]", "[0, 2, 3]", "[]", "3", "null", "{}"})
    CHECK(refusal(edited(with_layers, "[0, 3]", bad)).starts_with("plan: first_layer: found "));
  CHECK(
      refusal(edited(with_layers, "[0, 3]", "[0, 4096]")) ==
      "plan: first_layer[1]: found 4096; expected a whole number from 0 to 4095");
  for (std::vector<int> const& bad :
       std::vector<std::vector<int>>{{0}, {0, 0}, {1, 2}, {0, 4096}}) {
    plan.first_layer = bad;
    CHECK(test::refusal([&] {
            static_cast<void>(write_plan(plan));
          }) == "first_layer has an entry for each stage, begins with 0 and ascends, or is empty");
  }
}

TEST_CASE("the plan of layers that are cut has their stages, and where these begin", "[json]") {
  layer_costs const layer{
      .forward = 10, .backward_input = 20, .backward_weight = 30, .recompute = 5, .activation = 8};
  problem const model(std::vector<layer_costs>(5, layer), {.ranks = 2, .microbatches = 3});
  auto const cut = with_cut(model, {0, 2}, {true, false});
  auto const plan = make_plan_report("cut", zb_h1{}(cut), cut);
  CHECK(plan.first_layer == std::vector{0, 2});
  CHECK(plan.problem == with_stages(cut, {cut.all_costs().begin(), cut.all_costs().end()}));
  CHECK(read_plan(write_plan(plan)) == plan);
  CHECK(check_claims(plan).empty());
}

TEST_CASE("a plan that needs more than a rank has is refused with what would do", "[json]") {
  auto const check = [](std::vector<bytes> limits) {
    auto const problem = two_ranks(std::move(limits));
    check_limits(make_plan_report("GPipe", gpipe{}(problem), problem));
  };
  auto const peaks = make_plan_report("GPipe", gpipe{}(two_ranks()), two_ranks()).peak_memory;
  CHECK_NOTHROW(check({}));
  CHECK_NOTHROW(check(peaks));
  auto const most = std::max(peaks[0], peaks[1]);
  CHECK(
      test::refusal(
          errc::unsupported_problem,
          [&] {
            check({most, peaks[1] - 1});
          }) == "rank 1: GPipe needs " + std::to_string(peaks[1]) + ", its limit is " +
                    std::to_string(peaks[1] - 1) +
                    "; the least limit that works for it on every rank is " + std::to_string(most));
}

TEST_CASE("digits of a title are no number", "[json]") {
  auto plan = zb_h1_plan();
  plan.policy = "\"" + std::string(2000, '1') + "\\\"" + std::string(2000, '2') + "\\";
  CHECK(read_plan(write_plan(plan)) == plan);
}

TEST_CASE("each false claim is one fault", "[json]") {
  using faults = std::vector<std::string>;
  CHECK(faults_after([](plan_report&) {}).empty());
  CHECK(faults_after([](plan_report& p) {
          ++p.cost;
        }) == faults{"cost: the file says 0.142001 ms; expected 0.142 ms"});
  CHECK(faults_after([](plan_report& p) {
          --p.period;
        }) == faults{"period: the file says 0.141999 ms; expected 0.142 ms"});
  CHECK(faults_after([](plan_report& p) { p.bubble_rate = 0; })
            .front()
            .starts_with("bubble_rate: the file says 0; expected 0.15492957"));
  CHECK(faults_after([](plan_report& p) {
          --p.peak_memory[1];
        }) == faults{"rank 1: peak_memory: the file says 15; expected 16"});
  CHECK(
      faults_after([](plan_report& p) { p.timeline[1][2].start -= 1; }) ==
      faults{"rank 1, position 2: 1F1: the file says 0.040999 ms to 0.051 ms; expected 0.041 ms to "
             "0.051 ms"});
  CHECK(faults_after([](plan_report& p) {
          for (auto& timed : p.timeline[0]) timed.end += 1;
          ++p.timeline[1][0].end;
        }).size() == 2);
  CHECK(faults_after([](plan_report& p) { p.bubble_rate += 5e-5; }).empty());
  CHECK(faults_after([](plan_report& p) { p.plan_seconds = 99; }).empty());
}

TEST_CASE("a bound is believed only as far as it is proved", "[json]") {
  auto const bound = zb_h1_plan().lower_bound;
  REQUIRE(bound == raise_bound(lower_bound(two_ranks()), zb_h1_plan().cost, two_ranks()).cost);
  CHECK(faults_after([](plan_report& p) { p.lower_bound = 0; }).empty());
  CHECK(faults_after([](plan_report& p) { ++p.lower_bound; }).size() == 1);

  auto plan = make_plan_report("GPipe", gpipe{}(two_ranks()), two_ranks());
  REQUIRE(plan.cost > bound);
  CHECK(!plan.optimal);
  plan.optimal = true;
  auto const faults = check_claims(plan);
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].starts_with("optimal: the file says true; expected false: the cost is "));
  plan.lower_bound = plan.cost;
  CHECK(check_claims(plan).size() == 2);
}

TEST_CASE("an order that could not run is told as verify tells it", "[json]") {
  auto changed = [](std::function<void(std::vector<pass>&)> const& change) {
    auto plan = zb_h1_plan();
    auto passes = plan.schedule.passes().nested();
    change(passes[0]);
    plan.schedule = {plan.problem.placement(), plan.problem.microbatches(), passes};
    rows<timed_pass> line;
    for (auto const& row : passes) {
      for (auto const& p : row) line.push({p, 0, 0});
      line.end_row();
    }
    plan.timeline = line;
    return check_claims(read_plan(write_plan(plan)));
  };
  auto const missing = changed([](std::vector<pass>& row) { row.pop_back(); });
  REQUIRE(missing.size() == 1);
  CHECK(missing[0].starts_with("missing at rank 0"));
  auto const stuck = changed([](std::vector<pass>& row) { std::swap(row[0], row[2]); });
  REQUIRE(!stuck.empty());
  CHECK(stuck[0].starts_with("dependence at rank 0"));
  auto const twice = changed([](std::vector<pass>& row) { row.push_back(row[0]); });
  REQUIRE(!twice.empty());
  CHECK(twice[0].starts_with("repeated at rank 0"));
}

TEST_CASE("a memory limit that is passed is a fault", "[json]") {
  auto const peaks = zb_h1_plan().peak_memory;
  auto const enough = two_ranks(peaks);
  CHECK(check_claims(make_plan_report("", zb_h1{}(enough), enough)).empty());
  auto const little = two_ranks({peaks[0] - 1, peaks[1]});
  auto const faults = check_claims(make_plan_report("", zb_h1{}(little), little));
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].starts_with("memory at rank 0"));
}

TEST_CASE("every malformed plan is refused at its key", "[json]") {
  auto const text = write_plan(zb_h1_plan(), time_unit::microseconds);
  REQUIRE(refusal(text) == "<nothing was refused>");
  struct fault {
    std::string text;
    std::string by;
    std::string message;
  };
  std::string const first = R"({"pass": "F", "stage": 0, "microbatch": 0, "start": 0, "end": 10})";
  auto pass = [](std::string const& kind, std::string const& rest) {
    return R"({"pass": ")" + kind + "\", " + rest + "}";
  };
  std::string const path = "ranks[0].passes[0]";
  std::vector<fault> const faults{
      {R"("policy": "ZB-H1")", R"("policy": 1)", "policy: found 1; expected the title of a policy"},
      {R"("policy": "ZB-H1",)", "", "found no key 'policy'; expected policy, problem, cost"},
      {R"("cost")", R"("costs")", "costs: found a key that is unknown here; expected policy"},
      {R"("cost": 142)", R"("cost": -142)", "cost: found -142; expected a time from 0"},
      {R"("optimal": true)",
       R"("optimal": "true")",
       "optimal: found 'true'; expected true or false"},
      {R"("plan_seconds": 0.004)", R"("plan_seconds": -1)", "plan_seconds: found -1; expected"},
      {R"("bubble_rate": 0.15)", R"("bubble_rate": 1.15)", "bubble_rate: found 1.15"},
      {R"("microbatches": 2)", R"("microbatches": 0)", "problem.microbatches: found 0; expected a"},
      {R"("microbatches": 2)",
       R"("microbatches": 99)",
       "ranks: found 12 passes; expected at least 198, one for each stage and microbatch"},
      {R"("forward": 10)", R"("forward": "x")", "problem.stages[0].forward: found 'x'; expected a"},
      {R"("ranks": [)", R"("ranks": [{}, )", "ranks: found an array of 3; expected an array of 2"},
      {first, "1", path + ": found 1; expected an object"},
      {first, "{}", path + ": found no key 'pass'"},
      {first,
       pass("G", R"("stage": 0, "microbatch": 0, "start": 0, "end": 1)"),
       path + ".pass: found 'G'; expected 'F', 'B', 'W', 'BW' or 'R'"},
      {first,
       pass("offload", R"("stage": 0, "microbatch": 0, "start": 0, "end": 1)"),
       path + ".pass: found 'offload'; expected nothing of it: moving activations to host memory"},
      {first,
       pass("F", R"("stage": 2, "microbatch": 0, "start": 0, "end": 1)"),
       path + ".stage: found 2; expected a whole number from 0 to 1"},
      {first,
       pass("F", R"("stage": 1, "microbatch": 0, "start": 0, "end": 1)"),
       "ranks: rank 0, position 0: 1F0: the stage belongs to rank 1"},
      {first,
       pass("F", R"("stage": 0, "microbatch": -1, "start": 0, "end": 1)"),
       path + ".microbatch: found -1; expected a whole number from 0 to 1"},
      {first,
       pass("F", R"("stage": 0, "microbatch": 0, "start": -1, "end": 1)"),
       path + ".start: found -1; expected a time from 0"},
      {first,
       pass("F", R"("stage": 0, "microbatch": 0, "start": 0, "end": 1, "paired": 1)"),
       path + ".paired: found 1; expected true or false"},
      {first,
       pass("F", R"("stage": 0, "microbatch": 0, "start": 0, "end": 1, "paired": true)"),
       "ranks: rank 0, position 0: 0F0: it is paired; pair a B or BW with an F of another"},
      {R"("peak_memory": 16)", R"("peak_memory": 16.5)", ".peak_memory: found 16.5; expected a"},
  };
  for (auto const& [from, by, message] : faults) {
    CAPTURE(by);
    auto const found = refusal(edited(text, from, by));
    CAPTURE(found, message);
    CHECK(found.find(message) != std::string::npos);
  }
}

TEST_CASE("what could not be read is not written", "[json]") {
  auto refused = [](std::function<void(plan_report&)> const& change) {
    auto plan = zb_h1_plan();
    change(plan);
    return test::refusal([&] { static_cast<void>(write_plan(plan)); });
  };
  CHECK(
      refused([](plan_report& p) { p.policy = "\xFF"; }) == "the title of the policy is not UTF-8");
  CHECK(refused([](plan_report& p) {
          p.bubble_rate = std::numeric_limits<double>::quiet_NaN();
        }) == "bubble_rate lies between 0 and 1");
  CHECK(refused([](plan_report& p) {
          p.plan_seconds = std::numeric_limits<double>::infinity();
        }) == "plan_seconds is a number of at least 0");
  CHECK(refused([](plan_report& p) {
          p.cost = -1;
        }) == "cost, period and lower_bound are at least 0");
  CHECK(refused([](plan_report& p) {
          p.peak_memory.pop_back();
        }) == "peak_memory needs one number for each rank");
  CHECK(refused([](plan_report& p) { p.peak_memory[0] = -1; }) == "peak_memory is at least 0");
  CHECK(refused([](plan_report& p) { p.timeline[0][0].start = -1; }) == "times are at least 0");
  CHECK(refused([](plan_report& p) {
          p.timeline[0][0].pass.microbatch = 1;
        }) == "the timeline has the passes of the order");
  CHECK(refused([](plan_report& p) { p.timeline = {}; }) == "the timeline has a row for each rank");
  CHECK(refused([](plan_report& p) {
          p.problem = {placement::linear(2), 3, stage_costs{}};
        }) == "made for another placement or another number of microbatches than the problem's");
}

}  // namespace test_json_plan
