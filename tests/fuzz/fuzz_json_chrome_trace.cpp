// SPDX-License-Identifier: Apache-2.0
#include "round_trip.hpp"
#include <zbpp/io/chrome_trace.hpp>
#include <zbpp/json/json.hpp>

#include <string>
#include <utility>
#include <vector>

using namespace zbpp;

namespace {

// What a trace keeps of timelines, but for names that a line cannot show.
std::vector<timeline> lines_of(std::string const& text, std::string const& name) {
  std::vector<timeline> lines;
  for (auto& named : json::read_chrome_trace(text, name)) lines.push_back(std::move(named.line));
  return lines;
}

}  // namespace

int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  if (size > test::most_fuzzed_bytes) return 0;
  auto const lines = test::read_or_refuse(
      [&] { return lines_of(std::string(test::text_of(data, size)), "fuzzed"); });
  if (!lines) return 0;
  test::demand_round_trip(
      *lines,
      [](std::string const& text) { return lines_of(text, "written"); },
      [](std::vector<timeline> const& all) {
        std::vector<named_timeline> named;
        for (auto const& line : all) named.push_back({"line", line});
        return to_chrome_trace(named);
      });
  return 0;
}
