// SPDX-License-Identifier: Apache-2.0
//
// Every header of the core and of cuda, and those of nccl that need no Asio, are legal in a .cu,
// and host coroutines work in one.
#include "headers.inc"  // written by CMake: one #include for each header

#include <coroutine>
#include <cstdio>
#include <exception>

namespace {

struct job {
  struct promise_type {
    job get_return_object() {
      return job{std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() { std::terminate(); }
  };
  std::coroutine_handle<promise_type> handle;
};

struct next_turn {
  explicit next_turn(int& turns) : turns_(&turns) {}
  bool await_ready() const noexcept { return false; }
  ZBPP_SUSPEND void await_suspend(std::coroutine_handle<>) noexcept { ++*turns_; }
  void await_resume() const noexcept {}

 private:
  int* turns_;
};

job take_turns(int& turns) {
  for (int i = 0; i < 3; ++i) {
    co_await next_turn(turns);
  }
}

}  // namespace

int main() {
  int turns = 0;
  job worker = take_turns(turns);
  while (!worker.handle.done()) {
    worker.handle.resume();
  }
  worker.handle.destroy();
  if (turns != 3) {
    std::fprintf(stderr, "expected 3 turns, got %d\n", turns);
    return 1;
  }
  return 0;
}
