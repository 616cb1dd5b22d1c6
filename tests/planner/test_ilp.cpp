// SPDX-License-Identifier: Apache-2.0
//
// Asks COIN CBC, which knows nothing of pipelines, what the optimum is. Built where it is there.
#include <support/ilp.hpp>
// What the checks need besides.
#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/period.hpp>

#include <support/catch.hpp>
#include <support/every_order.hpp>
#include <support/exhaustive.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/tiny_problem.hpp>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace test_ilp {

using zbpp::mean_ticks;
using zbpp::placement;
using zbpp::problem;
using zbpp::stage_costs;
using zbpp::test::ilp;
using zbpp::test::optimal_cost;
using zbpp::test::tiny_problem;

namespace {

struct answer {
  std::string status;  // "Optimal", "Infeasible", or else it was stopped
  double objective = 0;
};

// At most 20 seconds. `name` keeps the files of tests apart that run at the same time.
answer ask_cbc(problem const& problem, std::string const& name) {
  auto const path = std::string(ZBPP_SCRATCH_DIR "/") + name;
  {
    std::ofstream text(path + ".lp");
    text << ilp(problem).text();
  }
  std::ofstream(path + ".solution").close();
  auto const command = "\"" ZBPP_CBC "\" \"" + path + ".lp\" sec 20 solve solution \"" + path +
                       ".solution\" > \"" + path + ".log\"";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("cbc failed: " + command);
  std::ifstream solution(path + ".solution");
  std::string line;
  if (!std::getline(solution, line)) throw std::runtime_error("no answer in " + path + ".log");
  std::string const before = "objective value ";
  auto const at = line.find(before);
  if (at == std::string::npos) throw std::runtime_error("no objective value: " + line);
  return {line.substr(0, line.find(' ')), std::stod(line.substr(at + before.size()))};
}

std::optional<mean_ticks> least_period(problem const& problem) {
  return zbpp::test::least_of_orders(problem, true, [&](zbpp::schedule const& order) {
    return zbpp::period(order, problem).period;
  });
}

bool is_equal(double objective, mean_ticks const& mean) {
  auto const exact = static_cast<double>(mean.whole) +
                     static_cast<double>(mean.part) / static_cast<double>(mean.of);
  return std::abs(objective - exact) < 1e-4;
}

}  // namespace

TEST_CASE("the optimum of the integer program is the least period of all orders", "[ilp]") {
  int solved = 0;
  for (int trial = 0; trial < 24; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = trial % 2 == 0 ? 2 : 3;
    auto const problem = tiny_problem(random, placement::linear(p), p == 2 ? 3 : 2);
    auto const found = ask_cbc(problem, "small");
    auto const least = least_period(problem);
    REQUIRE(least);
    INFO(found.status << " " << found.objective);
    if (found.status == "Optimal") {
      CHECK(is_equal(found.objective, *least));
      ++solved;
    }
  }
  CHECK(solved > 20);
}

TEST_CASE("the least cost lies above the integer program and the lower bound", "[ilp]") {
  int solved = 0;
  int equal = 0;
  for (int trial = 0; trial < 16; ++trial) {
    ZBPP_SEEDED(random, 100 + trial);
    auto const problem = tiny_problem(random, placement::linear(3), 4 + trial / 6);
    auto const found = ask_cbc(problem, "between");
    auto const least = optimal_cost(problem);
    REQUIRE(least);
    INFO(found.status << " " << found.objective);
    CHECK(zbpp::lower_bound(problem).cost <= *least);
    if (found.status != "Optimal") continue;
    ++solved;
    CHECK(found.objective < static_cast<double>(*least) + 1e-4);
    equal += is_equal(found.objective, mean_ticks{*least}) ? 1 : 0;
  }
  CHECK(solved > 8);
  CHECK(equal > solved / 2);
}

// Beginning late makes the span of a rank shorter here. `simulate` begins as soon as it can.
TEST_CASE("waiting may make the integer program cheaper than any simulated order", "[ilp]") {
  problem const two(
      placement::linear(2),
      2,
      std::vector<stage_costs>{
          {.forward = 11, .backward_input = 11, .backward_weight = 0},
          {.forward = 2, .backward_input = 5, .backward_weight = 18}});
  CHECK(optimal_cost(two) == 54);
  CHECK(least_period(two) == mean_ticks{50});
  CHECK(is_equal(ask_cbc(two, "waiting").objective, {50}));
  problem const three(
      placement::linear(3),
      2,
      std::vector<stage_costs>{
          {.forward = 16, .backward_input = 8, .backward_weight = 7},
          {.forward = 7, .backward_input = 14, .backward_weight = 19},
          {.forward = 7, .backward_input = 4, .backward_weight = 18}},
      3);
  CHECK(optimal_cost(three) == 92);
  CHECK(least_period(three) == mean_ticks{91});
  CHECK(is_equal(ask_cbc(three, "waiting").objective, {91}));

  // The lower bound is about orders that do not wait, so it can be above what waiting reaches.
  problem const slow_first(
      placement::linear(3),
      2,
      std::vector<stage_costs>{
          {.forward = 9, .backward_input = 1, .backward_weight = 1},
          {.forward = 3, .backward_input = 3, .backward_weight = 15},
          {.forward = 3, .backward_input = 3, .backward_weight = 5}});
  CHECK(optimal_cost(slow_first) == 48);
  CHECK(zbpp::lower_bound(slow_first).cost == 48);
  CHECK(least_period(slow_first) == mean_ticks{45});
  CHECK(is_equal(ask_cbc(slow_first, "waiting").objective, {45}));
}

TEST_CASE("the integer program knows the memory limit", "[ilp]") {
  stage_costs const costs{
      .forward = 5,
      .backward_input = 4,
      .backward_weight = 3,
      .activation = 10,
      .weight_gradient_input = 6,
      .static_memory = 7};
  auto const with = [&](zbpp::bytes limit) {
    return problem(placement::linear(2), 3, costs, 1, {limit});
  };
  double before = 1e9;
  for (zbpp::bytes limit : {17, 22, 23, 26, 27, 37, 47}) {
    auto const found = ask_cbc(with(limit), "memory");
    INFO(limit << " bytes: " << found.objective);
    CHECK(found.status == "Optimal");
    CHECK(is_equal(found.objective, least_period(with(limit)).value()));
    CHECK(found.objective <= before);
    before = found.objective;
  }
  CHECK(ask_cbc(with(17), "memory").objective > before);
  CHECK(ask_cbc(with(16), "memory").status == "Infeasible");
  CHECK(optimal_cost(with(16)) == std::nullopt);
}

TEST_CASE("the integer program is for one chunk per rank", "[ilp]") {
  CHECK(zbpp::test::refusal([] {
          ilp(problem(placement::v_shape(2), 1, stage_costs{}));
        }) == "the program is for one chunk per rank");
}

}  // namespace test_ilp
