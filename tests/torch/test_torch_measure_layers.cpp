// SPDX-License-Identifier: Apache-2.0
//
// What is measured of layers is what they keep, to the byte, and partition takes it.
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/torch_checks.hpp>
#include <support/torch_models.hpp>
// Behind the headers of LibTorch, which have a CHECK of their own.
#include <support/settings_fields.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace test_torch_measure_layers {

using namespace zbpp::test;
using zbpp::bytes;
using zbpp::torch::measure_layers;
using zbpp::torch::tensors;

namespace {

constexpr std::int64_t rows = 64;
constexpr std::int64_t narrow = 16;
constexpr std::int64_t wide = 48;

bytes size_of(std::int64_t values) { return values * static_cast<bytes>(sizeof(float)); }

at::Tensor sum(tensors const& outputs) { return outputs.front().sum(); }

}  // namespace

TEST_CASE("what layers keep is measured to the byte", "[torch][measure]") {
  auto const w = random_tensor({wide, narrow}, 1).requires_grad_();
  auto const v = random_tensor({narrow, wide}, 2).requires_grad_();
  auto const up = [w](at::Tensor const& x) { return at::linear(x, w); };
  auto const down = [v](at::Tensor const& x) { return at::linear(x, v); };
  auto const gelu = [](at::Tensor const& x) { return at::gelu(x); };
  auto const pass = [](at::Tensor const& x) { return x * 2; };
  auto const costs = measure_layers(
      {up, gelu, down, pass}, {random_tensor({rows, narrow}, 3)}, sum, {.can_recompute = true});
  REQUIRE(costs.size() == 4);

  // A product keeps its input, and B adds the gradient of its output. The first one has an input
  // without a gradient: B does nothing, and W does it all.
  CHECK(costs[0].activation == size_of(rows * narrow));
  CHECK(costs[0].weight_gradient_input == size_of(rows * (narrow + wide)));
  CHECK(costs[2].activation == size_of(rows * wide));
  CHECK(costs[2].weight_gradient_input == size_of(rows * (wide + narrow)));
  CHECK(costs[2].output_gradient == size_of(rows * narrow));
  // A function without weights keeps its input for B, and nothing for W.
  CHECK(costs[1].activation == size_of(rows * wide));
  CHECK(costs[1].weight_gradient_input == 0);
  CHECK(costs[1].output_gradient == 0);
  CHECK(costs[1].recompute_input == size_of(rows * wide));
  // Autograd keeps nothing for a product with a constant; the stage keeps its input until B.
  CHECK(costs[3].activation == size_of(rows * narrow));
  CHECK(costs[3].weight_gradient_input == 0);

  CHECK(costs[0].edge == zbpp::torch::edge_size({at::empty({rows, wide})}));
  CHECK(costs[3].edge == 0);
  for (std::size_t i = 0; i < costs.size(); ++i) {
    INFO("layer " << i);
    CHECK_NOTHROW(costs[i].check(static_cast<int>(i)));
    CHECK(costs[i].forward > 0);
    CHECK(costs[i].workspace >= 0);
    CHECK(costs[i].recompute == costs[i].forward);
  }
}

TEST_CASE("an undefined tensor beside others costs nothing but its place", "[torch][measure]") {
  auto const w = random_tensor({wide, narrow}, 1).requires_grad_();
  auto const v = random_tensor({narrow, wide}, 2).requires_grad_();
  auto const open = [w](tensors const& in) -> tensors {
    return {at::linear(in.front(), w), at::Tensor()};
  };
  auto const close = [v](tensors const& in) -> tensors { return {at::linear(in.front(), v)}; };
  auto const pass = [](at::Tensor const& x) { return x * 2; };
  auto const costs = measure_layers({open, close, pass}, {random_tensor({rows, narrow}, 3)}, sum);
  CHECK(costs[0].edge == zbpp::torch::edge_size({at::empty({rows, wide}), at::Tensor()}));
  CHECK(costs[1].activation == size_of(rows * wide));
  CHECK(costs[1].output_gradient == size_of(rows * narrow));
}

TEST_CASE("layers are cut by what was measured of a model", "[torch][measure]") {
  for (auto const& model :
       {mlp_model(run_seed(), 6, 1, 8, 4),
        gpt_model(run_seed(), 4, 1, 8, 2, 4),
        cnn_model(run_seed(), 5, 1, 4, 2, 5)}) {
    INFO(model.name);
    std::vector<zbpp::torch::layer> layers;
    for (auto const& slice : model.slices) layers.emplace_back(slice.forward);
    auto const costs = measure_layers(
        layers, {model.batch(0)}, [](tensors const& outputs) { return outputs.front(); });
    zbpp::problem const measured(costs, {.ranks = 2, .microbatches = 4});
    auto const found =
        find_plan(measured, {.placement = zbpp::placement::linear(2), .policy = zbpp::zb_h1{}});
    CHECK(found.problem.first_layer().size() == 2);
  }
}

TEST_CASE("measuring nothing is refused", "[torch][measure]") {
  CHECK(refusal([] {
          static_cast<void>(measure_layers({}, {}, sum));
        }) == "measure_layers takes one layer at least");
  auto const same = [](at::Tensor const& x) { return x; };
  CHECK(refusal([&] {
          static_cast<void>(measure_layers({same}, {at::ones(1)}, sum, {.runs = 0}));
        }) == "measure_layers takes 1 run or more, and 0 or more to warm up");
}

TEST_CASE("each option of measuring has an effect", "[torch][measure][settings]") {
  using options = zbpp::torch::measure_options;
  changed_field<options> const fields[]{
      {"warm_up", [](auto& o) { o.warm_up = 0; }},
      {"runs", [](auto& o) { o.runs = 3; }},
      {"can_recompute", [](auto& o) { o.can_recompute = true; }}};
  check_fields(fields, {}, [](options const& given) {
    int runs = 0;
    auto const w = random_tensor({wide, narrow}, 1).requires_grad_();
    auto const counted = [w, &runs](at::Tensor const& x) {
      ++runs;
      return at::linear(x, w);
    };
    auto const costs = measure_layers({counted}, {random_tensor({rows, narrow}, 3)}, sum, given);
    return std::to_string(runs) + (costs[0].recompute ? " runs, recomputes" : " runs, keeps");
  });
}

}  // namespace test_torch_measure_layers
