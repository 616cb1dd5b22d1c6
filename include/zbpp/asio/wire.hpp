// SPDX-License-Identifier: Apache-2.0
//
// Numbers and text as bytes between processes: little-endian, sizes in front, and a reader that
// checks every size against the bytes that are left.
#pragma once

#include <zbpp/error.hpp>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace zbpp::asio {

static_assert(std::endian::native == std::endian::little, "messages are little-endian");

/// A run of bytes that ranks exchange.
using blob = std::vector<std::byte>;

/// Turns text into bytes.
[[nodiscard]] inline blob to_blob(std::string_view text) {
  blob bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

/// Turns bytes into text.
[[nodiscard]] inline std::string to_text(std::span<std::byte const> bytes) {
  std::string text(bytes.size(), '\0');
  if (!bytes.empty()) std::memcpy(text.data(), bytes.data(), bytes.size());
  return text;
}

/// Appends values to a blob.
class wire_writer {
 public:
  /// Writes a number of fixed size.
  template <class Number>
    requires(std::integral<Number> || std::floating_point<Number>)
  wire_writer& put(Number value) {
    auto const at = bytes_.size();
    bytes_.resize(at + sizeof(value));
    std::memcpy(bytes_.data() + at, &value, sizeof(value));
    return *this;
  }
  /// Writes how many bytes there are (32 bits), then the bytes.
  /// @throws error (bad_argument) when there are 4 GiB or more
  wire_writer& put(std::span<std::byte const> value) {
    zbpp::detail::require(
        value.size() <= std::numeric_limits<std::uint32_t>::max(), "a blob is smaller than 4 GiB");
    put(static_cast<std::uint32_t>(value.size()));
    return append(value);
  }
  /// Writes text as its bytes.
  wire_writer& put(std::string_view value) {
    return put(std::as_bytes(std::span(value.data(), value.size())));
  }
  /// Writes bytes whose number the reader knows.
  wire_writer& append(std::span<std::byte const> value) {
    bytes_.insert(bytes_.end(), value.begin(), value.end());
    return *this;
  }

  /// Begins again, in the same memory.
  void clear() noexcept { bytes_.clear(); }

  [[nodiscard]] blob const& bytes() const noexcept { return bytes_; }
  [[nodiscard]] blob take() noexcept { return std::move(bytes_); }

 private:
  blob bytes_;
};

/// Reads values from bytes that somebody else wrote. What is read of text and blobs is copied.
class wire_reader {
 public:
  explicit wire_reader(std::span<std::byte const> bytes) noexcept : left_(bytes) {}

  /// Reads a number.
  /// @throws error (bad_format) when too few bytes are left
  template <class Number>
    requires(std::integral<Number> || std::floating_point<Number>)
  [[nodiscard]] Number get() {
    Number value{};
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  /// Reads bytes with their number in front.
  /// @throws error (bad_format) when there are more than `most`, or too few are left
  [[nodiscard]] blob get_blob(std::size_t most) {
    auto const bytes = get_span(most);
    return {bytes.begin(), bytes.end()};
  }
  /// Reads text with its size in front.
  /// @throws error (bad_format) as `get_blob`
  [[nodiscard]] std::string get_text(std::size_t most) { return to_text(get_span(most)); }
  /// Reads some bytes.
  /// @return a view of what the reader was made with
  /// @throws error (bad_format) when too few are left
  [[nodiscard]] std::span<std::byte const> take(std::size_t count) {
    if (count > left_.size())
      throw error(errc::bad_format) + "expected " + count + " more bytes, " + left_.size() +
          " are left";
    auto const result = left_.first(count);
    left_ = left_.subspan(count);
    return result;
  }
  /// Checks that nothing is left.
  /// @throws error (bad_format)
  void expect_end() const {
    if (!left_.empty()) throw error(errc::bad_format) + left_.size() + " bytes too many at the end";
  }

 private:
  [[nodiscard]] std::span<std::byte const> get_span(std::size_t most) {
    auto const size = get<std::uint32_t>();
    if (size > most)
      throw error(errc::bad_format) + "a field of " + size + " bytes; at most " + most +
          " are expected there";
    return take(size);
  }

  std::span<std::byte const> left_;
};

namespace detail {

/// Reads a number of one byte.
/// @throws error (bad_format) unless it is below `end`
[[nodiscard]] inline std::uint8_t get_below(wire_reader& from, std::uint8_t end, char const* name) {
  auto const value = from.get<std::uint8_t>();
  if (value >= end)
    throw error(errc::bad_format) + name + " " + int{value} + "; it must be below " + int{end};
  return value;
}

}  // namespace detail
}  // namespace zbpp::asio
