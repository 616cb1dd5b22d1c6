// SPDX-License-Identifier: Apache-2.0
//
// A backend in which only the clock is virtual: the passes of the flows really run, all ranks on
// the calling thread, and each takes exactly the time that the problem says.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/in_process.hpp>
#include <zbpp/runtime/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace zbpp {

/// Runs all ranks on the calling thread under a virtual clock.
struct virtual_time {
  using transport_type = in_process;
  /// Whether arenas take their planned size from the system when the pipeline is made.
  static constexpr bool reserves_memory = false;

  /// Counts a rank's time by the costs of what it runs.
  class pass_observer {
   public:
    /// Begins a pass once its input is there. @return its start
    ticks start(ticks arrival, pass const&) noexcept { return now_ = std::max(now_, arrival); }
    /// Ends a pass. @return its end
    ticks finish(ticks cost) noexcept { return now_ += cost; }
    /// Takes time for something that is no pass.
    void spend(ticks time) noexcept { now_ += time; }
    /// Waits for what arrives then. @return when the rank goes on
    ticks reach(ticks arrival) noexcept { return now_ = std::max(now_, arrival); }
    /// @return when a message that is sent now will arrive
    [[nodiscard]] ticks arrival_of_send(ticks transfer) const noexcept { return now_ + transfer; }
    /// @return true: the rank's clock waits for the message, the thread does not
    [[nodiscard]] static constexpr bool has_arrived(ticks) noexcept { return true; }

   private:
    ticks now_ = 0;
  };

  /// Polls the ranks in turn.
  class executor : public one_process {
   public:
    executor(virtual_time, plan const& planned) : one_process(planned) {}

    /// @return null: no thread sleeps
    [[nodiscard]] static constexpr wakeup* wakeup_of(int /*rank*/) noexcept { return nullptr; }
    /// Does nothing: `observer_of` gives clocks that start at 0.
    static constexpr void start_run() noexcept {}
    /// @return the clock of a rank at the start of a run
    [[nodiscard]] static pass_observer observer_of(int /*rank*/) noexcept { return {}; }

    /// Runs all engines until they are done or the step has failed.
    template <class Engine>
    void run(std::vector<Engine>& engines, in_process const&, step_status const&) {
      // Up and down the ranks, as activations and gradients go.
      auto const turns = std::max<std::size_t>(1, 2 * (engines.size() - 1));
      for (bool again = true; again;) {
        again = false;
        for (std::size_t i = 0; i < turns; ++i)
          again |= engines[std::min(i, turns - i)].advance() == progress::blocked;
      }
    }
  };
};

}  // namespace zbpp

#if defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/pipeline.hpp>

extern template class zbpp::pipeline<zbpp::virtual_time>;
#endif
