// SPDX-License-Identifier: Apache-2.0
//
// Captures the work of a pass once as a CUDA graph and replays it: the same kernels in the same
// order with the same bits, but one launch instead of many.
#pragma once

#include <zbpp/cuda/detail/capture.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace zbpp::cuda {

/// Keeps captured work of one rank's passes, under numbers that its stages choose.
///
/// A capture freezes everything except the contents of device memory: arguments that kernels take
/// by value (a learning rate, a step's number) keep the values they had. Do what allocates, or is
/// slow the first time, in `warm_up`, and take a pass's memory before it calls `run`. Passes of one
/// rank run one after another, but for pairs, so give each rank a cache of its own, and an F and a
/// B keys of their own.
class graph_cache {
 public:
  /// Enqueues the work of a pass. Replays what was captured under the key while pointers and stream
  /// stay the same; otherwise calls `enqueue(stream_ref)`, captures what that enqueues, and
  /// launches the capture. Where the whole step is captured, it calls `enqueue` and keeps nothing:
  /// the work is part of the step's graph.
  ///
  /// @param key       identifies the work, such as by the kind of the pass and its microbatch
  /// @param pointers  all device memory that the work uses and that may differ from step to step
  /// @throws what `enqueue` throws, in which case nothing is kept or run; error (bad_argument) when
  ///         the stream is being captured already, or the pass does not run on a GPU; cuda_error
  template <class Enqueue>
    requires std::is_invocable_v<Enqueue&, stream_ref>
  void run(
      pass_context const& ctx,
      std::int64_t key,
      std::span<void const* const> pointers,
      Enqueue&& enqueue) {
    auto const on = stream_of(ctx);
    zbpp::detail::require(
        !is_capturing_, "graph_cache::run() is called from within itself; captures do not nest");
    if (detail::context_of(ctx).is_captured()) return enqueue(on);
    auto const found = kept_.find(key);
    if (found != kept_.end() && found->second.is_for(on, pointers)) {
      check(cudaGraphLaunch(found->second.graph.get(), on));
      ++replays_;
      return;
    }
    auto fresh = capture(on, enqueue);
    check(cudaGraphLaunch(fresh.get(), on));
    auto& entry = kept_[key];
    entry.graph = std::move(fresh);
    entry.on = on.get();
    entry.pointers.assign(pointers.begin(), pointers.end());
  }
  /// Enqueues the work of a pass, as above, with the pointers in braces.
  template <class Enqueue>
    requires std::is_invocable_v<Enqueue&, stream_ref>
  void run(
      pass_context const& ctx,
      std::int64_t key,
      std::initializer_list<void const*> pointers,
      Enqueue&& enqueue) {
    run(ctx, key, std::span(pointers.begin(), pointers.size()), enqueue);
  }

  /// Drops all captured graphs; those that still run go on.
  void clear() noexcept { kept_.clear(); }
  [[nodiscard]] std::size_t size() const noexcept { return kept_.size(); }
  /// @return how often work was captured; when it keeps growing, pointers change in every step
  [[nodiscard]] std::int64_t captures() const noexcept { return captures_; }
  [[nodiscard]] std::int64_t replays() const noexcept { return replays_; }

 private:
  struct captured {
    detail::executable_graph graph;
    cudaStream_t on = nullptr;
    std::vector<void const*> pointers;

    [[nodiscard]] bool is_for(
        stream_ref stream, std::span<void const* const> others) const noexcept {
      return on == stream.get() && std::ranges::equal(pointers, others);
    }
  };

  template <class Enqueue>
  [[nodiscard]] detail::executable_graph capture(stream_ref on, Enqueue& enqueue) {
    zbpp::detail::require(
        !detail::is_captured(on),
        "graph_cache::run() is called on a stream that is being captured; captures do not nest");
    detail::capture open(on);
    is_capturing_ = true;
    try {
      enqueue(on);
    } catch (...) {
      is_capturing_ = false;
      throw;
    }
    is_capturing_ = false;
    auto made = open.finish();
    ++captures_;
    return made;
  }

  std::unordered_map<std::int64_t, captured> kept_;
  std::int64_t captures_ = 0;
  std::int64_t replays_ = 0;
  bool is_capturing_ = false;
};

}  // namespace zbpp::cuda
