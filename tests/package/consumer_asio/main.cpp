// SPDX-License-Identifier: Apache-2.0
//
// A run of one process: meets itself, and awaits a step.
#include <zbpp/asio/async_step.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/zbpp.hpp>

#include <boost/asio/use_future.hpp>

#include <vector>

namespace {

struct stage {
  zbpp::flow operator()(zbpp::microbatch mb) {
    co_await mb.recv_activation();
    co_await zbpp::F([&] { mb.report_loss(1); });
    co_await mb.send_activation();
    co_await mb.recv_gradient();
    co_await zbpp::B([] {});
    co_await mb.send_gradient();
    co_await zbpp::W([] {});
  }
};

}  // namespace

int main() {
  auto const start =
      zbpp::asio::find_launch({.rank = 0, .ranks = 1, .host = "127.0.0.1", .port = 0});
  zbpp::asio::rendezvous run(start, {}, zbpp::asio::run_token::from_text("of this test alone"));
  zbpp::stage_costs const costs{.forward = 1, .backward_input = 1, .backward_weight = 1};
  zbpp::problem const problem(zbpp::placement::linear(run.ranks()), 4, costs);
  std::vector<stage> stages(1);
  zbpp::pipeline pipe{zbpp::make_plan(zbpp::zb_h1{}, problem), zbpp::asio::tcp(run), stages};
  zbpp::asio::async_stepper steps(pipe);
  return steps.async_step(boost::asio::use_future).get()->loss() == 1 ? 0 : 1;
}
