// SPDX-License-Identifier: Apache-2.0
//
// Parameters that stages share train alike however the model is split, and as in a plain loop.
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/torch_tied.hpp>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace test_torch_tied {

using namespace zbpp::test;
using zbpp::microbatch;
using zbpp::step_kind;
using zbpp::torch::module_stage;
using zbpp::torch::tensors;
using zbpp::torch::tied_parameter;

namespace {

template <class Backend>
torch_outcome train(
    tied_model const& model,
    zbpp::plan const& planned,
    Backend backend,
    zbpp::training_options const& options,
    int& amended) {
  auto stages = adamw_stages(model.slices, all_stages(planned), model.tied.leaves());
  zbpp::pipeline pipe{planned, backend, stages, options};
  torch_outcome made;
  pipe.run(tied_steps, [&](zbpp::step_result const& result) {
    made.losses.insert(made.losses.end(), result.losses.begin(), result.losses.end());
    amended += result.update.is_amended ? 1 : 0;
  });
  made.weights = weights_of(model.slices);
  return made;
}

}  // namespace

TEST_CASE("tied parameters train alike in any split", "[torch][tied]") {
  auto const threads = one_thread_each();
  int amended = 0;
  for (double const clip : {0.0, 1e-3}) {
    zbpp::training_options const options{.clip = clip};
    auto const expected = tied_plain_loop(options);
    for (auto const& placement : tied_placements())
      for (auto const kind : {step_kind::synchronous, step_kind::post_validated}) {
        INFO(placement.name() << " of " << placement.ranks() << ", clip " << clip);
        auto const planned = tied_plan(placement, kind);
        auto const trained = [&](auto backend) {
          return train(make_tied_model(placement.stages()), planned, backend, options, amended);
        };
        CHECK(is_same(trained(zbpp::virtual_time{}), expected));
        CHECK(is_same(trained(threads), expected));
      }
  }
  CHECK(amended > 0);
}

TEST_CASE("an embedding that is the output layer too trains as in a plain loop", "[torch][tied]") {
  auto const threads = one_thread_each();
  constexpr int microbatches = 4;
  auto const plain = gpt_model(run_seed(), 4, 1, 8, 2, 4);
  tied_parameter const tied(
      {plain.slices.front().parameters.front(), plain.slices.back().parameters.back()});
  plain_steps optimizer(parameters_of(plain), {}, tied.leaves());
  for (int step = 0; step < tied_steps; ++step) {
    static_cast<void>(plain_microbatches(plain, step, microbatches));
    tied.sum_gradients();
    optimizer.step();
  }

  auto const model = gpt_model(run_seed(), 4, 1, 8, 2, 4);
  auto const embedding = model.slices.front().parameters.front();
  auto const output = model.slices.back().parameters.back();
  auto const ends = ends_of(model);
  std::vector<zbpp::stage_costs> costs(4, {.forward = 10});
  // [tied
  zbpp::torch::tied_parameter const table({embedding, output});  // a leaf for each use
  costs.front().tied = costs.back().tied = table.size();
  zbpp::problem const problem(zbpp::placement::v_shape(2), microbatches, costs);
  std::vector<zbpp::torch::module_stage<zbpp::optim::adamw>> stages;
  for (auto const& slice : model.slices)
    stages.emplace_back(
        slice.forward,
        ends,
        zbpp::optim::adamw(zbpp::torch::layers_of(slice.parameters, table.leaves())));
  auto const plan =
      zbpp::make_plan(zbpp::zb_v{}, problem, {.step = zbpp::step_kind::post_validated});
  // tied]
  zbpp::pipeline pipe{plan, threads, stages};
  pipe.run(tied_steps);
  CHECK(same_bits(weights_of(model), weights_of(plain)));
  CHECK(same_bits(embedding, output));
}

namespace {

// What a step of LibTorch's SGD does, whose header takes long to compile.
void descend(tensors const& parameters) {
  c10::AutoGradMode const off(false);
  for (auto p : parameters) {
    p.sub_(p.grad() * 0.05);
    p.mutable_grad().zero_();
  }
}

}  // namespace

TEST_CASE("tied parameters train with an optimizer of LibTorch between steps", "[torch][tied]") {
  auto const threads = one_thread_each();
  auto const plain = make_tied_model(1);
  for (int step = 0; step < tied_steps; ++step) {
    static_cast<void>(plain_microbatches(plain.slices, step, tied_microbatches));
    plain.tied.sum_gradients();
    descend(parameters_of(plain.slices));
  }
  auto const model = make_tied_model(4);
  auto const& slices = model.slices.slices;
  auto const& tied = model.tied;
  auto const plan = make_plan(
      zbpp::zb_v{},
      zbpp::problem(
          zbpp::placement::v_shape(2), tied_microbatches, zbpp::stage_costs{.forward = 10}),
      {.step = step_kind::none});
  std::vector<module_stage<>> stages;
  for (auto const& slice : slices) stages.emplace_back(slice.forward, ends_of(model.slices));
  std::vector<std::function<void()>> optimizers;
  for (auto const& slice : slices) optimizers.emplace_back([&] { descend(slice.parameters); });
  zbpp::pipeline pipe{plan, threads, stages};
  for (int i = 0; i < tied_steps; ++i) {
    // [between_steps
    pipe.step();  // of a plan with step_kind::none
    tied.sum_gradients();
    for (auto const& step : optimizers) step();
    // between_steps]
  }
  CHECK(same_bits(weights_of(model.slices), weights_of(plain.slices)));
}

TEST_CASE("gradients of tied parameters are added from the first to the last", "[torch][tied]") {
  auto const first = at::ones({2}).requires_grad_();
  tied_parameter const tied(
      {first,
       tied_parameter::leaf(first),
       tied_parameter::leaf(first),
       at::zeros({2}).requires_grad_()});
  CHECK(tied.size() == 8);
  for (auto const& each : tied.leaves()) CHECK(same_bits(each, first));
  tied.sum_gradients();  // of none
  CHECK_FALSE(first.grad().defined());
  auto const set = [&](std::size_t leaf, float value) {
    tied.leaves()[leaf].mutable_grad() = at::full({2}, value);
  };
  set(0, 1e8F);
  set(1, -1e8F);
  set(3, 1);
  auto const kept = tied.leaves()[3].grad();
  tied.sum_gradients();
  for (auto const& each : tied.leaves()) CHECK(same_bits(each.grad(), at::ones({2})));
  CHECK(same_bits(kept, at::ones({2})));  // the same tensor as before
  set(0, 1);
  set(1, 1e8F);
  set(2, -1e8F);
  set(3, 0);
  tied.sum_gradients();
  CHECK(same_bits(first.grad(), at::zeros({2})));
}

TEST_CASE("what is not one parameter is not tied", "[torch][tied]") {
  auto const leaf = at::ones({2, 2}).requires_grad_();
  auto const text = [](tensors leaves) { return refusal([&] { tied_parameter{leaves}; }); };
  CHECK(text({}) == "a tied_parameter has a leaf for each use; it got none");
  for (auto const& wrong : {at::Tensor(), at::ones({2, 2}), leaf * 2})
    CHECK(
        text({leaf, wrong}) ==
        "leaf 1 of a tied_parameter is no leaf that is trained; make it with tied_parameter::leaf");
  for (auto const& wrong : {at::ones({4}), at::ones({2, 2}, at::kDouble)})
    CHECK(
        text({leaf, tied_parameter::leaf(leaf), wrong.requires_grad_()}) ==
        "leaf 2 of a tied_parameter has another type or other sizes than the first; all are the "
        "same parameter");
  CHECK(
      text({leaf, leaf.detach().requires_grad_()}) ==
      "leaf 1 of a tied_parameter has the memory of another one; make it with "
      "tied_parameter::leaf");
}

}  // namespace test_torch_tied
