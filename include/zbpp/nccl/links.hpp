// SPDX-License-Identifier: Apache-2.0
//
// The communicators of the ranks that this process feeds, each end with a stream of its own: made
// in one order by all ranks, connected before the first step, aborted together.
#pragma once

#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/nccl/communicator.hpp>
#include <zbpp/nccl/error.hpp>
#include <zbpp/nccl/wiring.hpp>
#include <zbpp/runtime/arena.hpp>

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp::nccl {

/// Says on which device a rank of this process is.
struct local_rank {
  int rank = 0;
  int device = 0;
};

/// Is the end of a communicator that a rank of this process has; made with its device current.
struct link_end {
  static constexpr std::size_t probe_size = 256;  // bytes

  /// Takes part in making a communicator. @throws nccl_error; cuda_error
  link_end(local_rank const& at, membership const& of, ncclUniqueId const& id, int most_ctas)
      : device(at.device),
        probe(make_probe(at)),
        comm(id, static_cast<int>(of.ranks.size()), of.number_of(at.rank), {of.name, most_ctas}) {}
  /// Uses the caller's. @throws error (bad_argument); nccl_error; cuda_error
  link_end(local_rank const& at, ncclComm_t theirs)
      : device(at.device), probe(make_probe(at)), comm(theirs) {}

  int device;

  // Goes last: CUDA frees memory once nothing uses it.
  buffer probe;
  // One is enough: a communicator is one queue anyway.
  cuda::stream messages{cuda::stream_priority::highest};
  cuda::event probed{cuda::event_kind::order};
  communicator comm;

 private:
  [[nodiscard]] static buffer make_probe(local_rank const& at) {
    return arena(cuda::device_memory(at.device)).allocate(probe_size, purpose::edge);
  }
};

/// Owns the communicators of a process. Any number of transports use them, one at a time.
class links {
 public:
  /// Makes the communicators together with the processes of the other ranks, and sends a small
  /// message through every channel, so that nothing is slow or waits for a peer later.
  /// @param channels   of the run, the same everywhere
  /// @param here       the ranks of this process
  /// @param ids        one for each communicator of `how`, made by the first of its ranks
  /// @param pause      called while other ranks are waited for; throws to give up
  /// @throws error (bad_argument) unless there is an id for each communicator; nccl_error;
  ///         cuda_error; what `pause` throws
  links(
      std::vector<channel> channels,
      std::vector<local_rank> here,
      wiring how,
      std::span<ncclUniqueId const> ids,
      int most_ctas,
      pause_call const& pause)
      : links(std::move(channels), std::move(here), std::move(how)) {
    zbpp::detail::require(
        ids.size() == how_.communicators.size(), "links need an id for each communicator");
    or_abort([&] {
      for (std::size_t k = 0; k < ids.size(); ++k) {
        auto const known = present_.size();
        detail::group together;
        add_ends(k, [&](local_rank const& mine) {
          return std::make_unique<link_end>(mine, how_.communicators[k], ids[k], most_ctas);
        });
        together.end();
        for (std::size_t i = known; i < present_.size(); ++i) wait(*present_[i], pause);
      }
      connect(pause);
    });
  }
  /// Uses a communicator of the caller, which all ranks are in by their numbers, for all channels.
  /// @throws error (bad_argument) when it is another one; nccl_error; cuda_error; what `pause`
  ///         throws
  links(
      std::vector<channel> channels,
      local_rank here,
      int ranks,
      ncclComm_t theirs,
      pause_call const& pause)
      : links(std::move(channels), {here}, wire({}, ranks, channel_layout::one_per_rank)) {
    how_.of_channel.assign(channels_.size(), 0);
    add_ends(0, [&](local_rank const& mine) { return std::make_unique<link_end>(mine, theirs); });
    auto const& comm = present_.front()->comm;
    if (comm.ranks() != ranks || comm.rank() != here.rank)
      throw error(
          errc::bad_argument,
          "the adopted communicator has rank " + std::to_string(comm.rank()) + " of " +
              std::to_string(comm.ranks()) + "; the run has rank " + std::to_string(here.rank) +
              " of " + std::to_string(ranks));
    int device = 0;
    check(ncclCommCuDevice(theirs, &device));
    if (device != here.device)
      throw error(
          errc::bad_argument,
          "the adopted communicator is on device " + std::to_string(device) +
              "; the rank is to run on device " + std::to_string(here.device));
    or_abort([&] { connect(pause); });
  }
  links(links const&) = delete;
  links& operator=(links const&) = delete;
  ~links() { communicator::close(all(), std::chrono::seconds(2)); }

  /// @return the channels that they serve
  [[nodiscard]] std::vector<channel> const& channels() const noexcept { return channels_; }
  /// @return the end of a channel that a rank of this process has; null when it is not here
  [[nodiscard]] link_end* end_of(int channel, int rank) const noexcept {
    auto const& ends = ends_[zbpp::detail::index(how_.of_channel[zbpp::detail::index(channel)])];
    for (std::size_t i = 0; i < here_.size(); ++i)
      if (here_[i].rank == rank) return ends[i].get();
    return nullptr;
  }
  /// @return the number that a rank has in the communicator of a channel
  [[nodiscard]] int number_in(int channel, int rank) const noexcept {
    return membership_of(channel).number_of(rank);
  }
  /// @return all ends that are here
  [[nodiscard]] std::span<link_end* const> ends() const noexcept { return present_; }

  /// Calls `work()`, which uses NCCL, unless all was aborted; an abort waits until it returns.
  template <class Work>
  void use(Work const& work) {
    std::lock_guard const lock(in_use_);
    if (!is_aborted()) work();
  }
  /// Ends whatever runs or waits on the communicators; any thread may call it, also while others
  /// are about to issue. They are of no use afterwards.
  void abort() noexcept {
    // First, so that who waits for NCCL in `use` goes.
    is_aborted_.store(true, std::memory_order_release);
    // A launch may wait for what only this can end; NCCL has the stuck be aborted from outside.
    std::unique_lock lock(in_use_, std::defer_lock);
    for (int left = 5000; !lock.try_lock() && left > 0; --left)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    communicator::abort(all());
  }
  /// @return whether `abort` was called
  [[nodiscard]] bool is_aborted() const noexcept {
    return is_aborted_.load(std::memory_order_acquire);
  }
  /// @throws nccl_error when a communicator has failed by itself
  void check_errors() {
    use([this] {
      for (auto const* end : present_) detail::check_started(end->comm.async_error());
    });
  }
  /// Waits, within `use`, until a communicator has done what it was last asked for; returns early
  /// when all is aborted, and then NCCL may still have that in hand.
  /// @throws nccl_error
  void await(communicator const& one) const {
    detail::poll(
        [&] { return is_aborted() || one.is_ready(); },
        [](std::chrono::microseconds time) { std::this_thread::sleep_for(time); });
  }

 private:
  links(std::vector<channel> channels, std::vector<local_rank> here, wiring how)
      : channels_(std::move(channels)),
        here_(std::move(here)),
        how_(std::move(how)),
        ends_(how_.communicators.size()) {
    detail::check_library();
    for (auto& of_one : ends_) of_one.resize(here_.size());
  }

  [[nodiscard]] membership const& membership_of(int channel) const noexcept {
    return how_.communicators[zbpp::detail::index(how_.of_channel[zbpp::detail::index(channel)])];
  }
  [[nodiscard]] std::span<communicator* const> all() const noexcept { return communicators_; }

  // Adds the ends of a communicator that are here.
  template <class Make>
  void add_ends(std::size_t k, Make const& make) {
    for (std::size_t i = 0; i < here_.size(); ++i) {
      if (!how_.communicators[k].has(here_[i].rank)) continue;
      cuda::device_guard const there(here_[i].device);
      ends_[k][i] = make(here_[i]);
      present_.push_back(ends_[k][i].get());
      communicators_.push_back(&present_.back()->comm);
    }
  }

  // Memory is freed once no kernel uses it, so what was begun has to end first.
  template <class Work>
  void or_abort(Work const& work) {
    try {
      work();
    } catch (...) {
      abort();
      throw;
    }
  }

  static void wait(link_end const& end, pause_call const& pause) {
    try {
      end.comm.wait(pause);
    } catch (error const& given_up) {
      if (given_up.code() != errc::no_rendezvous) throw;
      throw error(given_up.code(), "communicator " + end.comm.name() + ": " + given_up.what());
    }
  }

  // The first message between two ranks waits for both, so channels take turns in one order.
  void connect(pause_call const& pause) {
    for (std::size_t c = 0; c < channels_.size(); ++c) {
      auto const channel = static_cast<int>(c);
      auto const [from, to] = std::pair(channels_[c].from, channels_[c].to);
      auto* const sender = end_of(channel, from);
      auto* const receiver = end_of(channel, to);
      detail::group together;
      if (sender != nullptr) {
        auto const& e = *sender;
        cuda::device_guard const there(e.device);
        cuda::check(cudaMemsetAsync(e.probe.data(), 0, e.probe_size, e.messages.get()));
        detail::check_started(ncclSend(
            e.probe.data(),
            e.probe_size,
            ncclInt8,
            number_in(channel, to),
            e.comm.get(),
            e.messages.get()));
      }
      if (receiver != nullptr) {
        auto const& e = *receiver;
        detail::check_started(ncclRecv(
            e.probe.data(),
            e.probe_size,
            ncclInt8,
            number_in(channel, from),
            e.comm.get(),
            e.messages.get()));
      }
      together.end();
      for (auto const* end : {sender, receiver})
        if (end != nullptr) wait(*end, pause);
      for (auto const* end : {sender, receiver}) {
        if (end == nullptr) continue;
        end->messages.get().record(end->probed);
        detail::poll([end] { return end->probed.get().is_complete(); }, pause);
      }
    }
  }

  std::vector<channel> channels_;
  std::vector<local_rank> here_;
  wiring how_;
  std::vector<std::vector<std::unique_ptr<link_end>>> ends_;  // by communicator, by rank here
  std::vector<link_end*> present_;
  std::vector<communicator*> communicators_;
  std::mutex in_use_;
  std::atomic<bool> is_aborted_{false};
};

}  // namespace zbpp::nccl
