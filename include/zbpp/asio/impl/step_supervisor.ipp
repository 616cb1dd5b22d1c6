// SPDX-License-Identifier: Apache-2.0
//
// Compares plans at the start, and carries failures into steps and out of them.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/detail/agreement_wire.hpp>
#include <zbpp/asio/detail/stall.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/config.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

namespace zbpp::asio {

namespace detail {

[[nodiscard]] ZBPP_INLINE rank_failure describe(failure const& cause) {
  rank_failure result{cause.location, {}, errc::peer_failed, "failed for an unknown reason"};
  if (cause.location.position >= 0)
    result.instruction = cause.instruction;  // else none was running
  try {
    std::rethrow_exception(cause.exception);
  } catch (error const& e) {
    result.code = e.code();
    result.text = e.message();  // the receiver adds the place again
  } catch (std::exception const& e) {
    result.text = reason_of(e);
  } catch (...) {
  }
  return result;
}

/// @return whether a failure is that of the run, thrown in a pass that waits for another rank
[[nodiscard]] ZBPP_INLINE bool comes_of_run(failure const& cause) {
  try {
    std::rethrow_exception(cause.exception);
  } catch (run_failure const&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// @return a failure of this process with another place, which replaces that of an error
[[nodiscard]] ZBPP_INLINE failure moved(failure cause, location const& at) {
  if (cause.location == at) return cause;
  cause.location = at;
  try {
    std::rethrow_exception(cause.exception);
  } catch (error const& e) {
    // An error of a type of its own stays what it is.
    if (typeid(e) == typeid(error))
      cause.exception =
          std::make_exception_ptr(error(e.code(), std::string(e.message()), cause.location));
  } catch (...) {
  }
  return cause;
}

/// Refuses a plan that has another number of ranks than there are processes for.
/// @throws error (bad_argument)
ZBPP_INLINE void check_ranks(control const& run, plan const& planned, pipeline_ranks const& ranks) {
  auto const needed = std::to_string(planned.problem().ranks());
  if (auto const& layout = ranks.layout(); layout != nullptr) {
    auto const size = layout->size(grid_axis::pipeline);
    if (size != planned.problem().ranks())
      throw error(errc::bad_argument) + "a pipeline of the grid_layout has " + size +
          " ranks and the plan " + needed + "; give the plan as many ranks as grid::pipeline says";
  } else if (run.ranks() != planned.problem().ranks()) {
    throw error(errc::bad_argument) + "the run has " + run.ranks() + " processes and the plan " +
        needed + " ranks; there is one process for each rank";
  }
}

}  // namespace detail

ZBPP_INLINE step_supervisor::step_supervisor(
    control& run,
    plan const& planned,
    failure_calls calls,
    std::vector<agreement_item> const& more,
    pipeline_ranks ranks)
    : control_(&run),
      places_(std::move(ranks)),
      rank_(places_.in_pipeline(run.rank())),
      pipeline_(run.number_pipeline()),
      calls_(std::move(calls)) {
  detail::check_ranks(run, planned, places_);
  auto items = fingerprint(planned);
  std::vector<agreement_item> of_pipeline;
  if (auto const& layout = places_.layout(); layout != nullptr) {
    auto const of_all = std::stable_partition(
        items.begin(), items.end(), [](agreement_item const& item) { return !is_of_costs(item); });
    of_pipeline.assign(of_all, items.end());
    items.erase(of_all, items.end());
    items.push_back(make_item(detail::grid_item, to_string(*layout)));
  }
  run.lay_out(places_.layout());
  items.insert(items.end(), more.begin(), more.end());
  call_name const named(run, making());
  run.agree(items, of_pipeline, places_.in_run(0));
}

ZBPP_INLINE step_supervisor::~step_supervisor() {
  // Others may still be in a step.
  control_->disown_watchdog(watched_);
}

ZBPP_INLINE rank_call step_supervisor::connecting(bool is_first) const noexcept {
  if (is_first) return making();
  return {.kind = call_kind::run, .pipeline = pipeline_, .steps = {.is_training = false}};
}

ZBPP_INLINE void step_supervisor::announce(zbpp::detail::run_statement const& run) {
  rank_call const call{.kind = call_kind::run, .pipeline = pipeline_, .steps = run};
  announced_ = call;
  control_->name_calls(call);
  control_->begin_run(call);
}

ZBPP_INLINE void step_supervisor::leave() { control_->leave_pipeline(pipeline_); }

ZBPP_INLINE void step_supervisor::watch(program const& program) {
  watched_ = &program;
  if (control_->watcher() != watched_)
    control_->watch(
        detail::stall_detector(program, control_->settings().stall_deadline, places_.layout()),
        watched_);
}

ZBPP_INLINE void step_supervisor::begin(program const& program, step_status& status) {
  watch(program);
  control_->lay_out(places_.layout());
  control_->board().begin_step(steps_);
  control_->loop().exclusively([&] {
    status_ = &status;
    control_->on_failure(
        {.on_failure = [this](rank_failure const& first) { stop(first); },
         .on_all_informed = calls_.on_all_informed});
    static_cast<void>(has_stopped());
  });
}

ZBPP_INLINE bool step_supervisor::look() {
  control_->loop().exclusively([this] { has_stopped(); });
  return is_informed_.load(std::memory_order_acquire);
}

ZBPP_INLINE bool step_supervisor::has_stopped() {
  if (!control_->has_stopped()) return false;
  if (status_ != nullptr) status_->fail(rank_);
  is_informed_.store(true, std::memory_order_release);
  return true;
}

ZBPP_INLINE void step_supervisor::report(failure const& own, std::optional<std::int64_t> step) {
  if (!own.exception || detail::comes_of_run(own)) return;
  auto described = detail::describe(own);
  described.location = places_.in_run(described.location);
  if (step) described.text += zbpp::detail::joined(" (in step ", *step, ")");
  control_->loop().exclusively([&] { control_->report(std::move(described)); });
}

ZBPP_INLINE void step_supervisor::end() {
  control_->loop().exclusively([&] {
    status_ = nullptr;
    control_->on_failure({});
  });
  control_->end_run();
  control_->name_calls({});
  control_->board().wait({});
  control_->board().enter(progress_phase::outside);
  steps_ = control_->board().read().step + 1;
}

ZBPP_INLINE void step_supervisor::share(std::span<double> losses, int from) {
  call_name const named(*control_, announced_);
  std::span<std::byte const> own;
  if (rank_ == from) own = std::as_bytes(losses);
  // In a grid each pipeline has a rank that knows its losses.
  bool const is_alone = places_.layout() == nullptr;
  auto const parts = control_->collect(
      is_alone ? collective::broadcast : collective::all_gather, own, is_alone ? from : 0);
  auto const& given = parts[is_alone ? 0 : zbpp::detail::index(places_.in_run(from))];
  if (given.size() != losses.size_bytes())
    throw error(errc::bad_format) + "the losses of a step are " + given.size() +
        " bytes; expected " + losses.size_bytes();
  std::memcpy(losses.data(), given.data(), given.size());
}

ZBPP_INLINE void step_supervisor::settle(std::vector<failure>& failures) {
  std::vector<failure> own;
  for (auto const& f : std::exchange(failures, {}))
    if (!detail::comes_of_run(f)) own.push_back(detail::moved(f, places_.in_run(f.location)));
  auto add = [&](rank_failure const& f) {
    auto const here =
        std::ranges::find_if(own, [&](failure const& o) { return o.location == f.location; });
    failures.push_back(
        here != own.end() ? *here
                          : failure{
                                f.location,
                                f.instruction.value_or(instruction{}),
                                std::make_exception_ptr(to_error(f))});
  };
  std::optional<rank_failure> first;
  if (!own.empty()) first = detail::describe(own.front());
  for (auto const& f : control_->settle(std::move(first))) add(f);
  if (failures.empty()) failures = own;
}

// Ends the step; called on the I/O thread.
ZBPP_INLINE void step_supervisor::stop(rank_failure const& first) noexcept {
  status_->fail(first.location.rank >= 0 ? first.location.rank : rank_);
  is_informed_.store(true, std::memory_order_release);
  if (calls_.on_failure) calls_.on_failure(first);
}

ZBPP_INLINE void step_supervisor::or_fail(std::function<void()> const& work) {
  try {
    work();
  } catch (...) {
    std::vector<failure> failures{{{.rank = rank_}, {}, std::current_exception()}};
    settle(failures);
    std::rethrow_exception(failures.front().exception);
  }
}

}  // namespace zbpp::asio
