// SPDX-License-Identifier: Apache-2.0
//
// A small network through a ZB-H1 pipeline on threads: its losses equal those of a plain loop to
// the last bit, step after step.
#include "toy_layer.hpp"
#include <zbpp/zbpp.hpp>

#include <cstdio>
#include <vector>

namespace {

// [mlp_stage
struct mlp_stage {  // any class: no base, no registration
  toy::layer fc;

  zbpp::flow operator()(zbpp::microbatch mb) {  // the life of one microbatch on this stage
    zbpp::buffer x, y, dy, dx;
    auto in = co_await mb.recv_activation();        // empty on the first stage
    co_await zbpp::F([&](zbpp::pass_context ctx) {  // all compute happens inside passes
      x = mb.is_first_stage() ? toy::batch(mb.index(), ctx) : zbpp::buffer(in);
      y = fc.forward(x, ctx);
      if (mb.is_last_stage()) mb.report_loss(toy::loss(y));
    });
    co_await mb.send_activation(y);           // shares y; nothing to do on the last stage
    auto back = co_await mb.recv_gradient();  // empty on the last stage
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      dy = mb.is_last_stage() ? toy::loss_gradient(y, ctx) : zbpp::buffer(back);
      dx = fc.backward_input(y, dy, ctx);
      y.reset();  // what only B needed ends here
    });
    co_await mb.send_gradient(std::move(dx));  // nothing to do on the first stage
    co_await zbpp::W([&] { fc.backward_weight(x, dy); });
  }  // x and dy end here

  void update(zbpp::pass_context) { fc.update(); }  // runs after the stage's last W
};
// mlp_stage]

// The same step without a pipeline: one microbatch after another through all layers.
double plain_step(std::vector<toy::layer>& model, int microbatches, zbpp::pass_context ctx) {
  double sum = 0;
  for (int m = 0; m < microbatches; ++m) {
    std::vector<zbpp::buffer> x{toy::batch(m, ctx)};
    for (auto const& fc : model) x.push_back(fc.forward(x.back(), ctx));
    sum += toy::loss(x.back());
    auto dy = toy::loss_gradient(x.back(), ctx);
    for (auto i = model.size(); i-- > 0;) {
      auto dx = model[i].backward_input(x[i + 1], dy, ctx);
      model[i].backward_weight(x[i], dy);
      dy = dx;
    }
  }
  for (auto& fc : model) fc.update();
  return sum / microbatches;
}

}  // namespace

int main() {
  zbpp::problem const problem(
      zbpp::placement::linear(4),
      8,
      zbpp::stage_costs{.forward = 1, .backward_input = 1, .backward_weight = 1});
  std::vector<mlp_stage> stages(4);
  zbpp::pipeline pipe{zbpp::make_plan(zbpp::zb_h1{}, problem), zbpp::threads{}, stages};
  std::vector<toy::layer> model(4);
  zbpp::arena memory;
  bool same = true;
  for (int step = 0; step < 5; ++step) {
    double const evaluated = pipe.evaluate().loss();  // F alone, so nothing is trained
    double const piped = pipe.step().loss();
    double const plain = plain_step(model, problem.microbatches(), memory);
    std::printf("step %d: loss %.6f, plain loop %.6f\n", step, piped, plain);
    same = same && piped == plain && evaluated == plain;
  }
  std::puts(same ? "identical to the last bit" : "different");
  return same ? 0 : 1;
}
