// SPDX-License-Identifier: Apache-2.0
//
// Stages that two ranks share, each with half of the hidden units: two pipelines of two ranks train
// one model, and two such pairs are replicas of it, on 2 x 2 x 2 threads. The losses equal those of
// the undivided model but for rounding, and to the last bit those of a plain loop that adds the
// halves up in the same order.
#include "toy_part.hpp"
#include <zbpp/runtime/in_process_grid.hpp>
#include <zbpp/zbpp.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

namespace {

using toy::part;
using toy::values;

constexpr int stages = 2;
constexpr int replicas = 2;
constexpr int microbatches = 4;  // of each replica
constexpr int steps = 5;
constexpr double rate = 0.02;

zbpp::buffer to_buffer(values const& from, zbpp::pass_context ctx) {
  auto to = ctx.allocate_edge(from.size() * sizeof(float));
  std::copy(from.begin(), from.end(), to.as<float>().begin());
  return to;
}
values to_values(zbpp::buffer const& from) {
  std::span<float const> const all = from.as<float>();
  return {all.begin(), all.end()};
}

// [stage
struct shared_stage {
  part own;
  int replica;
  zbpp::optim::sgd steps{{own.layer()}};

  zbpp::flow operator()(zbpp::microbatch mb) {
    auto& members = mb.grid().tensor();  // the ranks that share this stage
    values x, y, h, dy, dh;
    zbpp::buffer out;
    auto in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      x = mb.is_first_stage() ? toy::batch(replica * microbatches + mb.index()) : to_values(in);
      y = own.forward(x, h);
      members.all_reduce(y);  // the whole of B tanh(A x), the same on all members
      toy::add(y, x);
      if (mb.is_last_stage()) mb.report_loss(toy::loss(y));
      out = to_buffer(y, ctx);
    });
    co_await mb.send_activation(std::move(out));
    auto back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      dy = mb.is_last_stage() ? toy::loss_gradient(y) : to_values(back);
      auto dx = own.backward_input(h, dy, dh);
      members.all_reduce(dx);
      toy::add(dx, dy);
      out = to_buffer(dx, ctx);
    });
    co_await mb.send_gradient(std::move(out));
    co_await zbpp::W([&] { own.backward_weight(x, h, dy, dh); });  // needs no other member
  }
  zbpp::optim::sgd& optimizer() { return steps; }
};
// stage]

// Trains `replicas * members` pipelines. Returns the losses of the first replica, step by step.
std::vector<double> train_grid(int members) {
  zbpp::problem const alone(
      zbpp::placement::linear(stages),
      microbatches,
      zbpp::stage_costs{.forward = 1, .backward_input = 1, .backward_weight = 1});
  auto const plan = zbpp::make_plan(zbpp::zb_h1{}, with_replicas(alone, {.count = replicas}));
  zbpp::in_process_grid grid({.pipeline = stages, .data = replicas, .tensor = members});
  std::vector<double> losses;
  grid.run([&](zbpp::grid_place const& place) {  // on a thread of its own for each pipeline
    std::vector<shared_stage> own;
    for (int s = 0; s < stages; ++s)
      own.push_back({part(s, place.tensor(), members), place.data()});
    zbpp::training_options const options{.learning_rate = [](std::int64_t) { return rate; }};
    zbpp::pipeline pipe{plan, zbpp::threads{.place = place}, own, options};
    pipe.run(steps, [&](zbpp::step_result const& step) {
      if (place.data() == 0 && place.tensor() == 0) losses.push_back(step.loss());
    });
  });
  return losses;
}

// Runs one microbatch through the parts of all stages: the parts in turn, then their sum in order.
double train_plain(std::vector<std::vector<part>>& model, values x) {
  std::vector<values> inputs;
  std::vector<std::vector<values>> h(model.size());
  for (std::size_t s = 0; s < model.size(); ++s) {
    values y;
    for (auto& one : model[s]) {
      auto const more = one.forward(x, h[s].emplace_back());
      y.empty() ? void(y = more) : toy::add(y, more);
    }
    toy::add(y, x);
    inputs.push_back(std::exchange(x, y));
  }
  auto dy = toy::loss_gradient(x);
  for (std::size_t s = model.size(); s-- > 0;) {
    values dx, dh;
    for (std::size_t t = 0; t < model[s].size(); ++t) {
      auto const more = model[s][t].backward_input(h[s][t], dy, dh);
      dx.empty() ? void(dx = more) : toy::add(dx, more);
      model[s][t].backward_weight(inputs[s], h[s][t], dy, dh);
    }
    toy::add(dx, dy);
    dy = dx;
  }
  return toy::loss(x);
}

// The same training in a plain loop.
std::vector<double> train_plain(int members) {
  std::vector<std::vector<part>> model(stages);  // by stage and member
  std::vector<zbpp::optim::sgd> optimizers;
  for (int s = 0; s < stages; ++s)
    for (int t = 0; t < members; ++t) model[std::size_t(s)].emplace_back(s, t, members);
  for (auto& parts : model)
    for (auto& one : parts) optimizers.emplace_back(std::vector{one.layer()});
  zbpp::arena memory;
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    std::vector copies(replicas, model);
    double sum = 0;
    for (int replica = 0; replica < replicas; ++replica)
      for (int m = 0; m < microbatches; ++m) {
        auto const of_microbatch =
            train_plain(copies[std::size_t(replica)], toy::batch(replica * microbatches + m));
        if (replica == 0) sum += of_microbatch;
      }
    losses.push_back(sum / microbatches);
    for (auto& copy : copies)
      for (std::size_t s = 0; s < stages; ++s)
        for (std::size_t t = 0; t < model[s].size(); ++t)
          toy::add(model[s][t].layer().gradients, copy[s][t].layer().gradients);
    for (auto& each : optimizers) each.step({.updates = step, .learning_rate = rate}, memory);
  }
  return losses;
}

}  // namespace

int main() {
  auto const shared = train_grid(2);
  auto const halves = train_plain(2);
  auto const alone = train_plain(1);
  bool same = shared == halves;
  for (std::size_t step = 0; step < alone.size(); ++step) {
    std::printf(
        "step %zu: loss %.9f, of the undivided model %.9f\n", step, shared[step], alone[step]);
    same = same && std::abs(shared[step] - alone[step]) < 1e-5;
  }
  std::puts(same ? "identical to the last bit with halves in a plain loop" : "different");
  return same ? 0 : 1;
}
