// SPDX-License-Identifier: Apache-2.0
//
// A host that lives on an io_context: its timer ticks while a pipeline steps beside it, and a
// coroutine awaits each step. The pass that waits for a tick proves that neither stops the other.
#include <zbpp/asio/async_step.hpp>
#include <zbpp/zbpp.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <vector>

namespace net = boost::asio;
using namespace std::chrono_literals;

namespace {

std::atomic<int> ticks{0};

struct patient_stage {
  zbpp::flow operator()(zbpp::microbatch mb) {
    co_await mb.recv_activation();
    co_await zbpp::F([&] {
      auto const before = ticks.load();
      for (int naps = 0; ticks == before; ++naps) {  // a long pass: until the host's next tick
        if (naps == 10'000) throw std::runtime_error("the host's timer has stopped");
        std::this_thread::sleep_for(1ms);
      }
      if (mb.is_last_stage()) mb.report_loss(mb.index());
    });
    co_await mb.send_activation();
    co_await mb.recv_gradient();
    co_await zbpp::B([] {});
    co_await mb.send_gradient();
    co_await zbpp::W([] {});
  }
};

net::awaitable<void> tick() {
  auto const executor = co_await net::this_coro::executor;
  net::steady_timer timer(executor);
  for (;; ++ticks) {
    timer.expires_after(1ms);
    co_await timer.async_wait(net::use_awaitable);
  }
}

template <class Pipeline>
net::awaitable<double> train(net::io_context& host, Pipeline& pipe) {
  zbpp::asio::async_stepper steps(pipe);
  double sum = 0;
  for (int step = 0; step < 3; ++step) {
    auto const* result = co_await steps.async_step(net::use_awaitable);
    std::printf("step %d: loss %.2f after %d ticks\n", step, result->loss(), ticks.load());
    sum += result->loss();
  }
  host.stop();  // ends the ticking
  co_return sum;
}

}  // namespace

int main() {
  zbpp::stage_costs const costs{.forward = 1, .backward_input = 1, .backward_weight = 1};
  zbpp::problem const problem(zbpp::placement::linear(2), 4, costs);
  std::vector<patient_stage> stages(2);
  zbpp::pipeline pipe{zbpp::make_plan(zbpp::zb_h1{}, problem), zbpp::threads{}, stages};
  net::io_context host;
  auto sum = net::co_spawn(host, train(host, pipe), net::use_future);
  net::co_spawn(host, tick(), net::detached);
  host.run();
  // Each of the 4 microbatches has waited for a tick in each of the 3 steps.
  return sum.get() == 3 * 1.5 && ticks >= 12 ? 0 : 1;
}
