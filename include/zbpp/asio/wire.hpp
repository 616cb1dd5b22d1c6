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
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
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

  // The same calls as those of a reader, so that one list of fields serves both.

  template <class Number>
  wire_writer& number(Number const& value) {
    return put(value);
  }
  template <class Choice>
  wire_writer& choice(Choice const& value, int, char const*) {
    return put(static_cast<std::uint8_t>(value));
  }
  template <class Value>
  bool is_there(std::optional<Value> const& value, char const* name) {
    choice(value.has_value(), 2, name);
    return value.has_value();
  }
  wire_writer& text(std::string_view value, std::size_t most) { return put(value.substr(0, most)); }
  wire_writer& part(blob const& value, std::size_t) { return put(value); }
  template <class Value>
  wire_writer& plain(Value const& value) {
    return append(std::as_bytes(std::span(&value, 1)));
  }
  template <class Item, class Each>
  wire_writer& list(std::vector<Item> const& items, Each const& each) {
    put(static_cast<std::uint32_t>(items.size()));
    for (auto const& item : items) each(item);
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

  /// Reads a number.
  /// @throws error (bad_format) as `get`; so do those below
  template <class Number>
  wire_reader& number(Number& value) {
    value = get<Number>();
    return *this;
  }
  /// Reads one of `end` choices, which take a byte.
  /// @throws error (bad_format) also where it is not below `end`, with its name
  template <class Choice>
  wire_reader& choice(Choice& value, int end, char const* name) {
    value = static_cast<Choice>(get_below(end, name));
    return *this;
  }
  /// Reads whether a value follows, and makes one if so.
  /// @return whether it does
  template <class Value>
  bool is_there(std::optional<Value>& value, char const* name) {
    value.reset();
    if (get_below(2, name) != 0) value.emplace();
    return value.has_value();
  }
  /// Reads text of at most that many bytes; a writer cuts it off there.
  wire_reader& text(std::string& value, std::size_t most) {
    value = get_text(most);
    return *this;
  }
  /// Reads bytes with their number in front.
  wire_reader& part(blob& value, std::size_t most) {
    value = get_blob(most);
    return *this;
  }
  /// Reads a value as its bytes.
  template <class Value>
  wire_reader& plain(Value& value) {
    static_assert(std::is_trivially_copyable_v<Value>);
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return *this;
  }
  /// Reads as many items as there are, none of which is empty: so a wrong number runs out of bytes
  /// before it costs memory.
  template <class Item, class Each>
  wire_reader& list(std::vector<Item>& items, Each const& each) {
    for (auto left = get<std::uint32_t>(); left > 0; --left) each(items.emplace_back());
    return *this;
  }

 private:
  [[nodiscard]] std::span<std::byte const> get_span(std::size_t most) {
    auto const size = get<std::uint32_t>();
    if (size > most)
      throw error(errc::bad_format) + "a field of " + size + " bytes; at most " + most +
          " are expected there";
    return take(size);
  }

  [[nodiscard]] std::uint8_t get_below(int end, char const* name) {
    auto const value = get<std::uint8_t>();
    if (value >= end)
      throw error(errc::bad_format) + name + " " + int{value} + "; it must be below " + end;
    return value;
  }

  std::span<std::byte const> left_;
};

/// A value as a writer takes it, or as a reader changes it. For each type that is sent,
/// `fields(wire, value)` names once what its bytes are, for a writer and a reader alike.
template <class Wire, class Value>
using wire_value = std::conditional_t<std::is_same_v<Wire, wire_reader>, Value, Value const>;

namespace detail {

/// @return the bytes of a value
template <class Value>
[[nodiscard]] blob write(Value const& value) {
  wire_writer to;
  fields(to, value);
  return to.take();
}

/// Reads a value that is all of some bytes; what is written can be read, but for a text that was
/// cut off.
/// @throws error (bad_format)
template <class Value, class... Limits>
[[nodiscard]] Value read(std::span<std::byte const> bytes, Limits... limits) {
  wire_reader from(bytes);
  Value value{};
  fields(from, value, limits...);
  from.expect_end();
  return value;
}

}  // namespace detail
}  // namespace zbpp::asio
