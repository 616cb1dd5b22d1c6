// SPDX-License-Identifier: Apache-2.0
//
// How elements are copied from one block of an array to another.
#pragma once

#include <zbpp/checkpoint/detail/blocks.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace zbpp::checkpoint::detail {

ZBPP_INLINE block block_of(std::vector<std::int64_t> const& shape, array_part const& part) {
  block result{.whole = shape, .first = std::vector<std::int64_t>(shape.size()), .shape = shape};
  if (part.whole == 0) return result;
  auto const axis = static_cast<std::size_t>(part.axis);
  result.whole[axis] = part.whole;
  result.first[axis] = part.first;
  return result;
}

ZBPP_INLINE bool fits(std::vector<std::int64_t> const& shape, array_part const& part) noexcept {
  if (part.whole == 0) return part.axis == 0 && part.first == 0;
  if (part.axis < 0 || static_cast<std::size_t>(part.axis) >= shape.size()) return false;
  auto const own = shape[static_cast<std::size_t>(part.axis)];
  return part.first >= 0 && own <= part.whole && part.first <= part.whole - own;
}

/// Says what two blocks have in common along an axis.
struct common_range {
  std::int64_t first;
  std::int64_t count;  // 0 for nothing
};

[[nodiscard]] ZBPP_INLINE common_range
common_along(block const& one, block const& other, std::size_t axis) noexcept {
  auto const first = std::max(one.first[axis], other.first[axis]);
  auto const end =
      std::min(one.first[axis] + one.shape[axis], other.first[axis] + other.shape[axis]);
  return {first, std::max<std::int64_t>(end - first, 0)};
}

ZBPP_INLINE std::uint64_t common_count(block const& one, block const& other) noexcept {
  std::uint64_t count = 1;
  for (std::size_t axis = 0; axis < one.whole.size(); ++axis)
    count *= static_cast<std::uint64_t>(common_along(one, other, axis).count);
  return count;
}

// Where both blocks are alike along all later axes, their elements lie next to each other.
ZBPP_INLINE void copy_common(
    block const& from,
    std::span<std::byte const> source,
    block const& to,
    std::span<std::byte> target,
    std::size_t axis) {
  auto const axes = from.whole.size();
  if (axes == 0) return static_cast<void>(std::ranges::copy(source, target.begin()));
  bool is_run = true;
  for (auto later = axis + 1; later < axes; ++later)
    is_run = is_run && from.first[later] == to.first[later] && from.shape[later] == to.shape[later];
  auto const size = [](std::int64_t length) { return static_cast<std::size_t>(length); };
  auto const [first, count] = common_along(from, to, axis);
  auto const row = source.size() / size(from.shape[axis]);  // bytes of an index
  auto const target_row = target.size() / size(to.shape[axis]);
  source = source.subspan(size(first - from.first[axis]) * row, size(count) * row);
  target = target.subspan(size(first - to.first[axis]) * target_row);
  if (is_run) return static_cast<void>(std::ranges::copy(source, target.begin()));
  for (; !source.empty(); source = source.subspan(row), target = target.subspan(target_row))
    copy_common(from, source.first(row), to, target.first(target_row), axis + 1);
}

ZBPP_INLINE std::string to_text(array_part const& part) {
  return zbpp::detail::joined(part.axis, " ", part.first, " ", part.whole);
}

ZBPP_INLINE std::optional<array_part> to_part(std::string_view text) {
  array_part part;
  auto const* at = text.data();
  auto const* const end = at + text.size();
  auto const read = [&](auto& number, char behind) {
    auto const found = std::from_chars(at, end, number);
    bool const is_last = behind == '\0';
    if (found.ec != std::errc() || (found.ptr == end) != is_last) return false;
    if (!is_last && *found.ptr != behind) return false;
    at = found.ptr + (is_last ? 0 : 1);
    return true;
  };
  bool const is_read = read(part.axis, ' ') && read(part.first, ' ') && read(part.whole, '\0');
  return is_read && part.whole > 0 ? std::optional(part) : std::nullopt;
}

}  // namespace zbpp::checkpoint::detail
