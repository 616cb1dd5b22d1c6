// SPDX-License-Identifier: Apache-2.0
//
// Moves messages between processes by MPI, which takes buffers from the sender's arena and writes
// them into the receiver's.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/mpi/detail/call.hpp>
#include <zbpp/mpi/detail/channel_ends.hpp>
#include <zbpp/mpi/settings.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/rank_transport.hpp>
#include <zbpp/runtime/transport.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <mpi.h>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp::mpi::detail {

/// Moves the messages of one rank. All is for the thread of its engine, but `poll_aside`.
class transport final : public rank_transport {
 public:
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
      ranks_settings const& settings)
      : rank_transport(
            rank,
            channels,
            largest,
            settings.largest_undeclared_message,
            settings.records_messages),
        out_(channels.size()),
        in_(channels.size()),
        spin_(settings.spin) {
    for (std::size_t c = 0; c < channels.size(); ++c) {
      auto const& ends = channels[c];
      // Two channels between two ranks have tags of their own even if both are one process.
      auto const tag = first_tag + (ends.from < ends.to ? 0 : tags / 2);
      auto const place = [&](int peer) {
        return channel_place{among, place_of[zbpp::detail::index(peer)], tag, tag + 1};
      };
      if (auto* const ring = received(static_cast<int>(c)); ring != nullptr)
        in_[c] = std::make_unique<incoming>(place(ends.from), *ring, ends, largest[c]);
      if (auto* const ring = sent(static_cast<int>(c)); ring != nullptr)
        out_[c] = std::make_unique<outgoing>(place(ends.to), *ring, largest[c], mode);
    }
  }
  /// Takes back the receives that are open. Where a run has failed, messages may be under way: then
  /// waits for a quarter of a second for them to arrive, and where they do not ends the process by
  /// MPI_Abort, since MPI would write into memory that is free.
  ~transport() override {
    if (!is_bound() || is_finalized()) return;
    char const* why = "messages are under way to a pipeline that is destroyed";
    try {
      auto const end = std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
      std::lock_guard const lock(mutex_);
      do {
        if (std::ranges::all_of(in_, [](auto const& in) { return !in || in->close(); })) return;
        std::this_thread::yield();
      } while (std::chrono::steady_clock::now() <= end);
    } catch (std::exception const&) {
      why = "MPI cannot take back the receives of a pipeline that is destroyed";
    }
    std::fprintf(stderr, "zbpp: rank %d: %s, so all processes end by MPI_Abort\n", rank(), why);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }

  /// Opens receives, too. @throws error (bad_argument, io_failed), std::bad_alloc
  void bind(int rank, arena& memory, wakeup* wake) {
    rank_transport::bind(rank, memory, wake);
    std::lock_guard const lock(mutex_);
    for (auto const& in : in_)
      if (in) in->open(memory);
  }
  /// Ships a message. Never blocks.
  /// @throws as `push`; error (io_failed)
  void send(int channel, message&& msg, ticks) {
    std::lock_guard const lock(mutex_);
    push(channel, std::move(msg));
    out_[zbpp::detail::index(channel)]->begin();
  }
  /// Gives a message that has arrived, in memory of the receiving rank, and closes its slot.
  /// @throws error (io_failed), std::bad_alloc
  [[nodiscard]] message take(int channel, std::int32_t sequence, bytes most) {
    auto const place = close_slot(channel, sequence, most);
    std::lock_guard const lock(mutex_);
    return in_[zbpp::detail::index(channel)]->take(place, memory());
  }
  /// Releases the messages of a channel before number `count`, which the sender knows are consumed.
  void retire(int channel, std::int32_t count) {
    std::lock_guard const lock(mutex_);
    out_[zbpp::detail::index(channel)]->await(count);
    rank_transport::retire(channel, count);
  }

  /// Lets MPI go on, and looks at what has arrived and left.
  /// @throws error (io_failed), also for what `poll_aside` met; std::bad_alloc
  void poll() {
    std::lock_guard const lock(mutex_);
    if (!lost_.empty()) throw error(errc::io_failed, lost_);
    if (progress(&memory())) wake();
  }
  /// The same as far as it takes no memory of the arena. Does nothing while the engine calls MPI.
  void poll_aside() noexcept {
    std::unique_lock const lock(mutex_, std::try_to_lock);
    if (!lock || !lost_.empty()) return;
    try {
      if (progress(nullptr)) wake();
    } catch (std::exception const& failed) {
      lost_ = zbpp::detail::text_of(failed);
      wake();
    }
  }
  template <class Wait>
  void wait(Wait const& until) {
    poll_until(*this, until, spin_);
  }
  /// Has MPI_Finalize end with MPI_Abort. What is under way stays until the pipeline is destroyed.
  static void close() noexcept { fail_at_finalize(); }

 protected:
  /// Does nothing where the run has failed: MPI keeps what has not left.
  void release_all() override {
    if (!is_flushed()) return;
    std::lock_guard const lock(mutex_);
    rank_transport::release_all();
  }
  void give_up(int channel, std::size_t place) override {
    in_[zbpp::detail::index(channel)]->release(place, memory());
  }

 private:
  bool progress(arena* memory) {
    bool has_changed = false;
    for (auto const& out : out_)
      if (out) has_changed = out->progress() || has_changed;
    for (auto const& in : in_)
      if (in) has_changed = in->progress(memory) || has_changed;
    return has_changed;
  }

  std::mutex mutex_;                            // held while MPI is called for this
  std::vector<std::unique_ptr<outgoing>> out_;  // by channel; null where it begins elsewhere
  std::vector<std::unique_ptr<incoming>> in_;   // by channel; null where it ends elsewhere
  std::string lost_;                            // why `poll_aside` has given up
  std::chrono::microseconds spin_;
};

}  // namespace zbpp::mpi::detail
