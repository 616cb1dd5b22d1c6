// SPDX-License-Identifier: Apache-2.0
//
// Modules have modes and statistics of their own, and threads a state of LibTorch: evaluations, R
// and callers of steps leave them as a plain loop does.
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/in_process_grid.hpp>
#include <zbpp/runtime/virtual_time.hpp>
#include <zbpp/torch/auto_pipeline.hpp>

#include <support/torch_hooked.hpp>
#include <support/torch_modes.hpp>

#include <ATen/autocast_mode.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace test_torch_modes {

using namespace zbpp::test;
using zbpp::microbatch;
using zbpp::placement;
using zbpp::torch::layer;
using zbpp::torch::layer_sequence;
using zbpp::torch::module_stage;
using zbpp::torch::stage_ends;
using zbpp::torch::tensors;
namespace nn = ::torch::nn;

namespace {

constexpr int microbatches = 4;

zbpp::plan plan_of(placement const& placed, bool recomputes) {
  zbpp::problem const problem(
      placed, microbatches, zbpp::stage_costs{.forward = 10, .recompute = 10});
  auto const order = zbpp::greedy_auto{.search = {.seconds = 0}}(problem);
  return zbpp::make_plan("", with_all_r(order, recomputes), problem);
}

// In all forms in which zbpp knows a module.
std::vector<module_stage<>> stages_of(slice_list const& slices, stage_ends const& ends) {
  std::vector<module_stage<>> stages;
  for (std::size_t s = 0; s < slices.size(); ++s) switch (auto const& slice = slices[s]; s % 4) {
      case 0: stages.emplace_back(slice, ends); break;
      case 1: stages.emplace_back(layer_sequence(slice), ends); break;
      case 2: stages.emplace_back(slice.ptr(), ends); break;
      default: {
        auto const call = [net = slice](at::Tensor const& x) mutable { return net->forward(x); };
        stages.emplace_back(layer(call, slice), ends);
      }
    }
  return stages;
}

// What depends on the backend runs on threads and under virtual time.
template <class Check>
void on_backends(Check check) {
  SECTION("virtual time") {
    at::set_num_threads(1);
    check(zbpp::virtual_time{});
  }
  SECTION("threads") { check(one_thread_each()); }
}

// Puts some modules into evaluation mode, as one who freezes statistics does.
void freeze_some(slice_list const& slices) {
  slices[0]->modules()[2]->eval();  // with what is in it
  slices[1]->modules()[3]->eval();
  slices[2].ptr()->eval();
  slices[2]->modules()[4]->train();  // but not its child
}

}  // namespace

TEST_CASE("evaluate() has modules in evaluation mode, and leaves them as they were", "[torch]") {
  on_backends([](auto const& backend) {
    auto const slices = normed_slices(4, 0.5);
    auto const ends = normed_ends();
    auto stages = stages_of(slices, ends);
    zbpp::pipeline pipe(plan_of(placement::v_shape(2), true), backend, stages);
    for (int step = 0; step < 2; ++step) pipe.step();
    freeze_some(slices);
    auto const statistics = statistics_of(slices);
    auto const modes = modes_of(slices);
    CHECK(std::ranges::count(modes, true) > 2);
    CHECK(std::ranges::count(modes, false) > 2);
    auto const first = pipe.evaluate().losses;
    auto const second = pipe.evaluate().losses;
    tensors outputs(microbatches);
    std::vector<bool> seen;
    pipe.evaluate([&](zbpp::evaluation_output const& out) {
      auto const& values = out.message.get<zbpp::torch::edge_tensors>().values;
      outputs[static_cast<std::size_t>(out.microbatch)] = values.front();
      seen = modes_of(slices);
    });
    CHECK(modes_of(slices) == modes);
    std::vector<bool> evaluating(modes.size(), false);
    evaluating[5] = true;  // the Sequential whose layers alone a layer_sequence calls
    CHECK(seen == evaluating);
    CHECK(same_bits(statistics_of(slices), statistics));
    auto const expected = plain_evaluation(slices, 2, microbatches);
    CHECK(first == expected);
    CHECK(second == expected);
    for (int mb = 0; mb < microbatches; ++mb)
      CHECK(
          normed_loss(outputs[static_cast<std::size_t>(mb)]).item<double>() ==
          expected[static_cast<std::size_t>(mb)]);
  });
}

TEST_CASE("an evaluation that fails leaves modules as they were, too", "[torch]") {
  on_backends([](auto const& backend) {
    auto const slices = normed_slices(4, 0.5);
    freeze_some(slices);
    auto const modes = modes_of(slices);
    auto ends = normed_ends();
    bool fails = true;
    ends.loss = [&fails, loss = ends.loss](tensors const& out, microbatch mb) {
      if (fails && mb.index() == 2) throw std::runtime_error("no loss");
      return loss(out, mb);
    };
    auto stages = stages_of(slices, ends);
    zbpp::pipeline pipe(plan_of(placement::v_shape(2), false), backend, stages);
    CHECK_THAT(
        refusal(zbpp::errc::pass_failed, [&] { pipe.evaluate(); }), Catch::Contains("no loss"));
    CHECK(modes_of(slices) == modes);
    fails = false;
    auto const statistics = statistics_of(slices);
    auto const found = pipe.evaluate().losses;
    CHECK(modes_of(slices) == modes);
    CHECK(same_bits(statistics_of(slices), statistics));
    CHECK(found == plain_evaluation(slices, 0, microbatches));
  });
}

namespace {

// A flow of one's own, of which an evaluation runs F.
class own_stage {
 public:
  explicit own_stage(nn::Sequential net) : net_(std::move(net)) {}

  zbpp::flow operator()(microbatch mb) {
    co_await zbpp::F([&] {
      c10::AutoGradMode const off(false);
      mb.report_loss(normed_loss(net_->forward(normed_batch(mb.index()))).item<double>());
    });
  }
  // [evaluation_scope
  // Lasts from before the first F of an evaluation until what this gives ends.
  std::shared_ptr<void> evaluation_scope() { return zbpp::torch::evaluation_scope({net_.get()}); }
  // evaluation_scope]

 private:
  nn::Sequential net_;
};

}  // namespace

TEST_CASE("a stage of one's own may have a mode, and stages may share a module", "[torch]") {
  on_backends([](auto const& backend) {
    auto const own = normed_slices(1, 0.5);
    std::vector<own_stage> of_own{own_stage(own[0])};
    zbpp::pipeline alone(plan_of(placement::linear(1), false), backend, of_own);
    auto const found = alone.evaluate().losses;
    CHECK(own[0]->is_training());
    CHECK(found == plain_evaluation(own, 0, microbatches));

    nn::Dropout const dropout(0.5);
    slice_list slices;
    for (int s = 0; s < 2; ++s)
      slices.emplace_back(nn::Sequential(nn::BatchNorm1d(norm_width), dropout));
    slices[0]->push_back(dropout);  // twice in one stage
    auto const modes = modes_of(slices);
    auto stages = stages_of(slices, normed_ends());
    zbpp::pipeline pipe(plan_of(placement::linear(2), false), backend, stages);
    auto const statistics = statistics_of(slices);
    for (int i = 0; i < 2; ++i) pipe.evaluate();
    CHECK(modes_of(slices) == modes);
    CHECK(same_bits(statistics_of(slices), statistics));
  });
}

TEST_CASE("R moves no running statistics", "[torch][recompute]") {
  on_backends([](auto const& backend) {
    for (auto const& placed : {placement::linear(4), placement::v_shape(2)}) {
      auto const expected = normed_slices(4);
      auto const slices = normed_slices(4);
      auto stages = stages_of(slices, normed_ends());
      zbpp::pipeline pipe(plan_of(placed, true), backend, stages);
      for (int step = 0; step < 3; ++step) {
        CHECK(pipe.step().losses == plain_losses(expected, step, microbatches));
        CHECK(same_bits(gradients_of(slices), gradients_of(expected)));
        CHECK(same_bits(statistics_of(slices), statistics_of(expected)));
      }
    }
  });
}

namespace {

// Has buffers that are written in place, replaced, of a size that varies, and used by autograd.
struct counting_impl : nn::Module {
  counting_impl()
      : sum(register_buffer("sum", at::zeros({norm_width}))),
        last(register_buffer("last", at::zeros({1}))),
        average(&register_buffer("average", at::zeros({norm_width}))),
        scale(register_parameter("scale", at::ones({norm_width}))) {}
  at::Tensor forward(at::Tensor const& x) {
    {
      c10::AutoGradMode const off(false);
      sum.add_(x.detach().sum(0));
      last.set_data(x.detach().clone());
      *average = *average * 0.5 + x.detach().mean(0);
    }
    return x * scale;
  }
  at::Tensor sum, last;
  at::Tensor* average;  // the place of the last one stays
  at::Tensor scale;
};

}  // namespace

TEST_CASE("R leaves buffers of all kinds as F left them", "[torch][recompute]") {
  on_backends([](auto const& backend) {
    auto const run = [&](bool recomputes) {
      auto const counting = std::make_shared<counting_impl>();
      auto ends = normed_ends();
      ends.batch = [](microbatch mb) -> tensors {  // of sizes that vary
        return {random_tensor({mb.index() + 2, norm_width}, mb.index())};
      };
      std::vector<module_stage<>> stages;
      stages.emplace_back(counting, ends);
      stages.emplace_back([](at::Tensor const& x) { return x.tanh(); }, ends);
      zbpp::pipeline pipe(plan_of(placement::linear(2), recomputes), backend, stages);
      for (int step = 0; step < 2; ++step) pipe.step();
      tensors all = counting->buffers();
      all.push_back(counting->scale.grad());
      return all;
    };
    CHECK(same_bits(run(true), run(false)));
  });
}

namespace {

bool has_r(zbpp::schedule const& order) {
  bool found = false;
  for (int rank = 0; rank < order.ranks(); ++rank)
    for (auto const& each : order.passes(rank))
      found = found || each.kind == zbpp::pass_kind::recompute;
  return found;
}

}  // namespace

TEST_CASE("statistics move once where auto_pipeline chose to recompute", "[torch][auto]") {
  auto const limit = one_thread_each();
  auto const expected = normed_slices(2);
  for (int step = 0; step < 3; ++step)
    static_cast<void>(plain_losses(expected, step, microbatches));
  auto const slices = normed_slices(2);
  zbpp::torch::auto_settings settings{.ranks = 2, .microbatches = microbatches};
  settings.costs.assign(
      2, {.forward = 10, .recompute = 1, .activation = 1000, .recompute_input = 1});
  settings.memory_limits = {1500};  // of one microbatch without R
  settings.pipeline.plan.placement = placement::linear(2);
  auto pipe = zbpp::torch::auto_pipeline(
      std::vector<layer>{slices[0], slices[1]},
      normed_ends(),
      [](tensors const&) { return zbpp::torch::no_step{}; },
      settings);
  for (int step = 0; step < 3; ++step) pipe.step();
  CHECK(has_r(pipe.chosen().schedule));
  CHECK(same_bits(statistics_of(slices), statistics_of(expected)));
  CHECK(same_bits(gradients_of(slices), gradients_of(expected)));
}

namespace {

constexpr int replicas = 2;

// Masks of a step of two replicas. @param draws_same  whether replicas shall have the same ones
template <class Backend>
std::vector<tensors> masks_of_replicas(Backend const& backend, bool draws_same) {
  auto const planned = zbpp::make_plan(
      zbpp::zb_h1{},
      zbpp::with_replicas(
          zbpp::problem(placement::linear(2), microbatches, zbpp::stage_costs{.forward = 10}),
          {.count = replicas}));
  zbpp::in_process_grid whole({.pipeline = 2, .data = replicas});
  std::vector<tensors> masks(replicas, tensors(microbatches));
  whole.run([&](zbpp::grid_place const& at) {
    auto& own = masks[static_cast<std::size_t>(at.data())];
    stage_ends const ends{
        .batch = [&](microbatch mb) -> tensors {
          // [place_of
          auto place = zbpp::torch::place_of(mb, 42);  // 42 is the seed of the run
          if (draws_same) place.replica = 0;
          at::Tensor const mask = zbpp::torch::dropout(at::ones({64}), 0.5, place);
          // place_of]
          own[static_cast<std::size_t>(mb.index())] = mask;
          return {mask};
        },
        .loss = [](tensors const& out, microbatch) { return out.front().sum(); }};
    std::vector<module_stage<>> stages;
    for (int s = 0; s < 2; ++s) {
      auto const w = at::ones({64}).requires_grad_();
      stages.emplace_back([w](at::Tensor const& x) { return x * w; }, ends);
    }
    auto placed = backend;
    placed.place = at;
    zbpp::pipeline replica(planned, placed, stages);
    replica.step();
  });
  return masks;
}

}  // namespace

TEST_CASE("replicas draw numbers of their own by place, or the same", "[torch][replicas]") {
  on_backends([](auto const& backend) {
    auto const own = masks_of_replicas(backend, false);
    auto const same = masks_of_replicas(backend, true);
    CHECK(same_bits(same[1], same[0]));
    CHECK(same_bits(same[0], own[0]));
    for (std::size_t mb = 0; mb < microbatches; ++mb) {
      CHECK_FALSE(same_bits(own[1][mb], own[0][mb]));
      // What a model without replicas draws at the place.
      CHECK(same_bits(
          own[0][mb],
          zbpp::torch::dropout(
              at::ones({64}), 0.5, {.seed = 42, .microbatch = static_cast<std::int64_t>(mb)})));
    }
  });
}

namespace {

// Has autocast around it on this thread, whatever it runs.
void with_autocast(std::function<void()> const& run) {
  at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
  at::autocast::set_cpu_enabled(true);
  run();
  CHECK(at::autocast::is_cpu_enabled());
  at::autocast::set_cpu_enabled(false);
  at::autocast::clear_cache();
}

}  // namespace

TEST_CASE("LibTorch's state of the calling thread does not reach passes", "[torch][mixed]") {
  auto const callers = {
      std::function([](std::function<void()> const& run) { run(); }),
      std::function(with_autocast),
      std::function([](std::function<void()> const& run) {
        c10::AutoGradMode const off(false);
        run();
      }),
      std::function([](std::function<void()> const& run) {
        c10::InferenceMode const on;
        run();
      })};
  on_backends([&](auto const& backend) {
    for (bool const recomputes : {false, true}) {
      auto const expected = normed_slices(4);
      auto const slices = normed_slices(4);
      auto ends = normed_ends();
      at::Tensor const w = at::ones({norm_width, norm_width});
      // Autocast would have it in bf16.
      ends.loss = [w, loss = ends.loss](tensors const& out, microbatch mb) {
        CHECK(out.front().matmul(w).scalar_type() == at::kFloat);
        return loss(out, mb);
      };
      int updates = 0;
      std::vector<module_stage<std::function<void()>>> stages;
      for (auto const& slice : slices)
        stages.emplace_back(slice, ends, [&, w] {
          ++updates;
          if (w.matmul(w).scalar_type() != at::kFloat || w.matmul(w).is_inference()) updates = -9;
        });
      zbpp::pipeline pipe(plan_of(placement::custom({0, 0, 0, 0}), recomputes), backend, stages);
      int step = 0;
      for (auto const& caller : callers) {
        auto const losses = plain_losses(expected, step, microbatches);
        caller([&] { CHECK(pipe.step().losses == losses); });
        CHECK(same_bits(gradients_of(slices), gradients_of(expected)));
        CHECK(same_bits(statistics_of(slices), statistics_of(expected)));
        CHECK(updates == 4 * ++step);
        std::vector<double> evaluated;
        caller([&] { evaluated = pipe.evaluate().losses; });
        CHECK(evaluated == plain_evaluation(expected, step, microbatches));
        for (auto slice : expected) slice->train();
      }
    }
  });
}

}  // namespace test_torch_modes
