// SPDX-License-Identifier: Apache-2.0
//
// Follows how far a rank's GPU has come, since the host issues passes long before they run: by
// events around them. The watchdog of the run reads it, so that its error says where a step stands
// still.
#pragma once

#include <zbpp/asio/progress.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/model/pass.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zbpp::nccl::detail {

/// Records where the passes of a step begin and end on a stream. Used by the thread that runs
/// steps.
class device_progress {
 public:
  /// Makes the events for up to `passes` per step, for the current device.
  /// @throws cuda_error
  explicit device_progress(std::size_t passes) {
    for (std::size_t i = 0; i < 2 * passes; ++i)
      events_.push_back({cuda::event(cuda::event_kind::host_wait), what::end});
  }

  /// Forgets the events of the run before.
  void start_run() noexcept { issued_ = seen_ = last_wait_ = 0; }
  /// Gets ready for another step of a run; blocks until the passes before are done.
  /// @throws cuda_error when what ran there failed
  void begin_step(asio::progress_board& board) {
    if (issued_ > 0) events_[issued_ - 1].event.view().synchronize();
    publish(board);
    start_run();
  }
  /// Notes that a pass is about to be issued. @throws cuda_error
  void begin(cuda::stream_ref on, pass const& of) {
    // W and R wait for no message: they begin where the pass before them ends. Of a pair, the first
    // waits for both.
    waits_ =
        of.kind != pass_kind::backward_weight && of.kind != pass_kind::recompute && !of.is_paired;
    if (!waits_) return;
    record(on, what::begin);
    last_wait_ = issued_;
  }
  /// Notes that it was issued. @throws cuda_error
  void end(cuda::stream_ref on) { record(on, waits_ ? what::end : what::both); }

  /// Publishes how far the device has come.
  /// @throws cuda_error when what ran there failed
  void publish(asio::progress_board& board) {
    for (; seen_ < issued_ && events_[seen_].event.view().is_complete(); ++seen_) {
      if (events_[seen_].marks != what::end) board.start_pass();
      if (events_[seen_].marks != what::begin) board.enter(asio::progress_phase::waiting);
    }
  }
  /// @return whether a pass may still wait for a message, as far as was published
  [[nodiscard]] bool is_waiting() const noexcept { return seen_ < last_wait_; }

 private:
  enum class what : std::uint8_t { begin, end, both };
  struct recorded_event {
    cuda::event event;
    what marks;
  };

  void record(cuda::stream_ref on, what marks) {
    on.record(events_[issued_].event);
    events_[issued_++].marks = marks;
  }

  std::vector<recorded_event> events_;
  std::size_t issued_ = 0;
  std::size_t seen_ = 0;
  std::size_t last_wait_ = 0;  // how many were issued when the last pass began that waits
  bool waits_ = false;
};

}  // namespace zbpp::nccl::detail
