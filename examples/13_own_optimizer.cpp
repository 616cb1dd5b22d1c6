// SPDX-License-Identifier: Apache-2.0
//
// An optimizer of your own, whose steps are validated afterwards: ranks step before the norm of all
// gradients is known, and go back where it has to be clipped. Shows that both kinds of steps give
// the same bits.
#include "toy_layer.hpp"
#include <zbpp/zbpp.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <span>
#include <vector>

// [own_optimizer
// Steps a weight by the sign of its gradient.
class sign_descent : public zbpp::optimizer {
 public:
  sign_descent(std::span<float> own, std::span<float> own_gradients)
      : weights(own), gradients(own_gradients) {}

  int layers() const override { return 1; }
  void measure(std::span<zbpp::gradient_state> states, zbpp::pass_context) override {
    for (double g : gradients) states[0].sum_of_squares += g * g;
  }
  void step(zbpp::step_settings const& settings, zbpp::pass_context ctx) override {
    before.assign(weights.begin(), weights.end());
    auto const rate = static_cast<float>(settings.learning_rate * settings.coefficient);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= gradients[i] > 0 ? rate : -rate;
    if (settings.is_final) skip(ctx);
  }
  void commit(zbpp::pass_context ctx) override { skip(ctx); }
  void undo(zbpp::pass_context) override { std::ranges::copy(before, weights.begin()); }
  void skip(zbpp::pass_context) override { std::ranges::fill(gradients, 0.0F); }

 private:
  std::span<float> weights;
  std::span<float> gradients;
  std::vector<float> before;  // what undo brings back
};
// own_optimizer]

struct stage {
  toy::layer fc;
  sign_descent own{fc.weights(), fc.gradients()};  // so a stage stays where it is

  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::buffer x, y, d;
    x = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      if (mb.is_first_stage()) x = toy::batch(mb.index(), ctx);
      y = fc.forward(x, ctx);
      if (mb.is_last_stage()) mb.report_loss(toy::loss(y));
    });
    co_await mb.send_activation(y);
    d = co_await mb.recv_gradient();
    auto dx = zbpp::buffer{};
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      if (mb.is_last_stage()) d = toy::loss_gradient(y, ctx);
      dx = fc.backward_input(y, d, ctx);
    });
    co_await mb.send_gradient(dx);
    co_await zbpp::W([&] { fc.backward_weight(x, d); });
  }
  sign_descent& optimizer() { return own; }
};

// Trains four stages. @return the losses
std::vector<double> train(zbpp::step_kind kind, int& amended) {
  zbpp::stage_costs const costs{.forward = 10, .backward_input = 10, .backward_weight = 10};
  zbpp::problem const problem(zbpp::placement::linear(4), 8, costs);
  auto const plan = zbpp::make_plan(zbpp::zb_h2{}, problem, {.step = kind});
  std::vector<stage> model(4);
  std::vector<double> losses;
  zbpp::pipeline pipe{
      plan, zbpp::threads{}, model, {.clip = 1, .learning_rate = [](auto) { return 2e-3; }}};
  pipe.run(30, [&](zbpp::step_result const& step) {
    losses.push_back(step.loss());
    amended += step.update.is_amended ? 1 : 0;
  });
  return losses;
}

int main() {
  int amended = 0;
  int never = 0;
  auto const late = train(zbpp::step_kind::post_validated, amended);
  auto const waiting = train(zbpp::step_kind::synchronous, never);
  std::printf(
      "loss %.4f to %.4f in 30 steps, %d of them amended\n", late.front(), late.back(), amended);
  std::printf("post-validated and synchronous: %s\n", late == waiting ? "same bits" : "DIFFERENT");
  return late == waiting && amended > 0 && never == 0 && late.back() < late.front() ? 0 : 1;
}
