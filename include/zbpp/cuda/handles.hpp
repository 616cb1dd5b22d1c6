// SPDX-License-Identifier: Apache-2.0
//
// Streams and events as values: `stream` and `event` own theirs, `stream_ref` and `event_ref` refer
// to those of others; and a guard for the current device.
#pragma once

#include <zbpp/cuda/error.hpp>

#include <cstdint>
#include <utility>

namespace zbpp::cuda {

namespace detail {

/// Owns a native handle and destroys it with `Release`.
template <class Native, cudaError_t (*Release)(Native)>
class unique_handle {
 public:
  unique_handle() noexcept = default;
  explicit unique_handle(Native native) noexcept : native_(native) {}
  unique_handle(unique_handle&& other) noexcept : native_(std::exchange(other.native_, nullptr)) {}
  unique_handle& operator=(unique_handle other) noexcept {
    std::swap(native_, other.native_);
    return *this;
  }
  ~unique_handle() {
    if (native_ != nullptr) Release(native_);  // a destructor has nobody to report errors to
  }

  [[nodiscard]] Native get() const noexcept { return native_; }

 private:
  Native native_ = nullptr;
};

}  // namespace detail

/// Makes a device the current one for a scope.
class [[nodiscard]] device_guard {
 public:
  /// @throws cuda_error when there is no such device
  explicit device_guard(int device) {
    check(cudaGetDevice(&previous_));
    if (device == previous_) return;
    check(cudaSetDevice(device));
    is_changed_ = true;
  }
  device_guard(device_guard const&) = delete;
  device_guard& operator=(device_guard const&) = delete;
  ~device_guard() {
    if (is_changed_) cudaSetDevice(previous_);
  }

 private:
  int previous_ = 0;
  bool is_changed_ = false;
};

/// Calls `make()` with a device current.
template <class Make>
[[nodiscard]] auto on_device(int device, Make const& make) {
  device_guard const here(device);
  return make();
}

/// Says what an event is for.
enum class event_kind : std::uint8_t {
  order,      ///< orders streams; the host may ask whether it is complete
  host_wait,  ///< lets the host wait without spinning as well
  timing,     ///< tells a time as well
};

/// Refers to an event without owning it.
class event_ref {
 public:
  event_ref(cudaEvent_t native) noexcept : native_(native) {}
  event_ref(std::nullptr_t) = delete;
  event_ref(int) = delete;

  [[nodiscard]] cudaEvent_t get() const noexcept { return native_; }
  /// @return whether what was last recorded is complete
  /// @throws cuda_error when what ran before failed
  [[nodiscard]] bool is_complete() const {
    auto const status = cudaEventQuery(native_);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // an answer, and no error for a later check to find
      return false;
    }
    check(status);
    return true;
  }
  /// Blocks the host until what was last recorded is complete. Make the event as
  /// `event_kind::host_wait`; with others the host spins.
  /// @throws cuda_error when what ran before failed
  void synchronize() const { check(cudaEventSynchronize(native_)); }

 private:
  cudaEvent_t native_;
};

/// Owns an event of the device that was current when it was made.
class event {
 public:
  event() noexcept = default;
  /// @throws cuda_error
  explicit event(event_kind kind) : handle_(make(kind)) {}

  [[nodiscard]] event_ref view() const noexcept { return handle_.get(); }
  [[nodiscard]] operator event_ref() const noexcept { return view(); }

 private:
  [[nodiscard]] static cudaEvent_t make(event_kind kind) {
    cudaEvent_t made = nullptr;
    check(cudaEventCreateWithFlags(&made, flags_of(kind)));
    return made;
  }

  // Completing an event that the host may block on costs an interrupt, so others are made without.
  [[nodiscard]] static unsigned flags_of(event_kind kind) noexcept {
    switch (kind) {
      case event_kind::order: return cudaEventDisableTiming;
      case event_kind::host_wait: return cudaEventDisableTiming | cudaEventBlockingSync;
      case event_kind::timing: break;
    }
    return cudaEventDefault;
  }

  detail::unique_handle<cudaEvent_t, cudaEventDestroy> handle_;
};

/// Says how urgent the work of a stream is.
enum class stream_priority : std::uint8_t { usual, highest };

/// Refers, without owning it, to a stream that does not wait for the default stream.
class stream_ref {
 public:
  /// @throws error (bad_argument) for the legacy and the per-thread default stream
  stream_ref(cudaStream_t native) : native_(native) {
    if (native == nullptr || native == cudaStreamLegacy || native == cudaStreamPerThread)
      throw error(errc::bad_argument) +
          "a default stream is given, and those make everything wait; give a stream made with "
          "cudaStreamCreateWithFlags and cudaStreamNonBlocking";
  }
  stream_ref(std::nullptr_t) = delete;
  stream_ref(int) = delete;

  [[nodiscard]] cudaStream_t get() const noexcept { return native_; }
  [[nodiscard]] operator cudaStream_t() const noexcept { return native_; }
  /// Lets what is enqueued from now on wait for what was last recorded in an event.
  /// @throws cuda_error
  void wait(event_ref event) const { check(cudaStreamWaitEvent(native_, event.get(), 0)); }
  /// Records in an event what has been enqueued so far. @throws cuda_error
  void record(event_ref event) const { check(cudaEventRecord(event.get(), native_)); }
  /// Blocks the host until all that was enqueued is complete. @throws cuda_error
  void synchronize() const { check(cudaStreamSynchronize(native_)); }

 private:
  cudaStream_t native_;
};

/// Owns a stream of the device that was current when it was made.
class stream {
 public:
  stream() noexcept = default;
  /// @throws cuda_error
  explicit stream(stream_priority priority) : handle_(make(priority)) {}
  /// Takes over a stream that nobody else destroys.
  explicit stream(cudaStream_t made) noexcept : handle_(made) {}

  [[nodiscard]] bool is_valid() const noexcept { return handle_.get() != nullptr; }
  [[nodiscard]] stream_ref view() const { return handle_.get(); }
  [[nodiscard]] operator stream_ref() const { return view(); }

 private:
  [[nodiscard]] static cudaStream_t make(stream_priority priority) {
    int least = 0;
    int greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithPriority(
        &made, cudaStreamNonBlocking, priority == stream_priority::highest ? greatest : least));
    return made;
  }

  detail::unique_handle<cudaStream_t, cudaStreamDestroy> handle_;
};

/// Refuses a stream of the caller that a rank cannot run on; for authors of backends.
/// @throws error (bad_argument) if of another device or waiting for the default stream; cuda_error
inline void check_adoptable(stream_ref adopted, int device) {
  unsigned flags = 0;
  check(cudaStreamGetFlags(adopted, &flags));
  if ((flags & cudaStreamNonBlocking) == 0)
    throw error(errc::bad_argument) +
        "the adopted stream waits for the default stream; make it with cudaStreamNonBlocking";
  int actual_device = 0;
  auto const asked = cudaStreamGetDevice(adopted, &actual_device);
  if (asked == cudaErrorCallRequiresNewerDriver) {  // before CUDA 12.8 no driver can tell,
    cudaGetLastError();                             // and the caller is believed
    return;
  }
  check(asked);
  if (actual_device != device)
    throw error(errc::bad_argument) + "the adopted stream belongs to device " + actual_device +
        "; its rank_device says device " + device;
}

}  // namespace zbpp::cuda
