// SPDX-License-Identifier: Apache-2.0
//
// What a control connection may carry: the first byte chooses the reader, the rest is the payload.
#include "round_trip.hpp"
#include <zbpp/asio/detail/agreement_wire.hpp>
#include <zbpp/asio/detail/control_connection.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/roster.hpp>

#include <span>
#include <vector>

using namespace zbpp;

namespace {

// Takes or refuses the bytes; what it takes is written back to the same bytes.
template <class Read, class Write>
void demand_same_bytes(std::span<std::byte const> bytes, Read read, Write write) {
  auto const value = test::read_or_refuse([&] { return read(bytes); });
  if (!value) return;
  asio::blob const written = write(*value);
  if (!std::equal(written.begin(), written.end(), bytes.begin(), bytes.end())) std::abort();
}

constexpr std::size_t largest_part = 256;  // of a collective call, in bytes

}  // namespace

int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  namespace wire = asio::detail;
  if (size < 1 || size > test::most_fuzzed_bytes) return 0;
  auto const bytes = std::as_bytes(std::span(data, size)).subspan(1);
  auto const write = [](auto const& value) { return wire::write(value); };
  switch (data[0] % 8) {
    case 0: demand_same_bytes(bytes, wire::read<wire::join_request>, write); break;
    case 1: demand_same_bytes(bytes, wire::read<asio::roster>, write); break;
    case 2: demand_same_bytes(bytes, wire::read_failures, write); break;
    case 3:
      demand_same_bytes(
          bytes, [](auto b) { return wire::read<wire::collective_call>(b, largest_part); }, write);
      break;
    case 4:
      demand_same_bytes(
          bytes,
          [](auto b) { return wire::read<wire::collective_outcome>(b, largest_part); },
          write);
      break;
    case 5: demand_same_bytes(bytes, wire::read<asio::progress_report>, write); break;
    case 7: demand_same_bytes(bytes, wire::read<after_step>, write); break;
    default:
      demand_same_bytes(
          bytes,
          [](auto b) {
            asio::wire_reader from(b);
            std::vector<agreement_item> items;
            from.list(items, [&](auto& item) { fields(from, item); });
            from.expect_end();
            return items;
          },
          [](std::vector<agreement_item> const& items) {
            asio::wire_writer to;
            to.list(items, [&](auto const& item) { fields(to, item); });
            return to.take();
          });
  }
  return 0;
}
