// SPDX-License-Identifier: Apache-2.0
//
// Carries what ranks tell their neighbours of gradients and verdicts: a few bytes of host memory,
// once per step and direction. `in_process_states` does so between ranks of one process.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/transport.hpp>

#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace zbpp {

/// Moves states between ranks that follow one another by number. What is sent arrives in order. A
/// rank sends at most one more before the last one was taken.
class state_link {
 public:
  static constexpr ticks not_yet = -1;

  virtual ~state_link() = default;

  /// Sends a copy of some bytes to the rank before or after. Never blocks.
  /// @param arrival  when it counts as arrived, in the clock of the engines
  virtual void send(int from, int to, std::span<std::byte const> state, ticks arrival) = 0;
  /// @return when the next state from a neighbour arrived or will arrive; `not_yet` before it is
  ///         sent
  [[nodiscard]] virtual ticks arrival(int from, int to) const noexcept = 0;
  /// Takes the next state, which has arrived.
  virtual void take(int from, int to, std::vector<std::byte>& state) = 0;
  /// Begins another step of a rank, or the same one anew.
  /// @return false while something that the rank sent has not left
  [[nodiscard]] virtual bool begin_step(int rank) = 0;
  /// Ends a run: forgets what was not taken; only when no rank of this process is running.
  virtual void drain() = 0;
};

/// Models a transport by which ranks agree on optimizer steps: it has a `state_link`.
template <class T>
concept agreeing_transport = transport<T> && requires(T& t) {
  { t.states() } -> std::convertible_to<state_link&>;
};

/// Models one by which ranks also begin steps on their own: it can end and begin the steps of one
/// rank, and can discard messages.
template <class T>
concept multi_step_transport =
    agreeing_transport<T> && requires(T& t, int rank_or_channel, std::int32_t count) {
      t.discard(rank_or_channel, count);
      t.end_step(rank_or_channel);
      { t.begin_step(rank_or_channel) } -> std::same_as<bool>;
    };

/// Moves states between ranks of one process.
class in_process_states final : public state_link {
 public:
  explicit in_process_states(int ranks);

  /// Sets what to notify when a state arrives for a rank; may be null when nobody waits.
  void bind(int rank, wakeup* wake) noexcept { wakeups_[detail::index(rank)] = wake; }

  void send(int from, int to, std::span<std::byte const> state, ticks arrival) override;
  [[nodiscard]] ticks arrival(int from, int to) const noexcept override;
  void take(int from, int to, std::vector<std::byte>& state) override;
  [[nodiscard]] bool begin_step(int /*rank*/) override { return true; }
  void drain() noexcept override;

 private:
  struct entry {
    std::vector<std::byte> state;
    ticks arrival = 0;
  };
  struct lane {
    std::atomic<std::uint32_t> sent{0};  // written by the sender alone
    std::uint32_t taken = 0;             // touched by the receiver alone
    std::array<entry, 2> ring;
  };

  // The lane from a rank to the next stands at an even place, that back at an odd one.
  [[nodiscard]] lane& lane_of(int from, int to) const noexcept {
    return lanes_[2 * detail::index(from < to ? from : to) + (from < to ? 0 : 1)];
  }

  std::vector<wakeup*> wakeups_;
  std::unique_ptr<lane[]> lanes_;
  std::size_t count_;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/state_link.ipp>
#endif
