// SPDX-License-Identifier: Apache-2.0
//
// Which calls a pipeline refuses while another runs, and what the error says.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/detail/running_call.hpp>

#include <atomic>

namespace zbpp::detail {

/// @return what this thread alone has; as good as its std::thread::id, and needs no <thread>
ZBPP_INLINE void const* this_thread() noexcept {
  static thread_local char const own = 0;
  return &own;
}

ZBPP_INLINE running_call::scope::scope(
    running_call& of, char const* name, void const* reader, bool is_pause) noexcept
    : of_(&of), name_(name), reader_(reader), is_pause_(is_pause) {}

ZBPP_INLINE running_call::scope::~scope() {
  of_->is_pause_.store(is_pause_, std::memory_order_relaxed);
  of_->reader_.store(reader_, std::memory_order_relaxed);
  // Release: whoever begins the next call sees what this one wrote.
  of_->name_.store(name_, std::memory_order_release);
}

ZBPP_INLINE running_call::scope running_call::begin(char const* name) {
  char const* idle = nullptr;
  // Acquire: pairs with the end of the call before.
  if (!name_.compare_exchange_strong(idle, name, std::memory_order_acquire))
    refuse(
        name,
        pauses_here()
            ? "a run that pauses may evaluate and save, and goes on when on_pause returns"
            : "call it when that has returned; what is to be done between two steps of a run, such "
              "as evaluating or saving, belongs in run_options::on_pause, and on_step returns "
              "after_step::stop to end the run");
  return scope(*this, nullptr, nullptr, false);
}

ZBPP_INLINE running_call::scope running_call::begin_evaluation() {
  constexpr auto name = "evaluate()";
  if (!pauses_here()) return begin(name);
  auto const* const run = name_.load(std::memory_order_relaxed);
  is_pause_.store(false, std::memory_order_relaxed);
  reader_.store(nullptr, std::memory_order_relaxed);
  name_.store(name, std::memory_order_relaxed);
  return scope(*this, run, this_thread(), true);
}

ZBPP_INLINE running_call::scope running_call::call_back() noexcept {
  reader_.store(this_thread(), std::memory_order_relaxed);
  return scope(*this, name_.load(std::memory_order_relaxed), nullptr, false);
}

ZBPP_INLINE running_call::scope running_call::pause() noexcept {
  is_pause_.store(true, std::memory_order_relaxed);
  return call_back();
}

ZBPP_INLINE void running_call::check_state(char const* name) const {
  if (name_.load(std::memory_order_acquire) == nullptr) return;
  if (reader_.load(std::memory_order_relaxed) == this_thread()) return;
  refuse(
      name,
      "ask when that has returned, or in its callbacks; a flow asks its microbatch for step()");
}

ZBPP_INLINE void running_call::check_idle(char const* name) const {
  if (name_.load(std::memory_order_acquire) == nullptr || pauses_here()) return;
  refuse(name, "ask when that has returned, or in run_options::on_pause");
}

ZBPP_INLINE bool running_call::pauses_here() const noexcept {
  return is_pause_.load(std::memory_order_relaxed) &&
         reader_.load(std::memory_order_relaxed) == this_thread();
}

ZBPP_INLINE void running_call::refuse(char const* name, char const* cure) const {
  char const* const running = name_.load(std::memory_order_acquire);
  throw error(errc::bad_argument) + name + " is called while " +
      (running == nullptr ? "another call" : running) + " of the same pipeline runs; " + cure;
}

}  // namespace zbpp::detail
