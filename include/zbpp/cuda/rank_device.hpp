// SPDX-License-Identifier: Apache-2.0
//
// Where a rank runs on a GPU: the caller's choice (`rank_device`), what the backend makes of it
// (`device_context`), and what a pass asks of it through its `where`.
#pragma once

#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/timing.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace zbpp::cuda {

/// Says where a rank computes.
struct rank_device {
  int device = 0;                  ///< of the CUDA runtime
  cudaStream_t compute = nullptr;  ///< the caller's stream for it; null: one is made
  int sm_count = 0;                ///< what the stream is confined to; 0: the whole device
};

/// @return devices for ranks on devices 0, 1, ... in turn
[[nodiscard]] inline std::vector<rank_device> one_device_per_rank(int ranks) {
  std::vector<rank_device> devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back({.device = rank});
  return devices;
}

/// Says how ranks on GPUs are fed.
struct launch_settings {
  int run_ahead = 0;          ///< passes that the host may issue ahead of a rank; 0: the whole step
  bool traces = false;        ///< whether passes are timed on the device
  bool synchronizes = false;  ///< whether the host waits after each pass
};

/// Holds what one rank runs with on its device.
class device_context {
 public:
  /// Makes it, with events for as many passes as the rank has in a step.
  /// @throws error (bad_argument) when the stream of the rank_device cannot be adopted, or
  /// run_ahead is negative;
  ///         cuda_error
  device_context(
      rank_device const& at, int microbatches, std::size_t passes, launch_settings const& how)
      : device_(at.device),
        own_(at.compute == nullptr ? stream(stream_priority::usual) : stream()),
        compute_(at.compute == nullptr ? own_.get() : stream_ref(at.compute)),
        sm_count_(at.sm_count),
        end_(event_kind::order),
        synchronizes_(how.synchronizes),
        timing_(how.traces ? passes : 0),
        losses_(zbpp::detail::index(microbatches)),
        late_(zbpp::detail::index(microbatches), nullptr) {
    if (at.compute != nullptr) check_adoptable(compute_, device_);
    if (sm_count_ == 0)
      check(cudaDeviceGetAttribute(&sm_count_, cudaDevAttrMultiProcessorCount, device_));
    zbpp::detail::require(how.run_ahead >= 0, "run_ahead counts passes; 0 stands for a whole step");
    for (int i = 0; i < how.run_ahead; ++i) issued_.emplace_back(event_kind::order);
  }
  device_context(device_context const&) = delete;
  device_context& operator=(device_context const&) = delete;
  ~device_context() = default;

  /// @return the device
  [[nodiscard]] int device() const noexcept { return device_; }
  /// @return the stream of the rank's passes
  [[nodiscard]] stream_ref compute() const noexcept { return compute_; }
  /// @return how many multiprocessors its kernels have
  [[nodiscard]] int sm_count() const noexcept { return sm_count_; }
  /// @return what is recorded when the rank's part of a step is enqueued
  [[nodiscard]] event_ref end() const noexcept { return end_; }
  /// @return the times of its passes
  [[nodiscard]] timing const& times() const noexcept { return timing_; }

  /// Blocks until what the caller has enqueued on an adopted stream is done: within a step,
  /// messages may use its memory before the stream comes to the first pass.
  /// @throws cuda_error
  void wait_for_caller() const {
    if (!own_.is_made()) compute_.synchronize();
  }
  /// Starts counting passes anew.
  void start_step() noexcept {
    passes_ = 0;
    std::ranges::fill(late_, nullptr);
    timing_.start_step();
  }
  /// Notes that a pass is about to be issued; blocks while the host is too far ahead.
  /// @throws cuda_error
  void begin_pass() {
    if (passes_ >= issued_.size() && !issued_.empty()) next_issued().get().synchronize();
    timing_.mark(compute_);
  }
  /// Notes that a pass was issued.
  /// @throws cuda_error
  void end_pass() {
    timing_.mark(compute_);
    if (!issued_.empty()) compute_.record(next_issued());
    if (synchronizes_) compute_.synchronize();
    ++passes_;
  }

  /// Enqueues the copy of a microbatch's loss; the last one counts.
  /// @throws error (bad_argument) while the stream is captured; cuda_error
  void copy_loss(int microbatch, double& to, float const* from) {
    auto captured = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(compute_, &captured));
    zbpp::detail::require(
        captured == cudaStreamCaptureStatusNone,
        "report_loss() is called while work is captured; call it behind graph_cache::run()");
    auto const i = zbpp::detail::index(microbatch);
    check(
        cudaMemcpyAsync(losses_.data() + i, from, sizeof(float), cudaMemcpyDeviceToHost, compute_));
    late_[i] = &to;
  }
  /// Writes the losses where they belong, once the device is done.
  void deliver_losses() noexcept {
    for (std::size_t i = 0; i < late_.size(); ++i)
      if (late_[i] != nullptr) *late_[i] = static_cast<double>(losses_.data()[i]);
  }

 private:
  [[nodiscard]] event& next_issued() noexcept { return issued_[passes_ % issued_.size()]; }

  int device_;
  stream own_;
  stream_ref compute_;
  int sm_count_;
  event end_;
  bool synchronizes_;
  std::vector<event> issued_;  // the ends of the last passes, where the host may not run far ahead
  std::size_t passes_ = 0;     // issued in this step
  timing timing_;
  pinned<float> losses_;
  std::vector<double*> late_;  // where the loss of a microbatch belongs, if it has landed
};

namespace detail {

[[nodiscard]] inline device_context& context_of(pass_context const& ctx) {
  if (ctx.kind() != backend_kind::cuda)
    throw error(
        errc::bad_argument,
        "the pass does not run on a GPU; make the pipeline with zbpp::cuda::device or "
        "zbpp::nccl::ranks");
  return *static_cast<device_context*>(ctx.native());
}

}  // namespace detail

/// @return the stream that a pass enqueues its work on
/// @throws error (bad_argument) when it does not run on a GPU
[[nodiscard]] inline stream_ref stream_of(pass_context const& ctx) {
  return detail::context_of(ctx).compute();
}
/// @return the device that a pass runs on
/// @throws error (bad_argument) when it does not run on a GPU
[[nodiscard]] inline int device_of(pass_context const& ctx) {
  return detail::context_of(ctx).device();
}
/// @return how many multiprocessors a pass has, for libraries that choose kernels by it
/// @throws error (bad_argument) when it does not run on a GPU
[[nodiscard]] inline int sm_count(pass_context const& ctx) {
  return detail::context_of(ctx).sm_count();
}

/// States the loss of a microbatch that is still to be computed: a copy of the value is enqueued
/// after the work of the pass, and the step's result carries it.
/// @throws error (wrong_flow) when this is not the last stage; (bad_argument) when the pass does
///         not run on a GPU, or while its work is captured; cuda_error
inline void report_loss(microbatch const& mb, pass_context const& ctx, float const* on_device) {
  detail::context_of(ctx).copy_loss(mb.index(), mb.loss(), on_device);
}

}  // namespace zbpp::cuda
