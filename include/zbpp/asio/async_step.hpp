// SPDX-License-Identifier: Apache-2.0
//
// Steps for a host that lives on an io_context: a thread that runs the steps of a pipeline, so that
// the host's thread goes on, and learns of the end through any completion token.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <boost/asio/append.hpp>
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

namespace zbpp::asio {

namespace detail {

/// Waits for the end of a step.
class step_waiter {
 public:
  step_waiter() = default;
  step_waiter(step_waiter const&) = delete;
  step_waiter& operator=(step_waiter const&) = delete;
  /// Passes the outcome on and ends the waiter.
  virtual void complete(std::exception_ptr why, step_result const* result) = 0;

 protected:
  ~step_waiter() = default;
};

/// Holds a completion handler, in memory of its allocator, and keeps its executor at work.
template <class Handler>
class step_waiter_of final : public step_waiter {
  using allocator = typename std::allocator_traits<
      ::boost::asio::associated_allocator_t<Handler>>::template rebind_alloc<step_waiter_of>;
  using traits = std::allocator_traits<allocator>;

 public:
  explicit step_waiter_of(Handler&& handler)
      : handler_(std::move(handler)), work_(::boost::asio::get_associated_executor(handler_)) {}

  [[nodiscard]] static step_waiter* make(Handler&& handler) {
    allocator memory(::boost::asio::get_associated_allocator(handler));
    auto* const place = traits::allocate(memory, 1);
    try {
      return ::new (static_cast<void*>(place)) step_waiter_of(std::move(handler));
    } catch (...) {
      traits::deallocate(memory, place, 1);
      throw;
    }
  }

  void complete(std::exception_ptr why, step_result const* result) override {
    auto const work = std::move(work_);
    auto handler = std::move(handler_);
    // Asio's rule: the memory is free again before the handler runs.
    allocator memory(::boost::asio::get_associated_allocator(handler));
    this->~step_waiter_of();
    traits::deallocate(memory, this, 1);
    ::boost::asio::dispatch(
        work.get_executor(), ::boost::asio::append(std::move(handler), std::move(why), result));
  }

 private:
  Handler handler_;
  ::boost::asio::executor_work_guard<::boost::asio::associated_executor_t<Handler>> work_;
};

}  // namespace detail

/// Runs the steps of a pipeline on a thread of its own, which sleeps between them.
///
/// One step at a time: a call while a step is under way completes with error (bad_argument), and
/// nothing happens to that step. The handler runs on its associated executor, which has work until
/// then; without one it runs on the stepper's thread, where it must neither throw nor destroy the
/// stepper. It may start the next step. A step cannot be cancelled.
///
/// Any thread may call. Nobody else uses the pipeline while a step is under way.
class async_stepper {
 public:
  /// What a step completes with: null and the result, which the next step overwrites, or what the
  /// step threw and null.
  using signature = void(std::exception_ptr, step_result const*);

  /// Starts the thread. The pipeline must outlive the stepper. @throws std::system_error
  explicit async_stepper(pipeline_core& pipe) : pipe_(&pipe), thread_([this] { serve(); }) {}
  async_stepper(async_stepper const&) = delete;
  async_stepper& operator=(async_stepper const&) = delete;
  /// Waits for the step under way; its handler is still called.
  ~async_stepper() {
    {
      std::lock_guard const lock(mutex_);
      is_stopping_ = true;
      wake_.notify_one();
    }
    thread_.join();
  }

  /// Starts `step()`.
  /// @param token  any completion token; `use_awaitable` gives a `step_result const*`, or throws
  ///               what the step threw
  template <::boost::asio::completion_token_for<signature> Token>
  auto async_step(Token&& token) {
    return start(&pipeline_core::step, std::forward<Token>(token));
  }

  /// Starts `evaluate()`; as `async_step`.
  template <::boost::asio::completion_token_for<signature> Token>
  auto async_evaluate(Token&& token) {
    return start(&pipeline_core::evaluate, std::forward<Token>(token));
  }

 private:
  using work = step_result const& (pipeline_core::*)();

  template <class Token>
  auto start(work call, Token&& token) {
    auto initiate = [self = this, call](auto handler) { self->begin(call, std::move(handler)); };
    return ::boost::asio::async_initiate<Token, signature>(std::move(initiate), token);
  }

  template <class Handler>
  void begin(work call, Handler handler) {
    std::unique_lock lock(mutex_);
    if (is_busy_) {
      lock.unlock();
      auto const executor = ::boost::asio::get_associated_executor(handler);
      auto why = std::make_exception_ptr(error(
          errc::bad_argument,
          "a step was started while one is under way; start the next when it has completed"));
      step_result const* const none = nullptr;
      ::boost::asio::post(
          executor, ::boost::asio::append(std::move(handler), std::move(why), none));
      return;
    }
    waiter_ = detail::step_waiter_of<Handler>::make(std::move(handler));
    call_ = call;
    is_busy_ = true;
    wake_.notify_one();  // under the lock: once the step has run, this object may go
  }

  void serve() {
    for (std::unique_lock lock(mutex_);; lock.lock()) {
      wake_.wait(lock, [this] { return is_stopping_ || waiter_ != nullptr; });
      if (waiter_ == nullptr) return;
      auto* const waiter = std::exchange(waiter_, nullptr);
      auto const call = call_;
      lock.unlock();
      step_result const* result = nullptr;
      std::exception_ptr why;
      try {
        result = &(pipe_->*call)();
      } catch (...) {
        why = std::current_exception();
      }
      lock.lock();
      is_busy_ = false;  // before the handler, which may start the next step
      lock.unlock();
      waiter->complete(std::move(why), result);
    }
  }

  pipeline_core* pipe_;
  std::mutex mutex_;
  std::condition_variable wake_;
  detail::step_waiter* waiter_ = nullptr;  // for the step that is to be run
  work call_ = nullptr;
  bool is_busy_ = false;  // from the call until the step has ended
  bool is_stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace zbpp::asio
