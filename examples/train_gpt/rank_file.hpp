// SPDX-License-Identifier: Apache-2.0
//
// What one rank keeps of a checkpoint, as one file: the size of a header as a little-endian word of
// 64 bits, the header, and the arrays that it lists, one after the other. An array has the name of
// its parameter in the whole model, so that ranks of any split find what they need.
#pragma once

#include "checksum.hpp"
#include "config.hpp"
#include "durable.hpp"
#include "lines.hpp"
#include "parameters.hpp"
#include "regular_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpt {

/// Points at what training changes of one parameter of the model.
struct named_array {
  std::string name;  ///< no other one of the model has it
  std::span<float> values;
};

/// Points at all that training changes in a stage. What else it needs follows from the settings and
/// the number of steps taken.
struct stage_state {
  std::span<parameter_set::entry const> entries;  ///< where each parameter lies in the others
  std::span<float> parameters;
  std::span<float> mean;    ///< of the gradients
  std::span<float> square;  ///< mean of the squared gradients; empty where SGD needs none

  /// Adds each parameter and what the optimizer keeps of it; what lies between them stays 0.
  void list(std::vector<named_array>& to) const {
    for (auto const& e : entries) {
      auto const name = std::to_string(e.part) + "/" + std::string(e.name);
      auto const add = [&](char const* what, std::span<float> all) {
        auto const first = static_cast<std::size_t>(e.at.offset);
        if (!all.empty())
          to.push_back({name + what, all.subspan(first, static_cast<std::size_t>(e.at.size))});
      };
      add("", parameters);
      add("/mean", mean);
      add("/mean square", square);
    }
  }
};

/// Says which file of which checkpoint this is.
struct rank_file_id {
  std::uint64_t run;  ///< checksum of the settings
  std::int64_t step;  ///< steps taken so far
  int ranks;          ///< of the run that saved it
  int rank;

  /// Lists it as the lines of a header.
  [[nodiscard]] std::array<std::pair<char const*, std::string>, 4> lines() const {
    return {
        {{"run", hex(run)},
         {"step", std::to_string(step)},
         {"ranks", std::to_string(ranks)},
         {"rank", std::to_string(rank)}}};
  }
};

/// Says what a manifest knows of a file.
struct file_record {
  std::uint64_t size;  ///< bytes
  std::uint64_t sum;   ///< checksum of the header, which has those of the arrays

  friend bool operator==(file_record const&, file_record const&) = default;
};

/// Says what a header knows of an array.
struct array_record {
  std::string name;
  std::uint64_t count;   ///< floats
  std::uint64_t sum;     ///< checksum
  std::uint64_t offset;  ///< bytes of the file before it

  /// @return its bytes
  [[nodiscard]] std::uint64_t size() const { return count * sizeof(float); }
};

/// Is the first line of a header.
inline constexpr char const* rank_file_title =
    "zbpp train_gpt checkpoint, a rank's file, version 2";

/// Writes the file of a rank, to the disk.
/// @param between  called between pieces
/// @throws zbpp::error (io_failed); what `between` throws
[[nodiscard]] inline file_record write_rank_file(
    std::filesystem::path const& path,
    rank_file_id const& id,
    std::span<named_array const> arrays,
    interruption const& between) {
  static_assert(std::endian::native == std::endian::little);
  auto header = std::string(rank_file_title) + "\n";
  for (auto const& [name, value] : id.lines()) header += name + (": " + value) + "\n";
  file_record record{sizeof(std::uint64_t), 0};
  for (auto const& a : arrays) {
    between();
    auto const sum = checksum_of(std::as_bytes(a.values));
    header += a.name + ": " + sized("floats", a.values.size(), sum) + "\n";
    record.size += a.values.size_bytes();
  }
  header = with_checksum(std::move(header));
  record.size += header.size();
  record.sum = checksum_of(std::string_view(header));
  std::uint64_t const length = header.size();
  std::vector<std::span<std::byte const>> pieces{
      std::as_bytes(std::span(&length, 1)), std::as_bytes(std::span(header))};
  for (auto const& a : arrays) pieces.push_back(std::as_bytes(a.values));
  write_durably(path, pieces, between);
  return record;
}

/// Is the file of a rank that is open for reading.
class rank_file {
 public:
  /// Reads the header.
  /// @param record  what the manifest says
  /// @throws setting_error with the path when it is torn, or not the file that belongs there
  rank_file(std::filesystem::path path, rank_file_id const& id, file_record const& record)
      : file_(std::move(path)) {
    auto const header = read_header();
    line_reader lines(header);
    bool const is_header = !lines.find_damage() && lines.next_line() == rank_file_title;
    try {
      if (is_header) expect(id, lines);
      if (file_.size() != record.size)
        throw setting_error(
            "has " + std::to_string(file_.size()) + " bytes and should have " +
            std::to_string(record.size) + ": it is torn");
      if (!is_header)
        throw setting_error(
            "is damaged: it does not begin with the header of a rank's file and its checksum");
      if (auto const sum = checksum_of(std::string_view(header)); sum != record.sum)
        throw setting_error(
            "is not the file of its manifest: that has the checksum " + hex(record.sum) +
            ", its header has " + hex(sum));
      read_arrays(lines, sizeof(std::uint64_t) + header.size());
    } catch (setting_error const& wrong) {
      refuse(wrong.what());
    }
  }

  /// @return what it has
  [[nodiscard]] std::span<array_record const> arrays() const { return arrays_; }

  /// Reads an array.
  /// @param to  has room for it
  /// @throws setting_error with the path when it is damaged
  void read(array_record const& which, std::span<float> to) const {
    file_.read_at(which.offset, std::as_writable_bytes(to));
    if (auto const sum = checksum_of(std::as_bytes(to)); sum != which.sum)
      refuse(
          "is damaged: the checksum of \"" + which.name + "\" is " + hex(which.sum) +
          ", its bytes have " + hex(sum));
  }

  /// Says what is wrong with it.
  /// @throws setting_error with the path
  [[noreturn]] void refuse(std::string const& why) const {
    throw setting_error(file_.path().string() + " " + why);
  }

 private:
  // What it says of its size is not believed: it may be larger than memory.
  [[nodiscard]] std::string read_header() const {
    constexpr std::uint64_t most = 1U << 22U;
    std::uint64_t length = 0;
    auto const word = file_.read(sizeof(length));
    if (word.size() < sizeof(length)) return {};
    std::memcpy(&length, word.data(), sizeof(length));
    return length <= most ? file_.read(length) : std::string();
  }

  static void expect(rank_file_id const& id, line_reader& lines) {
    for (auto const& [name, right] : id.lines())
      if (auto const is = lines.value(name); is != right)
        throw setting_error(
            "is another checkpoint's or another rank's: its " + std::string(name) + " is " +
            std::string(is) + ", here belongs " + right);
  }

  void read_arrays(line_reader& lines, std::uint64_t offset) {
    while (!lines.is_at_checksum()) {
      auto const line = lines.next_line();
      auto const colon = std::min(line.rfind(": "), line.size());
      auto const [count, sum] =
          line_reader::sized("floats", line.substr(std::min(colon + 2, line.size())));
      arrays_.push_back({std::string(line.substr(0, colon)), count, sum, offset});
      if (count > (file_.size() - offset) / sizeof(float))
        throw setting_error("lists more in its header than it has");
      offset += arrays_.back().size();
    }
    if (offset != file_.size()) throw setting_error("has more than its header lists");
  }

  regular_file file_;
  std::vector<array_record> arrays_;
};

}  // namespace gpt
