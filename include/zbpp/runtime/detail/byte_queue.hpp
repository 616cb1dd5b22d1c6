// SPDX-License-Identifier: Apache-2.0
//
// Bytes that wait between two members of a group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Queues what one member sends another. Memory of what was taken is used again, the last first.
class byte_queue {
 public:
  /// How many messages wait at most while no member makes one broadcast after another: those of a
  /// call and the next, and of a broadcast between them. How many do is a matter of time, so memory
  /// for all is set aside.
  static constexpr std::size_t usual = 3;

  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }

  void reserve(std::size_t messages, std::size_t most) {
    while (ring_.size() < messages) add_place();
    for (auto& place : ring_) place.reserve(most);
    most_ = std::max(most_, most);
  }

  void push(std::span<std::byte const> head, std::span<std::byte const> body) {
    auto const size = head.size() + body.size();
    if (size > most_) reserve(usual, size);
    if (count_ == ring_.size()) add_place();
    auto& place = ring_[(first_ + count_++) % ring_.size()];
    place.assign(head.begin(), head.end());
    place.insert(place.end(), body.begin(), body.end());
  }

  void pop(std::vector<std::byte>& bytes) {
    bytes.reserve(ring_[first_].capacity());  // as it comes here in turn
    std::swap(bytes, ring_[first_]);
    first_ = --count_ == 0 ? 0 : (first_ + 1) % ring_.size();
  }

 private:
  void add_place() {
    std::rotate(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(first_), ring_.end());
    first_ = 0;
    ring_.emplace_back().reserve(most_);
  }

  std::vector<std::vector<std::byte>> ring_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::size_t most_ = 0;  // bytes for which every place has room
};

}  // namespace zbpp::detail
