// SPDX-License-Identifier: Apache-2.0
//
// What editors put around a text, how a message shows what cannot be seen, and text within XML.
#pragma once

#include <zbpp/io/text.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace zbpp::detail {

/// The byte order mark that editors put before a text in UTF-8.
inline constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

/// @return the text after a byte order mark, if there is one
[[nodiscard]] constexpr std::string_view without_byte_order_mark(std::string_view text) noexcept {
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  return text;
}

/// How compressed files begin.
inline constexpr std::array<std::array<std::string_view, 2>, 5> compressions{
    {{"\x1F\x8B", "a text compressed by gzip"},
     {"\x28\xB5\x2F\xFD", "a text compressed by zstd"},
     {"\xFD\x37zXZ", "a text compressed by xz"},
     {"BZh", "a text compressed by bzip2"},
     {"PK\x03\x04", "a text compressed by zip"}}};

/// @return the name of another encoding than UTF-8 that a text begins in; else nothing
[[nodiscard]] constexpr std::string_view foreign_encoding(std::string_view text) noexcept {
  for (auto const& [begin, name] : compressions)
    if (text.starts_with(begin)) return name;
  auto const byte = [&](std::size_t i) { return i < text.size() ? text[i] : '\x01'; };
  auto const is_nul = [&](std::size_t i) { return byte(i) == '\0'; };
  bool const is_little = byte(0) == '\xFF' && byte(1) == '\xFE';
  bool const is_big = byte(0) == '\xFE' && byte(1) == '\xFF';
  if (is_little && is_nul(2) && is_nul(3)) return "UTF-32";
  if (is_nul(0) && is_nul(1) && byte(2) == '\xFE' && byte(3) == '\xFF') return "UTF-32";
  // Without a mark, ASCII has a NUL as every other byte.
  bool const is_unmarked = (is_nul(0) && !is_nul(1) && is_nul(2) && !is_nul(3)) ||
                           (!is_nul(0) && is_nul(1) && !is_nul(2) && is_nul(3));
  return is_little || is_big || is_unmarked ? "UTF-16" : std::string_view{};
}

/// @return what is right where a text is in another encoding
[[nodiscard]] constexpr std::string_view expected_instead_of(std::string_view encoding) noexcept {
  if (encoding.starts_with("a text")) return "the text itself; decompress the file first";
  return "UTF-8, as `iconv -t UTF-8` makes it, or an editor that saves it so";
}

/// A character that shows nothing, or a blank that is none of ASCII.
struct invisible_character {
  std::string_view bytes;
  std::string_view name;
};

/// What spreadsheets and pages leave around texts: blanks of all kinds, and byte order marks of
/// files that were put together.
inline constexpr std::array<invisible_character, 8> invisible_characters{
    {{"\xC2\xA0", "<U+00A0>"},
     {"\xE2\x80\x87", "<U+2007>"},
     {"\xE2\x80\x8B", "<U+200B>"},
     {"\xE2\x80\x8E", "<U+200E>"},
     {"\xE2\x80\x8F", "<U+200F>"},
     {"\xE2\x80\xAF", "<U+202F>"},
     {"\xE3\x80\x80", "<U+3000>"},
     {byte_order_mark, "<U+FEFF>"}}};

/// @return how many bytes the blank or invisible character has for which `is_there` says so
template <class IsThere>
[[nodiscard]] constexpr std::size_t blank_size(IsThere is_there) noexcept {
  if (is_there(std::string_view(" ")) || is_there(std::string_view("\t"))) return 1;
  for (auto const& one : invisible_characters)
    if (is_there(one.bytes)) return one.bytes.size();
  return 0;
}

[[nodiscard]] constexpr std::string_view trimmed_front(std::string_view text) noexcept {
  while (auto const size = blank_size([&](auto part) { return text.starts_with(part); }))
    text.remove_prefix(size);
  return text;
}

[[nodiscard]] constexpr std::string_view trimmed(std::string_view text) noexcept {
  text = trimmed_front(text);
  while (auto const size = blank_size([&](auto part) { return text.ends_with(part); }))
    text.remove_suffix(size);
  return text;
}

/// Escapes what XML would take for markup.
[[nodiscard]] inline std::string xml_text(std::string_view text) {
  std::string result;
  for (char c : one_line(text)) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += c;
    }
  }
  return result;
}

}  // namespace zbpp::detail
