// SPDX-License-Identifier: Apache-2.0
//
// How arrays are found in files, put together of their parts, and compared with what is wanted.
#pragma once

#include <zbpp/checkpoint/stored_model.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/checksum.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace zbpp::checkpoint {

namespace detail {

ZBPP_INLINE std::string checksum_key(std::string const& name) { return "checksum of " + name; }
ZBPP_INLINE std::string part_key(std::string const& name) { return "part of " + name; }

ZBPP_INLINE bool fits(std::vector<std::int64_t> const& shape, array_part const& part) noexcept {
  if (part.whole == 0) return part.axis == 0 && part.first == 0;
  if (part.axis < 0 || static_cast<std::size_t>(part.axis) >= shape.size()) return false;
  auto const own = shape[static_cast<std::size_t>(part.axis)];
  return part.first >= 0 && own <= part.whole && part.first <= part.whole - own;
}

ZBPP_INLINE std::string to_text(array_part const& part) {
  return zbpp::detail::joined(part.axis, " ", part.first, " ", part.whole);
}

ZBPP_INLINE std::optional<array_part> to_part(std::string_view text) {
  array_part part;
  auto const* at = text.data();
  auto const* const end = at + text.size();
  auto const read = [&](auto& number) {
    auto const found = std::from_chars(at, end, number);
    at = found.ptr;
    return found.ec == std::errc();
  };
  auto const skip_blank = [&] { return at != end && *at++ == ' '; };
  bool const is_read = read(part.axis) && skip_blank() && read(part.first) && skip_blank() &&
                       read(part.whole) && at == end;
  return is_read && part.whole > 0 ? std::optional(part) : std::nullopt;
}

/// @return the part as a block; the whole array if it is not divided
[[nodiscard]] ZBPP_INLINE block
block_of(std::vector<std::int64_t> const& shape, array_part const& part) {
  block result{.whole = shape, .first = std::vector<std::int64_t>(shape.size()), .shape = shape};
  if (part.whole == 0) return result;
  auto const axis = static_cast<std::size_t>(part.axis);
  result.whole[axis] = part.whole;
  result.first[axis] = part.first;
  return result;
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

[[nodiscard]] ZBPP_INLINE std::uint64_t common_count(
    block const& one, block const& other) noexcept {
  std::uint64_t count = 1;
  for (std::size_t axis = 0; axis < one.whole.size(); ++axis)
    count *= static_cast<std::uint64_t>(common_along(one, other, axis).count);
  return count;
}

/// Copies the elements that two blocks of one array have in common, of which there are some. Where
/// both are alike along all later axes, these lie next to each other.
/// @param axis  from which on; the spans have one index of those before
ZBPP_INLINE void copy_common(
    block const& from,
    std::span<std::byte const> source,
    block const& to,
    std::span<std::byte> target,
    std::size_t axis = 0) {
  bool is_run = true;
  for (auto later = axis + 1; later < from.whole.size(); ++later)
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

[[nodiscard]] ZBPP_INLINE std::deque<stored_file> open_files(std::filesystem::path const& path) {
  std::error_code none;
  std::vector<std::filesystem::path> paths{path};
  if (std::filesystem::is_directory(path, none)) {
    paths.clear();
    for (auto const& entry : entries_of(path))
      if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
    if (paths.empty())
      throw error(errc::io_failed) + path.string() +
          ": has no file whose name ends in .safetensors";
  }
  std::ranges::sort(paths);
  std::deque<stored_file> files;
  for (auto& each : paths) files.emplace_back(std::move(each));
  return files;
}

/// @return what a file says of the run
[[nodiscard]] ZBPP_INLINE saved_training training_of(stored_file const& file) {
  auto const found = file.header().metadata.find(training_key);
  if (found == file.header().metadata.end()) return {};
  if (auto const read = to_training(found->second)) return *read;
  refuse_file(
      file,
      "its training_state is '" + found->second +
          "', which is not five or six numbers; take another copy of it");
}

ZBPP_INLINE void require_same_training(stored_file const& file, stored_file const& first) {
  auto const [state, has_gradients] = training_of(file);
  auto const [right, had_gradients] = training_of(first);
  auto const other = first.path().string();
  if (state.steps != right.steps)
    refuse_file(
        file,
        zbpp::detail::joined("is of step ", state.steps, ", and ", other, " of step ") +
            right.steps + "; load files that were saved at the same time");
  if (state != right || has_gradients != had_gradients)
    refuse_file(
        file,
        "has the training_state '" + checkpoint::to_text(state) + "', and " + other + " has '" +
            checkpoint::to_text(right) +
            "'; load files that were saved at the same time, with the state of a rank that has an "
            "optimizer");
}

}  // namespace detail

ZBPP_INLINE stored_model::stored_model(std::filesystem::path const& path)
    : stored_model(path, detail::open_files(path)) {}

ZBPP_INLINE stored_model::stored_model(std::filesystem::path path, std::deque<stored_file> files)
    : path_(std::move(path)), files_(std::move(files)) {
  for (auto const& each : files_) {
    detail::require_same_training(each, files_.front());
    add(each);
  }
  if (!files_.empty()) training_ = detail::training_of(files_.front());
}

ZBPP_INLINE void stored_model::add(stored_file const& file) {
  auto const& metadata = file.header().metadata;
  for (auto const& [name, stored] : file.header().arrays) {
    array_part part;
    if (auto const text = metadata.find(detail::part_key(name)); text != metadata.end()) {
      auto const found = detail::to_part(text->second);
      if (!found || !detail::fits(stored.shape, *found))
        detail::refuse_file(
            file, "has '" + name + "' as part '" + text->second + "', which is none");
      part = *found;
    }
    auto& all = pieces_[name];
    piece const own{&file, &stored, detail::block_of(stored.shape, part)};
    for (auto const& other : all) {
      if (other.at.whole != own.at.whole || other.array->type != stored.type)
        detail::refuse_file(
            file,
            "has a part of '" + name + "' as " + describe(stored.type, own.at.whole) + ", and " +
                other.file->path().filename().string() + " one as " +
                describe(other.array->type, other.at.whole));
      if (detail::common_count(other.at, own.at) > 0)
        detail::refuse_file(
            file,
            "has '" + name + "', which stands elsewhere, too: " + detail::place_of(file, own.at) +
                ", " + detail::place_of(*other.file, other.at) +
                "; one rank saves what several have");
    }
    all.push_back(own);
    arrays_.try_emplace(name, array{name, stored.type, own.at.whole, {}});
  }
}

ZBPP_INLINE void stored_model::require(array const& wanted) const {
  auto const to = detail::block_of(wanted.shape, wanted.part);
  auto const right = describe(wanted.type, to.whole);
  auto const found = arrays_.find(wanted.name);
  if (found == arrays_.end())
    throw error(errc::bad_format) + path_.string() + ": has no '" + wanted.name +
        "', here belongs " + right +
        "; save what all ranks have, under the names of the whole model";
  auto const& pieces = pieces_.find(wanted.name)->second;
  auto const& [name, type, shape, bytes, part] = found->second;
  if (type != wanted.type || shape != to.whole)
    detail::refuse_file(
        *pieces.front().file,
        "has '" + name + "' as " + describe(type, shape) + ", here belongs " + right);
  std::uint64_t count = 0;
  for (auto const& each : pieces) count += detail::common_count(each.at, to);
  if (size_of(type, to.shape) == count * size_of(type)) return;
  auto text = path_.string() + ": has '" + name + "' in parts, of which some are missing";
  auto const* comma = ": ";
  for (auto const& each : pieces)
    text.append(std::exchange(comma, ", ")).append(detail::place_of(*each.file, each.at));
  throw error(errc::bad_format, text);
}

ZBPP_INLINE std::vector<std::byte> stored_model::read(array const& wanted) const {
  require(wanted);
  auto const to = detail::block_of(wanted.shape, wanted.part);
  auto const& pieces = pieces_.find(wanted.name)->second;
  auto const same = std::ranges::find(pieces, to, &piece::at);
  if (same != pieces.end()) return read_all(wanted.name, *same);
  std::vector<std::byte> all(static_cast<std::size_t>(*size_of(wanted.type, wanted.shape)));
  for (auto const& each : pieces)
    if (detail::common_count(each.at, to) > 0)
      detail::copy_common(each.at, read_all(wanted.name, each), to, all);
  return all;
}

// Files of others state no checksums.
ZBPP_INLINE std::vector<std::byte> stored_model::read_all(
    std::string const& name, piece const& of) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(of.array->end - of.array->begin));
  of.file->read(*of.array, bytes);
  auto const& metadata = of.file->header().metadata;
  auto const sum = metadata.find(detail::checksum_key(name));
  if (sum != metadata.end() &&
      sum->second != hex_text(checksum_of(std::span<std::byte const>(bytes))))
    detail::refuse_file(
        *of.file,
        "is damaged: the bytes of '" + name + "' have another checksum than its header states");
  return bytes;
}

}  // namespace zbpp::checkpoint
