// SPDX-License-Identifier: Apache-2.0
//
// Items that ranks agree on, as bytes between processes.
#pragma once

#include <zbpp/asio/wire.hpp>
#include <zbpp/runtime/agreement.hpp>

namespace zbpp::asio {

namespace detail {
/// Names the item of a `grid_layout`.
inline constexpr char const* grid_item = "grid_layout";
}  // namespace detail

/// Names what the bytes of an item are.
template <class Wire>
void fields(Wire& wire, wire_value<Wire, agreement_item>& item) {
  wire.text(item.name, agreement_item::longest_text)
      .number(item.digest)
      .text(item.value, agreement_item::longest_text);
}

}  // namespace zbpp::asio
