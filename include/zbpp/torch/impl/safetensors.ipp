// SPDX-License-Identifier: Apache-2.0
//
// How files of named tensors are read and written.
// @source the section "Format" of the README of safetensors
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/durable.hpp>
#include <zbpp/torch/detail/safetensors.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <functional>
#include <limits>
#include <set>
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

/// Refuses a header.
[[noreturn]] inline void refuse_header(std::string const& name, std::string const& wrong) {
  throw error(
      errc::bad_format,
      name + ": is not a valid safetensors file: its header: " + wrong +
          "; take another copy of it");
}

/// Reads the JSON of a header: objects whose members have names of their own, in entries with lists
/// of no more numbers than a tensor has dimensions.
[[nodiscard]] inline nlohmann::json parse_header(std::string_view text, std::string const& name) {
  using event = nlohmann::json::parse_event_t;
  constexpr int deepest = 3;  // a number in a list of an entry
  constexpr int longest = 64;
  std::vector<std::set<std::string>> members;  // of the objects that are open
  int listed = 0;
  auto const check = [&](int depth, event what, nlohmann::json& value) {
    if (depth > deepest) refuse_header(name, "it has lists in lists");
    if (what == event::object_start) members.emplace_back();
    if (what == event::object_end) members.pop_back();
    if (what == event::key && !members.back().insert(value.get<std::string>()).second)
      refuse_header(name, "the entry " + value.dump() + " stands there twice");
    if (what == event::array_start) listed = 0;
    if (what == event::value && ++listed > longest && depth == deepest)
      refuse_header(name, "a list has more than 64 numbers");
    return true;
  };
  // The parser skips white space and a byte order mark, which the format does not have there.
  if (!text.starts_with('{')) refuse_header(name, "it is no object: it does not begin with '{'");
  try {
    return nlohmann::json::parse(text, check);
  } catch (nlohmann::json::exception const& failed) {
    refuse_header(name, failed.what());
  }
}

/// Reads what a header says of a tensor.
[[nodiscard]] inline stored_tensor read_stored(
    nlohmann::json const& from, std::string const& key, std::string const& name) {
  auto const refuse = [&](std::string const& wrong) {
    refuse_header(name, "the entry '" + key + "' " + wrong);
  };
  auto const member = [&](char const* of) -> nlohmann::json const& {
    if (!from.is_object() || from.size() != 3 || !from.contains(of))
      refuse("is no object of dtype, shape and data_offsets");
    return from[of];
  };
  auto const numbers = [&](char const* of) {
    auto const& list = member(of);
    constexpr auto most = std::numeric_limits<std::int64_t>::max();
    auto const is_number = [](nlohmann::json const& each) {
      return each.is_number_unsigned() && each.get<std::uint64_t>() <= most;
    };
    if (!list.is_array() || !std::ranges::all_of(list, is_number))
      refuse(std::string("has a ") + of + " that is no list of whole numbers");
    return list.get<std::vector<std::int64_t>>();
  };
  stored_tensor made;
  auto const type = member("dtype");
  auto const* const found = std::ranges::find_if(
      stored_types, [&](stored_type const& each) { return type == each.name; });
  if (found == stored_types.end()) refuse("has the type " + type.dump() + ", which is not known");
  made.type = found->type;
  made.sizes = numbers("shape");
  auto const offsets = numbers("data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    refuse("has data_offsets that are not a begin and an end");
  made.begin = static_cast<std::uint64_t>(offsets[0]);
  made.end = static_cast<std::uint64_t>(offsets[1]);
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
  auto const parsed = parse_header(text, name);
  for (auto const& [key, value] : parsed.items()) {
    if (key == "__metadata__") {
      auto const is_text = [](nlohmann::json const& each) { return each.is_string(); };
      if (!value.is_object() || !std::ranges::all_of(value, is_text))
        refuse_header(name, "its __metadata__ is no object of strings");
      made.metadata = value.get<std::map<std::string, std::string>>();
      continue;
    }
    auto const& each = made.tensors[key] = read_stored(value, key, name);
    if (!fits(each))
      refuse_header(
          name, "the data of the entry '" + key + "' is not " + describe(each.type, each.sizes));
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pieces;
  for (auto const& [key, each] : made.tensors) pieces.emplace_back(each.begin, each.end);
  std::ranges::sort(pieces);
  std::uint64_t covered = 0;
  for (auto const& [begin, end] : pieces) {
    if (begin != covered) refuse_header(name, "the data of two entries overlaps, or a gap is left");
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
        errc::bad_format,
        path_.string() + ": has a byte of a bool that is neither 0 nor 1; take another copy of it");
  return made.to(at::kBool);
}

[[nodiscard]] inline std::string text_of(nlohmann::json const& header) {
  try {
    return header.dump();
  } catch (nlohmann::json::type_error const&) {
    throw error(
        errc::bad_argument, "a name in a checkpoint is not valid UTF-8; give it another one");
  }
}

inline void write_tensors(
    std::filesystem::path const& path,
    std::vector<named_tensor> tensors,
    std::map<std::string, std::string> const& metadata) {
  // The larger numbers first, so that all are aligned.
  std::ranges::stable_sort(tensors, std::greater(), [](named_tensor const& each) {
    return c10::elementSize(each.value.scalar_type());
  });
  nlohmann::json entries;
  entries["__metadata__"] = metadata;
  std::vector<at::Tensor> data;
  std::uint64_t size = 0;
  for (auto const& [name, value] : tensors) {
    auto const* const found =
        std::ranges::find(stored_types, value.scalar_type(), &stored_type::type);
    if (found == stored_types.end() || value.layout() != at::kStrided)
      throw error(
          errc::bad_argument,
          "'" + name + "' is not a dense tensor of a type that a checkpoint can have: it is " +
              describe(value.scalar_type(), value.sizes()));
    auto const& plain = data.emplace_back(value.detach().cpu().contiguous());
    auto const begin = std::exchange(size, size + plain.nbytes());
    entries[name] = {
        {"dtype", found->name}, {"shape", value.sizes().vec()}, {"data_offsets", {begin, size}}};
  }
  auto header = text_of(entries);
  header.resize((header.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  zbpp::detail::require(
      header.size() <= largest_header, "a checkpoint has too many entries; write several files");
  auto const length = static_cast<std::uint64_t>(header.size());
  std::vector<std::span<std::byte const>> pieces{
      std::as_bytes(std::span(&length, 1)), std::as_bytes(std::span(header))};
  for (auto const& each : data)
    pieces.emplace_back(static_cast<std::byte const*>(each.data_ptr()), each.nbytes());
  write_durably(path, pieces);
  sync_folder(path.parent_path());
}

}  // namespace zbpp::torch::detail
