// SPDX-License-Identifier: Apache-2.0
//
// One rank of a run of several processes; the launcher's variables say which (docs/launch.md).
// Losses and weights equal those of the same run on threads to the last bit.
//
//   export ZBPP_TOKEN=$(openssl rand -hex 32)
//   for r in 0 1 2; do RANK=$r WORLD_SIZE=3 ./09_processes & done; wait
#include "toy_layer.hpp"
#include <zbpp/asio/tcp.hpp>
#include <zbpp/zbpp.hpp>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

namespace {

struct mlp_stage {
  toy::layer fc;

  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::buffer x, y, dy, dx;
    auto in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      x = mb.is_first_stage() ? toy::batch(mb.index(), ctx) : zbpp::buffer(in);
      y = fc.forward(x, ctx);
      if (mb.is_last_stage()) mb.report_loss(toy::loss(y));
    });
    co_await mb.send_activation(y);
    auto back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      dy = mb.is_last_stage() ? toy::loss_gradient(y, ctx) : zbpp::buffer(back);
      dx = fc.backward_input(y, dy, ctx);
      y.reset();
    });
    co_await mb.send_gradient(std::move(dx));
    co_await zbpp::W([&] { fc.backward_weight(x, dy); });
  }

  void update(zbpp::pass_context) { fc.update(); }
};

int run() {
  // [one_rank
  zbpp::asio::rendezvous meeting(zbpp::asio::find_launch());
  zbpp::stage_costs const costs{.forward = 1, .backward_input = 1, .backward_weight = 1};
  zbpp::problem const problem(zbpp::placement::linear(meeting.ranks()), 8, costs);
  auto const plan = zbpp::make_plan(zbpp::zb_h1{}, problem);

  std::vector<mlp_stage> own(1);  // of this rank; the others have theirs
  zbpp::pipeline pipe{plan, zbpp::asio::tcp(meeting), own};
  // one_rank]

  std::vector<mlp_stage> all(static_cast<std::size_t>(meeting.ranks()));
  zbpp::pipeline local{plan, zbpp::threads{}, all};
  bool same = true;
  for (int step = 0; step < 5; ++step) {
    double const evaluated = pipe.evaluate().loss();
    double const loss = pipe.step().loss();  // of this process: a number where the last stage is
    double const right = local.step().loss();
    if (meeting.rank() + 1 < meeting.ranks()) continue;
    std::printf("step %d: loss %.6f, on threads %.6f\n", step, loss, right);
    same = same && loss == right && evaluated == right;
  }
  auto const& right = all[static_cast<std::size_t>(meeting.rank())];
  same = same && std::memcmp(&own.front(), &right, sizeof(mlp_stage)) == 0;  // all of it is floats
  std::printf("rank %d: %s\n", meeting.rank(), same ? "identical to the last bit" : "different");
  return same ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "09_processes: %s\n", failed.what());
    return 1;
  }
}
