// SPDX-License-Identifier: Apache-2.0
//
// How arrays are found in the files of a checkpoint and put together.
#pragma once

#include <zbpp/checkpoint/detail/blocks.hpp>
#include <zbpp/checkpoint/detail/stored_model.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/checksum.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::checkpoint::detail {

ZBPP_INLINE std::string checksum_key(std::string const& name) { return "checksum of " + name; }
ZBPP_INLINE std::string part_key(std::string const& name) { return "part of " + name; }

[[noreturn]] ZBPP_INLINE void refuse_file(stored_file const& file, std::string const& reason) {
  throw error(errc::bad_format) + file.path().string() + ": " + reason;
}

/// Says which file has a block, and where that lies in the array.
[[nodiscard]] ZBPP_INLINE std::string place_of(stored_file const& file, block const& at) {
  auto text = file.path().filename().string() + " has ";
  for (std::size_t axis = 0; axis < at.whole.size(); ++axis)
    if (at.shape[axis] != at.whole[axis])
      return zbpp::detail::joined(text) + at.shape[axis] + " of " + at.whole[axis] +
             " along axis " + axis + " from " + at.first[axis];
  return text + "all of it";
}

ZBPP_INLINE void stored_model::add(stored_file const& file) {
  for (auto const& [name, array] : file.header().arrays) {
    array_part part;
    auto const& metadata = file.header().metadata;
    if (auto const text = metadata.find(part_key(name)); text != metadata.end()) {
      auto const found = to_part(text->second);
      if (!found || !fits(array.shape, *found))
        refuse_file(file, "has '" + name + "' as part '" + text->second + "', which is none");
      part = *found;
    }
    auto& all = pieces_[name];
    piece const own{&file, &array, block_of(array.shape, part)};
    for (auto const& other : all) {
      if (other.at.whole != own.at.whole || other.array->type != array.type)
        refuse_file(
            file,
            "has a part of '" + name + "' as " + describe(to_string(array.type), own.at.whole) +
                ", and " + other.file->path().filename().string() + " one as " +
                describe(to_string(other.array->type), other.at.whole));
      if (common_count(other.at, own.at) > 0)
        refuse_file(
            file,
            "has '" + name + "', which stands elsewhere, too: " + place_of(file, own.at) + ", " +
                place_of(*other.file, other.at) + "; one rank saves what several have");
    }
    all.push_back(own);
  }
}

ZBPP_INLINE void stored_model::require_whole_arrays() const {
  for (auto const& [name, all] : pieces_)
    require_all(name, all.front().array->type, block_of(all.front().at.whole, {}));
}

ZBPP_INLINE void stored_model::require_all(
    std::string const& name, number_type type, block const& of) const {
  auto text = path_.string() + ": has '" + name + "' in parts, of which some are missing";
  auto const* comma = ": ";
  std::uint64_t count = 0;
  for (auto const& each : pieces_.find(name)->second) {
    text.append(std::exchange(comma, ", ")).append(place_of(*each.file, each.at));
    count += common_count(each.at, of);
  }
  if (size_of(type, of.shape) != count * size_of(type)) throw error(errc::bad_format, text);
}

ZBPP_INLINE std::vector<std::byte> stored_model::read(array const& wanted) const {
  auto const found = pieces_.find(wanted.name);
  if (found == pieces_.end())
    throw error(errc::bad_format) + path_.string() + ": has no '" + wanted.name + "' in its files";
  auto const to = block_of(wanted.shape, wanted.part);
  std::vector<std::byte> all(wanted.bytes.size());
  for (auto const& each : found->second) {
    if (each.array->type != wanted.type || each.at.whole != to.whole)
      refuse_file(
          *each.file,
          "has '" + wanted.name + "' as " + describe(to_string(each.array->type), each.at.whole) +
              ", here belongs " + describe(to_string(wanted.type), to.whole));
    if (common_count(each.at, to) > 0) read_piece(wanted.name, each, to, all);
  }
  require_all(wanted.name, wanted.type, to);
  return all;
}

ZBPP_INLINE void stored_model::read_piece(
    std::string const& name, piece const& from, block const& to, std::span<std::byte> all) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(from.array->end - from.array->begin));
  from.file->read(*from.array, bytes);
  auto const& metadata = from.file->header().metadata;
  auto const sum = metadata.find(checksum_key(name));
  if (sum == metadata.end() ||
      sum->second != hex_text(checksum_of(std::span<std::byte const>(bytes))))
    refuse_file(
        *from.file,
        "is damaged: the bytes of '" + name + "' have another checksum than its header states");
  copy_common(from.at, bytes, to, all);
}

}  // namespace zbpp::checkpoint::detail
