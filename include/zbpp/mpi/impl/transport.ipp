// SPDX-License-Identifier: Apache-2.0
//
// Gives the calls of an engine to the ends of its channels, one thread at a time.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/mpi/detail/call.hpp>
#include <zbpp/mpi/detail/channel_ends.hpp>
#include <zbpp/mpi/detail/transport.hpp>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <memory>
#include <mpi.h>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp::mpi::detail {

ZBPP_INLINE transport::transport(
    MPI_Comm among,
    int first_tag,
    int rank,
    std::span<int const> place_of,
    std::vector<channel> const& channels,
    std::vector<bytes> const& largest,
    send_mode mode,
    ranks_settings const& settings)
    : rank_(rank), out_(channels.size()), in_(channels.size()), open_(channels.size()) {
  zbpp::detail::require(
      channels.size() == largest.size(), "a transport gets one largest size per channel");
  for (std::size_t c = 0; c < channels.size(); ++c) {
    auto const& ends = channels[c];
    // Two channels between two ranks have tags of their own even if both are one process.
    auto const tag = first_tag + (ends.from < ends.to ? 0 : tags / 2);
    auto const place = [&](int peer) {
      return channel_place{among, place_of[zbpp::detail::index(peer)], tag, tag + 1};
    };
    if (ends.to == rank)
      in_[c] =
          std::make_unique<incoming>(place(ends.from), ends, largest[c], settings.records_messages);
    if (ends.from == rank)
      out_[c] = std::make_unique<outgoing>(
          place(ends.to),
          ends,
          largest[c],
          largest[c] > 0 ? largest[c] : settings.largest_undeclared_message,
          mode);
  }
}

ZBPP_INLINE transport::~transport() { close(); }

ZBPP_INLINE void transport::close() noexcept {
  if (memory_ == nullptr || is_finalized()) return;
  char const* why = "messages are under way to a pipeline that is destroyed";
  try {
    auto const end = std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
    std::lock_guard const lock(mutex_);
    for (;;) {
      bool are_closed = true;
      for (auto const& in : in_)
        if (in) are_closed = in->close() && are_closed;
      if (are_closed) return;
      if (std::chrono::steady_clock::now() > end) break;
      std::this_thread::yield();
    }
  } catch (std::exception const&) {
    why = "MPI cannot take back the receives of a pipeline that is destroyed";
  }
  std::fprintf(stderr, "zbpp: rank %d: %s, so all processes end by MPI_Abort\n", rank_, why);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

ZBPP_INLINE void transport::bind(int rank, arena& memory, wakeup* wake) {
  zbpp::detail::require(
      rank == rank_ && memory_ == nullptr, "a transport is bound once, at its own rank");
  std::lock_guard const lock(mutex_);
  memory_ = &memory;
  wake_ = wake;
  for (auto const& in : in_)
    if (in) in->open(memory);
}

ZBPP_INLINE void transport::send(int channel, message&& msg, ticks) {
  if (msg.has_object() && msg.size() == 0) msg = msg.held_object().to_bytes();
  std::lock_guard const lock(mutex_);
  out_[zbpp::detail::index(channel)]->push(std::move(msg));
}

ZBPP_INLINE ticks transport::arrival(int channel, std::int32_t sequence) const noexcept {
  return in_[zbpp::detail::index(channel)]->has_arrived(sequence) ? 0 : not_yet;
}

ZBPP_INLINE std::chrono::steady_clock::time_point transport::arrived_at(
    int channel, std::int32_t sequence) const noexcept {
  return in_[zbpp::detail::index(channel)]->arrived_at(sequence);
}

ZBPP_INLINE message transport::take(int channel, std::int32_t sequence, bytes most) {
  open(channel, -most);
  std::lock_guard const lock(mutex_);
  return in_[zbpp::detail::index(channel)]->take(sequence, *memory_);
}

ZBPP_INLINE void transport::retire(int channel, std::int32_t count) {
  std::lock_guard const lock(mutex_);
  out_[zbpp::detail::index(channel)]->retire(count);
}

ZBPP_INLINE bool transport::is_released(int channel, std::int32_t count) const noexcept {
  return out_[zbpp::detail::index(channel)]->has_delivered(count);
}

ZBPP_INLINE bool transport::progress(bool has_memory) {
  bool has_changed = false;
  for (auto const& out : out_)
    if (out) has_changed = out->progress() || has_changed;
  for (auto const& in : in_)
    if (in) has_changed = in->progress(has_memory ? memory_ : nullptr) || has_changed;
  return has_changed;
}

ZBPP_INLINE void transport::poll() {
  std::lock_guard const lock(mutex_);
  if (!lost_.empty()) throw error(errc::io_failed, lost_);
  if (progress(true)) notify(wake_);
}

ZBPP_INLINE void transport::poll_aside() noexcept {
  std::unique_lock const lock(mutex_, std::try_to_lock);
  if (!lock || !lost_.empty()) return;
  try {
    if (progress(false)) notify(wake_);
  } catch (std::exception const& failed) {
    lost_ = zbpp::detail::text_of(failed);
    notify(wake_);
  }
}

ZBPP_INLINE bool transport::is_flushed() const noexcept {
  for (auto const& out : out_)
    if (out && !out->is_flushed()) return false;
  return true;
}

ZBPP_INLINE bool transport::begin_step(int rank) {
  if (!is_flushed() || (states_ != nullptr && !states_->begin_step(rank))) return false;
  release_all();
  return true;
}

ZBPP_INLINE void transport::drain() {
  if (states_ != nullptr) states_->drain();
  // Where the run has failed, MPI keeps what has not left until the pipeline is destroyed.
  if (is_flushed()) release_all();
}

ZBPP_INLINE void transport::release_all() {
  std::lock_guard const lock(mutex_);
  for (std::size_t c = 0; c < out_.size(); ++c) {
    if (out_[c]) out_[c]->drain();
    if (in_[c]) in_[c]->drain(*memory_);
    if (open_[c] != 0) open(static_cast<int>(c), -open_[c]);
  }
}

}  // namespace zbpp::mpi::detail
