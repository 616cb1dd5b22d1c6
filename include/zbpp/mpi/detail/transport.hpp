// SPDX-License-Identifier: Apache-2.0
//
// Moves messages between processes by MPI, which takes buffers from the sender's arena and writes
// them into the receiver's.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/mpi/settings.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/transport.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mpi.h>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace zbpp::mpi::detail {

class incoming;
class outgoing;
enum class send_mode : std::uint8_t;

/// Moves the messages of one rank. Models `multi_step_transport` and `acknowledging_transport`.
///
/// All is for the thread of the rank's engine, but `poll_aside`.
class transport {
 public:
  static constexpr ticks not_yet = -1;
  /// How many tags one takes.
  static constexpr int tags = 4;

  /// @param among      whose ranks are those of the pipeline; its errors are returned
  /// @param first_tag  of `tags` that nobody else uses there
  /// @param place_of   the rank in `among` of each rank
  /// @param largest    the largest message of each channel in bytes, 0 where none is declared
  /// @param mode       plain in training, where channels say how many messages are under way
  transport(
      MPI_Comm among,
      int first_tag,
      int rank,
      std::span<int const> place_of,
      std::vector<channel> const& channels,
      std::vector<bytes> const& largest,
      send_mode mode,
      ranks_settings const& settings);
  transport(transport const&) = delete;
  transport& operator=(transport const&) = delete;
  /// Takes back the receives that are open. Where a run has failed, messages may be under way: then
  /// waits for a quarter of a second for them to arrive, and where they do not ends the process by
  /// MPI_Abort, since MPI would write into memory that is free.
  ~transport();

  /// Says where what arrives goes, and which wakeup to notify then. Opens receives there.
  /// @throws error (bad_argument) for another rank; (io_failed), std::bad_alloc
  void bind(int rank, arena& memory, wakeup* wake);
  /// Opens the next slot of a channel, `most` bytes large.
  void post_receive(int channel, bytes most) noexcept { open(channel, most); }
  /// Ships a message, an object as the bytes that its serializer makes of it. Never blocks.
  /// @throws error (wrong_size) when it is larger than the channel allows; (bad_argument) when more
  ///         than channel.in_flight are not retired, or an object has no serializer; (io_failed)
  void send(int channel, message&& msg, ticks);
  [[nodiscard]] ticks arrival(int channel, std::int32_t sequence) const noexcept;
  [[nodiscard]] bool have_arrived(int channel, std::int32_t count) const noexcept {
    return arrival(channel, count - 1) != not_yet;
  }
  [[nodiscard]] std::chrono::steady_clock::time_point arrived_at(
      int channel, std::int32_t sequence) const noexcept;
  /// Gives a message that has arrived, in memory of the receiving rank, and closes its slot.
  /// @throws error (io_failed), std::bad_alloc
  [[nodiscard]] message take(int channel, std::int32_t sequence, bytes most);
  /// Releases the messages of a channel before number `count`, which the sender knows are consumed.
  void retire(int channel, std::int32_t count);
  /// Does nothing: what MPI has delivered is released.
  static void acknowledge(int /*channel*/, std::int32_t /*count*/) noexcept {}
  [[nodiscard]] bool is_released(int channel, std::int32_t count) const noexcept;

  /// Lets MPI go on, and looks at what has arrived and left.
  /// @throws error (io_failed), also for what `poll_aside` met; std::bad_alloc
  void poll();
  /// The same as far as it takes no memory of the arena; for another thread, while the engine runs
  /// a pass. Does nothing while the engine calls MPI.
  void poll_aside() noexcept;
  [[nodiscard]] bool is_flushed() const noexcept;

  /// Has another object carry the states of gradients; it must outlive this one's use.
  void link_states(state_link& states) noexcept { states_ = &states; }
  [[nodiscard]] state_link& states() noexcept { return *states_; }
  /// Does nothing: `begin_step` releases what was not taken.
  static void discard(int /*channel*/, std::int32_t /*count*/) noexcept {}
  /// Does nothing: no peer waits for it.
  static void end_step(int /*rank*/) noexcept {}
  /// Begins the next step, or the same one again: as `drain`.
  /// @return false while something that was sent has not left
  [[nodiscard]] bool begin_step(int rank);
  /// Wakes the rank.
  void abort() noexcept { notify(wake_); }
  /// Releases what was not taken, and begins the next step.
  void drain();

 private:
  void open(int channel, bytes change) noexcept {
    open_[zbpp::detail::index(channel)] += change;
    memory_->count_edge(change);
  }
  bool progress(bool has_memory);
  void release_all();
  void close() noexcept;

  int rank_;
  std::mutex mutex_;                            // held while MPI is called for this
  std::vector<std::unique_ptr<outgoing>> out_;  // by channel; null where it begins elsewhere
  std::vector<std::unique_ptr<incoming>> in_;   // by channel; null where it ends elsewhere
  std::vector<bytes> open_;                     // by channel: of slots whose message was not taken
  std::string lost_;                            // why `poll_aside` has given up
  arena* memory_ = nullptr;
  wakeup* wake_ = nullptr;
  state_link* states_ = nullptr;  // null where ranks exchange none
};

}  // namespace zbpp::mpi::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/mpi/impl/transport.ipp>
#endif
