// SPDX-License-Identifier: Apache-2.0
//
// Memory that kernels use: every access has to lie in one array and be aligned; what is read has to
// have been written; and two lanes may not use a byte, one of them to write it, unless a barrier is
// between.
#pragma once

#include <gpu_model/ptx/program.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::test::ptx {

/// Says who uses memory, and after how many barriers of its block.
struct user {
  static constexpr int none = -1;
  static constexpr int several = -2;
  int block = none;
  int lane = none;
  int barriers = 0;
};

/// Is one array, with what is known of each of its bytes.
class array {
 public:
  /// @param address  of its first byte, as kernels have it
  array(std::string name, std::uint64_t address, std::span<std::byte> bytes, bool is_written)
      : name_(std::move(name)),
        address_(address),
        bytes_(bytes),
        is_written_(bytes.size(), static_cast<char>(is_written)) {}

  [[nodiscard]] std::string const& name() const { return name_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  [[nodiscard]] std::vector<char>& is_written() { return is_written_; }

  /// Forgets who used it.
  void begin_launch() {
    readers_.assign(bytes_.size(), {});
    writers_.assign(bytes_.size(), {});
  }
  /// @throws fault
  void read(user const& by, std::uint64_t address, std::span<std::byte> to) {
    auto const first = place(address, to.size());
    for (auto i = first; i < first + to.size(); ++i) {
      if (is_written_[i] == 0) throw fault("reads what nobody wrote in " + name_);
      if (is_race(writers_[i], by)) throw fault("reads what another lane writes in " + name_);
      note_reader(readers_[i], by);
    }
    std::memcpy(to.data(), bytes_.data() + first, to.size());
  }
  /// Of two lanes that write the same value neither can be seen to be the first.
  /// @throws fault
  void write(user const& by, std::uint64_t address, std::span<std::byte const> from) {
    auto const first = place(address, from.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      auto const at = first + i;
      if (is_race(readers_[at], by)) throw fault("writes what another lane reads in " + name_);
      if (is_race(writers_[at], by) && bytes_[at] != from[i])
        throw fault("writes what another lane writes in " + name_);
      writers_[at] = by;
      is_written_[at] = 1;
    }
    std::memcpy(bytes_.data() + first, from.data(), from.size());
  }

 private:
  [[nodiscard]] std::size_t place(std::uint64_t address, std::size_t size) const {
    auto const first = address - address_;
    if (first > bytes_.size() || bytes_.size() - first < size)
      throw fault(std::to_string(size) + " bytes are not within " + name_);
    if (address % size != 0)
      throw fault(std::to_string(size) + " bytes of " + name_ + " are not aligned");
    return first;
  }
  // Nothing orders two blocks; a barrier orders all lanes of one.
  [[nodiscard]] static bool is_race(user const& before, user const& now) {
    if (before.block == user::none) return false;
    if (before.block != now.block) return true;
    return before.lane != now.lane && before.barriers == now.barriers;
  }
  static void note_reader(user& reader, user const& by) {
    if (reader.block == user::none)
      reader = by;
    else if (reader.block != by.block)
      reader.block = user::several;
    else if (reader.barriers != by.barriers)
      reader = by;
    else if (reader.lane != by.lane)
      reader.lane = user::several;
  }

  std::string name_;
  std::uint64_t address_;
  std::span<std::byte> bytes_;
  std::vector<char> is_written_;
  std::vector<user> readers_;
  std::vector<user> writers_;
};

/// Holds all arrays of one kind of memory.
class memory {
 public:
  /// Adds an array.
  array& add(std::string name, std::uint64_t address, std::span<std::byte> bytes, bool is_written) {
    return arrays_.insert_or_assign(address, array(std::move(name), address, bytes, is_written))
        .first->second;
  }
  /// @return the array that an address is in
  /// @throws fault if it is in none
  [[nodiscard]] array& at(std::uint64_t address) {
    auto const after = arrays_.upper_bound(address);
    if (after == arrays_.begin()) throw fault("an address is below all arrays");
    return std::prev(after)->second;
  }
  /// Forgets who used it.
  void begin_launch() {
    for (auto& [address, each] : arrays_) each.begin_launch();
  }

 private:
  std::map<std::uint64_t, array> arrays_;
};

}  // namespace zbpp::test::ptx
