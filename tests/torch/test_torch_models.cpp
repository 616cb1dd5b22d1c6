// SPDX-License-Identifier: Apache-2.0
#include <support/torch_checks.hpp>
#include <support/torch_models.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace test_torch_models {

using namespace zbpp::test;
using zbpp::torch::split_backward;

namespace {

/// What training leaves: the gradients of all parameters, those of the microbatches, the losses.
struct gradients {
  std::vector<at::Tensor> of_parameters;
  std::vector<at::Tensor> of_inputs;
  std::vector<at::Tensor> losses;
};

// Moves the gradients out of the parameters.
std::vector<at::Tensor> take_gradients(torch_model const& model) {
  std::vector<at::Tensor> taken;
  for (torch_slice const& slice : model.slices) {
    for (at::Tensor parameter : slice.parameters) {
      taken.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
    }
  }
  return taken;
}

at::Tensor input_of(torch_model const& model, std::int64_t microbatch) {
  at::Tensor x = model.batch(microbatch);
  if (x.is_floating_point()) x.set_requires_grad(true);
  return x;
}

gradients plain_loop(torch_model const& model, std::int64_t microbatches) {
  gradients found;
  for (std::int64_t mb = 0; mb < microbatches; ++mb) {
    at::Tensor const input = input_of(model, mb);
    at::Tensor x = input;
    for (torch_slice const& slice : model.slices) x = slice.forward(x);
    x.backward();
    found.losses.push_back(x.detach());
    found.of_inputs.push_back(input.grad());
  }
  found.of_parameters = take_gradients(model);
  return found;
}

// [split_slice
// One microbatch on one slice.
struct split_slice {
  split_backward passes;
  at::Tensor y;

  void forward(torch_slice const& slice, at::Tensor const& from) {
    at::Tensor x = from.detach();  // the graph of the slice begins here
    if (x.is_floating_point()) x.requires_grad_();
    y = slice.forward(x);
    passes = split_backward(x, y);
  }
  at::Tensor backward_input(at::Tensor const& dy) {
    at::Tensor dx = passes.backward_input({dy}).front();
    y.reset();
    return dx;
  }
  void backward_weight() { passes.backward_weight(); }
};
// split_slice]

// Runs the passes of all slices and microbatches in a random valid order, some of B and W as one
// BW.
gradients in_random_order(
    torch_model const& model, std::int64_t microbatches, seeded_random& random) {
  struct place {
    split_slice slice;
    at::Tensor dx;
    int done = 0;  // 1 after F, 2 after B, 3 after W
  };
  auto const p = model.slices.size();
  auto const m = static_cast<std::size_t>(microbatches);
  std::vector<std::vector<place>> at(p);
  for (auto& row : at) row.resize(m);
  gradients found;
  found.losses.resize(m);

  for (std::size_t left = 3 * p * m; left > 0;) {
    std::vector<std::pair<std::size_t, std::size_t>> ready;
    for (std::size_t s = 0; s < p; ++s) {
      for (std::size_t mb = 0; mb < m; ++mb) {
        int const done = at[s][mb].done;
        bool const f = done == 0 && (s == 0 || at[s - 1][mb].done >= 1);
        bool const b = done == 1 && (s == p - 1 || at[s + 1][mb].done >= 2);
        bool const w = done == 2 && (mb == 0 || at[s][mb - 1].done == 3);
        if (f || b || w) ready.emplace_back(s, mb);
      }
    }
    auto const [s, mb] = random.pick(std::span(ready));
    place& here = at[s][mb];
    if (here.done == 0) {
      here.slice.forward(
          model.slices[s],
          s == 0 ? model.batch(static_cast<std::int64_t>(mb)) : at[s - 1][mb].slice.y);
      if (s == p - 1) found.losses[mb] = here.slice.y.detach();
    } else if (here.done == 1) {
      at::Tensor const dy = s == p - 1 ? at::ones_like(here.slice.y) : at[s + 1][mb].dx;
      bool const fused = (mb == 0 || at[s][mb - 1].done == 3) && random.chance(0.3);
      if (fused) {
        here.dx = here.slice.passes.backward({dy}).front();
        ++here.done;
        --left;
      } else {
        here.dx = here.slice.backward_input(dy);
      }
    } else {
      here.slice.backward_weight();
    }
    ++here.done;
    --left;
  }
  for (place const& first : at.front()) found.of_inputs.push_back(first.dx);
  found.of_parameters = take_gradients(model);
  return found;
}

}  // namespace

TEST_CASE("slices in any order of passes give the bits of the plain loop", "[torch]") {
  std::vector<torch_model> const models{
      mlp_model(run_seed(), 3, 2, 16, 6),
      mlp_model(run_seed(), 2, 3, 24, 1),
      gpt_model(run_seed(), 3, 1, 16, 2, 5),
      gpt_model(run_seed(), 2, 2, 8, 1, 7),
      cnn_model(run_seed(), 3, 2, 8, 2, 6),
      cnn_model(run_seed(), 2, 2, 4, 3, 5),
  };
  for (torch_model const& model : models) {
    std::int64_t const microbatches = 4;
    gradients const plain = plain_loop(model, microbatches);
    for (at::Tensor const& gradient : plain.of_parameters) REQUIRE(gradient.defined());
    for (int trial = 0; trial < 6; ++trial) {
      ZBPP_SEEDED(random, trial);
      INFO(model.name << " in " << model.slices.size() << " slices");
      gradients const split = in_random_order(model, microbatches, random);
      CHECK(same_bits(split.losses, plain.losses));
      CHECK(same_bits(split.of_inputs, plain.of_inputs));
      CHECK(same_bits(split.of_parameters, plain.of_parameters));
    }
  }
}

}  // namespace test_torch_models
