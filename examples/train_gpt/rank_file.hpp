// SPDX-License-Identifier: Apache-2.0
//
// What one rank keeps of a checkpoint, as one binary file of little-endian words of 64 bits: a
// header that says what it is, the arrays of each stage, and the checksum of all before it.
#pragma once

#include "checksum.hpp"
#include "config.hpp"
#include "durable.hpp"
#include "regular_file.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Points at all that training changes in a stage. What else it needs follows from the settings and
/// the number of steps taken.
struct stage_state {
  int stage;
  std::span<float> parameters;
  std::span<float> mean;    ///< of the gradients
  std::span<float> square;  ///< mean of the squared gradients; empty where SGD needs none
};

/// Says which file of which checkpoint this is.
struct rank_file_id {
  std::uint64_t run;  ///< checksum of the settings
  std::int64_t step;  ///< steps taken so far
  int ranks;
  int rank;
};

/// Says what a manifest knows of a file.
struct file_record {
  std::uint64_t size;  ///< bytes
  std::uint64_t sum;   ///< checksum of all but the last word, which holds it

  friend bool operator==(file_record const&, file_record const&) = default;
};

/// Is a word of a header and what it says.
struct header_word {
  std::string says;
  std::uint64_t value;
};

/// Lists the header of a file. A reader knows what has to be there, and accepts nothing else.
[[nodiscard]] inline std::vector<header_word> header_of(
    rank_file_id const& id, std::span<stage_state const> stages) {
  constexpr std::uint64_t magic = 0x4b43'5447'5050'425aU;  // "ZBPPGTCK"
  constexpr std::uint64_t version = 1;
  auto const word = [](auto value) { return static_cast<std::uint64_t>(value); };
  std::vector<header_word> words{
      {"magic number", magic},
      {"version", version},
      {"run", id.run},
      {"step", word(id.step)},
      {"ranks", word(id.ranks)},
      {"rank", word(id.rank)},
      {"stages", word(stages.size())}};
  for (auto const& s : stages) {
    auto const of = " of stage " + std::to_string(s.stage);
    words.push_back({"number" + of, word(s.stage)});
    words.push_back({"parameters" + of, word(s.parameters.size())});
    words.push_back({"mean gradients" + of, word(s.mean.size())});
    words.push_back({"mean squared gradients" + of, word(s.square.size())});
  }
  return words;
}

/// Writes the file of a rank, to the disk.
/// @param between  called between pieces
/// @throws zbpp::error (io_failed); what `between` throws
[[nodiscard]] inline file_record write_rank_file(
    std::filesystem::path const& path,
    rank_file_id const& id,
    std::span<stage_state const> stages,
    interruption const& between) {
  static_assert(std::endian::native == std::endian::little);
  std::vector<std::uint64_t> header;
  for (auto const& word : header_of(id, stages)) header.push_back(word.value);
  std::vector<std::span<std::byte const>> pieces{std::as_bytes(std::span(header))};
  for (auto const& s : stages)
    for (auto const array : {s.parameters, s.mean, s.square})
      pieces.push_back(std::as_bytes(array));
  checksum sum;
  file_record record{sizeof(std::uint64_t), 0};
  for (auto const& piece : pieces) {
    between();
    sum.add(piece);
    record.size += piece.size();
  }
  record.sum = sum.value();
  pieces.push_back(std::as_bytes(std::span(&record.sum, 1)));
  write_durably(path, pieces, between);
  return record;
}

/// Reads the file of a rank into its stages. Nothing of them is changed unless all of it is right.
/// @param record  what the manifest says
/// @throws setting_error with the path and what is wrong; zbpp::error (io_failed)
inline void read_rank_file(
    std::filesystem::path const& path,
    rank_file_id const& id,
    file_record const& record,
    std::span<stage_state const> stages) {
  auto const refuse = [&](std::string const& why) { throw setting_error(path.string() + why); };
  constexpr auto word_size = sizeof(std::uint64_t);
  auto const header = header_of(id, stages);
  auto const last = [&] {  // the checksum stands there
    auto size = header.size() * word_size;
    for (auto const& s : stages)
      size += s.parameters.size_bytes() + s.mean.size_bytes() + s.square.size_bytes();
    return size / word_size;
  }();
  auto const right_size = (last + 1) * word_size;
  regular_file const file(path);
  // Of a file of another size no more is read than tells what it is: it may be larger than memory.
  bool const is_as_large = file.size() == right_size;
  auto const bytes = file.read(is_as_large ? right_size : header.size() * word_size);
  auto const words = bytes.size() / word_size;
  auto const word_at = [&](std::size_t i) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + i * word_size, word_size);
    return value;
  };
  auto const expect_header = [&] {
    for (std::size_t i = 0; i < header.size(); ++i)
      if (word_at(i) != header[i].value)
        refuse(
            " is another checkpoint's or another rank's: its " + header[i].says + " is " +
            std::to_string(word_at(i)) + ", here belongs " + std::to_string(header[i].value));
  };
  if (!is_as_large || words <= last) {
    bool const is_ours =
        words >= header.size() && word_at(0) == header[0].value && word_at(1) == header[1].value;
    if (is_ours) expect_header();
    refuse(
        " has " + std::to_string(file.size()) + " bytes and should have " +
        std::to_string(right_size) + ": it is torn");
  }
  auto const sum = checksum_of(std::string_view(bytes).substr(0, last * word_size));
  if (sum != word_at(last))
    refuse(" is damaged: its checksum says " + hex(word_at(last)) + ", its bytes " + hex(sum));
  expect_header();  // it is whole, and may yet be one that belongs elsewhere
  if (file_record{right_size, sum} != record)
    refuse(
        " is not the file of its manifest: that says " + std::to_string(record.size) +
        " bytes and checksum " + hex(record.sum) + ", it has " + std::to_string(right_size) +
        " and " + hex(sum));
  auto const* from = bytes.data() + header.size() * word_size;
  for (auto const& s : stages)
    for (auto const array : {s.parameters, s.mean, s.square}) {
      if (array.empty()) continue;  // no memory to copy to
      std::memcpy(array.data(), from, array.size_bytes());
      from += array.size_bytes();
    }
}

}  // namespace gpt
