// SPDX-License-Identifier: Apache-2.0
//
// A host that lives on an io_context goes on while a GPU is at work on a step.
#include <zbpp/asio/async_step.hpp>
#include <zbpp/cuda/device.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/cuda_toy.hpp>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace test_cuda_async {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
namespace net = ::boost::asio;

TEST_CASE("the executor's thread goes on while a device is at work", "[cuda][asio]") {
  model::reset({.seed = 7, .order = model::mode::lazy});
  zbpp::stage_costs const costs{
      .forward = 1, .backward_input = 1, .backward_weight = 1, .edge = toy::edge};
  auto const planned =
      zbpp::make_plan(zbpp::zb_h1{}, zbpp::problem(zbpp::placement::linear(3), 6, costs));
  auto const expected = toy::in_single_precision(toy::train_reference(planned));

  // A kernel that ends only when the executor has run something else: were its thread blocked by
  // the step, nothing would ever.
  std::atomic<bool> has_gone_on{false};
  std::atomic<bool> is_late{false};
  struct gated {
    toy::launched_stage work;
    std::atomic<bool>* listener;
    std::atomic<bool>* is_late;

    zbpp::flow operator()(zbpp::microbatch mb) { return work(mb); }
    void update(zbpp::pass_context ctx) {
      cuda::check(model::launch(cuda::stream_of(ctx), "listener", {}, {}, [this] {
        auto const limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (!*listener && !*is_late) {
          *is_late = std::chrono::steady_clock::now() > limit;
          std::this_thread::yield();
        }
      }));
    }
  };
  auto all = toy::make_model(3);
  std::vector<gated> stages;
  for (auto& each : all) stages.push_back({toy::launched_stage(each), &has_gone_on, &is_late});
  zbpp::pipeline pipe{planned, cuda::device{.edges = toy::edge_shapes(planned.problem())}, stages};

  net::io_context io;
  zbpp::asio::async_stepper stepper(pipe);
  int ended = 0;
  auto const history = toy::train(all, [&](int) {
    has_gone_on = false;
    std::vector<double> losses;
    stepper.async_step(net::bind_executor(
        io.get_executor(), [&](std::exception_ptr why, zbpp::step_result const* result) {
          REQUIRE(why == nullptr);
          losses = result->losses;
          ++ended;
        }));
    net::post(io, [&] { has_gone_on = true; });
    io.restart();
    io.run();
    return losses;
  });
  CHECK_FALSE(is_late);
  CHECK(ended == toy::steps);
  CHECK(history == expected);
  CHECK(model::faults().empty());
}

}  // namespace test_cuda_async
