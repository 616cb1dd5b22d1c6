// SPDX-License-Identifier: Apache-2.0
//
// A whole step as one graph: what all ranks enqueue in a step, on all streams, is captured once and
// then launched by one call for each step.
#pragma once

#include <zbpp/cuda/detail/capture.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/arena.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp::cuda::detail {

/// Says how a step is run.
enum class step_way : std::uint8_t {
  issue,    ///< the host enqueues it
  capture,  ///< the host enqueues it into a capture, which is launched
  replay,   ///< what was captured is launched
};

/// Keeps the graph of a step.
///
/// Replays use the memory that the captured step had. So a step is captured when the one before has
/// made no arena grow, and replayed while the same pieces of the arenas are in use as then; after
/// that another one is captured.
class step_graph {
 public:
  /// @param contexts  of all ranks; they outlive it
  /// @throws cuda_error
  explicit step_graph(std::vector<device_context*> contexts)
      : contexts_(std::move(contexts)),
        origin_(on_device(first_device(), [] { return stream(stream_priority::usual); })),
        begun_(on_device(first_device(), [] { return event(event_kind::order); })),
        end_(on_device(first_device(), [] { return event(event_kind::host_wait); })) {
    for (auto* const each : contexts_)
      if (each->is_adopted()) callers_.emplace_back(each->compute());
  }

  /// @return how to run the next step
  template <class Engine>
  [[nodiscard]] step_way choose(std::vector<Engine> const& engines) {
    bool is_same = graph_.get() != nullptr;
    for (std::size_t i = 0; is_same && i < engines.size(); ++i)
      is_same = engines[i].memory().mark_of_pieces() == kept_[i].pieces;
    if (is_same) return step_way::replay;
    graph_ = {};
    int growths = 0;
    for (auto const& e : engines) growths += e.memory().usage().growths;
    bool const is_warm = std::exchange(growths_, growths) == growths;
    return is_warm ? step_way::capture : step_way::issue;
  }

  /// Captures a step: what is enqueued on the streams of ranks, and on those that wait for them and
  /// that they wait for, as channels do.
  /// @param issue   enqueues the step and destroys what is left of it on the host; returns false
  ///                when it has failed, in which case nothing is kept
  /// @throws error (wrong_flow) when a rank holds other memory than before; cuda_error
  template <class Engine, class Issue>
  void capture_step(std::vector<Engine>& engines, Issue const& issue) {
    growths_ = -1;  // unless this succeeds, the next step is issued
    std::vector<branch> branches;
    for (auto* const each : contexts_) branches.emplace_back(each->compute());
    std::vector<captured_rank> before;
    for (auto const& e : engines) before.push_back({.pieces = e.memory().mark_of_pieces()});
    flag_capture const flags(*this, engines);
    capture open(origin_);
    origin_.view().record(begun_);
    for (auto const& each : branches) each.on.wait(begun_);
    if (!issue()) return;
    for (std::size_t i = 0; i < engines.size(); ++i) {
      auto const& memory = engines[i].memory();
      if (memory.mark_of_pieces() != before[i].pieces) refuse_memory(engines[i].rank());
      before[i].usage = memory.usage();
      contexts_[i]->keep_reports();
    }
    for (auto const& each : branches) wait_for(each);
    graph_ = open.finish();
    kept_ = std::move(before);
  }

  /// Gets ready for the results of a step that is replayed.
  template <class Engine>
  void skip_passes(std::vector<Engine>& engines) noexcept {
    for (std::size_t i = 0; i < engines.size(); ++i) {
      engines[i].skip_step();
      engines[i].memory().note_peak(kept_[i].usage);
      contexts_[i]->expect_kept_reports();
    }
  }
  /// Launches the graph, behind what callers have enqueued on streams of theirs.
  /// @throws cuda_error
  void launch() {
    for (auto const& each : callers_) wait_for(each);
    check(cudaGraphLaunch(graph_.get(), origin_.view()));
    origin_.view().record(end_);
  }
  /// Blocks until the step is done.
  /// @throws cuda_error
  void wait() const { end_.view().synchronize(); }
  /// Blocks until the devices are done with what was launched, whether it succeeded or not.
  void synchronize() const noexcept { cudaStreamSynchronize(origin_.view()); }

 private:
  // A stream, and where it has got to.
  struct branch {
    explicit branch(stream_ref stream) : on(stream), reached(on_its_device(stream)) {}

    stream_ref on;
    event reached;
  };
  // What a rank was like in the captured step.
  struct captured_rank {
    std::uintptr_t pieces = 0;
    arena_usage usage = {};
  };

  // Tells contexts and flows that they are captured, for its lifetime.
  template <class Engine>
  class flag_capture {
   public:
    flag_capture(step_graph const& of, std::vector<Engine>& engines) noexcept
        : of_(of), engines_(engines) {
      set(true);
    }
    flag_capture(flag_capture const&) = delete;
    flag_capture& operator=(flag_capture const&) = delete;
    ~flag_capture() { set(false); }

   private:
    void set(bool is_captured) const noexcept {
      for (auto* const each : of_.contexts_) each->set_captured(is_captured);
      for (auto& e : engines_) e.set_captured(is_captured);
    }

    step_graph const& of_;
    std::vector<Engine>& engines_;
  };

  void wait_for(branch const& other) const {
    other.on.record(other.reached);
    origin_.view().wait(other.reached);
  }
  [[nodiscard]] int first_device() const noexcept { return contexts_.front()->device(); }
  [[nodiscard]] static event on_its_device(stream_ref stream) {
    int device = 0;
    check(cudaStreamGetDevice(stream, &device));
    return on_device(device, [] { return event(event_kind::order); });
  }
  [[noreturn]] static void refuse_memory(int rank) {
    throw error(
        errc::wrong_flow,
        "stages hold other buffers after the captured step than before it, and replays would use "
        "the old ones; keep the same buffers in every step, or leave out device::replay",
        {.rank = rank});
  }

  std::vector<device_context*> contexts_;
  stream origin_;
  event begun_;
  event end_;
  std::vector<branch> callers_;  // streams that are the caller's
  std::vector<captured_rank> kept_;
  executable_graph graph_;
  int growths_ = -1;  // of all arenas, before the last step that was issued
};

}  // namespace zbpp::cuda::detail
