// SPDX-License-Identifier: Apache-2.0
//
// What a rank runs with on its GPU: its streams, its events and the losses that are on their way.
// Public for authors of backends; a pass asks rank_device.hpp instead.
#pragma once

#include <zbpp/cuda/detail/capture.hpp>
#include <zbpp/cuda/detail/second_stream.hpp>
#include <zbpp/cuda/detail/timing.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::cuda {

/// Says how the host launches the work of ranks.
struct launch_settings {
  int run_ahead = 0;          ///< passes that the host may issue ahead of a rank; 0: the whole step
  bool traces = false;        ///< whether passes are timed on the device
  bool synchronizes = false;  ///< whether the host waits after each pass
  bool one_thread = false;    ///< whether one thread issues the passes of all devices
  int steps_at_once = 1;      ///< whose losses are on their way
};

namespace detail {

/// Refuses settings that are out of range, or of which one has no effect beside another.
/// @throws error (bad_argument)
inline void check_launch(launch_settings const& settings) {
  zbpp::detail::require(
      settings.run_ahead >= 0,
      "run_ahead is negative; give a number of passes, or 0 for a whole step");
  zbpp::detail::require(
      settings.run_ahead == 0 || !settings.synchronizes,
      "run_ahead is above 0 and synchronizes is set, with which the host is never ahead; leave one "
      "of them out");
}
/// Refuses a number of multiprocessors that nothing confines the rank to.
/// @throws error (bad_argument)
inline void check_confined(rank_device const& runs_on) {
  zbpp::detail::require(
      runs_on.sm_count >= 0,
      "rank_device::sm_count is negative; give a number of multiprocessors, or 0 for all");
  zbpp::detail::require(
      runs_on.sm_count == 0 || runs_on.compute != nullptr,
      "rank_device::sm_count is set and rank_device::compute is not, so nothing confines the rank; "
      "give the stream that is confined, or leave sm_count out");
}

}  // namespace detail

/// Holds what one rank runs with on its device.
class device_context {
 public:
  /// Makes streams and events for the current device.
  /// @param passes  those of the rank in a step
  /// @throws error (bad_argument) when the stream of the rank_device cannot be adopted, or
  ///         settings are out of range or without effect; cuda_error
  device_context(
      rank_device const& runs_on,
      int microbatches,
      std::span<pass const> passes,
      launch_settings const& settings);
  device_context(device_context const&) = delete;
  device_context& operator=(device_context const&) = delete;
  ~device_context() = default;

  [[nodiscard]] int device() const noexcept { return device_; }
  /// @return the stream of the rank's passes, but for the second one of a pair
  [[nodiscard]] stream_ref compute() const noexcept { return compute_; }
  /// @return the stream of the pass that is issued now, and of what is no pass
  [[nodiscard]] stream_ref current() const noexcept { return current_; }
  [[nodiscard]] int sm_count() const noexcept { return sm_count_; }
  /// @return the event that is recorded when the rank's part of a run is enqueued
  [[nodiscard]] event_ref end() const noexcept { return end_; }

  /// Blocks until what the caller has enqueued on an adopted stream is done: within a step,
  /// messages may use its memory before the stream comes to the first pass.
  /// @throws cuda_error
  void wait_for_caller() const {
    if (is_adopted()) compute_.synchronize();
  }
  /// Gets ready for a run of steps.
  /// @param turn  of the step among those at once
  void start_run(std::size_t turn = 0) noexcept {
    turn_ = turn;
    passes_ = 0;
    begin_step();
  }
  /// Begins a step, or the same one again: forgets the losses and times of before.
  void begin_step() noexcept {
    auto& own = reports_[turn_];
    if (std::exchange(own.has_pending, false)) std::ranges::fill(own.pending, nullptr);
    timing_.start_step();
    current_ = compute_;
  }
  /// Notes that a pair is about to be issued, whose passes wait for no more messages.
  /// @throws cuda_error
  void begin_pair() const {
    if (second_) second_->fork(compute_);
  }
  /// Notes that a pass is about to be issued; blocks while the host is too far ahead, but never
  /// between the two of a pair.
  /// @param is_paired  with the pass before it
  /// @throws cuda_error
  void begin_pass(bool is_paired = false) {
    if (is_paired && second_)
      current_ = second_->view();
    else if (passes_ >= issued_.size() && !issued_.empty())
      next_issued().view().synchronize();
    timing_.mark(current_);
  }
  /// Notes that a pass was issued; what follows waits for it, and for all of a pair.
  /// @throws cuda_error
  void end_pass() {
    timing_.mark(current_);
    if (current_.get() != compute_.get()) join_second();
    if (!issued_.empty()) compute_.record(next_issued());
    if (synchronizes_) compute_.synchronize();
    ++passes_;
  }
  /// Says whether the whole step is captured from now on.
  void set_captured(bool is_captured) noexcept { is_captured_ = is_captured; }
  [[nodiscard]] bool is_captured() const noexcept { return is_captured_; }
  /// Refuses what has spoilt the capture of the step, where there is one.
  /// @throws error (wrong_flow); cuda_error
  void check_capture() const {
    if (is_captured_) refuse_spoilt_capture();
  }
  /// @return whether the stream of the rank's passes is the caller's
  [[nodiscard]] bool is_adopted() const noexcept { return !own_.is_valid(); }
  /// Counts measured times from an event of the same device, which is recorded in every run.
  void measure_from(event_ref epoch) noexcept { epoch_ = epoch; }

  /// Expects a microbatch's loss, which `to` gets when the results are read.
  /// @return where the device writes it; not a number until it does
  /// @throws error (bad_argument) while the stream is captured; cuda_error
  [[nodiscard]] float* loss_slot(int microbatch, double& to) {
    refuse_capture(
        "loss_slot() is called while the pass captures its work; call it before the capture");
    return losses_on_device_ + expect_loss(microbatch, to);
  }
  /// Enqueues the copy of a microbatch's loss; the last one counts.
  /// @throws error (bad_argument) while the stream is captured; cuda_error
  void copy_loss(int microbatch, double& to, float const* from) {
    refuse_capture(
        "report_loss() is called while the pass captures its work; call it after the capture");
    auto* const slot = losses_.data() + expect_loss(microbatch, to);
    check(cudaMemcpyAsync(slot, from, sizeof(float), cudaMemcpyDeviceToHost, current_));
  }
  /// Keeps which losses the step reports, for steps that are replayed.
  void keep_reports() {
    auto& own = reports_[turn_];
    own.kept = own.pending;
    own.has_kept = own.has_pending;
  }
  /// Expects the losses of a step that is replayed, which go where those of the captured one went.
  void expect_kept_reports() noexcept {
    auto& own = reports_[turn_];
    own.has_pending = own.has_kept;
    if (own.has_kept) std::ranges::copy(own.kept, own.pending.begin());
  }
  /// Blocks until the device is done with the rank's passes, whether they succeeded or not.
  void synchronize() const noexcept {
    cudaStreamSynchronize(compute_);
    if (second_) cudaStreamSynchronize(second_->view());  // it may not have been joined
  }
  [[nodiscard]] bool is_busy() const noexcept {
    auto const is_busy = [](stream_ref on) { return cudaStreamQuery(on) == cudaErrorNotReady; };
    return is_busy(compute_) || (second_ && is_busy(second_->view()));
  }
  /// Blocks until the device is done with what `read_results` reads. @throws cuda_error
  void wait_for_results() const;
  /// Writes the losses of the step to their destinations, and, if they are measured, when its
  /// passes ran, once the device is done with them.
  /// @throws cuda_error
  void read_results(std::span<timed_pass> passes) {
    read_losses(turn_);
    if (epoch_) timing_.read(*epoch_, passes);
  }
  /// Writes the losses of one of the steps at once to where they go, once the device is done.
  void read_losses(std::size_t turn) noexcept;

 private:
  static constexpr float no_loss = std::numeric_limits<float>::quiet_NaN();

  struct step_reports {
    std::vector<double*> pending;  // by microbatch: where its loss goes; null: none was reported
    std::vector<double*> kept;     // the same, of the captured step
    bool has_pending = false;
    bool has_kept = false;
  };

  [[nodiscard]] event& next_issued() noexcept { return issued_[passes_ % issued_.size()]; }
  // Within the capture of a step, each pass reports as ever, and a replay writes to the same slot.
  void refuse_capture(char const* why) const {
    zbpp::detail::require(is_captured_ || !detail::is_captured(current_), why);
  }
  [[gnu::cold]] void refuse_spoilt_capture() const;
  // Apart, so that compilers put the end of a pass in place.
  [[gnu::noinline]] void join_second() {
    current_ = compute_;
    second_->join(compute_);
  }
  std::size_t expect_loss(int microbatch, double& to) noexcept {
    auto const i = zbpp::detail::index(microbatch);
    auto& own = reports_[turn_];
    own.pending[i] = &to;
    own.has_pending = true;
    return turn_ * own.pending.size() + i;
  }

  int device_;
  stream own_;
  stream_ref compute_;
  stream_ref current_;
  std::optional<detail::second_stream> second_;  // where the rank has pairs
  int sm_count_;
  event end_;
  bool synchronizes_;
  bool is_captured_ = false;
  std::vector<event> issued_;  // the ends of the last passes, where the host may not run far ahead
  std::size_t passes_ = 0;     // issued in this run
  detail::timing timing_;
  std::optional<event_ref> epoch_;  // where passes are measured
  pinned<float> losses_;
  float* losses_on_device_;
  std::vector<step_reports> reports_;  // of the steps at once
  std::size_t turn_ = 0;
};

inline device_context::device_context(
    rank_device const& runs_on,
    int microbatches,
    std::span<pass const> passes,
    launch_settings const& settings)
    : device_(runs_on.device),
      own_(runs_on.compute == nullptr ? stream(stream_priority::usual) : stream()),
      compute_(runs_on.compute == nullptr ? own_.view() : stream_ref(runs_on.compute)),
      current_(compute_),
      sm_count_(runs_on.sm_count),
      end_(event_kind::host_wait),
      synchronizes_(settings.synchronizes),
      timing_(settings.traces ? passes.size() : 0),
      losses_(zbpp::detail::index(microbatches) * zbpp::detail::index(settings.steps_at_once)),
      losses_on_device_(losses_.on_device()),
      reports_(zbpp::detail::index(settings.steps_at_once)) {
  detail::check_launch(settings);
  detail::check_confined(runs_on);
  std::fill_n(losses_.data(), microbatches * settings.steps_at_once, no_loss);
  for (auto& each : reports_) each.pending.resize(zbpp::detail::index(microbatches), nullptr);
  if (is_adopted()) check_adoptable(compute_, device_);
  if (zbpp::detail::has_pairs(passes))
    second_.emplace(is_adopted() ? detail::make_beside(compute_) : stream(stream_priority::usual));
  if (sm_count_ == 0)
    check(cudaDeviceGetAttribute(&sm_count_, cudaDevAttrMultiProcessorCount, device_));
  for (int i = 0; i < settings.run_ahead; ++i) issued_.emplace_back(event_kind::host_wait);
}

inline void device_context::refuse_spoilt_capture() const {
  if (detail::capture_status(compute_) != cudaStreamCaptureStatusActive)
    throw error(errc::wrong_flow) +
        "a captured step cannot hold what was called here; let it not wait for the device, nor "
        "make or free device memory, or leave out replay::step";
}

inline void device_context::wait_for_results() const {
  if (reports_[turn_].has_pending || epoch_) compute_.synchronize();
}

inline void device_context::read_losses(std::size_t turn) noexcept {
  auto& own = reports_[turn];
  if (!std::exchange(own.has_pending, false)) return;
  auto* const slots = losses_.data() + turn * own.pending.size();
  for (std::size_t i = 0; i < own.pending.size(); ++i)
    if (auto* const to = std::exchange(own.pending[i], nullptr); to != nullptr)
      *to = static_cast<double>(std::exchange(slots[i], no_loss));
}

namespace detail {

[[nodiscard]] inline device_context& context_of(pass_context const& ctx) {
  if (ctx.kind() != backend_kind::cuda)
    throw error(errc::bad_argument) + "the pass does not run on a GPU; make the pipeline with "
                                      "zbpp::cuda::device or zbpp::nccl::ranks";
  return *static_cast<device_context*>(ctx.native());
}

}  // namespace detail

inline stream_ref stream_of(pass_context const& ctx) { return detail::context_of(ctx).current(); }
inline int device_of(pass_context const& ctx) { return detail::context_of(ctx).device(); }
inline int sm_count(pass_context const& ctx) { return detail::context_of(ctx).sm_count(); }
inline float* loss_slot(microbatch const& mb, pass_context const& ctx) {
  return detail::context_of(ctx).loss_slot(mb.index(), mb.loss());
}
inline void report_loss(microbatch const& mb, pass_context const& ctx, float const* on_device) {
  detail::context_of(ctx).copy_loss(mb.index(), mb.loss(), on_device);
}

}  // namespace zbpp::cuda
