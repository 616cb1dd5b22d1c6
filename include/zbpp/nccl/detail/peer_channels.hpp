// SPDX-License-Identifier: Apache-2.0
//
// Channels between processes of one host whose devices reach each other: the sender's copy engine
// writes into the receiver's slots, and counters in a shared page of host memory say how far both
// are. No multiprocessor takes part.
#pragma once

#include <zbpp/cuda/channel_needs.hpp>
#include <zbpp/cuda/detail/copy_trial.hpp>
#include <zbpp/cuda/detail/driver_api.hpp>
#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/error.hpp>
#include <zbpp/nccl/detail/calls.hpp>
#include <zbpp/nccl/detail/channel_plan.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// Says where a process finds a page of another one; a plain value, as ranks exchange it.
struct page_name {
  std::int32_t process = 0;
  std::int32_t file = -1;
  std::array<std::uint32_t, 4> id{};  ///< random, so that no other file is taken for it

  [[nodiscard]] std::string text() const {
    static constexpr char digits[] = "0123456789abcdef";
    std::string result = "zbpp-";
    for (auto const word : id)
      for (int shift = 28; shift >= 0; shift -= 4) result += digits[(word >> shift) & 15U];
    return result;
  }
};

/// Maps a page of memory that two processes of one host share, and their devices too; all zeros at
/// first. It has no name in any file system: the second process opens it by way of the first one,
/// so nothing is left behind however a process ends.
class shared_page {
 public:
  static constexpr std::size_t size = 4096;

  /// Makes one. @throws std::system_error; cuda_error
  shared_page() {
    std::random_device random;
    for (auto& word : name_.id) word = random();
    name_.process = ::getpid();
    file_ = checked(::memfd_create(name_.text().c_str(), MFD_CLOEXEC), "memfd_create");
    name_.file = file_;
    or_close([&] {
      checked(::ftruncate(file_, static_cast<off_t>(size)), "ftruncate");
      map();
    });
  }
  /// Opens that of another process. @throws std::system_error when that is on another host, or out
  /// of reach; cuda_error
  explicit shared_page(page_name const& of) : name_(of) {
    std::string const path = zbpp::detail::joined("/proc/", of.process, "/fd/", of.file);
    // Opening whatever lies there might have consequences, so see what it is.
    std::array<char, 128> found{};
    auto const length = ::readlink(path.c_str(), found.data(), found.size());
    auto const expected = "/memfd:" + of.text() + " (deleted)";
    if (length < 0 || std::string(found.data(), static_cast<std::size_t>(length)) != expected)
      throw std::system_error(ENOENT, std::system_category(), path);
    file_ = checked(::open(path.c_str(), O_RDWR | O_CLOEXEC), path.c_str());
    or_close([this] { map(); });
    close_file();
  }
  shared_page(shared_page const&) = delete;
  shared_page& operator=(shared_page const&) = delete;
  ~shared_page() {
    cudaHostUnregister(memory_);
    ::munmap(memory_, size);
    close_file();
  }

  /// @return how another process finds it, until `close_file`
  [[nodiscard]] page_name const& name() const noexcept { return name_; }
  [[nodiscard]] void* data() const noexcept { return memory_; }
  [[nodiscard]] void* on_device() const noexcept { return on_device_; }
  /// Lets no other process open it from now on.
  void close_file() noexcept {
    if (file_ >= 0) ::close(std::exchange(file_, -1));
  }

 private:
  static int checked(int result, char const* call) {
    if (result < 0) throw std::system_error(errno, std::system_category(), call);
    return result;
  }
  template <class Work>
  void or_close(Work const& work) {
    try {
      work();
    } catch (...) {
      close_file();
      throw;
    }
  }

  void map() {
    auto* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (mapped == MAP_FAILED) checked(-1, "mmap");
    bool is_registered = false;
    try {
      cuda::check(
          cudaHostRegister(mapped, size, cudaHostRegisterMapped | cudaHostRegisterPortable));
      is_registered = true;
      cuda::check(cudaHostGetDevicePointer(&on_device_, mapped, 0));
    } catch (...) {
      if (is_registered) cudaHostUnregister(mapped);
      ::munmap(mapped, size);
      throw;
    }
    memory_ = mapped;
  }

  page_name name_;
  int file_ = -1;
  void* memory_ = nullptr;
  void* on_device_ = nullptr;
};

/// Enqueues writes of counters in memory of the host and waits for them, on streams of one device;
/// they order streams of several processes as events order those of one. A write comes after all
/// that its stream did before, as every device and host of the system sees it.
class stream_values {
 public:
  /// @throws error (device_failed) when the driver is older than CUDA 11.7; cuda_error
  explicit stream_values(int device)
      : write_(cuda::detail::driver_function<PFN_cuStreamWriteValue32_v11070>(
            "cuStreamWriteValue32", 11070)),
        wait_(cuda::detail::driver_function<PFN_cuStreamWaitValue32_v11070>(
            "cuStreamWaitValue32", 11070)) {
    int can_flush = 0;
    cuda::check(cudaDeviceGetAttribute(&can_flush, cudaDevAttrCanFlushRemoteWrites, device));
    // What another device has written before the counter may still be on its way within this one.
    if (can_flush != 0) flags_ |= CU_STREAM_WAIT_VALUE_FLUSH;
  }

  /// Writes a counter after all that was enqueued.
  /// @param counter  as devices see it
  /// @throws cuda_error
  void write(cuda::stream_ref on, std::uint32_t* counter, std::uint32_t value) const {
    cuda::detail::check_driver(
        write_(on, address_of(counter), value, CU_STREAM_WRITE_VALUE_DEFAULT));
  }
  /// Lets what is enqueued next wait until a counter has reached a value; it may wrap around.
  /// @throws cuda_error
  void wait(cuda::stream_ref on, std::uint32_t* counter, std::uint32_t value) const {
    cuda::detail::check_driver(wait_(on, address_of(counter), value, flags_));
  }

 private:
  [[nodiscard]] static CUdeviceptr address_of(std::uint32_t* counter) noexcept {
    return reinterpret_cast<CUdeviceptr>(counter);
  }

  PFN_cuStreamWriteValue32_v11070 write_;
  PFN_cuStreamWaitValue32_v11070 wait_;
  unsigned flags_ = CU_STREAM_WAIT_VALUE_GEQ;
};

/// Keeps memory until the process ends.
inline void keep_for_good(std::vector<buffer> memory) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::vector<buffer>>;  // nothing destroys it
  std::lock_guard const lock(mutex);
  kept.push_back(std::move(memory));
}

/// Lies in a page that both ends share. Devices and hosts of both write it; each counter counts
/// messages since the channel was made, and may wrap around.
struct peer_counters {
  alignas(128) std::uint32_t opened;   ///< slots that the receiver's device has passed
  alignas(128) std::uint32_t arrived;  ///< messages that the sender's device has copied
  alignas(128) std::uint32_t tried;    ///< for trying whether a device can write here
  alignas(128) std::uint32_t lent;     ///< a `slot_loan`
};
static_assert(sizeof(peer_counters) <= shared_page::size);

/// Says whether a sender may use the slots of a channel. Only hosts read and write it.
enum class slot_loan : std::uint32_t {
  offered,  ///< the sender may open them, and the receiver may take the offer back
  opened,   ///< the sender has them open, or is about to; until it lets go, they must not be freed
  over,     ///< for good
};

/// Says what a sender needs to reach the slots of a channel; a plain value, as ranks exchange it.
struct peer_offer {
  std::int32_t is_made = 0;  ///< 0: there is nothing to reach
  page_name page;
  cudaIpcMemHandle_t memory{};
  std::uint64_t slots = 0;
  std::uint64_t stride = 0;                                 ///< from one slot to the next
  std::array<std::uint64_t, message::max_buffers> parts{};  ///< where each buffer begins in a slot
  std::uint64_t trial = 0;  ///< bytes from the first slot on, to try a copy with
};
static_assert(std::is_trivially_copyable_v<peer_offer>);

/// Says what a sender has done with an offer; a plain value, as ranks exchange it.
struct peer_answer {
  std::int32_t is_reached = 0;  ///< 0: it does not reach the slots
  std::uint32_t pattern = 0;    ///< what it has copied there, for the receiver to compare
};
static_assert(std::is_trivially_copyable_v<peer_answer>);

/// The counters of a channel at one of its ends.
class peer_end {
 public:
  /// Ends all waits of both devices for this channel, even where a message never comes. Calls
  /// no CUDA. Devices may write the counters still, so call it until they are done.
  void end_waits() noexcept {
    auto const beyond = count_.load(std::memory_order_relaxed) + far;
    set(counters().opened, beyond);
    set(counters().arrived, beyond);
  }

 protected:
  // Counters are never so far from each other but where waits were ended.
  static constexpr std::uint32_t far = std::uint32_t{1} << 30;

  peer_end(int device, shared_page& page) : page_(&page), values_(device) {}

  // Sees that the device can write a counter and wait for it. Blocks.
  void try_values(cuda::stream_ref on) const {
    cuda::detail::run_to_end(on, [&] {
      values_.write(on, on_device().tried, 1);
      values_.wait(on, on_device().tried, 1);
    });
  }

  [[nodiscard]] peer_counters& counters() const noexcept {
    return *static_cast<peer_counters*>(page_->data());
  }
  struct addresses {
    std::uint32_t* opened;
    std::uint32_t* arrived;
    std::uint32_t* tried;
  };
  [[nodiscard]] addresses on_device() const noexcept {
    auto* const all = static_cast<peer_counters*>(page_->on_device());
    return {&all->opened, &all->arrived, &all->tried};
  }
  static void set(std::uint32_t& counter, std::uint32_t value) noexcept {
    std::atomic_ref(counter).store(value, std::memory_order_release);
  }
  [[nodiscard]] static std::uint32_t get(std::uint32_t& counter) noexcept {
    return std::atomic_ref(counter).load(std::memory_order_acquire);
  }

  // Whichever end comes first decides. @return whether the slots were on offer still
  [[nodiscard]] bool take_offer(slot_loan next) const noexcept {
    auto expected = static_cast<std::uint32_t>(slot_loan::offered);
    return std::atomic_ref(counters().lent)
        .compare_exchange_strong(
            expected, static_cast<std::uint32_t>(next), std::memory_order_acq_rel);
  }
  void end_loan() const noexcept {
    set(counters().lent, static_cast<std::uint32_t>(slot_loan::over));
  }
  [[nodiscard]] bool is_loan_over() const noexcept {
    return get(counters().lent) == static_cast<std::uint32_t>(slot_loan::over);
  }

  shared_page* page_;
  stream_values values_;
  // Messages that this end has issued. Another thread reads it when it ends waits.
  std::atomic<std::uint32_t> count_{0};
};

/// The receiver's end: it owns the slots, one after another for the messages of the channel.
class peer_receiver : public peer_end {
 public:
  /// Makes slots on a device.
  /// @param from     rank of the sender
  /// @param slots    how many messages are held at one time
  /// @param largest  sizes that no message exceeds
  /// @throws std::bad_alloc; std::system_error; error (device_failed); cuda_error
  peer_receiver(int device, int from, std::size_t slots, cuda::message_shape const& largest)
      : peer_receiver(device, from, slots, largest, std::make_unique<shared_page>()) {}
  peer_receiver(peer_receiver const&) = delete;
  peer_receiver& operator=(peer_receiver const&) = delete;
  /// Frees the slots, unless the sender still has them open. Then the memory stays until the
  /// process ends, for CUDA does not say what becomes of a sender whose slots are freed.
  ~peer_receiver() {
    if (!take_back()) keep_for_good(std::move(pieces_));
  }

  /// Lets no sender open the slots from now on.
  /// @return whether none has them open
  bool take_back() const noexcept { return take_offer(slot_loan::over) || is_loan_over(); }

  [[nodiscard]] peer_offer const& offer() const noexcept { return offer_; }
  /// @return whether what a sender has copied, by its answer, is what has arrived. Blocks.
  /// @throws cuda_error
  [[nodiscard]] bool has_arrived(peer_answer const& sent) const {
    cuda::device_guard const here(device_);
    cuda::stream const on(cuda::stream_priority::usual);
    return cuda::detail::copy_pattern(sent.pattern, offer_.trial).is_in(pieces_.front().data(), on);
  }
  /// Notes that the sender has opened the slots, and that nobody else has to find them.
  void accept() noexcept { page_->close_file(); }

  /// Gives the memory of the next message.
  /// @throws error (wrong_flow) when a flow still holds it; std::bad_alloc
  [[nodiscard]] message open(arena& memory, cuda::message_shape const& shape) {
    release(memory);
    auto const slot = opened_ % offer_.slots;
    skip();
    message result;
    for (std::size_t k = 0; k < shape.size(); ++k) {
      auto const& whole = pieces_[slot * parts_ + k];
      if (whole.is_lent())
        throw error(errc::wrong_flow) + "a message from rank " + from_ +
            " is still held where its slot opens for another one; copy what a stage keeps "
            "beyond the last pass of its microbatch, or set ranks_settings::peer_copies to false";
      auto part = memory.borrow(whole, purpose::edge);
      part.truncate(static_cast<std::size_t>(shape[k]));
      result.push_back(std::move(part));
    }
    return result;
  }
  /// Opens the next slot, whose message nobody reads.
  void skip() noexcept {
    count_.store(static_cast<std::uint32_t>(++opened_), std::memory_order_relaxed);
  }
  /// Tells the sender, after all that was enqueued, that the slot opened last is free.
  /// @throws cuda_error
  void tell(cuda::stream_ref compute) const {
    values_.write(compute, on_device().opened, static_cast<std::uint32_t>(opened_));
  }
  /// Lets what is enqueued from now on wait for a message.
  /// @param sequence  counted from the last `begin_step`
  /// @throws cuda_error
  void wait(cuda::stream_ref compute, std::int32_t sequence) const {
    values_.wait(compute, on_device().arrived, end_of(sequence));
  }
  /// @return whether a message, or a later one, is there; false where an end has ended waits
  [[nodiscard]] bool has_arrived(std::int32_t sequence) const noexcept {
    return get(counters().arrived) - end_of(sequence) < far / 2;
  }
  /// Counts messages from 0 from now on.
  void begin_step() noexcept { begun_ = opened_; }
  /// Takes back the memory that flows of a rank have let go of.
  void release(arena& memory) const noexcept { memory.take_released(slots_).clear(); }

 private:
  peer_receiver(
      int device,
      int from,
      std::size_t slots,
      cuda::message_shape const& largest,
      std::unique_ptr<shared_page> page)
      : peer_end(device, *page),
        own_page_(std::move(page)),
        device_(device),
        from_(from),
        parts_(largest.size()),
        slots_(cuda::device_memory(device)) {
    cuda::device_guard const here(device);
    try_values(cuda::stream(cuda::stream_priority::usual));
    slots_.reserve(size_of_slots(slots, largest));
    for (std::size_t i = 0; i < slots * parts_; ++i)
      pieces_.push_back(slots_.allocate(static_cast<std::size_t>(largest[i % parts_])));
    offer_.page = own_page_->name();
    offer_.slots = slots;
    if (!pieces_.empty()) {
      auto const place = [this](std::size_t i) {
        return static_cast<std::uint64_t>(pieces_[i].data() - pieces_.front().data());
      };
      for (std::size_t k = 0; k < parts_; ++k) offer_.parts[k] = place(k);
      offer_.stride = slots > 1 ? place(parts_) : 0;
      offer_.trial = std::min<std::uint64_t>(
          cuda::detail::trial_size, place(pieces_.size() - 1) + pieces_.back().size());
      cuda::check(cudaIpcGetMemHandle(&offer_.memory, pieces_.front().data()));
    }
    offer_.is_made = 1;
  }

  [[nodiscard]] std::uint32_t end_of(std::int32_t sequence) const noexcept {
    return static_cast<std::uint32_t>(begun_) + static_cast<std::uint32_t>(sequence) + 1;
  }

  std::unique_ptr<shared_page> own_page_;
  int device_;
  int from_;
  std::size_t parts_;
  peer_offer offer_;
  arena slots_;
  std::vector<buffer> pieces_;  // by slot, then by part
  std::uint64_t opened_ = 0;
  std::uint64_t begun_ = 0;  // what was opened before this step
};

/// The sender's end: it copies messages into the slots, on a stream of its own.
class peer_sender : public peer_end {
 public:
  /// Opens the slots, and copies a random pattern there. Blocks.
  /// @param device  the sender's
  /// @throws std::system_error; error (device_failed); cuda_error: they are out of reach, or the
  ///         receiver has given up
  peer_sender(int device, peer_offer const& to)
      : peer_sender(device, to, std::make_unique<shared_page>(to.page)) {}
  peer_sender(peer_sender const&) = delete;
  peer_sender& operator=(peer_sender const&) = delete;
  ~peer_sender() {
    cuda::device_guard const here(device_);
    cudaIpcCloseMemHandle(slots_);
    end_loan();
  }

  [[nodiscard]] peer_answer const& answer() const noexcept { return answer_; }
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] cuda::stream_ref copies() const { return copies_; }

  /// Enqueues the copy of a message, after what the stream waits for.
  /// @param for_slot     whether it waits until the receiver has opened the slot
  /// @param by_receiver  whether the receiver waits for it
  /// @throws cuda_error
  void send(message const& sent, bool for_slot, bool by_receiver) {
    auto* const slot = begin(for_slot);
    for (std::size_t k = 0; k < sent.size(); ++k)
      if (sent[k].size() > 0) copy(slot + to_.parts[k], sent[k].data(), sent[k].size());
    if (by_receiver) end();
  }
  /// Enqueues the copy of some bytes, when the receiver has opened the slot. @throws cuda_error
  void send(void const* data, std::size_t size) {
    copy(begin(true) + to_.parts[0], data, size);
    end();
  }

 private:
  peer_sender(int device, peer_offer const& to, std::unique_ptr<shared_page> page)
      : peer_end(device, *page), own_page_(std::move(page)), device_(device), to_(to) {
    cuda::device_guard const here(device);
    copies_ = cuda::stream(cuda::stream_priority::highest);
    try_values(copies_);
    if (!take_offer(slot_loan::opened))
      throw std::system_error(ECANCELED, std::system_category(), "cudaIpcOpenMemHandle");
    void* opened = nullptr;
    try {
      cuda::check(cudaIpcOpenMemHandle(&opened, to.memory, cudaIpcMemLazyEnablePeerAccess));
      slots_ = static_cast<std::byte*>(opened);
      try_copy();
    } catch (...) {
      if (opened != nullptr) cudaIpcCloseMemHandle(opened);
      end_loan();
      throw;
    }
  }

  void try_copy() const {
    cuda::device_array<std::byte> const from(to_.trial);
    cuda::detail::run_to_end(copies_, [&] {
      cuda::detail::copy_pattern(answer_.pattern, from.size()).write(from.data(), copies_);
      copy(slots_, from.data(), from.size());
    });
  }

  // @return the slot of the next message
  [[nodiscard]] std::byte* begin(bool for_slot) {
    auto* const slot = slots_ + sent_ % to_.slots * to_.stride;
    count_.store(static_cast<std::uint32_t>(++sent_), std::memory_order_relaxed);
    if (for_slot) values_.wait(copies_, on_device().opened, static_cast<std::uint32_t>(sent_));
    return slot;
  }
  void end() const {
    values_.write(copies_, on_device().arrived, static_cast<std::uint32_t>(sent_));
  }
  void copy(void* to, void const* from, std::size_t size) const {
    cuda::check(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, copies_.view()));
  }

  std::unique_ptr<shared_page> own_page_;
  int device_;
  peer_offer to_;
  peer_answer answer_{1, std::random_device{}()};
  std::byte* slots_ = nullptr;
  cuda::stream copies_;
  std::uint64_t sent_ = 0;
};

/// Owns the ends of channels that are here. Any number of transports may use them, one at a time.
///
/// Keep the ends here as soon as another process may know of them, until the other ranks have
/// learnt of a failure: they let go of slots only then.
class peer_set {
 public:
  /// @param channels  how many the run has
  explicit peer_set(std::size_t channels) : channels_(channels) {}
  peer_set(peer_set const&) = delete;
  peer_set& operator=(peer_set const&) = delete;
  /// Waits up to two seconds until other processes have let go of slots here.
  ~peer_set() {
    is_ended_.store(true, std::memory_order_relaxed);
    ends_waits_.reset();
    for (auto& each : channels_) each.sender.reset();
    // For other processes, which do the same.
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    auto const is_free = [](auto const& each) {
      return each.receiver == nullptr || each.receiver->take_back();
    };
    while (!std::ranges::all_of(channels_, is_free) && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  /// Keeps an end of a channel; both, where both are here.
  /// @throws std::system_error when the system has no more threads
  void keep(int channel, std::unique_ptr<peer_sender> end) {
    if (end != nullptr) get_ready();
    at(channel).sender = std::move(end);
  }
  void keep(int channel, std::unique_ptr<peer_receiver> end) {
    if (end != nullptr) get_ready();
    at(channel).receiver = std::move(end);
  }
  /// Lets go of the slots of a channel that copies do not carry, if its sender is here.
  void drop_sender(int channel) noexcept { at(channel).sender.reset(); }
  /// Notes whether copies carry a channel, whose ends may be in other processes. Where they do not,
  /// its sender has let go of the slots, and a receiver that is here goes.
  void settle(int channel, bool is_carried) noexcept {
    auto& both = at(channel);
    both.is_carried = is_carried;
    if (!is_carried) both.receiver.reset();
    if (both.receiver != nullptr) both.receiver->accept();
  }

  [[nodiscard]] bool carries(int channel) const noexcept { return at(channel).is_carried; }
  /// @return the end of the sender; null when it is in another process
  [[nodiscard]] peer_sender* sender_of(int channel) const noexcept {
    return at(channel).sender.get();
  }
  /// @return the end of the receiver; null when it is in another process
  [[nodiscard]] peer_receiver* receiver_of(int channel) const noexcept {
    return at(channel).receiver.get();
  }
  [[nodiscard]] int channels() const noexcept { return static_cast<int>(channels_.size()); }
  /// @return of how many channels the senders are here, each with a stream
  [[nodiscard]] int senders() const noexcept {
    return static_cast<int>(
        std::ranges::count_if(channels_, [](auto const& each) { return each.sender != nullptr; }));
  }

  /// Ends all waits, for good. Any thread may call this once all ends are kept; it does not block,
  /// and calls no CUDA.
  void abort() noexcept {
    is_aborted_.store(true, std::memory_order_release);
    if (ends_waits_) ends_waits_->start();
  }
  [[nodiscard]] bool is_aborted() const noexcept {
    return is_aborted_.load(std::memory_order_acquire);
  }

 private:
  struct ends {
    bool is_carried = false;
    std::unique_ptr<peer_sender> sender;
    std::unique_ptr<peer_receiver> receiver;
  };

  [[nodiscard]] ends& at(int channel) noexcept { return channels_[zbpp::detail::index(channel)]; }
  [[nodiscard]] ends const& at(int channel) const noexcept {
    return channels_[zbpp::detail::index(channel)];
  }

  // Where copies carry nothing, nothing waits for them.
  void get_ready() {
    if (!ends_waits_) ends_waits_.emplace([this] { end_waits(); });
  }
  // Devices write counters until they are done, and nobody knows when those elsewhere are.
  void end_waits() noexcept {
    while (!is_ended_.load(std::memory_order_relaxed)) {
      for (auto const& each : channels_) {
        if (each.sender != nullptr) each.sender->end_waits();
        if (each.receiver != nullptr) each.receiver->end_waits();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  std::vector<ends> channels_;
  std::atomic<bool> is_aborted_{false};
  std::atomic<bool> is_ended_{false};
  std::optional<abort_thread> ends_waits_;  // last: it uses the others
};

[[nodiscard]] inline std::vector<cuda::slot_filling> filling_of(peer_set const& peers) {
  std::vector<cuda::slot_filling> filling;
  for (int c = 0; c < peers.channels(); ++c)
    filling.push_back(
        peers.carries(c) ? cuda::slot_filling::by_sends : cuda::slot_filling::by_receives);
  return filling;
}

}  // namespace zbpp::nccl::detail
