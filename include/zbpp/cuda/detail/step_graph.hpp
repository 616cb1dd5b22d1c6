// SPDX-License-Identifier: Apache-2.0
//
// A whole step as one graph: what all ranks enqueue in a step, on all streams, is captured once and
// then launched by one call for each step.
#pragma once

#include <zbpp/cuda/detail/capture.hpp>
#include <zbpp/cuda/detail/step_order.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/arena.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp::cuda::detail {

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

  /// Launches a step behind what callers have enqueued, and marks its end; captures it first,
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
  /// Drops all graphs; those that still run go when they end.
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
    throw error(
        errc::wrong_flow,
        "stages hold other buffers after the captured step than before it, and replays would use "
        "the old ones; keep the same buffers in every step, or leave out replay::step",
        {.rank = rank});
  }

  std::vector<device_context*> contexts_;
  std::vector<captured_step> captured_;  // by turn
  int growths_ = -1;                     // of all arenas, before the last step that was issued
};

}  // namespace zbpp::cuda::detail
