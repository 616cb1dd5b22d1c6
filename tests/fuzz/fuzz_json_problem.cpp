// SPDX-License-Identifier: Apache-2.0
#include "round_trip.hpp"
#include <zbpp/json/problem.hpp>

using namespace zbpp;

int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  if (size > test::most_fuzzed_bytes) return 0;
  auto unit = time_unit::milliseconds;
  auto const read = test::read_or_refuse(
      [&] { return json::read_problem(test::text_of(data, size), "fuzzed", &unit); });
  // A few bytes name thousands of stages; one is like another, and writing them takes long.
  if (!read || read->stages() > 256) return 0;
  for (auto to : {unit, time_unit::seconds})
    test::demand_round_trip(
        *read,
        [](std::string const& text) { return json::read_problem(text); },
        [to](problem const& p) { return json::write_problem(p, to); });
  return 0;
}
