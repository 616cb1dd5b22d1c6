// SPDX-License-Identifier: Apache-2.0
//
// The communicators of the ranks of this process, each with a stream of its own: all ranks make
// them in one order, connect them before the first step, and abort them together.
#pragma once

#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/nccl/communicator.hpp>
#include <zbpp/nccl/detail/channel_plan.hpp>
#include <zbpp/nccl/error.hpp>
#include <zbpp/runtime/arena.hpp>

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// Says on which device a rank of this process is.
struct local_rank {
  int rank = 0;  ///< of the run
  int device = 0;
};

/// Holds what a rank of this process has of a communicator; made with its device current.
struct endpoint {
  static constexpr std::size_t probe_size = 256;  // bytes

  /// Takes part in making a communicator. @throws nccl_error; cuda_error
  endpoint(
      local_rank const& at, communicator_members const& of, ncclUniqueId const& id, int most_ctas)
      : device(at.device),
        probe(make_probe(at)),
        comm(id, static_cast<int>(of.ranks.size()), of.number_of(at.rank), {of.name, most_ctas}) {}
  /// Adopts the caller's. @throws error (bad_argument); nccl_error; cuda_error
  endpoint(local_rank const& at, ncclComm_t adopted)
      : device(at.device), probe(make_probe(at)), comm(adopted) {}

  int device;

  // Destroyed last: CUDA frees memory only once nothing uses it.
  buffer probe;
  // One is enough, since a communicator is one queue.
  cuda::stream messages{cuda::stream_priority::highest};
  cuda::event probed{cuda::event_kind::order};
  communicator comm;

 private:
  [[nodiscard]] static buffer make_probe(local_rank const& at) {
    return arena(cuda::device_memory(at.device)).allocate(probe_size, purpose::edge);
  }
};

/// Owns the communicators of a process, all of whose ranks are those of the run. Any number of
/// transports may use them, one at a time.
class communicator_set {
 public:
  /// Makes the communicators together with the processes of the other ranks, and sends a small
  /// message through every channel, so that nothing is slow or waits for a peer later; those of
  /// sums are connected by `replica_sums`, which knows the sizes.
  /// @param channels   of the run, the same everywhere
  /// @param here       the ranks of this process
  /// @param ids        one for each communicator of `map`, made by the first of its ranks
  /// @param most_ctas  thread blocks that each may use
  /// @param pause      called while other ranks are waited for; throws to give up
  /// @throws error (bad_argument) unless there is an id for each communicator; nccl_error;
  ///         cuda_error; what `pause` throws
  communicator_set(
      std::vector<channel> channels,
      std::vector<local_rank> here,
      communicator_map map,
      std::span<ncclUniqueId const> ids,
      int most_ctas,
      pause_call const& pause)
      : communicator_set(std::move(channels), std::move(here), std::move(map)) {
    zbpp::detail::require(
        ids.size() == map_.communicators.size(), "ids are missing; give one for each communicator");
    or_abort([&] {
      // All begin before one is waited for, or ranks in a row would wait for one another in turn.
      // And in one group: NCCL before 2.27 works on one at a time for each thread.
      group together;
      for (std::size_t k = 0; k < ids.size(); ++k)
        add_endpoints(k, [&](local_rank const& local) {
          return std::make_unique<endpoint>(local, map_.communicators[k], ids[k], most_ctas);
        });
      together.end();
      for (auto const* end : endpoints_) wait(*end, pause);
      connect(pause);
    });
  }
  /// Uses a communicator of the caller for all channels. It has all ranks, in their order.
  /// @throws error (bad_argument) for another rank, size or device; nccl_error; cuda_error; `pause`
  communicator_set(
      std::vector<channel> channels,
      local_rank here,
      int ranks,
      ncclComm_t adopted,
      pause_call const& pause)
      : communicator_set(std::move(channels), {here}, all_ranks(ranks)) {
    map_.of_channel.assign(channels_.size(), 0);
    add_endpoints(
        0, [&](local_rank const& local) { return std::make_unique<endpoint>(local, adopted); });
    auto const& comm = endpoints_.front()->comm;
    if (comm.ranks() != ranks || comm.rank() != here.rank)
      throw error(errc::bad_argument) + "the adopted communicator has rank " + comm.rank() +
          " of " + comm.ranks() + "; give one that has rank " + here.rank + " of " + ranks +
          ", as the run has";
    int device = 0;
    check(ncclCommCuDevice(adopted, &device));
    if (device != here.device)
      throw error(errc::bad_argument) + "the adopted communicator is on device " + device +
          "; give one on device " + here.device + ", where the rank runs";
    or_abort([&] { connect(pause); });
  }
  communicator_set(communicator_set const&) = delete;
  communicator_set& operator=(communicator_set const&) = delete;
  ~communicator_set() { communicator::close(all(), std::chrono::seconds(2)); }
  [[nodiscard]] std::vector<channel> const& channels() const noexcept { return channels_; }
  /// @return a rank's endpoint of a channel; null in another process
  [[nodiscard]] endpoint* endpoint_of(int channel, int rank) const noexcept {
    return find(zbpp::detail::index(map_.of_channel[zbpp::detail::index(channel)]), rank);
  }
  /// @return that of the rank that sends; null as above
  [[nodiscard]] endpoint* sender_of(int channel) const noexcept {
    return endpoint_of(channel, channels_[zbpp::detail::index(channel)].from);
  }
  /// @return that of the rank that receives; null as above
  [[nodiscard]] endpoint* receiver_of(int channel) const noexcept {
    return endpoint_of(channel, channels_[zbpp::detail::index(channel)].to);
  }
  [[nodiscard]] int number_in(int channel, int rank) const noexcept {
    return members_of(channel).number_of(rank);
  }
  /// @return what adds up gradients of a rank here and its replicas; null where there are none
  [[nodiscard]] endpoint* sums_of(int rank) const noexcept {
    for (std::size_t k = 0; k < map_.of_sums; ++k)
      if (map_.communicators[k].has(rank)) return find(k, rank);
    return nullptr;
  }
  [[nodiscard]] std::span<endpoint* const> endpoints() const noexcept { return endpoints_; }

  /// Calls `work()`, which uses NCCL, unless `abort` was called; an abort waits until it returns.
  template <class Work>
  void use(Work const& work) {
    std::lock_guard const lock(in_use_);
    if (!is_aborted()) work();
  }
  /// Ends whatever runs or waits on the communicators; any thread may call it, also while others
  /// issue. The communicators cannot be used afterwards.
  void abort() noexcept {
    // First, so that a thread that waits for NCCL within `use` returns, and none begins again.
    is_aborted_.store(true, std::memory_order_release);
    {
      // A launch may hang until this aborts it, which NCCL allows from another thread, so do not
      // wait for the lock forever.
      std::unique_lock lock(in_use_, std::defer_lock);
      for (int left = 5000; !lock.try_lock() && left > 0; --left)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // Without the lock: NCCL waits for graphs with messages, and whoever holds one may be on its
    // way into `use`.
    communicator::abort(all());
  }
  [[nodiscard]] bool is_aborted() const noexcept {
    return is_aborted_.load(std::memory_order_acquire);
  }
  /// @throws nccl_error when a communicator has failed by itself
  void check_errors() {
    use([this] {
      for (auto const* end : endpoints_) check_started(end->comm.async_error());
    });
  }
  /// Waits, within `use`, until the last call on a communicator is done; returns early after an
  /// abort, when NCCL may still be at work on it.
  /// @throws nccl_error
  void await(communicator const& one) const {
    poll(
        [&] { return is_aborted() || one.is_ready(); },
        [](std::chrono::microseconds time) { std::this_thread::sleep_for(time); });
  }

 private:
  communicator_set(
      std::vector<channel> channels, std::vector<local_rank> here, communicator_map map)
      : channels_(std::move(channels)),
        here_(std::move(here)),
        map_(std::move(map)),
        by_communicator_(map_.communicators.size()) {
    check_library();
    for (auto& of_one : by_communicator_) of_one.resize(here_.size());
  }

  [[nodiscard]] static communicator_map all_ranks(int ranks) {
    communicator_members all{std::vector<int>(zbpp::detail::index(ranks)), "zbpp"};
    std::iota(all.ranks.begin(), all.ranks.end(), 0);
    return {.communicators = {std::move(all)}, .of_channel = {}};
  }

  [[nodiscard]] endpoint* find(std::size_t communicator, int rank) const noexcept {
    for (std::size_t i = 0; i < here_.size(); ++i)
      if (here_[i].rank == rank) return by_communicator_[communicator][i].get();
    return nullptr;
  }
  [[nodiscard]] communicator_members const& members_of(int channel) const noexcept {
    return map_.communicators[zbpp::detail::index(map_.of_channel[zbpp::detail::index(channel)])];
  }
  [[nodiscard]] std::span<communicator* const> all() const noexcept { return communicators_; }

  // Adds the endpoints that this process has of a communicator.
  template <class Make>
  void add_endpoints(std::size_t k, Make const& make) {
    for (std::size_t i = 0; i < here_.size(); ++i) {
      if (!map_.communicators[k].has(here_[i].rank)) continue;
      cuda::device_guard const there(here_[i].device);
      by_communicator_[k][i] = make(here_[i]);
      endpoints_.push_back(by_communicator_[k][i].get());
      communicators_.push_back(&endpoints_.back()->comm);
    }
  }

  // Memory is freed once no kernel uses it, so abort what has begun before memory goes: one after
  // the other, since NCCL makes all of a group together, and one abort ends that for all.
  template <class Work>
  void or_abort(Work const& work) {
    try {
      work();
    } catch (...) {
      is_aborted_.store(true, std::memory_order_release);
      for (auto* one : communicators_) communicator::abort({&one, 1});
      throw;
    }
  }

  static void wait(endpoint const& end, pause_call const& pause) {
    try {
      end.comm.wait(pause);
    } catch (error const& failed) {
      if (failed.code() != errc::no_rendezvous) throw;
      throw error(failed.code()) + "communicator " + end.comm.name() + ": " + failed.what();
    }
  }

  static void clear_probe(endpoint const& e) {
    cuda::check(cudaMemsetAsync(e.probe.data(), 0, e.probe_size, e.messages.view()));
  }
  // Waits until what was enqueued on an endpoint has run.
  static void await_probe(endpoint const& e, pause_call const& pause) {
    e.messages.view().record(e.probed);
    poll([&e] { return e.probed.view().is_complete(); }, pause);
  }

  // The first message between two ranks waits for both, so all ranks connect channels in one order.
  void connect(pause_call const& pause) {
    for (std::size_t c = 0; c < channels_.size(); ++c) {
      auto const channel = static_cast<int>(c);
      auto const [from, to] = std::pair(channels_[c].from, channels_[c].to);
      auto* const sender = sender_of(channel);
      auto* const receiver = receiver_of(channel);
      group together;
      if (sender != nullptr) {
        auto const& e = *sender;
        cuda::device_guard const there(e.device);
        clear_probe(e);
        check_started(ncclSend(
            e.probe.data(),
            e.probe_size,
            ncclInt8,
            number_in(channel, to),
            e.comm.get(),
            e.messages.view()));
      }
      if (receiver != nullptr) {
        auto const& e = *receiver;
        check_started(ncclRecv(
            e.probe.data(),
            e.probe_size,
            ncclInt8,
            number_in(channel, from),
            e.comm.get(),
            e.messages.view()));
      }
      together.end();
      for (auto const* end : {sender, receiver})
        if (end != nullptr) wait(*end, pause);
      for (auto const* end : {sender, receiver})
        if (end != nullptr) await_probe(*end, pause);
    }
  }

  std::vector<channel> channels_;
  std::vector<local_rank> here_;
  communicator_map map_;
  // By communicator, by rank here.
  std::vector<std::vector<std::unique_ptr<endpoint>>> by_communicator_;
  std::vector<endpoint*> endpoints_;
  std::vector<communicator*> communicators_;
  std::mutex in_use_;
  std::atomic<bool> is_aborted_{false};
};

}  // namespace zbpp::nccl::detail
