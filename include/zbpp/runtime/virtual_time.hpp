// SPDX-License-Identifier: Apache-2.0
//
// A backend in which only the clock is virtual: the passes of the flows really run, all ranks on
// the calling thread, and each takes exactly the time that the problem says, or that the caller's
// functions say instead.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/executor.hpp>
#include <zbpp/runtime/in_process.hpp>
#include <zbpp/runtime/in_process_grid.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp {

/// Says what passes and messages take in place of what the problem states, so that slow ranks, slow
/// links and noise can be tried out. A function that is empty changes nothing; none may throw.
struct virtual_noise {
  /// Gives the time of a pass, at least 0, where a problem states another one. Called once for a
  /// pair, with its B or BW and the time of both, and not for passes that take no time.
  std::function<ticks(int rank, pass const& p, ticks stated)> pass_time = {};
  /// Gives the time of a message that a rank sends, at least 0.
  std::function<ticks(int from, ticks stated)> message_time = {};
};

/// Runs all ranks on the calling thread under a virtual clock.
struct virtual_time {
  virtual_noise noise = {};
  /// Whether `step_result::messages` says when messages were sent, arrived and were taken.
  bool records_messages = false;
  /// Which of the pipelines of a grid this is, where there are several in this process.
  grid_place place = {};
  /// States what passes and messages take; nothing: the problem of the plan does. Where plans
  /// change, it is that of the first one, so that noise is not added to what was measured with it.
  std::optional<problem> stated = {};

  using transport_type = in_process;
  /// Whether arenas take their planned size from the system when the pipeline is made.
  static constexpr bool reserves_memory = false;

  /// Counts a rank's time by the costs of what it runs.
  class pass_observer {
   public:
    pass_observer() = default;
    /// @param noise  outlives the observer
    pass_observer(virtual_noise const& noise, int rank) : noise_(&noise), rank_(rank) {}

    /// Begins a pass once its input is there. @return its start
    ticks start(ticks arrival, pass const& p) {
      running_ = p;
      return now_ = std::max(now_, arrival);
    }
    ticks finish(ticks cost) {
      return now_ +=
             noise_->pass_time && cost > 0 ? noise_->pass_time(rank_, running_, cost) : cost;
    }
    /// Takes time for something that is no pass.
    void spend(ticks time) noexcept { now_ += time; }
    ticks reach(ticks arrival) noexcept { return now_ = std::max(now_, arrival); }
    [[nodiscard]] ticks arrival_of_send(ticks transfer) const {
      return now_ + (noise_->message_time ? noise_->message_time(rank_, transfer) : transfer);
    }
    /// @return true: the rank's clock waits for the message, the thread does not
    [[nodiscard]] static constexpr bool has_arrived(ticks) noexcept { return true; }

   private:
    inline static virtual_noise const no_noise{};

    virtual_noise const* noise_ = &no_noise;
    int rank_ = 0;
    pass running_ = {};
    ticks now_ = 0;
  };

  /// Polls the ranks in turn.
  class executor : public one_process {
   public:
    executor(virtual_time backend, plan const& planned)
        : one_process(planned),
          noise_(std::move(backend.noise)),
          records_messages_(backend.records_messages),
          place_(backend.place),
          stated_(planned.problem()) {
      if (backend.stated && backend.stated->stages() == stated_.stages())
        stated_ = with_transfer(
            with_stages(
                std::move(stated_),
                {backend.stated->all_costs().begin(), backend.stated->all_costs().end()}),
            backend.stated->transfer());
      if (place_) place_.check(planned.problem().ranks(), true, true);
    }

    /// @return null: no thread sleeps
    [[nodiscard]] static constexpr wakeup* wakeup_of(int /*rank*/) noexcept { return nullptr; }
    [[nodiscard]] rank_grid* grid_of(int rank) override { return place_.grid_of(rank); }
    /// @return true: each rank has a clock of its own
    [[nodiscard]] bool waits_idle() const noexcept override { return true; }
    [[nodiscard]] bool records_messages() const noexcept override { return records_messages_; }
    [[nodiscard]] problem const* stated() const noexcept override { return &stated_; }
    /// Does nothing: `observer_of` gives clocks that start at 0.
    static constexpr void start_run() noexcept {}
    /// @return the clock of a rank at the start of a run
    [[nodiscard]] pass_observer observer_of(int rank) const noexcept { return {noise_, rank}; }

    /// Runs all engines until they are done or the step has failed.
    template <class Engine>
    void run(std::vector<Engine>& engines, in_process const&, step_status const&) {
      // Up and down the ranks, as activations and gradients go.
      auto const turns = std::max<std::size_t>(1, 2 * (engines.size() - 1));
      for (bool again = true; again;) {
        again = false;
        for (std::size_t i = 0; i < turns; ++i) {
          auto& e = engines[std::min(i, turns - i)];
          auto outcome = e.advance();
          // What comes from another thread is awaited here, so that all pipelines of a grid go
          // through their ranks in one order, whatever thread is faster: then ranks that share
          // stages can wait for each other in passes.
          while (outcome == progress::blocked && e.waits_for_replicas()) {
            std::this_thread::yield();
            outcome = e.advance();
          }
          again |= outcome == progress::blocked;
          if (e.is_ending()) std::this_thread::yield();
        }
      }
    }

   private:
    virtual_noise noise_;
    bool records_messages_;
    grid_place place_;
    problem stated_;
  };
};

}  // namespace zbpp

#if defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/detail/backend_link.hpp>

extern template class zbpp::detail::backend_of<zbpp::virtual_time>;
#endif
