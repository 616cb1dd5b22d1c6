// SPDX-License-Identifier: Apache-2.0
//
// The first bytes of a data connection: which channel of which run it is for.
#pragma once

#include <zbpp/asio/wire.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace zbpp::asio::detail {

/// Says what a data connection is for; its first bytes.
struct link_request {
  std::array<std::byte, 16> run_id{};
  std::uint32_t number = 0;  ///< of the set of channels: a pipeline's first, second, ...
  std::int32_t from = 0;
  std::int32_t to = 0;

  static constexpr std::size_t size = 28;  ///< in bytes

  [[nodiscard]] blob write() const {
    wire_writer bytes;
    bytes.append(run_id).put(number).put(from).put(to);
    return bytes.take();
  }
  [[nodiscard]] static link_request read(std::span<std::byte const> bytes) {
    wire_reader from(bytes);
    link_request result;
    std::ranges::copy(from.take(result.run_id.size()), result.run_id.begin());
    result.number = from.get<std::uint32_t>();
    result.from = from.get<std::int32_t>();
    result.to = from.get<std::int32_t>();
    return result;
  }
};

}  // namespace zbpp::asio::detail
