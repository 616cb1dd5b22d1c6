// SPDX-License-Identifier: Apache-2.0
#include "round_trip.hpp"
#include <zbpp/io/csv.hpp>

using namespace zbpp;

int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  if (size > test::most_fuzzed_bytes) return 0;
  auto const text = test::text_of(data, size);
  auto const ignored = test::read_or_refuse([&] { return ignored_actions_in_csv(text); });
  for (auto pairs : {csv_pairs::in_turn, csv_pairs::together}) {
    auto const read_schedule = [&](std::string_view from) {
      return schedule_from_csv(from, {}, {}, pairs);
    };
    auto const read_program = [&](std::string_view from) {
      return program_from_csv(from, {}, {}, pairs);
    };
    auto const order = test::read_or_refuse([&] { return read_schedule(text); });
    auto const code = test::read_or_refuse([&] { return read_program(text); });
    for (csv_options options : {csv_options{}, csv_options{.overlap = true}}) {
      if (options.overlap && pairs == csv_pairs::together) continue;  // makes pairs of others
      if (order)
        test::demand_round_trip(*order, read_schedule, [options](schedule const& value) {
          return to_csv(value, options);
        });
      if (code)
        test::demand_round_trip(*code, read_program, [options](program const& value) {
          return to_csv(value, options);
        });
    }
    if (code && !ignored) std::abort();
    if (order && !code) std::abort();              // a schedule is a program without transfers
    if (order && !ignored->empty()) std::abort();  // nor anything else
  }
  return 0;
}
