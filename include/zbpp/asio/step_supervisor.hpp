// SPDX-License-Identifier: Apache-2.0
//
// The part of a process of one rank in a run, as backends of one rank a process need it: the same
// plan everywhere, and steps that end on all ranks when one of them fails.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/agreement.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/stall.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/reason.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/failure.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

/// @return a failure of this process as other ranks hear of it
[[nodiscard]] inline rank_failure describe(failure const& what) {
  rank_failure result{what.at, what.what, errc::peer_failed, "failed for an unknown reason"};
  try {
    std::rethrow_exception(what.why);
  } catch (error const& e) {
    result.code = e.code();
    result.text = e.message();  // the receiver adds the place again
  } catch (std::exception const& e) {
    result.text = reason_of(e);
  } catch (...) {
  }
  return result;
}

/// Takes part in the steps of a run with one rank. The thread that runs steps calls it.
class step_supervisor {
 public:
  /// Checks with all ranks that they have the same plan.
  /// @param wake  called when the run has failed while a step runs, on the I/O thread; must not
  /// throw
  /// @param more  what all have to agree on beside the plan
  /// @throws error (bad_argument) unless there is a process for each rank; (no_agreement) that
  ///         says who differs in what; the failure of the run
  step_supervisor(
      control& run,
      plan const& planned,
      std::function<void()> wake,
      std::vector<agreement_item> const& more = {})
      : control_(&run), rank_(run.rank()), wake_(std::move(wake)) {
    if (run.ranks() != planned.problem().ranks())
      throw error(
          errc::bad_argument,
          "the run has " + std::to_string(run.ranks()) + " processes and the plan " +
              std::to_string(planned.problem().ranks()) +
              " ranks; there is one process for each rank");
    auto items = fingerprint(planned);
    items.insert(items.end(), more.begin(), more.end());
    run.agree(items);
  }

  /// @return the rank of this process
  [[nodiscard]] std::span<int const> ranks() const noexcept { return {&rank_, 1}; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  /// @return what connects it with the others
  [[nodiscard]] control& channel() const noexcept { return *control_; }

  /// Begins a step: who fails elsewhere fails `status` here, from the start where the run is over.
  /// @param program_of  whose program it is, until `control::unwatch`
  void begin(void const* program_of, program const& code, step_status& status) {
    if (control_->watcher() != program_of)
      control_->watch(stall_detector(code, control_->settings().stall_deadline), program_of);
    control_->board().begin_step(steps_++);
    status_ = &status;
    control_->on_stop([this](rank_failure const& first) { return stop(first); });
    static_cast<void>(look());
  }
  /// Lets the sockets work a little. @return whether the run has failed, and the step with it
  bool look() {
    return control_->loop().exclusively([this] { return has_stopped(); });
  }
  /// As above. Call only on the I/O thread.
  bool has_stopped() {
    if (!control_->has_stopped()) return false;
    if (status_ != nullptr) status_->fail(rank_);
    return true;
  }
  /// Has the others hear what went wrong here, if its `why` is not null; then they do not first
  /// notice what becomes of it.
  void report(failure const& own) {
    if (own.why) control_->loop().exclusively([&] { control_->report(describe(own)); });
  }
  /// Ends a step.
  void end() {
    control_->loop().exclusively([&] { status_ = nullptr; });
    control_->on_stop(nullptr);
    control_->board().enter(progress_phase::outside);
  }
  /// Blocks until all ranks know all failures, and adds those of the others.
  void settle(std::vector<failure>& failures) {
    auto const own = std::exchange(failures, {});
    auto add = [&](rank_failure const& f) {
      auto const here = std::ranges::find_if(own, [&](failure const& o) { return o.at == f.at; });
      failures.push_back(
          here != own.end()
              ? *here
              : failure{
                    f.at, f.what.value_or(instruction{}), std::make_exception_ptr(to_error(f))});
    };
    std::optional<rank_failure> mine;
    if (!own.empty()) mine = describe(own.front());
    for (auto const& f : control_->settle(std::move(mine))) add(f);
    if (failures.empty()) failures = own;
  }

 private:
  // Ends the step; called on the I/O thread.
  bool stop(rank_failure const& first) noexcept {
    if (status_ == nullptr) return false;
    status_->fail(first.at.rank >= 0 ? first.at.rank : rank_);
    wake_();
    return true;
  }

  control* control_;
  int rank_;
  std::function<void()> wake_;
  std::int64_t steps_ = 0;
  step_status* status_ = nullptr;  // of the step that runs; touched on the I/O thread
};

}  // namespace zbpp::asio::detail
