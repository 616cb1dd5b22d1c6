// SPDX-License-Identifier: Apache-2.0
//
// The C++ blocks of docs/flows.md.

// [my_stage
#include <zbpp/zbpp.hpp>

#include <utility>

// my_stage]
namespace docs_flows {

// [my_stage
// Your arithmetic.
zbpp::buffer forward(zbpp::buffer const& x, zbpp::pass_context ctx);
double loss(zbpp::buffer const& y, zbpp::buffer& dy, zbpp::pass_context ctx);  // and its gradient
zbpp::buffer backward_input(zbpp::buffer const& x, zbpp::buffer const& dy, zbpp::pass_context ctx);
void backward_weight(zbpp::buffer const& x, zbpp::buffer const& dy);
void step_optimizer();

struct my_stage {
  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::buffer x, y, dy, dx;
    auto in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      x = in;
      y = forward(x, ctx);
      if (mb.is_last_stage()) mb.report_loss(loss(y, dy, ctx));
    });
    co_await mb.send_activation(std::move(y));
    auto back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      if (!mb.is_last_stage()) dy = back;
      dx = backward_input(x, dy, ctx);
    });
    co_await mb.send_gradient(std::move(dx));
    co_await zbpp::W([&] { backward_weight(x, dy); });
  }

  void update(zbpp::pass_context) { step_optimizer(); }  // optional
};
static_assert(zbpp::stage<my_stage> && zbpp::updating_stage<my_stage>);
// my_stage]

}  // namespace docs_flows

// [skip_stage
#include <zbpp/zbpp.hpp>

#include <utility>

// skip_stage]
namespace docs_flows {

// [skip_stage
zbpp::buffer forward(zbpp::buffer const& x, zbpp::buffer const& skip, zbpp::pass_context ctx);
void backward(
    zbpp::message const& dy, zbpp::buffer& dx, zbpp::buffer& dskip, zbpp::pass_context ctx);
void backward_weight(zbpp::buffer const& x);

struct skip_stage {
  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::buffer x, skip, y, dx, dskip;
    auto in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      x = in[0];
      skip = in[1];
      y = forward(x, skip, ctx);
    });
    co_await mb.send_activation(std::move(y), std::move(skip));
    auto back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) { backward(back, dx, dskip, ctx); });
    co_await mb.send_gradient(std::move(dx), std::move(dskip));
    co_await zbpp::W([&] { backward_weight(x); });
  }
};
// skip_stage]

}  // namespace docs_flows

// [shaped_forward
#include <zbpp/zbpp.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

// shaped_forward]
namespace docs_flows {

// [shaped_forward
// Doubles as many rows as came. The first buffer of a message has the shape, the second the values.
zbpp::message forward(zbpp::pass_context ctx, zbpp::message const& in) {
  auto const shape = in[0].as<std::int64_t>();
  auto const x = in[1].as<float>().first(static_cast<std::size_t>(shape[0] * shape[1]));
  auto y = ctx.allocate_edge(x.size_bytes());
  std::ranges::transform(x, y.as<float>().begin(), [](float value) { return 2 * value; });
  return {in[0], std::move(y)};
}
// shaped_forward]

}  // namespace docs_flows

// [object_stage
#include <zbpp/zbpp.hpp>

#include <memory>
#include <utility>

// object_stage]
namespace docs_flows {

// [object_stage
struct tensor {
  std::shared_ptr<float[]> data;
  long size;
};
tensor batch(zbpp::microbatch mb);
tensor gradient_of_loss(zbpp::microbatch mb);
tensor forward(tensor const& x);
double loss(tensor const& y);
tensor backward(tensor const& dy);
void backward_weight(tensor const& x);

struct object_stage {
  zbpp::flow operator()(zbpp::microbatch mb) {
    tensor x;
    zbpp::message out;
    auto in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      x = mb.is_first_stage() ? batch(mb) : in.get<tensor>();
      auto y = forward(x);
      if (mb.is_last_stage()) mb.report_loss(loss(y));
      out = ctx.make_edge(y, y.size * 4);  // counts as so many bytes
    });
    co_await mb.send_activation(std::move(out));
    auto back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      auto dx = backward(mb.is_last_stage() ? gradient_of_loss(mb) : back.get<tensor>());
      out = ctx.make_edge(dx, dx.size * 4);
    });
    co_await mb.send_gradient(std::move(out));
    co_await zbpp::W([&] { backward_weight(x); });
  }
};
// object_stage]

}  // namespace docs_flows

// [plain_stage
#include <zbpp/zbpp.hpp>

#include <vector>

// plain_stage]
namespace docs_flows {

// [plain_stage
struct plain_stage {
  struct saved {
    zbpp::buffer x, dy;
  };
  zbpp::message forward(
      saved& s, zbpp::message const& in, zbpp::microbatch mb, zbpp::pass_context ctx);
  zbpp::message backward_input(
      saved& s, zbpp::message const& dy, zbpp::microbatch mb, zbpp::pass_context ctx);
  void backward_weight(saved& s, zbpp::microbatch mb, zbpp::pass_context ctx);
  // optional:
  //   zbpp::message backward(saved&, zbpp::message const&, zbpp::microbatch, zbpp::pass_context);
  //   void update(zbpp::pass_context);
};

double one_step(zbpp::plan const& planned, std::vector<plain_stage>& objects) {
  std::vector<zbpp::as_flow<plain_stage>> stages(objects.begin(), objects.end());
  zbpp::pipeline pipe{planned, zbpp::threads{}, stages};
  return pipe.step().loss();
}
// plain_stage]

void use_one_core(int core);

double on_one_core_each(zbpp::plan const& planned, std::vector<zbpp::stage_ref>& stages) {
  // [on_thread_start
  zbpp::threads backend;
  backend.on_thread_start = [](std::span<int const> ranks) { use_one_core(ranks.front()); };
  zbpp::pipeline pipe{planned, backend, stages};
  // on_thread_start]
  return pipe.step().loss();
}

}  // namespace docs_flows

// [complete_stage
#include <zbpp/zbpp.hpp>

#include <utility>

// complete_stage]
namespace docs_flows {

// [complete_stage
zbpp::buffer forward(zbpp::buffer const& x, zbpp::pass_context ctx, bool keep_all);
void recompute(zbpp::buffer const& x, zbpp::pass_context ctx);
zbpp::buffer both(zbpp::buffer const& dy, zbpp::pass_context ctx);
zbpp::buffer backward_input(zbpp::buffer const& dy, zbpp::pass_context ctx);
void backward_weight();

struct complete_stage {
  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::buffer x, y, dx;
    auto in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      x = in;
      y = forward(x, ctx, mb.is_training() && !mb.is_recomputed());
    });
    co_await mb.send_activation(std::move(y));
    // Does nothing where the program has no R.
    co_await zbpp::R([&](zbpp::pass_context ctx) { recompute(x, ctx); });
    auto back = co_await mb.recv_gradient();
    if (mb.is_fused()) {
      co_await zbpp::BW([&](zbpp::pass_context ctx) { dx = both(back, ctx); });
      co_await mb.send_gradient(std::move(dx));
      co_return;
    }
    co_await zbpp::B([&](zbpp::pass_context ctx) { dx = backward_input(back, ctx); });
    co_await mb.send_gradient(std::move(dx));
    co_await zbpp::W([&] { backward_weight(); });
  }
};
// complete_stage]

}  // namespace docs_flows

// [try_step
#include <zbpp/zbpp.hpp>

#include <exception>
#include <iostream>
#include <stdexcept>

// try_step]
namespace docs_flows {

// [try_step
bool try_step(zbpp::pipeline_core& pipe) {
  try {
    pipe.step();
    return true;
  } catch (zbpp::error const& e) {
    std::cerr << e.what() << '\n';
    if (pipe.failures().size() > 1) std::cerr << "other ranks failed, too\n";
    try {
      std::rethrow_if_nested(e);
    } catch (std::invalid_argument const&) {  // your own types
      std::cerr << "the data of step " << pipe.steps() << " are wrong\n";
    } catch (...) {
    }
    return false;
  }
}
// try_step]

}  // namespace docs_flows

// [generate
#include <zbpp/zbpp.hpp>

#include <cstddef>
#include <vector>

// generate]
namespace docs_flows {

// [generate
int pick(zbpp::buffer const& scores);

// `tokens` has one number per microbatch, which the first stage reads in its F.
void generate(zbpp::pipeline_core& pipe, int rounds, std::vector<int>& tokens) {
  auto next = tokens;
  for (int t = 0; t < rounds; ++t) {
    pipe.evaluate([&](zbpp::evaluation_output const& out) {
      next[static_cast<std::size_t>(out.microbatch)] = pick(out.message[0]);
    });
    tokens = next;
  }
}
// generate]

}  // namespace docs_flows

// [epoch
#include <zbpp/zbpp.hpp>

#include <vector>

// epoch]
namespace docs_flows {

// [epoch
double train_epoch(
    std::vector<my_stage>& stages, zbpp::placement const& placement, zbpp::stage_costs costs) {
  auto const plan_of = [&](int microbatches) {
    return zbpp::make_plan(zbpp::zb_h1{}, {placement, microbatches, costs});
  };
  zbpp::pipeline whole{plan_of(8), zbpp::threads{}, stages};
  zbpp::pipeline last{plan_of(3), zbpp::threads{}, stages};  // the same stages
  zbpp::pipeline validation{plan_of(32), zbpp::threads{}, stages};

  whole.run(100);
  last.resume(whole.state());  // its step is number 100
  last.step();
  whole.resume(last.state());  // and goes on with 101 in the next epoch
  validation.resume(last.state());
  return validation.evaluate().loss();
}
// epoch]

}  // namespace docs_flows
