// SPDX-License-Identifier: Apache-2.0
//
// What modules of stages may take and give, and what is told where LibTorch throws.
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/torch_training.hpp>

#include <array>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <tuple>
#include <utility>
#include <vector>

namespace test_torch_modules {

using namespace zbpp::test;
using zbpp::microbatch;
using zbpp::torch::measure_layers;
using zbpp::torch::module_stage;
using zbpp::torch::stage_ends;
using zbpp::torch::tensors;
namespace nn = ::torch::nn;

namespace {

struct not_a_tensor {};

static_assert(zbpp::torch::stage_outputs<at::Tensor>);
static_assert(zbpp::torch::stage_outputs<tensors const&>);
static_assert(zbpp::torch::stage_outputs<std::array<at::Tensor, 2>>);
static_assert(zbpp::torch::stage_outputs<std::pair<at::Tensor, tensors>>);
static_assert(zbpp::torch::stage_outputs<std::tuple<at::Tensor&, std::tuple<at::Tensor, tensors>>>);
static_assert(!zbpp::torch::stage_outputs<int>);
static_assert(!zbpp::torch::stage_outputs<void>);
static_assert(!zbpp::torch::stage_outputs<std::tuple<at::Tensor, int>>);
static_assert(zbpp::torch::stage_module<nn::LSTM>);
static_assert(zbpp::torch::stage_module<nn::Sequential>);
static_assert(zbpp::torch::stage_module<std::shared_ptr<nn::BilinearImpl>>);
static_assert(!zbpp::torch::stage_module<not_a_tensor>);
static_assert(!zbpp::torch::stage_module<module_stage<>>);

tensors call(auto module, tensors const& in) {
  return zbpp::torch::detail::forward_of(std::move(module))(in);
}

// Two stages, the first of which throws in a pass.
std::string text_of_failure(auto first, auto step, auto const& backend) {
  stage_ends const ends{
      .batch = [](microbatch) -> tensors {
        return {at::ones({2, 2})};
      },
      .loss = [](tensors const& outputs, microbatch) { return outputs.front().sum(); }};
  std::vector<module_stage<std::function<void()>>> stages;
  stages.emplace_back(first, ends, step);
  stages.emplace_back([](at::Tensor const& x) { return x * 2; }, ends, [] {});
  auto const planned = zbpp::make_plan(
      zbpp::zb_h1{}, zbpp::problem(zbpp::placement::linear(2), 2, zbpp::stage_costs{.forward = 1}));
  zbpp::pipeline pipe{planned, backend, stages};
  std::string text;
  try {
    pipe.step();
  } catch (zbpp::error const& thrown) {
    text = thrown.what();
    CHECK_THROWS_AS(std::rethrow_if_nested(thrown), c10::Error);
  }
  return text;
}

bool has_backtrace(std::string const& text) {
  return text.find("frame #") != std::string::npos || text.find('\n') != std::string::npos ||
         text.find("Exception raised") != std::string::npos;
}

}  // namespace

TEST_CASE("modules give tensors in any form, and take some or a list", "[torch][modules]") {
  auto const a = random_tensor({2, 2}, 1);
  auto const b = random_tensor({2, 2}, 2);
  auto const c = random_tensor({2, 2}, 3);
  CHECK(same_bits(
      call(
          [](at::Tensor const& x) {
            return std::tuple(x, std::pair(x * 2, tensors{x, x * 3}));
          },
          {a}),
      {a, a * 2, a, a * 3}));
  CHECK(same_bits(call([](tensors const& x) { return std::array{x[1], x[0]}; }, {a, b}), {b, a}));
  CHECK(same_bits(call([](at::Tensor const& x, at::Tensor y) { return x - y; }, {a, b}), {a - b}));
  CHECK(same_bits(
      call(
          [](at::Tensor x, at::Tensor y, at::Tensor z) { return std::tuple(z, x * y); }, {a, b, c}),
      {c, a * b}));
  nn::Bilinear const bilinear(2, 2, 3);
  CHECK(same_bits(call(bilinear, {a, b}), {nn::Bilinear(bilinear)->forward(a, b)}));
  nn::Sequential const chain(nn::Linear(2, 3), nn::Linear(3, 1));
  CHECK(same_bits(call(chain, {a}), {nn::Sequential(chain)->forward(a)}));
  CHECK(refusal([&] {
          call([](at::Tensor const& x) { return x; }, {a, b});
        }) == "a module that takes one tensor got 2; let its forward take zbpp::torch::tensors");
  CHECK(refusal([&] {
          call(bilinear, {a});
        }) == "a module that takes 2 tensors got 1; let its forward take zbpp::torch::tensors");
}

TEST_CASE("an LSTM is a stage, with its states as outputs", "[torch][modules]") {
  at::set_num_threads(1);
  nn::LSTM lstm(nn::LSTMOptions(3, 4).batch_first(true));
  nn::Linear head(4, 1);
  auto const batch = [](std::int64_t mb) { return random_tensor({2, 5, 3}, 50 + mb); };
  auto const loss_of = [](at::Tensor const& y, at::Tensor const& h, at::Tensor const& c) {
    return y.pow(2).mean() + h.sum() * c.mean();
  };
  auto const apply_head =
      [=](at::Tensor const& y, at::Tensor const& h, at::Tensor const& c) mutable {
        return std::tuple(head->forward(y), std::tuple(h, c));
      };
  auto const parameters = [&] {
    auto all = lstm->parameters();
    for (auto const& each : head->parameters()) all.push_back(each);
    return all;
  };
  for (int mb = 0; mb < 3; ++mb) {
    auto const [y, states] = lstm->forward(batch(mb));
    loss_of(head->forward(y), std::get<0>(states), std::get<1>(states)).backward();
  }
  tensors expected;
  for (auto const& each : parameters()) {
    expected.push_back(each.grad());
    each.mutable_grad() = at::Tensor();
  }
  stage_ends const ends{
      .batch = [=](microbatch mb) -> tensors { return {batch(mb.index())}; },
      .loss =
          [=](tensors const& outputs, microbatch) {
            REQUIRE(outputs.size() == 3);
            return loss_of(outputs[0], outputs[1], outputs[2]);
          }};
  std::vector<module_stage<>> stages;
  stages.emplace_back(lstm, ends);
  stages.emplace_back(apply_head, ends);
  auto const planned = zbpp::make_plan(
      zbpp::zb_h1{}, zbpp::problem(zbpp::placement::linear(2), 3, zbpp::stage_costs{.forward = 1}));
  zbpp::pipeline pipe{planned, zbpp::virtual_time{}, stages};
  pipe.step();
  tensors found;
  for (auto const& each : parameters()) found.push_back(each.grad());
  CHECK(same_bits(found, expected));
}

TEST_CASE("what LibTorch throws is told without its backtrace", "[torch][modules]") {
  auto const wrong = [](at::Tensor const& x) { return x.matmul(at::ones({3, 3})); };
  auto const fine = [](at::Tensor const& x) { return x * 2; };
  auto const nothing = [] {};
  auto const fails = [] { static_cast<void>(at::ones({2, 2}).matmul(at::ones({3, 3}))); };
  auto const backward_fails = [](at::Tensor const& x) {
    auto const y = x * at::ones({2, 2}).requires_grad_();
    y.register_hook([](at::Tensor const& gradient) { return gradient.matmul(at::ones({3, 3})); });
    return y;
  };
  for (bool const is_threaded : {false, true}) {
    auto const text = [&](auto first, auto step) {
      return is_threaded ? text_of_failure(first, step, one_thread_each())
                         : text_of_failure(first, step, zbpp::virtual_time{});
    };
    CHECK(
        text(wrong, nothing) ==
        "rank 0, position 0, stage 0, microbatch 0: in 0F0: mat1 and mat2 shapes cannot be "
        "multiplied (2x2 and 3x3)");
    for (auto const& found : {text(fine, fails), text(backward_fails, nothing)}) {
      CHECK_THAT(found, Catch::Contains("mat1 and mat2 shapes cannot be multiplied (2x2 and 3x3)"));
      CHECK_FALSE(has_backtrace(found));
    }
  }
  auto const found = refusal(zbpp::errc::pass_failed, [&] {
    static_cast<void>(measure_layers(
        {fine, wrong}, {at::ones({2, 2})}, [](tensors const& y) { return y.front().sum(); }));
  });
  CHECK(
      found ==
      "layer 1 of measure_layers: mat1 and mat2 shapes cannot be multiplied (2x2 and 3x3)");
}

namespace {

struct model_state {
  tensors values;
  tensors grads;
  std::vector<void const*> addresses;
};

model_state state_of(tensors const& all) {
  model_state found;
  for (auto const& each : all) {
    found.values.push_back(each.detach().clone());
    found.grads.push_back(each.grad().defined() ? each.grad().clone() : at::Tensor());
    found.addresses.push_back(each.data_ptr());
    found.addresses.push_back(each.grad().defined() ? each.grad().data_ptr() : nullptr);
  }
  return found;
}

// Puts other tensors and other data in place of its buffers, and counts in one that no operation
// reads.
struct replacing_impl : nn::Module {
  replacing_impl()
      : last(register_buffer("last", at::zeros({1}))),
        calls(register_buffer("calls", at::zeros({1}, at::kLong))),
        average(&register_buffer("average", at::zeros({4}))) {}  // the place of the last one stays
  at::Tensor forward(at::Tensor const& x) {
    c10::AutoGradMode const off(false);
    *average = *average * 0.9 + x.detach().mean(0);
    last.set_data(x.detach().clone());
    ++*calls.data_ptr<std::int64_t>();
    return x + *average + last;
  }
  at::Tensor last, calls;
  at::Tensor* average;
};

}  // namespace

TEST_CASE("measuring leaves a model as it was", "[torch][measure]") {
  nn::Sequential norm(nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Dropout(0.5));
  nn::BatchNorm1d hidden(4);  // in a callable
  auto const weight = random_tensor({4, 4}, 3).requires_grad_();
  auto const counter = at::zeros({2});
  auto const in_callable = [=](at::Tensor const& x) mutable {
    counter.add_(1);
    return hidden->forward(x.matmul(weight)) + at::rand_like(x) * counter.sum();
  };
  auto const replacing = std::make_shared<replacing_impl>();
  norm->eval();
  norm->train();
  norm[2]->as<nn::Dropout>()->eval();
  auto parameters = norm->parameters();
  for (auto const& each : hidden->parameters()) parameters.push_back(each);
  parameters.push_back(weight);
  for (std::size_t i = 0; i < parameters.size(); i += 2)
    parameters[i].mutable_grad() = random_tensor(parameters[i].sizes(), 100 + std::int64_t(i));
  auto const all = [&] {
    auto found = parameters;
    for (auto const& from : {norm->buffers(), hidden->buffers(), replacing->buffers()})
      found.insert(found.end(), from.begin(), from.end());
    found.push_back(counter);
    return found;
  };
  at::Tensor const batch = random_tensor({6, 4}, 9);
  auto const loss = [](tensors const& outputs) { return outputs.front().pow(2).mean(); };
  auto const same = [](model_state const& a, model_state const& b) {
    return same_bits(a.values, b.values) && same_bits(a.grads, b.grads);
  };
  at::manual_seed(11);
  auto const next = at::randn({3});
  for (int warm_up : {0, 2}) {
    at::manual_seed(11);
    auto const before = state_of(all());
    auto const costs = measure_layers(
        {norm, in_callable, replacing, nn::BatchNorm1d(4)}, {batch}, loss, {.warm_up = warm_up});
    CHECK(costs.size() == 4);
    auto const after = state_of(all());
    CHECK(same(after, before));
    CHECK(after.addresses == before.addresses);
    CHECK(same_bits(at::randn({3}), next));
    CHECK(norm->is_training());
    CHECK_FALSE(norm[2]->is_training());
  }
  // Also when a layer throws after others ran.
  at::manual_seed(11);
  auto const before = state_of(all());
  auto const broken = [=](at::Tensor const& x) mutable {
    counter.add_(1);
    return hidden->forward(x).view({5});
  };
  CHECK_THAT(
      refusal([&] {
        static_cast<void>(measure_layers({norm, broken}, {batch}, loss));
      }),
      Catch::Contains("layer 1 of measure_layers: shape '[5]' is invalid"));
  CHECK(same(state_of(all()), before));
  CHECK(same_bits(at::randn({3}), next));
}

}  // namespace test_torch_modules
