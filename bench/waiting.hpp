// SPDX-License-Identifier: Apache-2.0
//
// Passes that only wait, as they would for a GPU, so that a run on threads can be timed on few
// cores.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/microbatch.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
#include <sys/prctl.h>
#include <thread>

namespace zbpp::bench {

/// Waits without using the processor. Timers of a thread are late by 50 us unless it asks
/// otherwise.
inline void wait_for(ticks time) {
  auto const end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(time);
  static thread_local int const is_punctual = prctl(PR_SET_TIMERSLACK, 1UL);
  benchmark::DoNotOptimize(is_punctual);
  std::this_thread::sleep_until(end);
}

/// A stage whose passes take as long as its costs say.
struct waiting_stage {
  stage_costs costs;

  flow operator()(microbatch mb) {
    auto in = co_await mb.recv_activation();
    co_await F([&] { wait_for(costs.forward); });
    co_await mb.send_activation(buffer{});
    auto back = co_await mb.recv_gradient();
    co_await B([&] { wait_for(costs.backward_input); });
    co_await mb.send_gradient(buffer{});
    co_await W([&] { wait_for(costs.backward_weight); });
  }
};

}  // namespace zbpp::bench
