// SPDX-License-Identifier: Apache-2.0
//
// Carries what ranks tell each other of gradients and verdicts: host memory, once per step and
// channel. `in_process_states` does so between ranks of one process.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/transport.hpp>

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace zbpp {

/// Numbers the directed channels by which ranks tell each other of gradients, by sender, then
/// receiver: from each rank to the next and back, where ranks agree on steps, and between all ranks
/// with tied weights. What they tell is a state: of a rank's gradients, of the step, or the
/// gradients of tied weights.
class state_map {
 public:
  static constexpr int none = -1;

  /// Numbers those between `ranks` ranks without tied weights.
  explicit state_map(int ranks);
  /// Numbers those of a program.
  explicit state_map(program const& program);

  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(pairs_.size()); }
  /// @return sender and receiver of a channel
  [[nodiscard]] std::pair<int, int> ends(int channel) const noexcept {
    return pairs_[detail::index(channel)];
  }
  /// @return the channel from one rank to another; none where there is none
  [[nodiscard]] int between(int from, int to) const noexcept;
  /// @return most states of a channel that were sent and not yet taken
  [[nodiscard]] int depth(int channel) const noexcept { return depths_[detail::index(channel)]; }

 private:
  void add(int from, int to, int depth);

  int ranks_;
  std::vector<std::pair<int, int>> pairs_;
  std::vector<int> depths_;
};

/// Moves states. What is sent by a channel arrives in order.
class state_link {
 public:
  static constexpr ticks not_yet = -1;

  virtual ~state_link() = default;

  /// Sends a copy of some bytes. Never blocks.
  /// @param arrival  when it counts as arrived, in the clock of the engines
  virtual void send(int channel, std::span<std::byte const> state, ticks arrival) = 0;
  /// @return when the next state of a channel arrived or will arrive; `not_yet` before it is sent
  [[nodiscard]] virtual ticks arrival(int channel) const noexcept = 0;
  /// Takes the next state, which has arrived.
  virtual void take(int channel, std::vector<std::byte>& state) = 0;
  /// Begins another step of a rank, or the same one again.
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
      { t.have_arrived(rank_or_channel, count) } -> std::same_as<bool>;
      t.discard(rank_or_channel, count);
      t.end_step(rank_or_channel);
      { t.begin_step(rank_or_channel) } -> std::same_as<bool>;
    };

/// Moves states between ranks of one process.
class in_process_states final : public state_link {
 public:
  explicit in_process_states(state_map const& map);

  /// Sets what to notify when a state arrives for a rank; may be null when nobody waits.
  void bind(int rank, wakeup* wake) noexcept { wakeups_[detail::index(rank)] = wake; }

  void send(int channel, std::span<std::byte const> state, ticks arrival) override;
  [[nodiscard]] ticks arrival(int channel) const noexcept override;
  void take(int channel, std::vector<std::byte>& state) override;
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
    std::vector<entry> ring;
  };

  state_map map_;
  std::vector<wakeup*> wakeups_;  // by rank
  std::vector<lane> lanes_;       // by channel
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/state_link.ipp>
#endif
