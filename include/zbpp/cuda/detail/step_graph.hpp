// SPDX-License-Identifier: Apache-2.0
//
// How steps follow each other on devices: each begins when the one before has ended on all ranks,
// so the host can issue it while others run; and a whole step as one graph, which is captured once
// and then launched by one call for each step.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/cuda/detail/capture.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp::cuda::detail {

/// Refuses settings and plans with which the host has a part in every step.
/// @throws error (bad_argument)
inline void refuse_to_replay(launch_settings const& settings, plan const& planned) {
  auto const refuse_with = [](bool is_set, char const* setting) {
    if (is_set)
      throw error(errc::bad_argument) + "replay is replay::step and " + setting +
          ", which needs the host between passes; leave one of them out";
  };
  refuse_with(settings.traces, "traces is set");
  refuse_with(settings.synchronizes, "synchronizes is set");
  refuse_with(settings.run_ahead > 0, "run_ahead is above 0");
  refuse_with(agrees_on_steps(planned.program()), "ranks agree on optimizer steps");
  refuse_with(exchanges_states(planned.program()), "ranks add the gradients of tied weights");
}

/// @throws error (bad_argument) unless it is 1 or more, and 1 where passes are timed
[[nodiscard]] inline int checked_steps_at_once(int steps_at_once, bool traces) {
  zbpp::detail::require(
      steps_at_once >= 1, "steps_at_once is below 1; give a number of steps from 1");
  zbpp::detail::require(
      steps_at_once == 1 || !traces,
      "steps_at_once is above 1 and traces is set, which times one step; leave one of them out");
  return steps_at_once;
}

/// Refuses optimizer steps in which the host has a part.
/// @throws error (bad_argument)
inline void refuse_optimizer(int rank, bool has_optimizer) {
  if (has_optimizer)
    throw error(errc::bad_argument, {.rank = rank}) +
        "a stage has an optimizer(), or training_options are given that the host follows in every "
        "step; with replay::step let update(ctx) do its work, with its settings in device memory";
}

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
  step_order(step_order const&) = delete;
  step_order& operator=(step_order const&) = delete;
  /// Blocks until no stream of a caller waits for the end of a step any more.
  ~step_order() {
    for (auto const& each : streams_)
      if (each.is_adopted) cudaStreamSynchronize(each.on);
  }

  [[nodiscard]] stream_ref origin() const { return origin_; }
  /// Lets the stream wait for what callers have enqueued on streams of theirs. @throws cuda_error
  void wait_for_callers() const {
    for (auto const& each : streams_)
      if (each.is_adopted) join(each);
  }
  /// Lets the streams of ranks wait for this one. @throws cuda_error
  void fork() const {
    origin().record(begun_);
    for (auto const& each : streams_) each.on.wait(begun_);
  }
  /// Lets the stream wait for those of ranks. @throws cuda_error
  void join() const {
    for (auto const& each : streams_) join(each);
  }
  /// Marks the end of a step.
  /// @param turn  of the step among those at once
  /// @throws cuda_error
  void mark_end(std::size_t turn) const { origin().record(ends_[turn]); }
  /// Issues a step after those that are under way, and marks its end.
  /// @param issue  enqueues the step on the streams of ranks; returns false when it has failed
  /// @throws cuda_error; what `issue` throws
  template <class Issue>
  void run(std::size_t turn, Issue const& issue) const {
    wait_for_callers();
    fork();
    if (!issue()) return;
    join();
    mark_end(turn);
  }
  /// Lets what callers enqueue from now on wait for the end of a step. @throws cuda_error
  void hold_callers(std::size_t turn) const {
    for (auto const& each : streams_)
      if (each.is_adopted) each.on.wait(ends_[turn]);
  }
  /// Blocks until a step is done. @throws cuda_error
  void wait(std::size_t turn) const { ends_[turn].view().synchronize(); }
  /// @throws cuda_error
  [[nodiscard]] bool is_done(std::size_t turn) const { return ends_[turn].view().is_complete(); }
  /// Blocks until the devices are done with all steps, whether they succeeded or not.
  void synchronize() const noexcept { cudaStreamSynchronize(origin_.view()); }
  [[nodiscard]] bool is_busy() const noexcept {
    auto const is_busy = [](stream_ref on) { return cudaStreamQuery(on) == cudaErrorNotReady; };
    return is_busy(origin_) ||
           std::ranges::any_of(streams_, [&](auto const& each) { return is_busy(each.on); });
  }

 private:
  // A stream that takes part, and where it has got to.
  struct joined_stream {
    joined_stream(stream_ref stream, bool adopted, int device)
        : on(stream),
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

/// Says how a step is run; the least is what all ranks can do.
enum class step_way : std::uint8_t {
  issue,    ///< the host enqueues it
  capture,  ///< the host enqueues it into a capture, which is launched
  replay,   ///< what was captured is launched
};

/// Keeps the graph of a step, one for each of those at once.
///
/// Replays use the memory that the captured step had. So a step is captured when the one before has
/// made no arena grow, and replayed while the same pieces of the arenas are in use as then; after
/// that another one is captured.
class step_graph {
 public:
  /// @param contexts  of all ranks; they outlive it
  explicit step_graph(std::vector<device_context*> contexts, std::size_t at_once)
      : contexts_(std::move(contexts)), captured_(at_once) {}

  /// @param turn  of the step among those at once
  /// @return how to run the next step
  template <class Engines>
  [[nodiscard]] step_way choose(Engines const& engines, std::size_t turn) {
    auto& before = captured_[turn];
    bool is_same = before.graph.get() != nullptr;
    for (std::size_t i = 0; is_same && i < engines.size(); ++i)
      is_same = engines[i].memory().mark_of_pieces() == before.ranks[i].pieces;
    if (is_same) return step_way::replay;
    // With other memory in use, the arenas may grow first.
    if (before.graph.get() != nullptr) growths_ = -1;
    before.graph = executable_graph();  // of {} in a template clang 16 never ends the life
    int growths = 0;
    for (auto const& e : engines) growths += e.memory().usage().growths;
    bool const is_warm = std::exchange(growths_, growths) == growths;
    return is_warm ? step_way::capture : step_way::issue;
  }

  /// Launches a step after what callers have enqueued, and marks its end; captures it first,
  /// unless it is a replay. Its work is what is enqueued on the streams of `order`, and on those
  /// that wait for them and that they wait for, as channels do.
  /// @param issue   enqueues the step and destroys what is left of it on the host; returns false
  ///                when it has failed, in which case nothing is kept or launched
  /// @throws error (wrong_flow) when a rank holds other memory than before; cuda_error
  template <class Engines, class Issue>
  void start(
      step_way way,
      Engines& engines,
      step_order const& order,
      std::size_t turn,
      Issue const& issue) {
    if (way == step_way::replay)
      skip_passes(engines, turn);
    else if (!capture_step(engines, order, turn, issue))
      return;
    order.wait_for_callers();
    check(cudaGraphLaunch(captured_[turn].graph.get(), order.origin()));
    order.mark_end(turn);
  }
  /// Drops all graphs; those that still run go when they end. An abort of communicators waits for
  /// graphs that have their messages.
  /// @source NCCL, commDestroySync in src/init.cc
  void discard() noexcept {
    for (auto& each : captured_) each.graph = executable_graph();
  }

 private:
  // What a rank was like in the captured step.
  struct captured_rank {
    std::uintptr_t pieces = 0;
    arena_usage usage = {};
  };
  struct captured_step {
    executable_graph graph;
    std::vector<captured_rank> ranks;
  };

  // Tells contexts and flows that they are captured, for its lifetime.
  template <class Engines>
  class flag_capture {
   public:
    flag_capture(step_graph const& of, Engines& engines) noexcept : of_(of), engines_(engines) {
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
    Engines& engines_;
  };

  // @return whether the step was issued without a failure
  template <class Engines, class Issue>
  [[nodiscard]] bool capture_step(
      Engines& engines, step_order const& order, std::size_t turn, Issue const& issue) {
    auto const growths = std::exchange(growths_, -1);  // after a failure the next step is issued
    captured_step made;
    for (auto const& e : engines) made.ranks.push_back({.pieces = e.memory().mark_of_pieces()});
    flag_capture const flags(*this, engines);
    capture open(order.origin());
    order.fork();
    if (!issue()) return false;
    for (std::size_t i = 0; i < engines.size(); ++i) {
      auto const& memory = engines[i].memory();
      if (memory.mark_of_pieces() != made.ranks[i].pieces) refuse_memory(engines[i].rank());
      made.ranks[i].usage = memory.usage();
      contexts_[i]->keep_reports();
    }
    order.join();
    made.graph = open.finish();
    captured_[turn] = std::move(made);
    growths_ = growths;
    return true;
  }

  // Gets ready for the results of a step that is replayed.
  template <class Engines>
  void skip_passes(Engines& engines, std::size_t turn) noexcept {
    for (std::size_t i = 0; i < engines.size(); ++i) {
      engines[i].skip_step();
      engines[i].memory().note_peak(captured_[turn].ranks[i].usage);
      contexts_[i]->expect_kept_reports();
    }
  }

  [[noreturn]] static void refuse_memory(int rank) {
    throw error(errc::wrong_flow, {.rank = rank}) +
        "stages hold other buffers after the captured step than before it, and replays would use "
        "the old ones; keep the same buffers in every step, or leave out replay::step";
  }

  std::vector<device_context*> contexts_;
  std::vector<captured_step> captured_;  // by turn
  int growths_ = -1;                     // of all arenas, before the last step that was issued
};

}  // namespace zbpp::cuda::detail
