// SPDX-License-Identifier: Apache-2.0
//
// Orders whole steps on devices, so that the host can issue a step while others run: each begins
// when the one before has ended on all ranks.
#pragma once

#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace zbpp::cuda::detail {

/// Keeps the stream on which steps stand in order, and marks their ends.
class step_order {
 public:
  /// @param contexts  of all ranks; they outlive it
  /// @param at_once   how many steps may be under way
  /// @param more      streams of the first rank's device that take part in steps, too
  /// @throws cuda_error
  step_order(
      std::vector<device_context*> const& contexts,
      std::size_t at_once,
      std::vector<stream_ref> const& more = {})
      : device_(contexts.front()->device()),
        origin_(on_device(device_, [] { return stream(stream_priority::usual); })),
        begun_(on_device(device_, [] { return event(event_kind::order); })) {
    for (auto* const each : contexts)
      streams_.emplace_back(each->compute(), each->is_adopted(), each->device());
    for (auto const each : more) streams_.emplace_back(each, false, device_);
    for (std::size_t i = 0; i < at_once; ++i)
      ends_.push_back(on_device(device_, [] { return event(event_kind::host_wait); }));
  }

  /// @return the stream
  [[nodiscard]] stream_ref origin() const { return origin_; }
  /// Lets the stream wait for what callers have enqueued on streams of theirs.
  /// @throws cuda_error
  void wait_for_callers() const {
    for (auto const& each : streams_)
      if (each.is_adopted) join(each);
  }
  /// Lets the streams of ranks wait for this one.
  /// @throws cuda_error
  void fork() const {
    origin().record(begun_);
    for (auto const& each : streams_) each.on.wait(begun_);
  }
  /// Lets the stream wait for those of ranks.
  /// @throws cuda_error
  void join() const {
    for (auto const& each : streams_) join(each);
  }
  /// Marks the end of a step.
  /// @param turn  of the step among those at once
  /// @throws cuda_error
  void mark_end(std::size_t turn) const { origin().record(ends_[turn]); }
  /// Lets what callers enqueue from now on wait for the end of a step.
  /// @throws cuda_error
  void hold_callers(std::size_t turn) const {
    for (auto const& each : streams_)
      if (each.is_adopted) each.on.wait(ends_[turn]);
  }
  /// Blocks until a step is done.
  /// @throws cuda_error
  void wait(std::size_t turn) const { ends_[turn].view().synchronize(); }
  /// @return whether a step is done
  /// @throws cuda_error
  [[nodiscard]] bool is_done(std::size_t turn) const { return ends_[turn].view().is_complete(); }
  /// Blocks until the devices are done with all steps, whether they succeeded or not.
  void synchronize() const noexcept { cudaStreamSynchronize(origin_.view()); }
  /// @return whether anything is still waiting or running on the streams that take part
  [[nodiscard]] bool is_busy() const noexcept {
    auto const is_busy = [](stream_ref on) { return cudaStreamQuery(on) == cudaErrorNotReady; };
    return is_busy(origin_) ||
           std::ranges::any_of(streams_, [&](auto const& each) { return is_busy(each.on); });
  }

 private:
  // A stream that takes part, and where it has got to.
  struct joined_stream {
    joined_stream(stream_ref its, bool adopted, int device)
        : on(its),
          is_adopted(adopted),
          reached(on_device(device, [] { return event(event_kind::order); })) {}

    stream_ref on;
    bool is_adopted;
    event reached;
  };

  void join(joined_stream const& each) const {
    each.on.record(each.reached);
    origin().wait(each.reached);
  }

  int device_;
  stream origin_;
  event begun_;
  std::vector<joined_stream> streams_;  // those of ranks first
  std::vector<event> ends_;
};

}  // namespace zbpp::cuda::detail
