// SPDX-License-Identifier: Apache-2.0
#include <zbpp/asio/detail/channel_ends.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

using namespace zbpp::asio::detail;

namespace {

void demand(bool good) {
  if (!good) std::abort();
}

// A header that is taken keeps to the rule, and comes out the same when it is written again.
std::size_t read_one(std::span<std::byte const> bytes, message_frame_rule const& rule) {
  message_frame read;
  auto const reading = decode(bytes, rule, read);
  demand(reading.size == 0 || reading.wrong.empty());
  demand(reading.size <= bytes.size());
  if (reading.size == 0) return 0;
  demand(read.kind == rule.kind);
  if (rule.kind == message_frame_kind::message) demand(read.payload() <= rule.most);
  std::array<std::byte, message_frame::most_size> again{};
  demand(encode(read, again.data()) == reading.size);
  demand(std::equal(again.begin(), again.begin() + reading.size, bytes.begin()));
  return reading.size;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  if (size == 0) return 0;
  // The first byte chooses the rule; headers follow one another without payload.
  auto const kind = (data[0] & 1) == 0 ? message_frame_kind::message : message_frame_kind::credit;
  message_frame_rule rule{kind, 0, 0, std::uint64_t{1} << (data[0] >> 2)};
  auto left = std::as_bytes(std::span(data, size)).subspan(1);
  while (auto const used = read_one(left, rule)) {
    left = left.subspan(used);
    ++rule.sequence;
  }
  return 0;
}
