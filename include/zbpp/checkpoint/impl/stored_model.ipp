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
  throw error(errc::bad_format, file.path().string() + ": " + reason);
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
    piece const own{&file, &array, block_of(array.shape, part), part.whole == 0};
    for (auto const& other : all) {
      if (other.at.whole != own.at.whole || other.array->type != array.type)
        refuse_file(
            file,
            "has a part of '" + name + "' as " + describe(to_string(array.type), own.at.whole) +
                ", and " + other.file->path().filename().string() + " one as " +
                describe(to_string(other.array->type), other.at.whole));
      if (other.is_whole || own.is_whole || common_count(other.at, own.at) > 0)
        refuse_file(file, "has '" + name + "', which stands elsewhere, too");
    }
    all.push_back(own);
  }
}

ZBPP_INLINE std::vector<std::byte> stored_model::read(array const& wanted) const {
  auto const found = pieces_.find(wanted.name);
  if (found == pieces_.end())
    throw error(errc::bad_format, path_.string() + ": has no '" + wanted.name + "' in its files");
  auto const to = block_of(wanted.shape, wanted.part);
  std::vector<std::byte> all(wanted.bytes.size());
  std::uint64_t count = 0;
  for (auto const& each : found->second) {
    if (each.array->type != wanted.type || each.at.whole != to.whole)
      refuse_file(
          *each.file,
          "has '" + wanted.name + "' as " + describe(to_string(each.array->type), each.at.whole) +
              ", here belongs " + describe(to_string(wanted.type), to.whole));
    auto const common = common_count(each.at, to);
    if (common > 0) read_piece(wanted.name, each, to, all);
    count += common;
  }
  if (count * size_of(wanted.type) != all.size())
    throw error(
        errc::bad_format,
        path_.string() + ": has '" + wanted.name + "' in parts, of which some are missing");
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
  copy_common(from.at, bytes, to, all, size_of(from.array->type));
}

}  // namespace zbpp::checkpoint::detail
