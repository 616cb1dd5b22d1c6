// SPDX-License-Identifier: Apache-2.0
#include "round_trip.hpp"
#include <zbpp/json/layers.hpp>

using namespace zbpp;

int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  if (size > test::most_fuzzed_bytes) return 0;
  auto unit = time_unit::milliseconds;
  auto const model = test::read_or_refuse(
      [&] { return json::read_layers(test::text_of(data, size), "fuzzed", &unit); });
  auto const any =
      test::read_or_refuse([&] { return json::read_stages_or_layers(test::text_of(data, size)); });
  if (model && !any) std::abort();
  // A few bytes name thousands of ranks; one is like another, and writing them takes long.
  if (!model || model->stages() > 256) return 0;
  for (auto to : {unit, time_unit::seconds})
    test::demand_round_trip(
        *model,
        [](std::string const& text) { return json::read_layers(text); },
        [to](layered_problem const& m) { return json::write_layers(m, to); });
  return 0;
}
