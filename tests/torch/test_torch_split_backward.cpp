// SPDX-License-Identifier: Apache-2.0
#include <support/torch_checks.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace test_torch_split_backward {

using namespace zbpp::test;
using zbpp::errc;
using zbpp::torch::split_backward;

namespace {

using tensors = std::vector<at::Tensor>;

/// A graph with something that is easy to get wrong.
struct graph_case {
  std::string name;
  std::function<tensors()> parameters;
  std::function<tensors(std::int64_t microbatch)> inputs;
  std::function<tensors(tensors const& x, tensors const& p)> forward;
  std::vector<std::size_t> without_gradient = {};  // outputs
};

at::Tensor leaf(at::IntArrayRef sizes, std::int64_t number) {
  return random_tensor(sizes, number).set_requires_grad(true);
}

// Square matrices of parameters; the last ones are frozen.
std::function<tensors()> matrices(std::int64_t count, std::int64_t frozen = 0) {
  return [=] {
    tensors made;
    for (std::int64_t i = 0; i < count; ++i) {
      made.push_back(random_tensor({4, 4}, i).set_requires_grad(i < count - frozen));
    }
    return made;
  };
}

// Inputs of three rows.
std::function<tensors(std::int64_t)> rows(std::int64_t count = 1) {
  return [=](std::int64_t microbatch) {
    tensors made;
    for (std::int64_t i = 0; i < count; ++i)
      made.push_back(leaf({3, 4}, 100 + 10 * microbatch + i));
    return made;
  };
}

// Computes the gradients of its input and of its parameter whether or not both are asked for.
struct scale_by : ::torch::autograd::Function<scale_by> {
  static at::Tensor forward(
      ::torch::autograd::AutogradContext* ctx, at::Tensor const& x, at::Tensor const& by) {
    ctx->save_for_backward({x, by});
    return x * by;
  }
  static tensors backward(::torch::autograd::AutogradContext* ctx, tensors const& gradients) {
    auto const saved = ctx->get_saved_variables();
    return {gradients[0] * saved[1], (gradients[0] * saved[0]).sum(0, true)};
  }
};

// Two outputs, the second of which may get no gradient: LibTorch then gives the function zeros.
struct two_ways : ::torch::autograd::Function<two_ways> {
  static tensors forward(
      ::torch::autograd::AutogradContext* ctx, at::Tensor const& x, at::Tensor const& by) {
    ctx->save_for_backward({x, by});
    return {x * by, x + by};
  }
  static tensors backward(::torch::autograd::AutogradContext* ctx, tensors const& gradients) {
    auto const saved = ctx->get_saved_variables();
    at::Tensor const both = gradients[0] * saved[0] + gradients[1];
    return {gradients[0] * saved[1] + gradients[1], both.sum(0, true)};
  }
};

// A hook that is called more than once makes a difference.
at::Tensor with_hook(at::Tensor const& t) {
  t.register_hook([](at::Tensor const& gradient) { return gradient * 3 + 1; });
  return t;
}

struct pre_hook : ::torch::autograd::FunctionPreHook {
  tensors operator()(tensors const& gradients) override {
    auto changed = gradients;
    for (auto& each : changed)
      if (each.defined()) each = each * 3 + 1;
    return changed;
  }
};
struct post_hook : ::torch::autograd::FunctionPostHook {
  tensors operator()(tensors const& outputs, tensors const& inputs) override {
    auto changed = outputs;
    auto const more = static_cast<double>(std::ranges::count_if(outputs, &at::Tensor::defined));
    for (auto& each : changed)
      if (each.defined()) each = each * 3 + more + inputs.front().mean();
    return changed;
  }
};
at::Tensor before_node(at::Tensor const& t) {
  t.grad_fn()->add_pre_hook(std::make_unique<pre_hook>());
  return t;
}
at::Tensor behind_node(at::Tensor const& t) {
  t.grad_fn()->add_post_hook(std::make_unique<post_hook>());
  return t;
}

std::vector<graph_case> all_cases() {
  auto const vectors = [] { return tensors{leaf({1, 4}, 1), leaf({1, 4}, 2)}; };
  return {
      {"two layers",
       matrices(2),
       rows(),
       [](auto& x, auto& p) { return tensors{x[0].matmul(p[0]).relu().matmul(p[1])}; }},
      {"a frozen layer between others",
       matrices(3, 1),
       rows(),
       [](auto& x, auto& p) {
         return tensors{x[0].matmul(p[0]).matmul(p[2]).tanh().matmul(p[1])};
       }},
      {"frozen parameters alone",
       matrices(2, 2),
       rows(),
       [](auto& x, auto& p) { return tensors{x[0].matmul(p[0]).tanh().matmul(p[1])}; }},
      {"no parameters",
       matrices(0),
       rows(),
       [](auto& x, auto&) { return tensors{at::gelu(x[0]).exp()}; }},
      {"one parameter used four times",
       matrices(1),
       rows(),
       [](auto& x, auto& p) {
         at::Tensor const h = x[0].matmul(p[0]).relu().matmul(p[0]).tanh().matmul(p[0]);
         return tensors{h.matmul(p[0].t())};
       }},
      {"weight norm",
       matrices(2),
       rows(),
       [](auto& x, auto& p) {
         at::Tensor const w = p[0] / p[0].norm(2, {1}, true) * p[1].select(0, 0);
         return tensors{x[0].matmul(w).tanh().matmul(w)};
       }},
      {"views of one parameter",
       matrices(1),
       rows(),
       [](auto& x, auto& p) {
         return tensors{at::cat(
             {x[0].matmul(p[0].narrow(1, 0, 2)), x[0].tanh().matmul(p[0].narrow(1, 1, 2))}, 1)};
       }},
      {"an output that depends on a parameter alone",
       matrices(2),
       rows(),
       [](auto& x, auto& p) {
         return tensors{x[0].matmul(p[0]), p[1].tanh() + p[0]};
       }},
      {"a parameter that is an output",
       matrices(1),
       rows(),
       [](auto& x, auto& p) {
         return tensors{p[0], x[0].matmul(p[0])};
       }},
      {"an output that needs no gradient",
       matrices(1),
       rows(),
       [](auto& x, auto& p) {
         return tensors{x[0].detach() * 2, x[0].matmul(p[0])};
       }},
      {"tokens",
       matrices(2),
       [](std::int64_t mb) { return tensors{at::arange(mb, mb + 3, at::kLong).remainder(4)}; },
       [](auto& x, auto& p) { return tensors{at::embedding(p[0], x[0]).tanh().matmul(p[1])}; }},
      {"tokens beside an input",
       matrices(2),
       [](std::int64_t mb) {
         return tensors{at::arange(mb, mb + 3, at::kLong).remainder(4), leaf({3, 4}, 100 + mb)};
       },
       [](auto& x, auto& p) {
         return tensors{(at::embedding(p[0], x[0]) + x[1].matmul(p[1])).tanh().matmul(p[0])};
       }},
      {"an input that nothing depends on",
       matrices(1),
       rows(2),
       [](auto& x, auto& p) { return tensors{x[1].matmul(p[0])}; }},
      {"several inputs and outputs",
       matrices(3),
       rows(3),
       [](auto& x, auto& p) {
         at::Tensor const h = (x[0] * x[1]).matmul(p[0]);
         return tensors{h.relu(), x[2].matmul(p[1]) + h, (h * x[2]).matmul(p[2]).sum()};
       }},
      {"outputs without a gradient",
       matrices(4),
       rows(2),
       [](auto& x, auto& p) {
         at::Tensor const h = x[0].matmul(p[0]).tanh();
         return tensors{h.matmul(p[1]), x[1].matmul(p[2]), h, p[3] * 2};
       },
       {0, 1, 3}},
      {"no output has a gradient",
       matrices(1),
       rows(),
       [](auto& x, auto& p) { return tensors{x[0].matmul(p[0])}; },
       {0}},
      {"outputs that are views",
       matrices(1),
       rows(),
       [](auto& x, auto& p) {
         at::Tensor const h = x[0].matmul(p[0]);
         return tensors{h.narrow(1, 0, 2), h.t(), h.narrow(1, 1, 3)};
       }},
      {"an input that is an output",
       matrices(0),
       rows(),
       [](auto& x, auto&) { return tensors{x[0]}; }},
      {"an input that is an output, and used",
       matrices(1),
       rows(),
       [](auto& x, auto& p) {
         return tensors{x[0], x[0].matmul(p[0]), x[0]};
       }},
      {"an input given twice",
       matrices(1),
       [](std::int64_t mb) {
         at::Tensor const x = leaf({3, 4}, 100 + mb);
         return tensors{x, x};
       },
       [](auto& x, auto& p) { return tensors{(x[0] * x[1]).matmul(p[0])}; }},
      {"a function of the user",
       vectors,
       rows(),
       [](auto& x, auto& p) {
         return tensors{scale_by::apply(scale_by::apply(x[0].tanh(), p[0]), p[1])};
       }},
      {"a function of the user with an output that has no gradient",
       vectors,
       rows(),
       [](auto& x, auto& p) {
         tensors const first = two_ways::apply(x[0].tanh(), p[0]);
         tensors const second = two_ways::apply(first[1], p[1]);
         return tensors{first[0], second[0], second[1]};
       },
       {1}},
      {"operations in place",
       matrices(2),
       rows(),
       [](auto& x, auto& p) {
         at::Tensor h = x[0].matmul(p[0]);
         h.mul_(2).add_(p[1].select(0, 0)).relu_();
         return tensors{h.matmul(p[1])};
       }},
      {"an operation in place on a view, with a parameter",
       matrices(2),
       rows(),
       [](auto& x, auto& p) {
         at::Tensor h = x[0] * 2;
         h.narrow(1, 1, 2).mul_(p[0].select(0, 1).narrow(0, 0, 2));
         h.select(0, 1).add_(p[1].select(0, 2));
         return tensors{h.matmul(p[1])};
       }},
      {"an operation in place on a view, with a leaf",
       vectors,
       rows(),
       [](auto& x, auto& p) {
         at::Tensor h = x[0] * 2;
         h.narrow(0, 1, 1).mul_(p[0]);
         h.narrow(0, 0, 1).add_(p[1]);
         return tensors{h.tanh()};
       }},
      {"a parameter written into a view",
       matrices(2),
       rows(),
       [](auto& x, auto& p) {
         at::Tensor h = x[0].matmul(p[0]).clone();
         h.narrow(0, 1, 1).copy_(p[1].select(0, 0).unsqueeze(0));
         return tensors{h.tanh()};
       }},
      {"a parameter of the size of the input, added",
       [] {
         return tensors{leaf({3, 4}, 1)};
       },
       rows(),
       [](auto& x, auto& p) { return tensors{x[0] + p[0]}; }},
      {"hooks on tensors between",
       matrices(2),
       rows(),
       [](auto& x, auto& p) {
         at::Tensor const h = with_hook(with_hook(x[0].tanh()).matmul(p[0]));
         return tensors{with_hook(h.relu()).matmul(p[1])};
       }},
      {"hooks on parameters",
       matrices(1),
       rows(),
       [](auto& x, auto& p) {
         return tensors{x[0].matmul(with_hook(p[0].tanh())).tanh().matmul(p[0])};
       }},
      {"hooks on inputs",
       matrices(2),
       rows(2),
       [](auto& x, auto& p) {
         auto const h = with_hook(x[0]).matmul(p[0]) + with_hook(x[0]) * x[1];
         return tensors{h.matmul(p[1]), with_hook(x[1])};
       }},
      {"hooks on outputs",
       matrices(2),
       rows(),
       [](auto& x, auto& p) {
         auto const h = with_hook(x[0].matmul(p[0]));
         auto const parts = h.tanh().chunk(2, 1);
         return tensors{h, with_hook(parts[0]), parts[1], with_hook(p[1] * 2)};
       },
       {2}},
      {"hooks before nodes",
       matrices(2),
       rows(),
       [](auto& x, auto& p) {
         auto const h = before_node(before_node(x[0].tanh()).matmul(p[0]));
         return tensors{before_node(h.matmul(before_node(p[1].tanh())))};
       }},
      {"hooks behind nodes",
       matrices(3),
       rows(),
       [](auto& x, auto& p) {
         auto const h = behind_node(before_node(behind_node(x[0].tanh()).matmul(p[0])));
         auto const g = behind_node(with_hook(h.matmul(behind_node(p[1].tanh()))));
         return tensors{behind_node((g + p[2].select(0, 0)).matmul(p[1])), h};
       }},
      {"hooks behind nodes of one parameter",
       matrices(1),
       rows(),
       [](auto& x, auto& p) {
         auto h = x[0];
         for (int i = 0; i < 5; ++i) {
           h = h.matmul(p[0]).tanh().matmul(p[0]);
           if (i % 2 == 0) behind_node(h);
         }
         return tensors{h};
       }},
      {"a hook behind a node of an input and a parameter of its size",
       [] {
         return tensors{leaf({3, 4}, 1)};
       },
       rows(),
       [](auto& x, auto& p) { return tensors{behind_node(x[0] + p[0])}; }},
      {"hooks behind operations in place on views",
       matrices(2),
       rows(),
       [](auto& x, auto& p) {
         at::Tensor h = x[0] * 2;
         h.narrow(1, 1, 2).mul_(p[0].select(0, 1).narrow(0, 0, 2));
         return tensors{behind_node(h).matmul(p[1])};
       }},
      {"a hook behind a node that no gradient comes to",
       matrices(3),
       rows(),
       [](auto& x, auto& p) {
         return tensors{x[0].matmul(p[0]), behind_node(x[0].matmul(p[1])).matmul(p[2])};
       },
       {1}},
      {"a part that no gradient goes through",
       matrices(2),
       rows(),
       [](auto& x, auto& p) { return tensors{x[0].matmul(p[0]).detach().matmul(p[1]) * x[0]}; }},
      {"a long chain",
       matrices(1),
       rows(),
       [](auto& x, auto& p) {
         at::Tensor h = x[0];
         for (int i = 0; i < 3000; ++i) h = h.add(0.001);
         return tensors{h.matmul(p[0])};
       }},
  };
}

tensors gradients_for(graph_case const& graph, tensors const& outputs, std::int64_t microbatch) {
  tensors made;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    auto const number = 1000 + 10 * microbatch + static_cast<std::int64_t>(i);
    made.push_back(random_tensor(outputs[i].sizes(), number));
  }
  for (std::size_t i : graph.without_gradient) made[i].reset();
  return made;
}

struct found {
  tensors of_inputs;
  tensors of_parameters;
};

tensors grads(tensors const& of) {
  tensors all;
  for (at::Tensor const& tensor : of) all.push_back(tensor.grad());
  return all;
}

constexpr std::int64_t microbatches = 3;

// LibTorch's own backward, microbatch after microbatch.
found plain(graph_case const& graph) {
  found all;
  tensors const p = graph.parameters();
  for (std::int64_t mb = 0; mb < microbatches; ++mb) {
    tensors const x = graph.inputs(mb);
    tensors const y = graph.forward(x, p);
    tensors const dy = gradients_for(graph, y, mb);
    tensors roots, root_gradients;
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (!y[i].requires_grad() || !dy[i].defined()) continue;
      roots.push_back(y[i]);
      root_gradients.push_back(dy[i]);
    }
    if (!roots.empty()) ::torch::autograd::backward(roots, root_gradients);
    for (at::Tensor const& gradient : grads(x)) all.of_inputs.push_back(gradient);
  }
  all.of_parameters = grads(p);
  return all;
}

enum class order { each_after_its_b, all_b_first, fused, mixed };

found split(graph_case const& graph, order sequence) {
  found all;
  tensors const p = graph.parameters();
  std::vector<split_backward> passes;
  for (std::int64_t mb = 0; mb < microbatches; ++mb) {
    tensors const x = graph.inputs(mb);
    tensors const y = graph.forward(x, p);
    tensors dy = gradients_for(graph, y, mb);
    split_backward& here = passes.emplace_back(x, y);
    bool const fused = sequence == order::fused || (sequence == order::mixed && mb % 2 == 0);
    tensors const dx = fused ? here.backward(std::move(dy)) : here.backward_input(std::move(dy));
    all.of_inputs.insert(all.of_inputs.end(), dx.begin(), dx.end());
    for (at::Tensor const& gradient : grads(x)) CHECK_FALSE(gradient.defined());
    if (sequence == order::each_after_its_b || (sequence == order::mixed && !fused))
      here.backward_weight();
    if (sequence == order::all_b_first) {
      for (at::Tensor const& gradient : grads(p)) CHECK_FALSE(gradient.defined());
    }
  }
  if (sequence == order::all_b_first) {
    for (split_backward& here : passes) here.backward_weight();
  }
  all.of_parameters = grads(p);
  return all;
}

}  // namespace

TEST_CASE("B and W give the bits of LibTorch's backward on every kind of graph", "[torch]") {
  for (graph_case const& graph : all_cases()) {
    INFO(graph.name);
    found const expected = plain(graph);
    for (order sequence :
         {order::each_after_its_b, order::all_b_first, order::fused, order::mixed}) {
      INFO("order " << static_cast<int>(sequence));
      found const seen = split(graph, sequence);
      CHECK(same_bits(seen.of_inputs, expected.of_inputs));
      CHECK(same_bits(seen.of_parameters, expected.of_parameters));
    }
  }
}

namespace {

// Counts in which runs the engine asks for what.
struct counts {
  int input = 0;
  int weight = 0;
};

// x * by, counting how often each gradient is computed.
struct counted : ::torch::autograd::Function<counted> {
  static at::Tensor forward(
      ::torch::autograd::AutogradContext* ctx, at::Tensor const& x, std::int64_t to) {
    ctx->saved_data["to"] = to;
    return x.clone();
  }
  static tensors backward(::torch::autograd::AutogradContext* ctx, tensors const& gradients) {
    // NOLINTNEXTLINE: the address of a counter of the test below
    ++*reinterpret_cast<int*>(ctx->saved_data["to"].toInt());
    return {gradients[0], at::Tensor()};
  }
};

at::Tensor count_in(at::Tensor const& x, int& counter) {
  return counted::apply(x, static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&counter)));
}

}  // namespace

TEST_CASE("B computes no gradient of a weight, and W none of an input", "[torch]") {
  tensors const p{leaf({4, 4}, 1), leaf({4, 4}, 2)};
  at::Tensor const x = leaf({3, 4}, 3);
  counts layer[2];
  at::Tensor h = x;
  for (int i = 0; i < 2; ++i) {
    h = count_in(h, layer[i].input);
    h = h.matmul(count_in(p[static_cast<std::size_t>(i)], layer[i].weight)).tanh();
  }
  split_backward passes(x, h);
  passes.backward_input({at::ones_like(h)});
  for (counts const& each : layer) {
    CHECK(each.input == 1);
    CHECK(each.weight == 0);
  }
  passes.backward_weight();
  for (counts const& each : layer) {
    CHECK(each.input == 1);
    CHECK(each.weight == 1);
  }
}

TEST_CASE("B frees while it runs what W does not need, and W frees the rest", "[torch]") {
  constexpr std::int64_t layers = 8, n = 64, d = 32;
  constexpr std::int64_t unit = n * d * 4;              // bytes of an activation
  constexpr std::int64_t weights = layers * d * d * 4;  // bytes of all gradients of weights
  tensors p;
  for (std::int64_t i = 0; i < layers; ++i) p.push_back(leaf({d, d}, i));

  for (bool const keep_output : {false, true}) {
    for (bool const fused : {false, true}) {
      INFO("keep_output " << keep_output << " fused " << fused);
      at::Tensor x = leaf({n, d}, 50);
      at::Tensor dy = at::ones({n, d});
      live_memory const before_f;
      at::Tensor y = x;
      for (at::Tensor const& w : p) y = at::gelu(y.matmul(w));
      split_backward passes(x, y);
      CHECK(before_f.bytes() == 2 * layers * unit);  // inputs of gelu and of the next matmul
      if (!keep_output) y.reset();

      if (fused) {
        tensors dx = passes.backward({dy});
        dx.clear();
        CHECK(before_f.bytes() == weights + (keep_output ? unit : 0));
      } else {
        std::int64_t const left = (layers - 1) * unit + (keep_output ? unit : 0);
        live_memory memory;
        tensors dx = passes.backward_input({dy});
        // The inputs of gelu are gone; the gradients of its outputs took their place.
        std::int64_t const after = 2 * layers * unit + memory.bytes() - (keep_output ? 0 : unit);
        CHECK(after == left + layers * unit + unit);
        CHECK(memory.peak() <= 3 * unit);
        dx.clear();
        passes.backward_weight();
      }
      for (at::Tensor& w : p) w.mutable_grad().reset();
    }
  }
}

TEST_CASE("the gradient of an input has the strides with which it came", "[torch]") {
  at::Tensor const p = leaf({3, 3}, 1);
  auto const strides = [&](bool is_fused) {
    at::Tensor const x = leaf({3, 3}, 2);
    split_backward passes(x, x.t().add(p));
    auto const dx =
        (is_fused ? passes.backward({at::ones({3, 3})}) : passes.backward_input({at::ones({3, 3})}))
            .front();
    return dx.strides().vec();
  };
  CHECK(strides(false) == std::vector<std::int64_t>{1, 3});
  CHECK(strides(true) == strides(false));
}

TEST_CASE("a node with a hook behind it is not run for two microbatches", "[torch]") {
  at::Tensor const p = leaf({3, 4}, 1);
  at::Tensor const x = leaf({3, 4}, 2);
  at::Tensor const h = behind_node(x + p);
  tensors const dy{at::ones({3, 4})};
  split_backward first(x, h.tanh());
  split_backward second(x, h.exp());
  first.backward_input(dy);
  CHECK_THROWS_WITH(second.backward_input(dy), Catch::Contains("that split_backward has cut"));
}

TEST_CASE("passes in a wrong order are refused, and so are gradients that do not fit", "[torch]") {
  at::Tensor const p = leaf({4, 4}, 1);
  at::Tensor const x = leaf({3, 4}, 2);
  auto const made = [&] { return split_backward(x, x.matmul(p)); };
  tensors const dy{at::ones({3, 4})};

  split_backward passes;
  CHECK(
      refusal([&] { passes.backward_input(dy); }) ==
      "backward_input() of a split_backward was called and nothing is left to do: each is made of "
      "a "
      "forward pass, and used once");
  passes = made();
  CHECK(refusal([&] {
          passes.backward_weight();
        }) == "backward_weight() of a split_backward was called before backward_input()");
  CHECK(
      refusal([&] { passes.backward_input({}); }) ==
      "backward_input() got 0 gradients; it needs one for each of 1 outputs, if only an undefined "
      "tensor");
  CHECK(refusal([&] {
          passes.backward({at::ones({4, 3})});
        }) == "backward() got a gradient of sizes [4, 3] for output 0, whose sizes are [3, 4]");
  passes.backward_input(dy);  // what was refused has changed nothing
  CHECK(
      refusal([&] { passes.backward_input(dy); }) ==
      "backward_input() of a split_backward was called after backward_input(); only "
      "backward_weight() is left");
  CHECK(
      refusal([&] { passes.backward(dy); }) ==
      "backward() of a split_backward was called after backward_input(); only backward_weight() is "
      "left");
  passes.backward_weight();
  CHECK(
      refusal([&] { passes.backward_weight(); }) ==
      "backward_weight() of a split_backward was called and nothing is left to do: each is made of "
      "a forward pass, and used once");
  passes = made();
  passes.backward(dy);
  CHECK(
      refusal([&] { passes.backward_weight(); }) ==
      "backward_weight() of a split_backward was called and nothing is left to do: each is made of "
      "a forward pass, and used once");

  CHECK(
      refusal([&] { split_backward(x.tanh(), x.tanh().matmul(p)); }) ==
      "input 0 of a split_backward is no leaf; compute the outputs from "
      "x.detach().requires_grad_()");
  CHECK(refusal([&] {
          split_backward(x, at::Tensor());
        }) == "output 0 of a split_backward is undefined");
}

namespace {

struct failing : ::torch::autograd::Function<failing> {
  static at::Tensor forward(::torch::autograd::AutogradContext*, at::Tensor const& x) {
    return x.clone();
  }
  static tensors backward(::torch::autograd::AutogradContext*, tensors const&) {
    throw std::runtime_error("on purpose");
  }
};

}  // namespace

TEST_CASE("after a failure no pass runs, and the grad of inputs is as it was", "[torch]") {
  at::Tensor const p = leaf({4, 4}, 1);
  at::Tensor const x = leaf({3, 4}, 2);
  at::Tensor const before = at::ones({3, 4});
  x.mutable_grad() = before;
  tensors const dy{at::ones({3, 4})};
  for (bool const fused : {false, true}) {
    split_backward passes(x, failing::apply(x.matmul(p)).matmul(p));
    CHECK_THROWS_WITH(
        fused ? passes.backward(dy) : passes.backward_input(dy), Catch::Contains("on purpose"));
    CHECK(refusal([&] {
            passes.backward_weight();
          }) == "backward_weight() of a split_backward was called after a pass of it failed");
    CHECK(x.grad().is_same(before));
  }
}

TEST_CASE(
    "a graph that two microbatches share is refused instead of giving wrong gradients", "[torch]") {
  at::Tensor const p = leaf({3, 4}, 1);
  at::Tensor const x = leaf({3, 4}, 2);
  at::Tensor const h = x + p;  // computed once, used by both
  tensors const dy{at::ones({3, 4})};
  split_backward first(x, h.tanh());
  split_backward second(x, h.exp());
  first.backward_input(dy);
  second.backward_input(dy);
  CHECK_THROWS_WITH(second.backward_weight(), Catch::Contains("that split_backward has cut"));
}

TEST_CASE("the grad of a parameter does not take memory that others hold", "[torch]") {
  std::vector<float> received(12, 1.0F);
  at::Tensor const p = leaf({3, 4}, 1);
  for (bool const fused : {false, true}) {
    at::Tensor const x = leaf({3, 4}, 2);
    split_backward passes(x, x + p);
    tensors dy{at::from_blob(received.data(), {3, 4})};
    at::Tensor dx;
    if (fused) {
      dx = passes.backward(std::move(dy)).front();
    } else {
      dx = passes.backward_input(std::move(dy)).front();
      dx = dx.view({12});  // shares the memory, as a message that is being sent
      passes.backward_weight();
    }
    CHECK(p.grad().data_ptr() != received.data());
    CHECK(p.grad().data_ptr() != dx.data_ptr());
    p.mutable_grad().reset();
  }
}

}  // namespace test_torch_split_backward
