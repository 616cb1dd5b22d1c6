// SPDX-License-Identifier: Apache-2.0
//
// What happens between the steps of a run: when it pauses, so that a trainer can evaluate or save,
// and when it ends early.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

namespace zbpp {

/// Says what a run does next. Where ranks ask for different things, the last of these counts.
enum class after_step : std::uint8_t {
  go_on,  ///< it runs the next step
  pause,  ///< it calls `run_options::on_pause`, and goes on
  stop,   ///< it ends, after the same step on all ranks
};

/// What a run calls when it pauses: it takes nothing, and gives nothing or an `after_step`.
class pause_call {
 public:
  /// Calls nothing.
  pause_call() = default;
  template <std::invocable Call>
    requires(!std::same_as<std::remove_cvref_t<Call>, pause_call>)
  pause_call(Call call) {
    using given = std::invoke_result_t<Call&>;
    static_assert(
        std::is_void_v<given> || std::same_as<given, after_step>,
        "on_pause gives nothing, or a zbpp::after_step");
    decides_ = !std::is_void_v<given>;
    if constexpr (std::is_void_v<given>)
      call_ = [call = std::move(call)]() mutable {
        call();
        return after_step::go_on;
      };
    else
      call_ = std::move(call);
  }

  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(call_); }
  [[nodiscard]] bool decides() const noexcept { return decides_; }
  after_step operator()() const { return call_(); }

 private:
  std::function<after_step()> call_;
  bool decides_ = false;
};

/// Says when a run pauses, and what is called then.
struct run_options {
  /// The run pauses when the number of steps, `pipeline::steps()`, is a multiple of this; 0: only
  /// when `on_step` asks for it. All ranks need the same.
  std::int64_t pause_every = 0;
  /// Called on the thread that called `run`, while no rank of this process is in a step, and all
  /// steps so far are final. It may call `evaluate`, `state`, `steps`, `memory` and `failures`;
  /// with one process per rank all ranks make the same evaluations. What it throws ends the run as
  /// the failure of a rank.
  pause_call on_pause{};
};

namespace detail {

/// @return the number of steps at which a run pauses or ends next
[[nodiscard]] inline std::int64_t next_pause(
    run_options const& options, std::int64_t steps, std::int64_t end) noexcept {
  if (options.pause_every == 0) return end;
  return std::min(end, (steps / options.pause_every + 1) * options.pause_every);
}

}  // namespace detail
}  // namespace zbpp
