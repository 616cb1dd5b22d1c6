// SPDX-License-Identifier: Apache-2.0
//
// The same as one_pipeline.cpp for the components json and asio: a step of a pipeline over TCP.
#include <zbpp/asio/async_step.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/json/json.hpp>
#include <zbpp/zbpp.hpp>

#include <string>
#include <vector>

namespace {

struct idle_stage {
  zbpp::flow operator()(zbpp::microbatch mb) {
    co_await mb.recv_activation();
    co_await zbpp::F([&] {
      if (mb.is_last_stage()) mb.report_loss(0);
    });
    co_await mb.send_activation();
    co_await mb.recv_gradient();
    co_await zbpp::B([] {});
    co_await mb.send_gradient();
    co_await zbpp::W([] {});
  }
};

}  // namespace

int main(int argc, char** argv) {
  zbpp::asio::rendezvous meeting(zbpp::asio::find_launch());
  auto const problem = zbpp::json::read_problem(argc > 1 ? std::string(argv[1]) : std::string());
  auto const planned = zbpp::make_plan(zbpp::zb_h1{}, problem);
  std::vector<idle_stage> own(1);
  zbpp::pipeline pipe{planned, zbpp::asio::tcp(meeting), own};
  auto const& result = pipe.run(3, [](zbpp::step_result const&) {});
  return result.loss() == 0 && pipe.evaluate().loss() == 0 ? 0 : 1;
}
