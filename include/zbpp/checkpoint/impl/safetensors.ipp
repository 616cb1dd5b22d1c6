// SPDX-License-Identifier: Apache-2.0
//
// How files of named arrays are read and written.
// @source the section "Format" of the README of safetensors
#pragma once

#include <zbpp/checkpoint/safetensors.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/checksum.hpp>
#include <zbpp/io/durable.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/json/detail/document.hpp>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace zbpp::checkpoint {

static_assert(std::endian::native == std::endian::little, "the numbers of files are little-endian");

ZBPP_INLINE std::optional<std::uint64_t> size_of(
    number_type type, std::span<std::int64_t const> shape) {
  std::uint64_t size = size_of(type);
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  for (auto const length : shape) {
    if (length < 0 ||
        static_cast<std::uint64_t>(length) > std::numeric_limits<std::int64_t>::max() / size)
      return std::nullopt;
    size *= static_cast<std::uint64_t>(length);
  }
  return size;
}

namespace detail {

inline constexpr std::uint64_t largest_header = 100'000'000;  // bytes, of the format
inline constexpr std::size_t most_axes = 64;                  // more than any array has

[[nodiscard]] ZBPP_INLINE bool are_right(number_type type, std::span<std::byte const> bytes) {
  return type != number_type::boolean ||
         std::ranges::all_of(bytes, [](std::byte each) { return each <= std::byte{1}; });
}

/// Reads the header of a file.
class header_reader {
 public:
  explicit header_reader(std::string const& name)
      : name_(name), begin_(name + ": is not a valid safetensors file: its header") {}

  /// @param data  bytes that follow it, which the arrays have to cover without gaps
  [[nodiscard]] stored_header read(std::string_view text, std::uint64_t data) const {
    // The parser skips white space and a byte order mark, which the format does not have there.
    if (!text.starts_with('{')) refuse("it is no object: it does not begin with '{'");
    stored_header made;
    auto const parsed = parse(text);
    bool has_metadata = false;
    value(parsed).for_each([&](value const& entry) {
      auto const key = std::string(entry.key());
      if (key != "__metadata__") {
        if (!made.arrays.emplace(key, read_array(key, entry)).second) refuse_second(key);
        return;
      }
      if (std::exchange(has_metadata, true)) refuse_second(key);
      read_metadata(entry, made.metadata);
    });
    if (auto const covered = cover(made); covered != data)
      throw error(errc::bad_format) + name_ + ": has " + data +
          " bytes of data, and its header states " + covered +
          ": it is cut off, or not whole; take another copy of it";
    return made;
  }

 private:
  using value = json::detail::value;
  using kind = json::detail::value_kind;

  [[noreturn]] void refuse(std::string const& reason) const {
    throw error(errc::bad_format) + begin_ + ": " + reason + "; take another copy of it";
  }

  // Gives the bytes of all arrays, which lie one after another.
  [[nodiscard]] std::uint64_t cover(stored_header const& of) const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> pieces;
    for (auto const& [name, each] : of.arrays) pieces.emplace_back(each.begin, each.end);
    std::ranges::sort(pieces);
    std::uint64_t covered = 0;
    for (auto const& [begin, end] : pieces)
      if (std::exchange(covered, end) != begin)
        refuse("the data of two entries overlaps, or a gap is left");
    return covered;
  }

  [[nodiscard]] json::detail::document parse(std::string_view text) const {
    try {
      return json::detail::document(text, begin_);
    } catch (error const& wrong) {
      throw error(errc::bad_format) + wrong.what() + "; take another copy of it";
    }
  }

  [[noreturn]] void refuse_second(std::string_view key) const {
    refuse("the entry " + zbpp::detail::json_text(key) + " stands there twice");
  }

  void read_metadata(value const& from, std::map<std::string, std::string>& to) const {
    auto const wrong = "its __metadata__ is no object of strings";
    if (!from.is(kind::object)) refuse(wrong);
    from.for_each([&](value const& member) {
      if (!member.is(kind::string)) refuse(wrong);
      if (!to.emplace(member.key(), member.text()).second) refuse_second(member.key());
    });
  }

  [[nodiscard]] stored_array read_array(std::string const& name, value const& from) const {
    auto const refuse_it = [&](std::string const& wrong) {
      refuse("the entry '" + name + "' " + wrong);
    };
    constexpr std::array<std::string_view, 3> names{"dtype", "shape", "data_offsets"};
    std::array<value, 3> members;
    if (from.is(kind::object) && from.size() == names.size())
      from.for_each([&](value const& member) {
        auto const at = std::ranges::find(names, member.key());
        if (at != names.end()) members[static_cast<std::size_t>(at - names.begin())] = member;
      });
    if (!std::ranges::all_of(members, [](value const& each) { return static_cast<bool>(each); }))
      refuse_it("is no object of dtype, shape and data_offsets");
    auto const numbers = [&](std::size_t member) {
      auto const& list = members[member];
      std::string const wrong =
          zbpp::detail::joined("has a ", names[member], " that is no list of whole numbers");
      if (!list.is(kind::array)) refuse_it(wrong);
      if (list.size() > most_axes) refuse("a list has more than 64 numbers");
      std::vector<std::int64_t> read;
      list.for_each([&](value const& each) {
        if (each.is(kind::array)) refuse("it has lists in lists");
        auto const text = each.is(kind::number) ? each.text() : std::string_view();
        auto const end = text.data() + text.size();
        auto const [stop, fault] = std::from_chars(text.data(), end, read.emplace_back());
        if (text.empty() || fault != std::errc() || stop != end || read.back() < 0)
          refuse_it(wrong);
      });
      return read;
    };
    stored_array made;
    auto const& type = members[0];
    if (!type.is(kind::string)) refuse_it("has a dtype that is no string");
    auto const found = std::ranges::find(types, type.text(), &type_entry::name);
    if (found == types.end())
      refuse_it("has the type " + zbpp::detail::json_text(type.text()) + ", which is not known");
    made.type = static_cast<number_type>(found - types.begin());
    made.shape = numbers(1);
    auto const offsets = numbers(2);
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      refuse_it("has data_offsets that are not a begin and an end");
    made.begin = static_cast<std::uint64_t>(offsets[0]);
    made.end = static_cast<std::uint64_t>(offsets[1]);
    if (size_of(made.type, made.shape) != made.end - made.begin)
      refuse("the data of the entry '" + name + "' is not " + describe(made.type, made.shape));
    return made;
  }

  std::string name_;
  std::string begin_;
};

/// Sums up what stands before the numbers of a file.
[[nodiscard]] ZBPP_INLINE std::uint64_t header_checksum(std::string_view header) {
  auto const length = static_cast<std::uint64_t>(header.size());
  checksum sum;
  sum.add(std::as_bytes(std::span(&length, 1)));
  sum.add(header);
  return sum.value();
}

[[nodiscard]] ZBPP_INLINE std::string name_text(std::string_view text) {
  auto made = zbpp::detail::json_text(text);
  zbpp::detail::require(
      !made.empty(), "a name in a checkpoint is not valid UTF-8; give it another one");
  return made;
}

/// Writes the JSON of a header for arrays in the order in which they lie.
[[nodiscard]] ZBPP_INLINE std::string write_header(
    std::span<array const* const> arrays, std::map<std::string, std::string> const& metadata) {
  std::string text = "{\"__metadata__\":{";
  auto const* comma = "";
  for (auto const& [key, value] : metadata)
    text.append(std::exchange(comma, ","))
        .append(name_text(key))
        .append(":")
        .append(name_text(value));
  text += '}';
  std::uint64_t end = 0;
  for (auto const* each : arrays) {
    text.append(",").append(name_text(each->name)).append(":{\"dtype\":\"");
    text.append(to_string(each->type)).append("\",\"shape\":[");
    comma = "";
    for (auto const length : each->shape)
      text.append(std::exchange(comma, ",")).append(std::to_string(length));
    auto const begin = std::exchange(end, end + each->bytes.size());
    text += zbpp::detail::joined("],\"data_offsets\":[", begin, ",", end, "]}");
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the numbers are aligned
  return text;
}

ZBPP_INLINE void check_names(std::vector<std::string> names) {
  std::ranges::sort(names);
  zbpp::detail::require(
      !std::ranges::binary_search(names, "__metadata__"),
      "an entry of a checkpoint is '__metadata__', which the format has for itself; give it "
      "another name");
  if (auto const twice = std::ranges::adjacent_find(names); twice != names.end())
    throw error(errc::bad_argument) + "two entries of a checkpoint are '" + *twice +
        "'; give each the name that it has in the whole model";
}

/// Refuses what a file cannot have.
ZBPP_INLINE void check_arrays(std::span<array const* const> arrays) {
  auto const refuse = [](std::string const& wrong) { throw error(errc::bad_argument, wrong); };
  std::vector<std::string> names;
  for (auto const* each : arrays) {
    auto const name = "'" + each->name + "'";
    if (each->shape.size() > most_axes) refuse(name + " has more than 64 axes; join some");
    if (size_of(each->type, each->shape) != each->bytes.size())
      refuse(
          zbpp::detail::joined(name) + " has " + each->bytes.size() + " bytes, which are not " +
          describe(each->type, each->shape));
    if (!are_right(each->type, each->bytes))
      refuse(name + " has a byte of a bool that is neither 0 nor 1; save it as another type");
    names.push_back(each->name);
  }
  check_names(std::move(names));
}

}  // namespace detail

ZBPP_INLINE std::string describe(number_type type, std::span<std::int64_t const> shape) {
  std::string text = zbpp::detail::joined(to_string(type), shape.empty() ? ", one number" : " of ");
  auto const* times = "";
  for (auto const length : shape) text += zbpp::detail::joined(std::exchange(times, " x "), length);
  return text;
}

ZBPP_INLINE stored_file::stored_file(std::filesystem::path path) : file_(std::move(path)) {
  auto const name = file_.path().string();
  std::uint64_t length = 0;
  if (file_.size() >= sizeof length) file_.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (file_.size() < sizeof length ||
      length > std::min(file_.size() - sizeof length, detail::largest_header))
    throw error(errc::bad_format) + name + ": has " + file_.size() +
        " bytes, and its first eight state another length of its header: it is cut off, or "
        "no safetensors file; take another copy of it";
  auto const text = file_.text(sizeof length, length);
  data_ = sizeof length + length;
  header_ = detail::header_reader(name).read(text, file_.size() - data_);
  record_ = {file_.size(), detail::header_checksum(text)};
}

ZBPP_INLINE void stored_file::read(stored_array const& from, std::span<std::byte> to) const {
  zbpp::detail::require(to.size() == from.end - from.begin, "an array is read as it was saved");
  file_.read(data_ + from.begin, to);
  if (!detail::are_right(from.type, to))
    throw error(errc::bad_format) + path().string() +
        ": has a byte of a bool that is neither 0 nor 1; take another copy of it";
}

ZBPP_INLINE file_record write_arrays(
    std::filesystem::path const& path,
    std::span<array const> arrays,
    std::map<std::string, std::string> const& metadata,
    std::function<void()> const& between) {
  std::vector<array const*> all;
  for (auto const& each : arrays) all.push_back(&each);
  // The larger numbers first, so that all are aligned.
  std::ranges::stable_sort(
      all, std::greater(), [](array const* each) { return size_of(each->type); });
  detail::check_arrays(all);
  auto const header = detail::write_header(all, metadata);
  zbpp::detail::require(
      header.size() <= detail::largest_header,
      "a checkpoint has too many entries; write several files");
  auto const length = static_cast<std::uint64_t>(header.size());
  std::vector<std::span<std::byte const>> pieces{
      std::as_bytes(std::span(&length, 1)), std::as_bytes(std::span(header))};
  file_record record{sizeof length + header.size(), detail::header_checksum(header)};
  for (auto const* each : all) {
    pieces.emplace_back(each->bytes);
    record.size += each->bytes.size();
  }
  write_durably(path, pieces, between);
  return record;
}

}  // namespace zbpp::checkpoint
