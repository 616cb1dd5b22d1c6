// SPDX-License-Identifier: Apache-2.0
//
// What the host spends on issuing a step: the library beside the calls of CUDA alone, and passes of
// many kernels, issued and replayed as one graph.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/cuda/device.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <bench/cuda/measuring.hpp>
#include <bench/cuda/report.hpp>
#include <bench/cuda/work.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace zbpp::bench {

/// Makes the calls of CUDA that a step on one GPU makes, and nothing else.
class bare_calls {
 public:
  explicit bare_calls(plan const& planned) : messages_(planned.program()) {
    for (int rank = 0; rank < planned.problem().ranks(); ++rank) {
      computes_.emplace_back(cuda::stream_priority::usual);
      ends_.emplace_back(cuda::event_kind::host_wait);
    }
    for (auto const& c : messages_.channels()) {
      channels_.emplace_back();
      auto& channel = channels_.back();
      channel.from = zbpp::detail::index(c.from);
      channel.to = zbpp::detail::index(c.to);
    }
    for (int rank = 0; rank < planned.problem().ranks(); ++rank) {
      auto const row = planned.program().instructions(rank);
      for (std::size_t i = 0; i < row.size(); ++i)
        if (row[i].is_send())
          sends_.push_back(zbpp::detail::index(messages_.notes(rank)[i].channel));
    }
  }

  /// Makes them, and waits for the end of what they enqueue.
  void run() {
    for (auto const number : sends_) {
      auto& channel = channels_[number];
      cuda::stream_ref const from = computes_[channel.from];
      cuda::stream_ref const to = computes_[channel.to];
      from.record(channel.made);
      to.wait(channel.made);
    }
    for (std::size_t rank = 0; rank < ends_.size(); ++rank)
      computes_[rank].view().record(ends_[rank]);
    for (auto const& end : ends_) end.view().synchronize();
  }

 private:
  struct channel_calls {
    std::size_t from = 0;
    std::size_t to = 0;
    cuda::event made{cuda::event_kind::order};
  };

  traffic messages_;
  std::vector<cuda::stream> computes_;
  std::vector<cuda::event> ends_;
  std::vector<channel_calls> channels_;
  std::vector<std::size_t> sends_;  // their channels
};

/// Holds what a step costs the host.
struct host_time {
  double computing = 0;  // microseconds of the issuing thread
  double wall = 0;       // microseconds

  template <class Step>
  [[nodiscard]] static host_time of(int repeats, Step step) {
    std::vector<double> computing;
    std::vector<double> walls;
    for (int i = 0; i < 5; ++i) step();
    for (int i = 0; i < repeats; ++i) {
      auto const computed = thread_seconds();
      auto const start = wall_seconds();
      step();
      walls.push_back(1e6 * (wall_seconds() - start));
      computing.push_back(1e6 * (thread_seconds() - computed));
    }
    return {median(computing), median(walls)};
  }
};

[[nodiscard]] inline std::int64_t instructions_of(plan const& planned) {
  std::int64_t count = 0;
  for (int rank = 0; rank < planned.problem().ranks(); ++rank)
    count += static_cast<std::int64_t>(planned.program().instructions(rank).size());
  return count;
}

/// Measures the time of a step whose passes do nothing, an instruction: the median of `repeats`.
inline void measure_issuing(report& into, int repeats) {
  table& result = into.begin(
      "Host time an instruction, passes that do nothing, one GPU: medians of " +
          std::to_string(repeats) + " steps",
      {"ranks",
       "microbatches",
       "policy",
       "instructions",
       "the library, us",
       "the CUDA calls alone, us",
       "difference, us",
       "step by the clock, us"});
  for (int const ranks : {2, 4, 8}) {
    auto const planned = make_plan(
        zb_h1{},
        problem_of(
            placement::linear(ranks),
            8 * ranks,
            std::vector<pass_times>(zbpp::detail::index(ranks), {1, 1, 1}),
            0.01,
            256));
    auto const count = static_cast<double>(instructions_of(planned));
    auto stages = stages_of(planned.problem(), nullptr);
    pipeline pipe{planned, cuda::device{}, stages};
    auto const ours = host_time::of(repeats, [&] { pipe.step(); });
    bare_calls bare(planned);
    auto const theirs = host_time::of(repeats, [&] { bare.run(); });
    result.add(
        {std::int64_t{ranks},
         std::int64_t{planned.problem().microbatches()},
         planned.policy(),
         instructions_of(planned),
         ours.computing / count,
         theirs.computing / count,
         (ours.computing - theirs.computing) / count,
         ours.wall});
    into.save();
  }
}

/// Measures a step whose passes are many short kernels, launched one by one and as one graph: the
/// median of `repeats`.
/// @param whole_gpu  whether ranks share all of a GPU, and not parts of it
inline void measure_graphs(report& into, int repeats, bool whole_gpu) {
  constexpr int ranks = 4;
  constexpr int kernels = 64;
  table& result = into.begin(
      "Passes of 64 short kernels of 4 ranks on " +
          std::string(whole_gpu ? "one whole GPU" : "parts of one GPU") +
          ", ZB-H1, 16 microbatches: medians of " + std::to_string(repeats) + " steps",
      {"kernels",
       "host time per pass, us",
       "step by the clock, ms",
       "busy share of the issuing thread"});
  shared_gpu const gpu(ranks, whole_gpu);
  auto const& devices = gpu.devices();
  auto const does = arithmetic(devices, 100, kernels);
  auto const planned = make_plan(
      zb_h1{},
      problem_of(
          placement::linear(ranks), 16, std::vector<pass_times>(ranks, {1, 1, 1}), 0.01, 4096));
  for (auto const replay : {cuda::replay::none, cuda::replay::step}) {
    auto stages = stages_of(planned.problem(), &does);
    pipeline pipe{planned, cuda::device{.devices = devices, .replay = replay}, stages};
    auto const time = host_time::of(repeats, [&] { pipe.step(); });
    bool const issues = replay == cuda::replay::none;
    result.add(
        {std::string(issues ? "launched one by one" : "replayed with the step, as one graph"),
         time.computing / (3 * 16 * ranks),
         1e-3 * time.wall,
         time.computing / time.wall});
    into.save();
  }
}

}  // namespace zbpp::bench
