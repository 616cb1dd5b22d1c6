// SPDX-License-Identifier: Apache-2.0
//
// How files of named tensors are read and written.
// @source the section "Format" of the README of safetensors
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/durable.hpp>
#include <zbpp/torch/detail/safetensors.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <system_error>
#include <utility>

namespace zbpp::torch::detail {

static_assert(std::endian::native == std::endian::little, "the data of the files is little-endian");

struct stored_type {
  char const* name;
  at::ScalarType type;
};
inline constexpr std::array stored_types{
    stored_type{"F32", at::kFloat},
    stored_type{"BF16", at::kBFloat16},
    stored_type{"F16", at::kHalf},
    stored_type{"F64", at::kDouble},
    stored_type{"I64", at::kLong},
    stored_type{"I32", at::kInt},
    stored_type{"I16", at::kShort},
    stored_type{"I8", at::kChar},
    stored_type{"U8", at::kByte},
    stored_type{"BOOL", at::kBool}};

inline constexpr std::uint64_t largest_header = 100'000'000;  // bytes, of the format

inline std::string describe(at::ScalarType type, at::IntArrayRef sizes) {
  auto const* const found = std::ranges::find(stored_types, type, &stored_type::type);
  std::string text = found == stored_types.end() ? c10::toString(type) : found->name;
  text += sizes.empty() ? ", one number" : " of ";
  for (std::size_t i = 0; i < sizes.size(); ++i)
    text += (i == 0 ? "" : " x ") + std::to_string(sizes[i]);
  return text;
}

/// Reads JSON as far as a header has it: objects, strings, and whole numbers in arrays.
class header_reader {
 public:
  header_reader(std::string_view text, std::string const& name) : text_(text), name_(name) {}

  [[noreturn]] void refuse(std::string const& wrong) const {
    throw error(
        errc::bad_format,
        name_ + ": is no whole safetensors file: byte " + std::to_string(at_) +
            " of its header: " + wrong + "; take another copy of it");
  }

  /// Calls `member(key)` for each member of an object.
  template <class Member>
  void object(Member member) {
    list('{', '}', [&] {
      auto const key = string();
      expect(':');
      member(key);
    });
  }
  [[nodiscard]] std::vector<std::uint64_t> numbers() {
    std::vector<std::uint64_t> all;
    list('[', ']', [&] { all.push_back(number()); });
    return all;
  }
  [[nodiscard]] std::string string() {
    expect('"');
    std::string made;
    for (char c = next(); c != '"'; c = next()) {
      if (static_cast<unsigned char>(c) < 0x20) refuse("a control character stands in a string");
      if (c == '\\')
        escaped(made);
      else
        made += c;
    }
    return made;
  }
  void end() {
    skip_blanks();
    if (at_ != text_.size()) refuse("something follows its end");
  }

 private:
  template <class Item>
  void list(char first, char last, Item item) {
    expect(first);
    if (accept(last)) return;
    do item();
    while (accept(','));
    expect(last);
  }
  void escaped(std::string& to) {
    constexpr std::string_view letters = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    char const c = next();
    if (auto const known = letters.find(c); known != std::string_view::npos) {
      to += meanings[known];
      return;
    }
    if (c != 'u') refuse("an unknown escape stands in a string");
    unsigned code = 0;
    for (int i = 0; i < 4; ++i) {
      constexpr std::string_view digits = "0123456789abcdef";
      char const digit = next();
      auto const value = digits.find(digit >= 'A' && digit <= 'F' ? char(digit + 32) : digit);
      if (value == std::string_view::npos) refuse("an unknown escape stands in a string");
      code = code * 16 + static_cast<unsigned>(value);
    }
    if (code >= 0x80) refuse("a string has an escape beyond ASCII, which zbpp does not read");
    to += static_cast<char>(code);
  }
  [[nodiscard]] std::uint64_t number() {
    skip_blanks();
    auto const begin = at_;
    std::uint64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      auto const digit = static_cast<std::uint64_t>(text_[at_] - '0');
      if (value > (std::numeric_limits<std::int64_t>::max() - digit) / 10)
        refuse("a number is too large");
      value = value * 10 + digit;
    }
    if (at_ == begin) refuse("a whole number is missing");
    return value;
  }
  void skip_blanks() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  }
  [[nodiscard]] char next() {
    if (at_ == text_.size()) refuse("it ends too early");
    return text_[at_++];
  }
  [[nodiscard]] bool accept(char c) {
    skip_blanks();
    bool const is_there = at_ < text_.size() && text_[at_] == c;
    if (is_there) ++at_;
    return is_there;
  }
  void expect(char c) {
    if (!accept(c)) refuse(std::string("found no '") + c + "'");
  }

  std::string_view text_;
  std::string const& name_;
  std::size_t at_ = 0;
};

/// Reads what a header says of a tensor.
[[nodiscard]] inline stored_tensor read_stored(header_reader& reader, std::string const& name) {
  stored_tensor made;
  int seen = 0;
  reader.object([&](std::string const& key) {
    if (key == "dtype") {
      auto const type = reader.string();
      auto const* const found = std::ranges::find(
          stored_types, type, [](auto const& each) { return std::string_view(each.name); });
      if (found == stored_types.end())
        reader.refuse("the entry '" + name + "' has the type '" + type + "', which is not known");
      made.type = found->type;
      seen |= 1;
    } else if (key == "shape") {
      for (auto const size : reader.numbers())
        made.sizes.push_back(static_cast<std::int64_t>(size));
      seen |= 2;
    } else if (key == "data_offsets") {
      auto const offsets = reader.numbers();
      if (offsets.size() != 2 || offsets[0] > offsets[1])
        reader.refuse("the data of the entry '" + name + "' lies nowhere");
      made.begin = offsets[0];
      made.end = offsets[1];
      seen |= 4;
    } else {
      reader.refuse("the entry '" + name + "' has an unknown member '" + key + "'");
    }
  });
  if (seen != 7) reader.refuse("the entry '" + name + "' lacks its type, shape or data_offsets");
  return made;
}

/// @return whether the data of a tensor has as many bytes as its type and sizes say
[[nodiscard]] inline bool fits(stored_tensor const& which) {
  auto size = static_cast<std::uint64_t>(c10::elementSize(which.type));
  auto const bytes = which.end - which.begin;
  if (std::ranges::find(which.sizes, 0) != which.sizes.end()) return bytes == 0;
  for (auto const each : which.sizes) {
    if (static_cast<std::uint64_t>(each) > bytes / size) return false;
    size *= static_cast<std::uint64_t>(each);
  }
  return size == bytes;
}

inline stored_header read_header(
    std::string_view text, std::uint64_t data, std::string const& name) {
  stored_header made;
  header_reader reader(text, name);
  reader.object([&](std::string const& key) {
    if (key == "__metadata__") {
      reader.object([&](std::string const& k) { made.metadata[k] = reader.string(); });
      return;
    }
    auto const [at, is_new] = made.tensors.emplace(key, read_stored(reader, key));
    if (!is_new) reader.refuse("the entry '" + key + "' stands there twice");
    if (!fits(at->second))
      reader.refuse(
          "the data of the entry '" + key + "' is not " +
          describe(at->second.type, at->second.sizes));
  });
  reader.end();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pieces;
  for (auto const& [key, each] : made.tensors) pieces.emplace_back(each.begin, each.end);
  std::ranges::sort(pieces);
  std::uint64_t covered = 0;
  for (auto const& [begin, end] : pieces) {
    if (begin != covered) reader.refuse("the data of two entries overlaps, or a gap is left");
    covered = end;
  }
  if (covered != data)
    throw error(
        errc::bad_format,
        name + ": has " + std::to_string(data) + " bytes of data, and its header states " +
            std::to_string(covered) + ": it is cut off, or not whole; take another copy of it");
  return made;
}

inline stored_file::stored_file(std::filesystem::path path) : path_(std::move(path)) {
  auto const name = path_.string();
  std::error_code reason;
  auto const size = std::filesystem::file_size(path_, reason);
  file_.open(path_, std::ios::binary);
  if (reason || !file_)
    throw error(
        errc::io_failed,
        name + ": cannot be read" + (reason ? ": " + reason.message() : std::string()));
  std::uint64_t length = 0;
  if (size >= sizeof length) file_.read(reinterpret_cast<char*>(&length), sizeof length);
  if (size < sizeof length ||
      length > std::min<std::uint64_t>(size - sizeof length, largest_header))
    throw error(
        errc::bad_format,
        name + ": has " + std::to_string(size) +
            " bytes, and its first eight state another length of its header: it is cut off, or "
            "no safetensors file; take another copy of it");
  std::string text(length, ' ');
  file_.read(text.data(), static_cast<std::streamsize>(length));
  if (!file_) throw error(errc::io_failed, name + ": cannot be read");
  data_ = sizeof length + length;
  header_ = read_header(text, size - data_, name);
}

inline at::Tensor stored_file::read(stored_tensor const& which) {
  bool const is_bool = which.type == at::kBool;  // a bool of another byte would be undefined
  auto const made = at::empty(which.sizes, is_bool ? at::kByte : which.type);
  auto const size = static_cast<std::streamsize>(which.end - which.begin);
  file_.seekg(static_cast<std::streamoff>(data_ + which.begin));
  if (size > 0) file_.read(static_cast<char*>(made.data_ptr()), size);
  if (!file_) throw error(errc::io_failed, path_.string() + ": cannot be read");
  if (!is_bool) return made;
  if (made.gt(1).any().item<bool>())
    throw error(
        errc::bad_format, path_.string() + ": has a byte that is no bool; take another copy of it");
  return made.to(at::kBool);
}

/// Writes a string as JSON.
inline void append_string(std::string& to, std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  to += '"';
  for (char const c : text) {
    auto const code = static_cast<unsigned char>(c);
    if (code < 0x20) {
      to += "\\u00";
      to += digits[code / 16];
      to += digits[code % 16];
      continue;
    }
    if (c == '"' || c == '\\') to += '\\';
    to += c;
  }
  to += '"';
}

inline void write_tensors(
    std::filesystem::path const& path,
    std::vector<named_tensor> tensors,
    std::map<std::string, std::string> const& metadata) {
  // The larger numbers first, so that all are aligned.
  std::ranges::stable_sort(tensors, std::greater(), [](named_tensor const& each) {
    return c10::elementSize(each.value.scalar_type());
  });
  std::string header = "{\"__metadata__\":{";
  char const* comma = "";
  for (auto const& [key, value] : metadata) {
    header += std::exchange(comma, ",");
    append_string(header, key);
    header += ':';
    append_string(header, value);
  }
  header += '}';
  std::vector<at::Tensor> data;
  std::uint64_t size = 0;
  for (auto const& [name, value] : tensors) {
    auto const* const found =
        std::ranges::find(stored_types, value.scalar_type(), &stored_type::type);
    if (found == stored_types.end() || value.layout() != at::kStrided)
      throw error(
          errc::bad_argument,
          "'" + name + "' is no dense tensor of a type that a checkpoint has: it is " +
              describe(value.scalar_type(), value.sizes()));
    auto const& plain = data.emplace_back(value.detach().cpu().contiguous());
    header += ',';
    append_string(header, name);
    header += std::string(":{\"dtype\":\"") + found->name + "\",\"shape\":[";
    comma = "";
    for (auto const each : value.sizes())
      header += std::exchange(comma, ",") + std::to_string(each);
    header += "],\"data_offsets\":[" + std::to_string(size) + ',';
    size += plain.nbytes();
    header += std::to_string(size) + "]}";
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  zbpp::detail::require(
      header.size() <= largest_header, "a checkpoint has too many entries; write several files");
  auto const length = static_cast<std::uint64_t>(header.size());
  std::vector<std::span<std::byte const>> pieces{
      std::as_bytes(std::span(&length, 1)), std::as_bytes(std::span(header))};
  for (auto const& each : data)
    pieces.emplace_back(static_cast<std::byte const*>(each.data_ptr()), each.nbytes());
  write_durably(path, pieces);
  sync_folder(path.has_parent_path() ? path.parent_path() : ".");
}

}  // namespace zbpp::torch::detail
