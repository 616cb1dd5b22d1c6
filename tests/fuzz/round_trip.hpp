// SPDX-License-Identifier: Apache-2.0
//
// What every target demands of a reader: it takes a text or throws `error`, and what it took reads
// back from what the writer makes of it to the same value.
#pragma once

#include <zbpp/error.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

// The entry point that libFuzzer calls.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);

namespace zbpp::test {

/// Longer texts only make a run slow; a plan of two ranks has about a thousand.
inline constexpr std::size_t most_fuzzed_bytes = 2048;

[[nodiscard]] inline std::string_view text_of(std::uint8_t const* data, std::size_t size) {
  return {reinterpret_cast<char const*>(data), size};
}

/// Ends the process, so that the fuzzer keeps the input, when what was written differs.
template <class Value, class Read, class Write>
void demand_round_trip(Value const& value, Read read, Write write) {
  std::string written;
  try {
    written = write(value);
    if (read(written) == value) return;
    std::fprintf(stderr, "reads back to another value:\n%s\n", written.c_str());
  } catch (error const& refused) {
    std::fprintf(stderr, "%s\n%s\n", refused.what(), written.c_str());
  }
  std::abort();
}

/// Reads a text. @return nothing when the reader refuses it; any other exception goes on
template <class Read>
[[nodiscard]] auto read_or_refuse(Read read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (error const&) {
    return std::nullopt;
  }
}

}  // namespace zbpp::test
