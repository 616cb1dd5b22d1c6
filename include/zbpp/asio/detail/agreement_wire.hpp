// SPDX-License-Identifier: Apache-2.0
//
// Items that ranks agree on, as bytes between processes.
#pragma once

#include <zbpp/asio/wire.hpp>
#include <zbpp/runtime/agreement.hpp>

#include <cstdint>
#include <string_view>

namespace zbpp::asio::detail {

/// Names the item of a `grid_layout`.
inline constexpr char const* grid_item = "grid_layout";

/// Writes an item, its texts cut to `agreement_item::longest_text`.
inline void put(wire_writer& to, agreement_item const& item) {
  to.put(std::string_view(item.name).substr(0, agreement_item::longest_text)).put(item.digest);
  to.put(std::string_view(item.value).substr(0, agreement_item::longest_text));
}

/// Reads what `put` wrote.
/// @throws error (bad_format) when bytes are missing, or a text is too long
[[nodiscard]] inline agreement_item get_item(wire_reader& from) {
  agreement_item item;
  item.name = from.get_text(agreement_item::longest_text);
  item.digest = from.get<std::uint64_t>();
  item.value = from.get_text(agreement_item::longest_text);
  return item;
}

}  // namespace zbpp::asio::detail
