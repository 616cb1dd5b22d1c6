// SPDX-License-Identifier: Apache-2.0
//
// The steps of a pipeline one after another, and what happens between them: what is called, when a
// run pauses, and how ranks end it together.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/detail/rethrow.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/run_options.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/step_result.hpp>
#include <zbpp/runtime/training.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <exception>
#include <type_traits>
#include <utility>

namespace zbpp {

template <backend Backend>
step_result const& pipeline<Backend>::step() {
  auto const call = calls_.begin("step()");
  return train(1, {}, {});
}

template <backend Backend>
template <std::invocable<step_result const&> OnStep>
step_result const& pipeline<Backend>::run(
    std::int64_t count, OnStep on_step, run_options const& options) {
  using given = std::invoke_result_t<OnStep&, step_result const&>;
  static_assert(
      std::is_void_v<given> || std::same_as<given, after_step>,
      "what run() calls for each step gives nothing, or a zbpp::after_step");
  auto const call = calls_.begin("run()");
  detail::require(count >= 1, "run() takes a number of steps from 1");
  detail::require(
      options.pause_every >= 0, "run_options::pause_every counts steps; it is at least 0");
  detail::require(
      options.pause_every == 0 || options.on_pause,
      "run_options::pause_every is set and on_pause is not; say what the run does when it pauses");
  detail::require(
      !options.on_pause || options.pause_every > 0 || !std::is_void_v<given>,
      "run_options::on_pause is set and nothing asks for a pause; set pause_every, or let on_step "
      "give an after_step");
  location const here{.rank = ready().executor.ranks().front()};
  auto ask = [&](step_result const& result) -> after_step {
    auto const give = [&] { return on_step(result); };
    if constexpr (std::is_void_v<given>) {
      detail::named_call("on_step", here, give);
      return after_step::go_on;
    } else {
      auto const next = detail::named_call("on_step", here, give);
      detail::require(
          next != after_step::pause || options.on_pause,
          "on_step asks the run to pause, and run_options::on_pause is not set; say what the run "
          "does when it pauses");
      return next;
    }
  };
  return train(count, {step_callback(ask), !std::is_void_v<given>}, options);
}

template <backend Backend>
step_result const& pipeline<Backend>::train(
    std::int64_t count, step_calls calls, run_options const& options) {
  finish_all();
  started_.expire();
  ready().agreements.forget_request();
  asked_ = after_step::go_on;
  has_proposed_ = false;
  // Member by member: in templates nvcc takes designated initializers for the first ones.
  asked_steps_ = {};
  asked_steps_.first = state_.steps;
  asked_steps_.count = count;
  asked_steps_.step_decides = calls.decides;
  asked_steps_.pause_decides = options.on_pause && options.on_pause.decides();
  asked_steps_.pause_every = options.pause_every;
  auto const end = state_.steps + count;
  for (auto next = after_step::go_on; next != after_step::stop && state_.steps < end;) {
    next = train_until(detail::next_pause(options, state_.steps, end), calls);
    bool const is_due = options.pause_every > 0 && state_.steps % options.pause_every == 0;
    if (options.on_pause && (is_due || next == after_step::pause))
      next = std::max(next, pause(options.on_pause));
  }
  return ready().training->last_result();
}

// Runs steps up to a number of them, or until something else comes next. Returns that.
template <backend Backend>
after_step pipeline<Backend>::train_until(std::int64_t end, step_calls calls) {
  evaluations_ = 0;
  bool const agrees = ready().training->agreements != nullptr;
  if (multi_step_transport<typename Backend::transport_type> && agrees && !shares_losses()) {
    auto& part = *ready().agreements.of(0);
    auto ask = [&](step_result const& result) {
      state_ = ready().training->state_of_callback();
      return call_back(calls.on_step, result);
    };
    auto const called = calls.on_step ? step_callback(ask) : step_callback();
    execute(*ready().training, end - state_.steps, called);
    try {
      ready().training->call_back_until(part.state().steps - 1);
    } catch (...) {
      report_callback();
    }
    state_ = part.state();
    return part.next();
  }
  auto next = after_step::go_on;
  while (next == after_step::go_on && state_.steps < end) {
    execute(*ready().training, 1);
    ready().agreements.count_step(state_);
    try {
      share(ready().training->last_result());
      next = call_back(calls.on_step, ready().training->last_result());
      if (agrees && shares_losses())
        ready().agreements.of(0)->request(std::exchange(next, ready().agreements.of(0)->next()));
      else if (calls.decides)
        next = decide(next, state_.steps == end);
    } catch (...) {
      report_callback();
    }
  }
  return next;
}

// With one process per rank, what is asked for after a step is decided at the end of the next one,
// so that no rank waits for others while there are passes to run; before a pause, where all wait
// anyway, at once.
template <backend Backend>
after_step pipeline<Backend>::decide(after_step asked, bool is_before_pause) {
  if constexpr (proposes<Backend>) {
    asked_ = std::max(asked_, asked);
    auto const next =
        std::exchange(has_proposed_, false) ? ready().executor.decision() : after_step::go_on;
    bool const is_end = state_.steps == asked_steps_.first + asked_steps_.count;
    if (next != after_step::go_on || is_end) return next;
    ready().executor.propose(std::exchange(asked_, after_step::go_on));
    if (is_before_pause) return ready().executor.decision();
    has_proposed_ = true;
    return next;
  } else {
    return ask_replicas(asked);
  }
}

// Replicas in this process end and pause together, too, where they add gradients up.
template <backend Backend>
after_step pipeline<Backend>::ask_replicas(after_step asked) {
  if (!reduces_gradients(ready().planned.program())) return asked;
  return detail::most_asked(
      detail::grid_of<Backend>(ready().executor, ready().executor.ranks().front()).data(), asked);
}

template <backend Backend>
bool pipeline<Backend>::shares_losses() const noexcept {
  if constexpr (zbpp::shares_losses<Backend>)
    return ready().executor.shares_losses();
  else
    return false;
}

// Puts the losses of a step into the results of all processes, where all want them.
template <backend Backend>
void pipeline<Backend>::share(step_result& result) {
  if constexpr (zbpp::shares_losses<Backend>) {
    auto const& placement = ready().planned.problem().placement();
    if (shares_losses())
      ready().executor.share_losses(result.losses, placement.rank_of(placement.stages() - 1));
  }
}

template <backend Backend>
after_step pipeline<Backend>::pause(pause_call const& on_pause) {
  try {
    auto const next = [&] {
      auto const paused = calls_.pause();
      try {
        return on_pause();
      } catch (...) {
        if (!failures_.empty()) throw;  // an evaluation failed, and has settled it
        detail::rethrow_of("on_pause", {.rank = ready().executor.ranks().front()});
      }
    }();
    if (!on_pause.decides()) return next;
    if constexpr (proposes<Backend>) {
      ready().executor.propose(next);
      return ready().executor.decision();
    } else {
      return ask_replicas(next);
    }
  } catch (error const&) {
    if (!failures_.empty()) throw;
    report_callback();
  } catch (...) {
    report_callback();
  }
}

template <backend Backend>
void pipeline<Backend>::resume(training_state const& state) {
  auto const call = calls_.begin("resume()");
  detail::check(state);
  finish_all();
  evaluations_ = 0;
  has_compared_weights_ = false;
  state_ = state;
  ready().agreements.resume(state);
}

// Where ranks agree, an engine calls.
template <backend Backend>
after_step pipeline<Backend>::call_back(step_callback on_step, step_result const& result) {
  if (!on_step) return after_step::go_on;
  auto const called = calls_.call_back();
  return on_step(result);
}

// Settles what a callback threw between two steps, and throws it. Where ranks agree, an engine
// calls; what is thrown is a failure of its rank there, too.
template <backend Backend>
void pipeline<Backend>::report_callback() {
  auto const rank = ready().executor.ranks().front();
  failures_.assign(1, {{.rank = rank}, {}, std::current_exception()});
  ready().executor.settle(failures_);
  detail::rethrow_located(failures_.front());
}

}  // namespace zbpp
