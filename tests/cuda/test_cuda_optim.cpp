// SPDX-License-Identifier: Apache-2.0
//
// The optimizers for GPUs beside those on the CPU: the same bits, whatever is asked of them in
// which order. Their kernels run on the model of CUDA.
#include <zbpp/cuda/detail/layer_rows.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/sgd.hpp>

#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_optim.hpp>
#include <support/cuda_training.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace test_cuda_optim {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
using gpu_optim::is_same;
using gpu_optim::moments_of;
using gpu_optim::on_gpu;
using gpu_optim::values;
using zbpp::gradient_state;
using zbpp::optim::layer;
using zbpp::optim::undo_method;

namespace {

// Asks both for the same, at random.
template <class Rule, class OnCpu>
void check(
    typename Rule::settings const& settings,
    std::vector<std::size_t> const& sizes,
    bool misses = false) {
  ZBPP_SEEDED(random, sizes.size());
  checked_gpus const gpus({.seed = sizes.size() + 1});
  values all(sizes, random);
  OnCpu cpu(all.here, settings);
  on_gpu<Rule> gpu(all.there, settings);
  zbpp::cuda::device_context context({}, 1, {}, {});
  zbpp::arena memory;
  zbpp::pass_context const there(memory, zbpp::backend_kind::cuda, &context);
  zbpp::pass_context const here(memory);
  std::int64_t updates = 0;
  for (int round = 0; round < thinned(12, 5); ++round) {
    all.refill(random);
    if constexpr (requires { cpu.missed_steps(); })
      if (misses && random.integer(0, 2) == 0) {
        updates += random.integer(0, 3);
        for (auto& missed : cpu.missed_steps()) missed = random.integer(0, updates + 1);
        gpu_optim::write(gpu.missed(), cpu.missed_steps());
      }
    zbpp::step_settings update{
        .updates = updates,
        .learning_rate = random.real(0, 0.1),
        .coefficient = random.integer(0, 1) == 0 ? 1 : random.real(0, 1),
        .gradient_scale = 8,
        .is_final = random.integer(0, 2) == 0};
    auto const both = [&](auto const& act) {
      act(cpu, here);
      act(gpu, there);
    };
    auto const step = [&](auto& o, auto ctx) { o.step(update, ctx); };
    if (random.integer(0, 5) == 0) {
      both([](auto& o, auto ctx) { o.skip(ctx); });
    } else {
      both(step);
      ++updates;
      if (!update.is_final && random.integer(0, 1) == 0) {
        both([](auto& o, auto ctx) { o.commit(ctx); });
      } else if (!update.is_final) {
        both([](auto& o, auto ctx) { o.undo(ctx); });
        update.is_final = true;
        update.coefficient = 0.5;
        both(step);
      }
    }
    context.compute().synchronize();
    CHECK(is_same(all.weights, {all.device_weights.data(), all.device_weights.size()}));
    CHECK(is_same(all.gradients, {all.device_gradients.data(), all.device_gradients.size()}));
    auto const moments = moments_of(cpu);
    for (std::size_t k = 0; k < moments.size(); ++k)
      CHECK(is_same(moments[k], gpu.moment(static_cast<int>(k))));
  }
}

std::vector<std::vector<std::size_t>> grids() {
  // Around the size of a tile, which is 4096.
  return {{}, {0}, {1}, {5, 0, 300}, {4096}, {4095, 4097}, {9000, 1, 12289, 17}};
}

}  // namespace

TEST_CASE("AdamW on GPUs has the bits of AdamW on the CPU", "[cuda]") {
  for (auto const undo : {undo_method::weights, undo_method::copies})
    for (auto const& sizes : grids())
      check<zbpp::cuda::detail::adamw_rule, zbpp::optim::adamw>(
          {.weight_decay = 0.01F, .undo = undo}, sizes);
}

TEST_CASE("layers on GPUs that missed steps have the bits of those on the CPU", "[cuda]") {
  for (auto const undo : {undo_method::weights, undo_method::copies})
    for (auto const& sizes : grids())
      check<zbpp::cuda::detail::adamw_rule, zbpp::optim::adamw>(
          {.weight_decay = 0.01F, .undo = undo}, sizes, true);
}

TEST_CASE("a layer on a GPU that is trained from now on steps as in a fresh AdamW", "[cuda]") {
  ZBPP_SEEDED(random, 4);
  checked_gpus const gpus({.seed = 4});
  values all({300, 4097}, random);
  on_gpu<zbpp::cuda::detail::adamw_rule> late(all.there);
  std::vector<zbpp::optim::adamw> fresh;
  for (auto const& each : all.here) fresh.emplace_back(std::vector{each});
  zbpp::cuda::device_context context({}, 1, {}, {});
  zbpp::arena memory;
  zbpp::pass_context const there(memory, zbpp::backend_kind::cuda, &context);
  constexpr std::int64_t updates = 12;
  gpu_optim::write(late.missed(), std::vector<std::int64_t>{0, updates});
  for (std::int64_t step = 0; step < 5; ++step) {
    all.refill(random);
    fresh[0].step({.updates = updates + step, .learning_rate = 0.1}, zbpp::pass_context(memory));
    fresh[1].step({.updates = step, .learning_rate = 0.1}, zbpp::pass_context(memory));
    late.step({.updates = updates + step, .learning_rate = 0.1}, there);
    context.compute().synchronize();
    CHECK(is_same(all.weights, {all.device_weights.data(), all.device_weights.size()}));
  }
}

TEST_CASE("gradient descent on GPUs has the bits of that on the CPU", "[cuda]") {
  for (auto const undo : {undo_method::weights, undo_method::copies})
    for (float const momentum : {0.0F, 0.9F})
      for (auto const& sizes : grids())
        check<zbpp::cuda::detail::sgd_rule, zbpp::optim::sgd>(
            {.momentum = momentum, .weight_decay = 0.01F, .undo = undo}, sizes);
}

TEST_CASE("tied gradients leave a GPU, and each layer gets their sum back", "[cuda]") {
  ZBPP_SEEDED(random, 2);
  model::reset({});
  values all({7, 4100, 0, 7}, random);
  all.refill(random);
  for (std::size_t k : {0U, 3U}) all.there[k].is_tied = true;
  on_gpu<zbpp::cuda::detail::adamw_rule> own(all.there);
  CHECK(own.tied_weights() == 7);
  CHECK((own.is_tied(0) && !own.is_tied(1) && own.is_tied(3)));
  zbpp::cuda::device_context context({}, 1, {}, {});
  zbpp::arena memory;
  zbpp::pass_context const ctx(memory, zbpp::backend_kind::cuda, &context);
  std::vector<float> copy(14);
  own.read_tied(copy, ctx);
  auto expected = all.gradients;
  CHECK(std::ranges::equal(std::span(copy).first(7), all.here[0].gradients));
  CHECK(std::ranges::equal(std::span(copy).last(7), all.here[3].gradients));
  for (std::size_t i = 0; i < 7; ++i) expected[i] = expected[4107 + i] = copy[i];
  own.write_tied(std::span(copy).first(7), ctx);
  context.compute().synchronize();
  CHECK(is_same(expected, {all.device_gradients.data(), all.device_gradients.size()}));
  CHECK(first_of(model::faults()) == "");
}

TEST_CASE("a GPU measures gradients layer by layer, the same however they are split", "[cuda]") {
  ZBPP_SEEDED(random, 1);
  model::reset({});
  using optimizer = on_gpu<zbpp::cuda::detail::adamw_rule>;
  values all({9000, 0, 1, 12289}, random);
  all.refill(random);
  zbpp::cuda::device_context context({}, 1, {}, {});
  zbpp::arena memory;
  zbpp::pass_context const ctx(memory, zbpp::backend_kind::cuda, &context);
  auto const measure = [&](std::span<layer const> layers) {
    optimizer own({layers.begin(), layers.end()});
    std::vector<gradient_state> states(layers.size());
    own.measure(states, ctx);
    return states;
  };
  auto const whole = measure(all.there);
  std::span const parts(all.there);
  for (std::size_t cut = 0; cut <= parts.size(); ++cut) {
    auto found = measure(parts.first(cut));
    auto const rest = measure(parts.subspan(cut));
    found.insert(found.end(), rest.begin(), rest.end());
    CHECK(found == whole);
  }
  std::vector<gradient_state> on_cpu(whole.size());
  zbpp::optim::adamw(all.here).measure(on_cpu, zbpp::pass_context(memory));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    CHECK(whole[i].is_finite);
    // Both add exact squares in double.
    CHECK(
        std::abs(whole[i].sum_of_squares - on_cpu[i].sum_of_squares) <=
        1e-12 * on_cpu[i].sum_of_squares);
  }
  for (float const bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
    all.gradients[9000 + 1 + 12288] = bad;
    values::write(all.device_gradients, all.gradients);
    auto const states = measure(all.there);
    for (std::size_t i = 0; i < states.size(); ++i) CHECK(states[i].is_finite == (i != 3));
  }
  CHECK(first_of(model::faults()) == "");
}

TEST_CASE("layers with too few gradients are refused on GPUs", "[cuda]") {
  model::reset({});
  std::vector<float> memory(8);
  CHECK(refusal([&] {
          on_gpu<zbpp::cuda::detail::sgd_rule> const wrong(
              {{{memory.data(), 4}, {memory.data(), 3}}});
        }) == "a layer has as many gradients as weights");
}

namespace {

class moving final : public zbpp::optim::layer_source {
 public:
  bool locate(layer&) override { return false; }
  void locate_weights(layer&) const override {}
  void hold_gradients() override {}
  void return_gradients(bool) override {}
};

}  // namespace

TEST_CASE("layers whose memory may move are refused on GPUs", "[cuda]") {
  model::reset({});
  std::vector<float> memory(8);
  std::span<float> const half(memory.data(), 4);
  CHECK(
      refusal([&] {
        on_gpu<zbpp::cuda::detail::sgd_rule> const wrong(
            std::vector<layer>{{half, half, false, true, std::make_shared<moving>()}});
      }) == "an optimizer for GPUs got a layer with a source, which is memory of the host that may "
            "move; give it memory of the device that stays");
}

}  // namespace test_cuda_optim
