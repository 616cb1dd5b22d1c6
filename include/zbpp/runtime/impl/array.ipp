// SPDX-License-Identifier: Apache-2.0
//
// How an array lies in its buffer: a head, the sizes of its dimensions, and from the next multiple
// of 64 bytes on its elements.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/array.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

namespace zbpp {

namespace detail {

struct array_head {
  static constexpr std::uint64_t expected_mark = 0x317961727261'707aU;  // "zparray1"

  std::uint64_t mark = expected_mark;
  data_type type;
  std::int32_t dimensions = 0;
};
static_assert(sizeof(array_head) % alignof(std::int64_t) == 0);

inline constexpr std::int64_t most_bytes = std::int64_t{1} << 62;

// @return where the elements begin
[[nodiscard]] constexpr std::size_t array_data_offset(std::size_t dimensions) noexcept {
  auto const end = sizeof(array_head) + dimensions * sizeof(std::int64_t);
  return (end + 63) / 64 * 64;
}

// @return how many elements there are; -1 where a size is negative, or they are more than 2^62
[[nodiscard]] constexpr std::int64_t array_count(std::span<std::int64_t const> shape) noexcept {
  std::int64_t total = 1;
  bool is_empty = false;
  bool is_too_large = false;
  for (auto const size : shape) {
    if (size < 0) return -1;
    is_empty = is_empty || size == 0;
    is_too_large = is_too_large || (size > 0 && total > most_bytes / size);
    if (size > 0 && !is_too_large) total *= size;
  }
  if (is_empty) return 0;
  return is_too_large ? -1 : total;
}

// @return the bytes of all elements; -1 where there are none such, or more than 2^62
[[nodiscard]] constexpr std::int64_t array_data_size(
    data_type type, std::span<std::int64_t const> shape) noexcept {
  auto const count = array_count(shape);
  auto const size = static_cast<std::int64_t>(type.size());
  if (count < 0 || size == 0 || count > most_bytes / size) return -1;
  return count * size;
}

[[nodiscard]] inline array_head const& head_of(buffer const& held) noexcept {
  return *std::launder(reinterpret_cast<array_head const*>(held.data()));
}

}  // namespace detail

ZBPP_INLINE std::string to_string(data_type type) {
  auto const kind = [&]() -> std::string {
    switch (type.code) {
      case type_code::integer: return "int";
      case type_code::unsigned_integer: return "uint";
      case type_code::floating: return "float";
      case type_code::brain_floating: return "bfloat";
      case type_code::complex: return "complex";
      case type_code::boolean: return "bool";
    }
    return detail::joined("type ", static_cast<int>(type.code), " of bits ");
  }();
  std::string const bits = detail::joined(kind, int{type.bits});
  return type.lanes == 1 ? bits : bits + "x" + std::to_string(type.lanes);
}

ZBPP_INLINE bytes array_size(data_type type, std::span<std::int64_t const> shape) {
  auto const data = detail::array_data_size(type, shape);
  auto const offset = static_cast<std::int64_t>(detail::array_data_offset(shape.size()));
  if (data >= 0 && data <= detail::most_bytes - offset) return offset + data;
  std::string text;
  for (auto const size : shape) text += detail::joined(text.empty() ? "" : ", ", size);
  throw error(errc::bad_argument) + "an array of shape (" + text + ") and type " + to_string(type) +
      " cannot be made; each dimension is from 0 on, each element has a bit or more, and all "
      "of it takes 2^62 bytes at most";
}

ZBPP_INLINE array::array(pass_context ctx, data_type type, std::span<std::int64_t const> shape) {
  detail::require(
      ctx.kind() == backend_kind::host,
      "an array lies in memory of the host; on a device, send a buffer whose shape both stages "
      "know");
  held_ = ctx.allocate_edge(static_cast<std::size_t>(array_size(type, shape)));
  std::construct_at(
      reinterpret_cast<detail::array_head*>(held_.data()),
      detail::array_head{.type = type, .dimensions = static_cast<std::int32_t>(shape.size())});
  std::copy(
      shape.begin(),
      shape.end(),
      reinterpret_cast<std::int64_t*>(held_.data() + sizeof(detail::array_head)));
}

ZBPP_INLINE array::array(buffer from) : held_(std::move(from)) {
  auto const is_array = [&] {
    if (held_.size() < sizeof(detail::array_head)) return false;
    auto const& head = detail::head_of(held_);
    if (head.mark != detail::array_head::expected_mark || head.dimensions < 0) return false;
    auto const offset = detail::array_data_offset(static_cast<std::size_t>(head.dimensions));
    if (offset > held_.size()) return false;
    auto const data = detail::array_data_size(head.type, shape());
    return data >= 0 && static_cast<std::uint64_t>(data) == held_.size() - offset;
  };
  if (!is_array())
    throw error(errc::wrong_size) + "a message of " + held_.size() +
        " bytes holds no array; its sender has to send what make_array made";
}

ZBPP_INLINE data_type array::type() const noexcept { return detail::head_of(held_).type; }

ZBPP_INLINE std::span<std::int64_t const> array::shape() const noexcept {
  auto const* const sizes =
      reinterpret_cast<std::int64_t const*>(held_.data() + sizeof(detail::array_head));
  return {sizes, static_cast<std::size_t>(detail::head_of(held_).dimensions)};
}

ZBPP_INLINE std::int64_t array::count() const noexcept { return detail::array_count(shape()); }

ZBPP_INLINE void* array::data() const noexcept {
  return held_.data() + detail::array_data_offset(shape().size());
}

ZBPP_INLINE void array::require_type(data_type wanted) const {
  if (type() == wanted) return;
  throw error(errc::bad_argument) + "an array of " + to_string(type()) +
      " was asked for values of " + to_string(wanted);
}

}  // namespace zbpp
