// SPDX-License-Identifier: Apache-2.0
//
// Modules as stages of pipelines give the bits of a plain loop of LibTorch.
#include <zbpp/optim/adamw.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/torch_training.hpp>
// After LibTorch, whose macros torch_checks.hpp takes away.
#include <support/same_bits.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace test_torch_stage {

using namespace zbpp::test;
using zbpp::microbatch;
using zbpp::plan;
using zbpp::torch::edge_tensors;
using zbpp::torch::module_stage;
using zbpp::torch::tensors;

namespace {

constexpr int steps = 2;

// Steps as optimizers of LibTorch do.
class descent {
 public:
  explicit descent(tensors parameters) : parameters_(std::move(parameters)) {}

  void step() const {
    c10::AutoGradMode const off(false);
    for (auto const& p : parameters_) p.sub_(p.grad() * 0.05);
  }
  void zero_grad() const {
    for (auto const& p : parameters_) p.mutable_grad().reset();
  }

 private:
  tensors parameters_;
};

void descend(tensors const& parameters) {
  descent const optimizer(parameters);
  optimizer.step();
  optimizer.zero_grad();
}

using step_call = std::function<void()>;
using step_pointer = std::shared_ptr<descent>;

template <class Step, class Backend>
torch_outcome pipelined(torch_model const& model, plan const& planned, Backend backend) {
  std::vector<module_stage<Step>> stages;
  for (auto const& slice : model.slices) {
    if constexpr (std::same_as<Step, step_pointer>)
      stages.emplace_back(
          slice.forward, ends_of(model), std::make_shared<descent>(slice.parameters));
    else
      stages.emplace_back(slice.forward, ends_of(model), [&slice] { descend(slice.parameters); });
  }
  zbpp::pipeline pipe{planned, backend, stages};
  torch_outcome made;
  for (int step = 0; step < steps; ++step) {
    auto const evaluated = pipe.evaluate().losses;
    auto const& losses = pipe.step().losses;
    if (evaluated != losses) made.losses.push_back(-1);
    made.losses.insert(made.losses.end(), losses.begin(), losses.end());
  }
  made.weights = weights_of(model);
  return made;
}

std::vector<std::function<torch_model(std::int64_t slices)>> models() {
  return {
      [](std::int64_t slices) { return mlp_model(run_seed(), slices, 2, 6, 3); },
      [](std::int64_t slices) { return gpt_model(run_seed(), slices, 1, 8, 2, 4); },
      [](std::int64_t slices) { return cnn_model(run_seed(), slices, 1, 4, 2, 5); }};
}

zbpp::torch::stage_ends only_loss() {
  return {.loss = [](tensors const& outputs, microbatch) { return outputs.front(); }};
}

}  // namespace

TEST_CASE("modules as stages give the bits of a plain loop", "[torch][stage]") {
  auto const threads = one_thread_each();
  for (auto const& make : models()) {
    auto const model_of = [&](plan const& planned) { return make(planned.problem().stages()); };
    INFO(make(2).name);
    same_bits(
        [&](plan const& planned) {
          auto const model = model_of(planned);
          return train_plainly(model, steps, planned.problem().microbatches(), [&] {
            for (auto const& slice : model.slices) descend(slice.parameters);
          });
        },
        {{"virtual time, a call steps",
          [&](plan const& planned, auto) {
            return pipelined<step_call>(model_of(planned), planned, zbpp::virtual_time{});
          }},
         {"threads, an optimizer steps",
          [&](plan const& planned, auto) {
            return pipelined<step_pointer>(model_of(planned), planned, threads);
          }}},
        {{"every policy and recomputation", {2}, only(4), torch_problem, {.recomputed = true}}});
  }
}

TEST_CASE("optimizers of zbpp step modules, clipped or not, as on one rank", "[torch][stage]") {
  auto const train = [](plan const& planned, auto backend, double clip) {
    auto const model = gpt_model(run_seed(), planned.problem().stages(), 1, 8, 2, 4);
    std::vector<module_stage<zbpp::optim::adamw>> stages;
    for (auto const& slice : model.slices)
      stages.emplace_back(
          slice.forward,
          ends_of(model),
          zbpp::optim::adamw(zbpp::torch::layers_of(slice.parameters)));
    zbpp::pipeline pipe{planned, backend, stages, {.clip = clip}};
    return train_in(pipe, model, 4);
  };
  auto const threads = one_thread_each();
  zbpp::stage_costs const costs{.forward = 10};
  for (double const clip : {0.0, 1e-3}) {
    auto const options = clip > 0 ? zbpp::step_kind::synchronous : zbpp::step_kind::unchecked;
    zbpp::problem const alone(zbpp::placement::custom({0, 0, 0, 0}), 4, costs);
    auto const expected = train(
        zbpp::make_plan(zbpp::greedy_auto{}, alone, {.step = options}), zbpp::virtual_time{}, clip);
    zbpp::problem const shared(zbpp::placement::v_shape(2), 4, costs, 1);
    auto const planned =
        zbpp::make_plan(zbpp::zb_v{}, shared, {.step = zbpp::step_kind::post_validated});
    CHECK(is_same(train(planned, threads, clip), expected));
  }
}

TEST_CASE("an edge carries tensors of any type and stride, and undefined ones", "[torch][stage]") {
  // Two stages: x, its transpose, tokens and nothing go over the edge.
  auto const w = at::full({3, 2}, 0.5F).requires_grad_();
  auto const first = [w](tensors const& in) -> tensors {
    auto const y = at::linear(in[0], w);
    return {y, y.t(), in[1], at::Tensor(), y.expand({2, y.size(0), y.size(1)})};
  };
  auto const second = [](tensors const& in) -> tensors {
    REQUIRE(in.size() == 5);
    REQUIRE_FALSE(in[3].defined());
    REQUIRE(in[2].scalar_type() == at::kLong);
    REQUIRE_FALSE(in[2].requires_grad());
    return {
        (in[0] * 2).sum() + in[1].pow(2).sum() + in[4].sum() + in[0].index_select(1, in[2]).sum()};
  };
  auto const batch = [](std::int64_t mb) -> tensors {  // with shapes that vary
    return {
        at::arange(2 * (mb + 1), at::kFloat).view({mb + 1, 2}), at::tensor({1, 0, 1}, at::kLong)};
  };
  for (int mb = 0; mb < 4; ++mb) second(first(batch(mb))).front().backward();
  auto const expected = std::exchange(w.mutable_grad(), at::Tensor());
  std::vector<module_stage<>> stages;
  stages.emplace_back(
      first, zbpp::torch::stage_ends{.batch = [&](microbatch mb) { return batch(mb.index()); }});
  stages.emplace_back(second, only_loss());
  zbpp::problem const problem(
      zbpp::placement::linear(2), 4, zbpp::stage_costs{.forward = 10, .recompute = 10});
  for_each_plan_of(problem, {.recomputed = true}, [&](std::string const& name, plan const& p) {
    INFO(name);
    zbpp::pipeline pipe{p, zbpp::virtual_time{}, stages};
    pipe.step();
    CHECK(same_bits(std::exchange(w.mutable_grad(), at::Tensor()), expected));
  });
}

TEST_CASE("tensors come back from their bytes, and no others do", "[torch][stage]") {
  zbpp::arena memory;
  zbpp::pass_context const ctx(memory);
  auto const x = random_tensor({2, 3, 4}, 1);
  edge_tensors sent{
      {x,
       x.permute({2, 0, 1}),
       x.expand({2, 2, 3, 4}),
       at::Tensor(),
       at::arange(5, at::kLong),
       at::ones({}, at::kBool),
       at::empty({0, 3}),
       x.select(2, 1)},
      {true, false, true, false, false, false, true, true}};
  auto const copy = sent;
  auto const size = zbpp::torch::edge_size(sent.values);
  auto bytes = ctx.make_edge(std::move(sent), size).to_bytes();
  CHECK(static_cast<zbpp::bytes>(bytes.size()) == size);
  zbpp::message const arrived(bytes);
  auto const& back = arrived.get<edge_tensors>();
  CHECK(same_bits(back.values, copy.values));
  CHECK(back.needs_gradient == copy.needs_gradient);
  CHECK(back.values[1].strides() == copy.values[1].strides());

  // No part of it is taken for all of it, and no byte that is wrong makes it read elsewhere.
  auto const read = [&](zbpp::buffer const& from) {
    try {
      auto const made = zbpp::serializer<edge_tensors>::read(from);
      for (auto const& each : made.values)
        if (each.defined()) static_cast<void>(each.contiguous());
    } catch (zbpp::error const&) {
      return false;
    }
    return true;
  };
  CHECK(read(bytes));
  for (std::size_t shorter = 0; shorter < bytes.size(); ++shorter) {
    auto const part = ctx.allocate(shorter);
    std::memcpy(part.data(), bytes.data(), shorter);
    CHECK_FALSE(read(part));
  }
  ZBPP_SEEDED(random, 7);
  for (int i = 0; i < 2000; ++i) {
    auto const wrong = ctx.allocate(bytes.size());
    std::memcpy(wrong.data(), bytes.data(), bytes.size());
    for (auto changes = random.integer(1, 3); changes > 0; --changes)
      wrong.as<std::uint8_t>()[static_cast<std::size_t>(
          random.integer(0, std::ssize(bytes.as<std::uint8_t>()) - 1))] =
          static_cast<std::uint8_t>(random.integer(0, 255));
    static_cast<void>(read(wrong));
  }
}

TEST_CASE("what a stage of modules lacks is said", "[torch][stage]") {
  auto const identity = [](at::Tensor const& x) { return x; };
  auto const text = [&](zbpp::torch::stage_ends first, zbpp::torch::stage_ends last) {
    std::vector<module_stage<>> stages;
    stages.emplace_back(identity, std::move(first));
    stages.emplace_back(identity, std::move(last));
    auto const planned = zbpp::make_plan(
        zbpp::zb_h1{},
        zbpp::problem(zbpp::placement::linear(2), 2, zbpp::stage_costs{.forward = 1}));
    zbpp::pipeline pipe{planned, zbpp::virtual_time{}, stages};
    return refusal([&] { pipe.step(); });
  };
  auto const batch = [](microbatch) -> tensors { return {at::ones({2, 2})}; };
  CHECK_THAT(
      text({}, only_loss()),
      Catch::Contains("the first stage needs stage_ends::batch, its inputs"));
  CHECK_THAT(
      text({.batch = batch}, {}),
      Catch::Contains("the last stage needs stage_ends::loss to train"));
  CHECK_THAT(
      text({.batch = batch}, only_loss()),
      Catch::Contains("stage_ends::loss gives a tensor of one number"));
  CHECK_THAT(
      text(
          {.batch = [](microbatch) -> tensors {
            return {at::ones(1), at::ones(1)};
          }},
          only_loss()),
      Catch::Contains("a module that takes one tensor got 2; let its forward take "
                      "zbpp::torch::tensors"));
  CHECK_THAT(
      refusal([] {
        static_cast<void>(zbpp::torch::layers_of({at::ones(2, at::kDouble).requires_grad_()}));
      }),
      Catch::Contains("parameter 0 is not a contiguous tensor of 32-bit floats on the host"));
  CHECK_THAT(
      refusal([&] { static_cast<void>(module_stage(identity, only_loss(), step_pointer())); }),
      Catch::Contains("a module_stage got a null pointer to an optimizer"));
}

}  // namespace test_torch_stage
