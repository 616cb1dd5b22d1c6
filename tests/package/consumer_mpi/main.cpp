// SPDX-License-Identifier: Apache-2.0
//
// A step of as many ranks over MPI as the argument says: each adds its stage to what it gets.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/mpi/ranks.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <cstdlib>
#include <utility>
#include <vector>

namespace {

struct stage {
  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::buffer sum;
    auto const in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      double const before = mb.is_first_stage() ? 1 : in[0].as<double>()[0];
      sum = ctx.allocate_edge(sizeof(double));
      sum.as<double>()[0] = before + mb.stage();
      if (mb.is_last_stage()) mb.report_loss(before + mb.stage());
    });
    co_await mb.send_activation(std::move(sum));
    co_await mb.recv_gradient();
    co_await zbpp::B([] {});
    co_await mb.send_gradient();
    co_await zbpp::W([] {});
  }
};

}  // namespace

int main(int argc, char** argv) {
  zbpp::mpi::rendezvous run;
  if (argc != 2 || run.ranks() != std::atoi(argv[1])) return 2;
  zbpp::stage_costs const costs{.forward = 1, .backward_input = 1, .backward_weight = 1};
  zbpp::problem const problem(zbpp::placement::linear(run.ranks()), 4, costs);
  std::vector<stage> stages(1);
  zbpp::pipeline pipe(
      zbpp::make_plan(zbpp::zb_h1{}, problem),
      zbpp::mpi::ranks(run, {.share_losses = true}),
      stages);
  double const expected = 1 + run.ranks() * (run.ranks() - 1) / 2;
  return pipe.step().loss() == expected ? 0 : 1;
}
