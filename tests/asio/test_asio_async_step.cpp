// SPDX-License-Identifier: Apache-2.0
#include <zbpp/asio/async_step.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/plain_flow.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace test_asio_async_step {

using namespace zbpp;
using namespace zbpp::test;
using namespace std::chrono_literals;
using zbpp::asio::async_stepper;
namespace net = ::boost::asio;

namespace {

// A door that a pass waits at; gives up in the end, so that no test can hang.
class door {
 public:
  void open() {
    {
      std::lock_guard const lock(mutex_);
      is_open_ = true;
    }
    opened_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    if (!opened_.wait_for(lock, 30s, [this] { return is_open_; }))
      throw std::runtime_error("the door stayed shut");
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

// A plain stage that first does something else.
struct hooked_stage {
  std::function<void(microbatch const&)> before = {};
  plain_flow plain = {};

  flow operator()(microbatch mb) {
    if (before) before(mb);
    return plain(mb);
  }
};

constexpr int ranks = 3;
constexpr int microbatches = 4;

// A pipeline with its stages.
template <class Backend>
struct toy {
  explicit toy(std::function<void(microbatch const&)> before = {})
      : stages(ranks), pipe(planned(), Backend{}, stages) {
    stages.back().before = std::move(before);
  }

  [[nodiscard]] static plan planned() {
    return make_plan(
        zb_h1{},
        problem(
            placement::linear(ranks),
            microbatches,
            stage_costs{.forward = 2, .backward_input = 2, .backward_weight = 1}));
  }

  std::vector<hooked_stage> stages;
  pipeline<Backend> pipe;
};

void check_losses(step_result const* result) {
  REQUIRE(result != nullptr);
  REQUIRE(result->losses.size() == microbatches);
  for (int m = 0; m < microbatches; ++m)
    CHECK(result->losses[static_cast<std::size_t>(m)] == plain_flow::expected_loss(ranks, m));
}

std::optional<errc> code_of(std::exception_ptr const& why) {
  if (!why) return std::nullopt;
  try {
    std::rethrow_exception(why);
  } catch (error const& e) {
    return e.code();
  } catch (...) {
    return std::nullopt;
  }
}

// Runs until nothing is left to do.
void run(net::io_context& io) {
  io.restart();
  io.run_for(60s);
  REQUIRE(io.stopped());
}

}  // namespace

TEMPLATE_TEST_CASE("a callback runs on its executor", "[asio]", threads, virtual_time) {
  net::io_context io;
  toy<TestType> host;
  async_stepper steps(host.pipe);
  int calls = 0;
  auto const here = std::this_thread::get_id();
  steps.async_step(net::bind_executor(io, [&](std::exception_ptr why, step_result const* result) {
    ++calls;
    CHECK(std::this_thread::get_id() == here);
    CHECK_FALSE(why);
    check_losses(result);
  }));
  run(io);  // has work until the step has ended
  CHECK(calls == 1);
  CHECK(host.pipe.steps() == 1);
}

TEMPLATE_TEST_CASE("a future gets the result", "[asio]", threads, virtual_time) {
  toy<TestType> host;
  async_stepper steps(host.pipe);
  for (int i = 0; i < 20; ++i) {
    auto result = steps.async_step(net::use_future);
    REQUIRE(result.wait_for(60s) == std::future_status::ready);
    check_losses(result.get());
    auto evaluated = steps.async_evaluate(net::use_future);
    REQUIRE(evaluated.wait_for(60s) == std::future_status::ready);
    check_losses(evaluated.get());
  }
  CHECK(host.pipe.steps() == 20);
}

namespace {

template <class Steps>
net::awaitable<int> take_steps(Steps& steps, int count) {
  int done = 0;
  for (int i = 0; i < count; ++i) {
    auto const* result = co_await steps.async_step(net::use_awaitable);
    check_losses(result);
    ++done;
  }
  auto later = steps.async_evaluate(net::deferred);
  auto const* result = co_await std::move(later)(net::use_awaitable);
  check_losses(result);
  co_return done;
}

template <class Steps>
net::awaitable<std::string> message_of_step(Steps& steps) {
  std::string text = "no exception";
  try {
    co_await steps.async_step(net::use_awaitable);
  } catch (std::exception const& e) {
    text = e.what();
  }
  co_return text;
}

}  // namespace

TEMPLATE_TEST_CASE("a coroutine awaits steps", "[asio]", threads, virtual_time) {
  net::io_context io;
  toy<TestType> host;
  async_stepper steps(host.pipe);
  auto done = net::co_spawn(io, take_steps(steps, 10), net::use_future);
  run(io);
  REQUIRE(done.wait_for(0s) == std::future_status::ready);
  CHECK(done.get() == 10);
}

TEMPLATE_TEST_CASE(
    "what a pass throws arrives, and the next step works", "[asio]", threads, virtual_time) {
  net::io_context io;
  bool fails = true;
  toy<TestType> host([&](microbatch const& mb) {
    if (fails && mb.index() == 1) throw std::runtime_error("no such tensor");
  });
  async_stepper steps(host.pipe);
  auto text = net::co_spawn(io, message_of_step(steps), net::use_future);
  run(io);
  REQUIRE(text.wait_for(0s) == std::future_status::ready);
  CHECK(text.get() == "rank 2, position 5, stage 2, microbatch 1: in 2F1: no such tensor");
  CHECK(host.pipe.failures().size() == 1);
  fails = false;
  auto next = steps.async_step(net::use_future);
  REQUIRE(next.wait_for(60s) == std::future_status::ready);
  check_losses(next.get());
}

TEMPLATE_TEST_CASE("the host goes on while a step runs", "[asio]", threads, virtual_time) {
  net::io_context io;
  door enough;
  std::promise<void> begun;
  toy<TestType> host([&](microbatch const& mb) {
    if (mb.index() != 0) return;
    begun.set_value();
    enough.pass();
  });
  async_stepper steps(host.pipe);
  bool is_over = false;
  steps.async_step(net::bind_executor(io, [&](std::exception_ptr why, step_result const* result) {
    is_over = true;
    CHECK_FALSE(why);
    check_losses(result);
  }));
  REQUIRE(begun.get_future().wait_for(60s) == std::future_status::ready);
  // The step cannot end before the last tick of the timer.
  int ticks = 0;
  net::steady_timer timer(io);
  std::function<void(boost::system::error_code)> tick = [&](boost::system::error_code) {
    CHECK_FALSE(is_over);
    if (++ticks == 100) {
      enough.open();
      return;
    }
    timer.expires_after(10us);
    timer.async_wait([&](boost::system::error_code why) { tick(why); });
  };
  tick({});
  run(io);
  CHECK(ticks == 100);
  CHECK(is_over);
}

TEST_CASE("a second step at a time is refused, and the first one not harmed", "[asio]") {
  net::io_context io;
  door enough;
  toy<threads> host([&](microbatch const& mb) {
    if (mb.index() == 0) enough.pass();
  });
  async_stepper steps(host.pipe);
  std::vector<std::string> order;
  steps.async_step(net::bind_executor(io, [&](std::exception_ptr why, step_result const* result) {
    CHECK_FALSE(why);
    check_losses(result);
    order.push_back("first");
  }));
  bool is_inside = true;
  steps.async_step(net::bind_executor(io, [&](std::exception_ptr why, step_result const* result) {
    CHECK_FALSE(is_inside);  // never out of the call itself
    CHECK(code_of(why) == errc::bad_argument);
    CHECK(result == nullptr);
    order.push_back("second");
    enough.open();
  }));
  is_inside = false;
  auto third = steps.async_evaluate(net::use_future);
  REQUIRE(third.wait_for(60s) == std::future_status::ready);
  CHECK_THROWS_AS(third.get(), error);
  run(io);
  CHECK(order == std::vector<std::string>{"second", "first"});
  CHECK(host.pipe.steps() == 1);
}

TEST_CASE("a handler starts the next step", "[asio]") {
  net::io_context io;
  toy<threads> host;
  async_stepper steps(host.pipe);
  int left = 200;
  SECTION("on its executor") {
    std::function<void(std::exception_ptr, step_result const*)> next = [&](std::exception_ptr why,
                                                                           step_result const*) {
      CHECK_FALSE(why);
      if (--left > 0) steps.async_step(net::bind_executor(io, std::ref(next)));
    };
    steps.async_step(net::bind_executor(io, std::ref(next)));
    run(io);
  }
  SECTION("on the stepper's thread, where it has no executor") {
    std::promise<void> over;
    std::function<void(std::exception_ptr, step_result const*)> next = [&](std::exception_ptr,
                                                                           step_result const*) {
      if (--left > 0)
        steps.async_step(std::ref(next));
      else
        over.set_value();
    };
    steps.async_step(std::ref(next));
    REQUIRE(over.get_future().wait_for(60s) == std::future_status::ready);
  }
  CHECK(left == 0);
  CHECK(host.pipe.steps() == 200);
}

TEST_CASE("the destructor waits for the step, whose handler is called", "[asio]") {
  net::io_context io;
  toy<threads> host;
  int calls = 0;
  for (int i = 1; i <= 50; ++i) {
    {
      async_stepper steps(host.pipe);
      steps.async_step(net::bind_executor(io, [&](std::exception_ptr why, step_result const*) {
        CHECK_FALSE(why);
        ++calls;
      }));
    }
    CHECK(host.pipe.steps() == i);
    run(io);
    CHECK(calls == i);
  }
  async_stepper const unused(host.pipe);
}

TEST_CASE("handlers that cannot be copied, and strands, are served", "[asio]") {
  net::thread_pool pool(2);
  auto const strand = net::make_strand(pool);
  toy<threads> host;
  async_stepper steps(host.pipe);
  std::promise<bool> on_strand;
  auto own = std::make_unique<int>(7);
  auto handler = [&, own = std::move(own)](std::exception_ptr, step_result const*) {
    on_strand.set_value(strand.running_in_this_thread() && *own == 7);
  };
  steps.async_step(net::bind_executor(strand, std::move(handler)));
  auto result = on_strand.get_future();
  REQUIRE(result.wait_for(60s) == std::future_status::ready);
  CHECK(result.get());
  pool.join();
}

namespace {

// Counts what is allocated and not yet given back.
template <class Value>
struct counting {
  using value_type = Value;

  explicit counting(std::pair<int, int>& numbers) : count(&numbers) {}
  template <class Other>
  explicit counting(counting<Other> const& other) : count(other.count) {}

  Value* allocate(std::size_t n) {
    ++count->first;
    ++count->second;
    return std::allocator<Value>().allocate(n);
  }
  void deallocate(Value* place, std::size_t n) {
    --count->second;
    std::allocator<Value>().deallocate(place, n);
  }
  template <class Other>
  bool operator==(counting<Other> const& other) const {
    return count == other.count;
  }

  std::pair<int, int>* count;
};

}  // namespace

TEST_CASE("memory comes from the handler's allocator and is back before it runs", "[asio]") {
  net::io_context io;
  toy<virtual_time> host;
  std::pair<int, int> count;
  {
    async_stepper steps(host.pipe);
    auto handler = [&](std::exception_ptr, step_result const*) { CHECK(count.second == 0); };
    steps.async_step(
        net::bind_allocator(counting<int>(count), net::bind_executor(io, std::move(handler))));
  }
  CHECK(count.first > 0);
  CHECK(count.second > 0);
  run(io);
  CHECK(count.second == 0);
}

}  // namespace test_asio_async_step
