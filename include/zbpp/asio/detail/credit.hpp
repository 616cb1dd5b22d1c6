// SPDX-License-Identifier: Apache-2.0
//
// How many messages a sender may write: as many as the receiver has set blocks aside for, counted
// from the first on, so that a count which comes twice or late does no harm.
#pragma once

#include <atomic>
#include <cstdint>

namespace zbpp::asio::detail {

/// Counts, at the receiving end of a channel, what it has room for and what its sender knows.
///
/// Whoever takes the last message that the sender was allowed, and whoever learns that it has come,
/// may be two threads; at least one of them sees that the sender has to be told.
class credit_given {
 public:
  /// Begins with what both ends know without being told.
  explicit credit_given(std::uint32_t blocks) noexcept
      : supplied_(blocks), reported_(blocks), left_(blocks) {}

  /// Adds room for a message; for the engine.
  /// @return whether the sender has, as far as it knows, no room left
  bool supply() noexcept {
    // Sequentially consistent, as are all of these two: this is the store and load of the one side,
    // `use` and `is_owed` are those of the other.
    supplied_.fetch_add(1);
    return left_.load() == 0;
  }

  /// Counts a message that begins to arrive; for the I/O thread, as all below.
  /// @return false when the sender was not allowed to write it
  [[nodiscard]] bool use() noexcept {
    auto const left = left_.load(std::memory_order_relaxed);
    if (left == 0) return false;
    left_.store(left - 1);
    return true;
  }
  /// Takes back the room of a message that was not kept.
  void discard() noexcept { ++discarded_; }

  /// @return whether there is room that the sender does not know of
  [[nodiscard]] bool is_owed() const noexcept { return total() != reported_; }
  /// @return how many messages more the sender may write, as far as it knows
  [[nodiscard]] std::uint32_t left() const noexcept {
    return left_.load(std::memory_order_relaxed);
  }
  /// @return the count to tell the sender, who now counts as told
  [[nodiscard]] std::uint32_t report() noexcept {
    auto const now = total();
    left_.store(left_.load(std::memory_order_relaxed) + (now - reported_));
    reported_ = now;
    return now;
  }

 private:
  [[nodiscard]] std::uint32_t total() const noexcept { return supplied_.load() + discarded_; }

  std::atomic<std::uint32_t> supplied_;  // written by the engine
  std::uint32_t reported_;
  std::uint32_t discarded_ = 0;
  std::atomic<std::uint32_t> left_;  // written on the I/O thread
};

}  // namespace zbpp::asio::detail
