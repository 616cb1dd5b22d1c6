// SPDX-License-Identifier: Apache-2.0
#include <zbpp/model/costs.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>
#include <support/settings_fields.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace test_costs {

using namespace zbpp;
using zbpp::test::refusal;

namespace {

constexpr auto most = std::numeric_limits<std::int64_t>::max();

std::string refused(stage_costs const& costs) {
  return refusal([&] { costs.check(3); });
}

}  // namespace

TEST_CASE("milliseconds are rounded to the nearest tick", "[costs]") {
  CHECK(zbpp::from_milliseconds(18.522) == 18'522'000);
  CHECK(zbpp::from_milliseconds(0) == 0);
  CHECK(zbpp::from_milliseconds(0.0000006) == 1);
  CHECK(zbpp::from_milliseconds(0.0000004) == 0);
  CHECK(zbpp::from_milliseconds(1e12) == 1'000'000'000'000'000'000);
  CHECK(zbpp::to_milliseconds(18'522'000) == 18.522);
}

TEST_CASE("a time that is no time is refused", "[costs]") {
  auto const refused_time = [](double time) {
    return refusal([&] { (void)zbpp::from_milliseconds(time); });
  };
  CHECK(refused_time(-1) == "a time of -1.000000 ms; times go from 0 to 10^12 ms");
  CHECK(refused_time(2e12) == "a time of 2000000000000.000000 ms; times go from 0 to 10^12 ms");
  CHECK(
      refused_time(std::numeric_limits<double>::quiet_NaN()).find("times go from 0") !=
      std::string::npos);
  CHECK(
      refused_time(std::numeric_limits<double>::infinity()).find("times go from 0") !=
      std::string::npos);
}

TEST_CASE("each kind of pass has its own time", "[costs]") {
  stage_costs costs{.forward = 1, .backward_input = 2, .backward_weight = 4, .recompute = 8};
  CHECK(costs.of(pass_kind::forward) == 1);
  CHECK(costs.of(pass_kind::backward_input) == 2);
  CHECK(costs.of(pass_kind::backward_weight) == 4);
  CHECK(costs.of(pass_kind::backward) == 6);
  CHECK(costs.of(pass_kind::recompute) == 8);
  costs.backward_fused = 5;
  CHECK(costs.of(pass_kind::backward) == 5);
}

TEST_CASE("the table of costs has each once, and reads what it sets", "[costs]") {
  CHECK(detail::cost_fields.size() == test::count_of_fields<stage_costs>());
  stage_costs all;
  for (auto const& field : detail::cost_fields) {
    CHECK(field.of(all).value_or(0) == 0);  // no other field has set it
    CHECK(field.of(all).has_value() == (field.number != nullptr));
    CHECK((field.number != nullptr) != (field.optional != nullptr));
    field.set(all, 7);
    CHECK(field.of(all) == 7);
  }
}

TEST_CASE("a negative cost is refused by its name", "[costs]") {
  CHECK(refused({}) == "<nothing was refused>");
  for (auto const& field : detail::cost_fields) {
    stage_costs costs;
    field.set(costs, -2);
    bool const is_joint = field.kind == detail::cost_kind::joint;  // lies between two others
    CHECK(refused(costs).starts_with(
        "stage 3: " + std::string(field.name) + (is_joint ? " must lie " : " is -2; at least 0")));
  }
  CHECK(refused({.static_memory = -1}) == "stage 3: static_memory is -1; at least 0");
}

TEST_CASE("costs that contradict each other are refused", "[costs]") {
  CHECK(
      refused({.activation = 5, .weight_gradient_input = 6}) ==
      "stage 3: weight_gradient_input is more than activation; state all that B adds for W as "
      "output_gradient");
  CHECK(
      refused({.activation = 5, .weight_gradient_input = 9, .output_gradient = 3}) ==
      "stage 3: weight_gradient_input is more than activation and output_gradient together; state "
      "all that B adds for W as output_gradient");
  CHECK(
      refused({.activation = 5, .weight_gradient_input = 2, .output_gradient = 3}) ==
      "stage 3: output_gradient is more than weight_gradient_input; W keeps all that B adds for "
      "it, "
      "so count that in weight_gradient_input, too");
  CHECK(
      refused({.activation = 5, .weight_gradient_input = 8, .output_gradient = 3}) ==
      "<nothing was refused>");
  CHECK(
      refused({.weight_gradient_input = most, .output_gradient = most}) == "<nothing was refused>");
  CHECK(
      refused({.activation = 5, .recompute_input = 6}) ==
      "stage 3: recompute_input is more than activation; R adds what F did not keep");
  auto const fused = [](ticks time) {
    return refused({.backward_input = 4, .backward_weight = 3, .backward_fused = time});
  };
  auto const text = "stage 3: backward_fused must lie between max(B, W) and B + W";
  CHECK(fused(3) == text);
  CHECK(fused(4) == "<nothing was refused>");
  CHECK(fused(7) == "<nothing was refused>");
  CHECK(fused(8) == text);
  CHECK(
      refused({.backward_input = most, .backward_weight = most, .backward_fused = most}) ==
      "<nothing was refused>");
}

TEST_CASE("one latency holds for every pair of ranks and not within one", "[costs]") {
  transfer_costs const same(7);
  CHECK(same.ranks() == 0);
  CHECK(same(0, 1, 1000) == 7);
  CHECK(same(5, 2, 0) == 7);
  CHECK(same(3, 3, 1000) == 0);
  CHECK(transfer_costs()(0, 1, 1000) == 0);
}

TEST_CASE("a table gives each directed pair its latency and its rate", "[costs]") {
  transfer_costs const table(2, {0, 10, 20, 0}, {0, 0.5, 2.25, 0});
  CHECK(table.ranks() == 2);
  CHECK(table(0, 1, 100) == 60);
  CHECK(table(1, 0, 100) == 245);
  CHECK(table(1, 0, 1) == 22);
  CHECK(table(1, 1, 100) == 0);
  CHECK(transfer_costs(2, {0, 10, 20, 0})(1, 0, 100) == 20);
}

TEST_CASE("a transfer that lasts longer than a clock can count lasts 2^62 ticks", "[costs]") {
  auto const longest = ticks{1} << 62;
  std::vector<ticks> const latency{0, longest, longest, 0};
  CHECK(transfer_costs(2, latency, {0, 1e9, 1, 0})(0, 1, most) == longest);
  CHECK(transfer_costs(2, latency, {0, 1, 1, 0})(1, 0, longest / 2) == longest);
  CHECK(transfer_costs(2, {0, 1, 1, 0}, {0, 0.5, 1, 0})(0, 1, 100) == 51);
}

TEST_CASE("a table of transfers that cannot be says what to do", "[costs]") {
  CHECK(refusal([] {
          transfer_costs{-1};
        }) == "transfer: a latency of -1 ns; a latency lies between 0 and 2^62 ns");
  CHECK(
      refusal([] { transfer_costs{most}; }) ==
      "transfer: a latency of 9223372036854775807 ns; a latency lies between 0 and 2^62 ns");
  CHECK(refusal([] { transfer_costs(-1, {1}); }) == "transfer: a table for -1 ranks; at least 1");
  CHECK(refusal([] {
          transfer_costs(2, {1, 2, 3});
        }) == "transfer: latency has 3 entries; 2 ranks need 4");
  CHECK(refusal([] {
          transfer_costs(2, {1, 2, 3, 4}, {1});
        }) == "transfer: time_per_byte has 1 entries; 2 ranks need 4");
  CHECK(refusal([] {
          transfer_costs(1, {-5});
        }) == "transfer: a latency of -5 ns; a latency lies between 0 and 2^62 ns");
  auto const rate = [](double value) { return refusal([&] { transfer_costs(1, {0}, {value}); }); };
  CHECK(
      rate(-0.5) == "transfer: -0.500000 ns per byte; a rate lies between 0 and 10^9 ns per byte");
  CHECK(rate(2e9).find("a rate lies between") != std::string::npos);
  CHECK(
      rate(std::numeric_limits<double>::quiet_NaN()).find("a rate lies between") !=
      std::string::npos);
}

}  // namespace test_costs
