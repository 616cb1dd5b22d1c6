// SPDX-License-Identifier: Apache-2.0
//
// How far a rank's GPU is, which its host has left far behind: events around the passes that were
// issued. The watchdog of the run reads it, so that a step that stands still says where.
#pragma once

#include <zbpp/asio/detail/progress.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/model/pass.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zbpp::nccl {

/// Marks where passes begin and end on a stream. The thread that runs steps uses it.
class pass_marks {
 public:
  /// Makes the events for up to `passes` a step, for the current device.
  /// @throws cuda_error
  explicit pass_marks(std::size_t passes) {
    for (std::size_t i = 0; i < 2 * passes; ++i)
      marks_.push_back({cuda::event(cuda::event_kind::order), what::end});
  }

  /// Starts anew.
  void start_step() noexcept { issued_ = seen_ = 0; }
  /// Notes that a pass is about to be issued. @throws cuda_error
  void begin(cuda::stream_ref on, pass const& of) {
    // W and R wait for nobody: they begin where the pass before them ends.
    waits_ = of.kind != pass_kind::backward_weight && of.kind != pass_kind::recompute;
    if (waits_) mark(on, what::begin);
  }
  /// Notes that it was issued. @throws cuda_error
  void end(cuda::stream_ref on) { mark(on, waits_ ? what::end : what::both); }

  /// Writes how far the device is.
  /// @throws cuda_error when what ran there failed
  void show(asio::detail::progress_board& board) {
    for (; seen_ < issued_ && marks_[seen_].at.get().is_complete(); ++seen_) {
      if (marks_[seen_].is != what::end) board.start_pass();
      if (marks_[seen_].is != what::begin) board.enter(asio::detail::progress_phase::waiting);
    }
  }

 private:
  enum class what : std::uint8_t { begin, end, both };
  struct one_mark {
    cuda::event at;
    what is;
  };

  void mark(cuda::stream_ref on, what is) {
    on.record(marks_[issued_].at);
    marks_[issued_++].is = is;
  }

  std::vector<one_mark> marks_;
  std::size_t issued_ = 0;
  std::size_t seen_ = 0;
  bool waits_ = false;
};

}  // namespace zbpp::nccl
