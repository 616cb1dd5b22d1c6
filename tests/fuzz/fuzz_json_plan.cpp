// SPDX-License-Identifier: Apache-2.0
#include "round_trip.hpp"
#include <zbpp/json/json.hpp>

using namespace zbpp;

int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  if (size > test::most_fuzzed_bytes) return 0;
  auto unit = time_unit::milliseconds;
  auto const plan = test::read_or_refuse(
      [&] { return json::read_plan(test::text_of(data, size), "fuzzed", &unit); });
  if (!plan) return 0;
  for (auto to : {unit, time_unit::seconds})
    test::demand_round_trip(
        *plan,
        [](std::string const& text) { return json::read_plan(text); },
        [to](json::plan_report const& p) { return json::write_plan(p, to); });
  static_cast<void>(json::check_claims(*plan));
  return 0;
}
