// SPDX-License-Identifier: Apache-2.0
//
// A step that a pipeline has begun: its result comes later. And how such steps are counted.
#pragma once

#include <zbpp/runtime/step_result.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>

namespace zbpp {

class pipeline_core;

/// Names a step that `pipeline::step_async` has begun; cheap to copy, valid as the pipeline is.
class started_step {
 public:
  started_step(pipeline_core& pipe, std::int64_t ticket, std::int64_t number) noexcept
      : pipe_(&pipe), ticket_(ticket), number_(number) {}

  /// @return the number of the step, from 0
  [[nodiscard]] std::int64_t number() const noexcept { return number_; }
  /// Blocks until the step and those before it are done.
  /// @return its result, which lasts until as many more steps have begun as may be under way
  /// @throws what failed, in this step or in one before it, as `step` does: `steps()` is then the
  ///         number of the step that failed; error (bad_argument) when the result has gone
  step_result const& get() const;

 private:
  pipeline_core* pipe_;
  std::int64_t ticket_;
  std::int64_t number_;
};

namespace detail {

/// Counts steps from the first that was begun to the last that is done or given up. Steps after
/// one that failed are given up with it.
class step_queue {
 public:
  [[nodiscard]] std::int64_t under_way() const noexcept { return begun_ - done_; }
  /// @return the ticket of the next step
  [[nodiscard]] std::int64_t next() const noexcept { return begun_; }
  /// @return the ticket of the oldest that is under way
  [[nodiscard]] std::int64_t oldest() const noexcept { return done_; }
  [[nodiscard]] bool is_under_way(std::int64_t ticket) const noexcept { return ticket >= done_; }

  /// Notes that the next step has begun.
  void begin() noexcept { ++begun_; }
  /// Notes that the oldest one is done.
  void finish() noexcept { ++done_; }
  /// Gives up all that are under way.
  void give_up(std::exception_ptr why) noexcept {
    first_lost_ = done_;
    done_ = begun_;
    end_of_lost_ = begun_;
    expire();
    why_ = why;
  }
  /// Notes that the results of all steps so far lose their places.
  void expire() noexcept { valid_from_ = begun_; }
  /// Reserves a place for the result of the next step, even if that never starts.
  /// @param places  how many there are
  void take_place(std::size_t places) noexcept {
    valid_from_ = std::max(valid_from_, begun_ + 1 - static_cast<std::int64_t>(places));
  }
  [[nodiscard]] bool has_result(std::int64_t ticket) const noexcept {
    return ticket >= valid_from_;
  }
  /// Throws what made a step that was given up fail.
  void check(std::int64_t ticket) const {
    if (ticket >= first_lost_ && ticket < end_of_lost_) std::rethrow_exception(why_);
  }

 private:
  std::int64_t begun_ = 0;
  std::int64_t done_ = 0;
  std::int64_t valid_from_ = 0;  // the first whose result may be asked for
  std::int64_t first_lost_ = 0;  // when steps were given up last
  std::int64_t end_of_lost_ = 0;
  std::exception_ptr why_;
};

}  // namespace detail
}  // namespace zbpp
