// SPDX-License-Identifier: Apache-2.0
//
// Experts spread over replicas: a stage sends its tokens to the members that have their experts and
// gets them back, in F and in B. All replicas have the bits of one process that computes one after
// another, also where pairs of F and B run both passes with exchanges of their own.
#include <zbpp/optim/layer.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/policy/dualpipe_v.hpp>
#include <zbpp/policy/stp.hpp>
#include <zbpp/runtime/in_process_grid.hpp>

#include <support/backends.hpp>
#include <support/checked_model.hpp>
#include <support/grid_training.hpp>
#include <support/pass_order.hpp>

#include <cmath>
#include <deque>
#include <set>

namespace test_experts {

using namespace zbpp;
using namespace zbpp::test;
using zbpp::test::checked::history;
using zbpp::test::checked::noise;

namespace {

constexpr std::size_t tokens = 7;
constexpr std::size_t width = 3;
constexpr int steps = 4;
constexpr bytes edge = tokens * width * sizeof(float);

using values = std::vector<float>;
using parts = std::vector<values>;  // by member of the expert group

std::uint64_t key(int number) { return static_cast<std::uint64_t>(number); }

// Products with a matrix of width x width, token by token, and tanh behind them.
[[gnu::noinline]] values forward(values const& w, values const& x) {
  values y(x.size());
  for (std::size_t n = 0; n < x.size(); n += width)
    for (std::size_t o = 0; o < width; ++o) {
      for (std::size_t i = 0; i < width; ++i) y[n + o] += w[o * width + i] * x[n + i];
      y[n + o] = std::tanh(y[n + o]);
    }
  return y;
}
// Makes the gradient of x, and `dz`, which is that of y before, that behind the product.
[[gnu::noinline]] values backward(values const& w, values const& y, values& dz) {
  values dx(y.size());
  for (std::size_t n = 0; n < y.size(); n += width)
    for (std::size_t o = 0; o < width; ++o) {
      dz[n + o] *= 1 - y[n + o] * y[n + o];
      for (std::size_t i = 0; i < width; ++i) dx[n + i] += w[o * width + i] * dz[n + o];
    }
  return dx;
}
[[gnu::noinline]] void add_gradient(values& dw, values const& x, values const& dz) {
  for (std::size_t n = 0; n < x.size(); n += width)
    for (std::size_t o = 0; o < width; ++o)
      for (std::size_t i = 0; i < width; ++i) dw[o * width + i] += dz[n + o] * x[n + i];
}

// What one microbatch keeps.
struct kept_pass {
  values x, h, dz;
  std::vector<std::size_t> expert;  // by token
  std::vector<values> received, outputs,
      expert_dz;  // of the expert here, by the member they came from
};

// A layer that all replicas have, and one of as many experts as the expert group has members.
class block {
 public:
  block(int stage, int experts, int own) : experts_(static_cast<std::size_t>(experts)) {
    for (std::size_t i = 0; i < size; ++i) {
      shared_[i] = noise(3, key(stage), 1, i);
      expert_[i] = noise(5, key(stage), key(own), i);
    }
  }

  [[nodiscard]] optim::layer shared() { return {.weights = shared_, .gradients = d_shared_}; }
  [[nodiscard]] optim::layer expert() { return {.weights = expert_, .gradients = d_expert_}; }

  // Gives the tokens that go to each expert: as many as the layer says, perhaps none.
  parts route(kept_pass& kept, values x) const {
    kept.x = std::move(x);
    kept.h = forward(shared_, kept.x);
    kept.expert.assign(tokens, 0);
    for (std::size_t n = 0; n < tokens; ++n)
      while (kept.expert[n] + 1 < experts_ && kept.h[n * width + kept.expert[n]] > 0)
        ++kept.expert[n];
    return divided(kept, kept.h);
  }
  // Gives what the expert makes of tokens, by the member they came from.
  parts compute(kept_pass& kept, parts received) const {
    kept.received = std::move(received);
    kept.outputs.clear();
    for (auto const& x : kept.received) kept.outputs.push_back(forward(expert_, x));
    return kept.outputs;
  }
  values combine(kept_pass const& kept, parts const& returned) const {
    return sum(kept.h, in_order(kept, returned));
  }
  parts spread(kept_pass const& kept, values const& dy) const { return divided(kept, dy); }
  parts backward_expert(kept_pass& kept, parts const& received) const {
    kept.expert_dz = received;
    parts dx;
    for (std::size_t from = 0; from < received.size(); ++from)
      dx.push_back(backward(expert_, kept.outputs[from], kept.expert_dz[from]));
    return dx;
  }
  values join(kept_pass& kept, values const& dy, parts const& returned) const {
    kept.dz = sum(dy, in_order(kept, returned));
    return backward(shared_, kept.h, kept.dz);
  }
  // Adds up for both layers; nothing is sent.
  void weight(kept_pass const& kept) {
    for (std::size_t from = 0; from < kept.received.size(); ++from)
      add_gradient(d_expert_, kept.received[from], kept.expert_dz[from]);
    add_gradient(d_shared_, kept.x, kept.dz);
  }

 private:
  static constexpr std::size_t size = width * width;

  [[nodiscard]] parts divided(kept_pass const& kept, values const& all) const {
    parts to(experts_);
    for (std::size_t i = 0; i < all.size(); ++i) to[kept.expert[i / width]].push_back(all[i]);
    return to;
  }
  // What came back from the experts, by token.
  [[nodiscard]] static values in_order(kept_pass const& kept, parts const& returned) {
    std::vector<std::size_t> taken(returned.size());
    values all;
    for (std::size_t i = 0; i < tokens * width; ++i) {
      auto const from = kept.expert[i / width];
      all.push_back(returned[from][taken[from]++]);
    }
    return all;
  }
  [[nodiscard]] static values sum(values a, values const& b) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  }

  std::size_t experts_;
  values shared_ = values(size), d_shared_ = values(size);
  values expert_ = values(size), d_expert_ = values(size);
};

values batch(int step, int replica, int microbatch) {
  values x(tokens * width);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = noise(key(step), key(replica), key(microbatch), i);
  return x;
}
double loss(values const& y) {
  double sum = 0;
  for (float v : y) sum += 0.5 * static_cast<double>(v) * static_cast<double>(v);
  return sum;
}

// Steps both layers of a stage. Gradients of the shared one are added up over all
// replicas; those of the expert are left to the stage, since replicas have different ones.
class split_optimizer final : public optimizer {
 public:
  explicit split_optimizer(block& own) : shared_({own.shared()}), expert_({own.expert()}) {}

  [[nodiscard]] int layers() const override { return 2; }
  void measure(std::span<gradient_state> states, pass_context ctx) override {
    shared_.measure(states.first(1), ctx);
    expert_.measure(states.last(1), ctx);
  }
  void step(step_settings const& settings, pass_context ctx) override {
    shared_.step(settings, ctx);
    expert_.step(settings, ctx);
  }
  void commit(pass_context ctx) override {
    shared_.commit(ctx);
    expert_.commit(ctx);
  }
  void undo(pass_context ctx) override {
    shared_.undo(ctx);
    expert_.undo(ctx);
  }
  void skip(pass_context ctx) override {
    shared_.skip(ctx);
    expert_.skip(ctx);
  }
  [[nodiscard]] std::optional<std::int64_t> gradient_count() const override {
    return shared_.gradient_count();
  }
  void read_gradients(std::span<float> copy, pass_context ctx) override {
    shared_.read_gradients(copy, ctx);
  }
  void write_gradients(std::span<float const> sums, pass_context ctx) override {
    shared_.write_gradients(sums, ctx);
  }

 private:
  optim::sgd shared_;
  optim::sgd expert_;
};

parts all_to_all(group& members, parts const& sent) {
  std::vector<std::span<float const>> const all(sent.begin(), sent.end());
  parts received;
  members.all_to_all(all, received);
  return received;
}

// What a microbatch keeps of a stage, and its passes.
struct passes {
  block* own;
  int replica;
  kept_pass kept{};
  values y{};

  message forward(message const& in, microbatch mb, pass_context ctx) {
    auto& members = mb.grid().expert();
    auto x = mb.is_first_stage() ? batch(static_cast<int>(mb.step()), replica, mb.index())
                                 : to_values(in[0]);
    auto const routed = all_to_all(members, own->route(kept, std::move(x)));
    y = own->combine(kept, all_to_all(members, own->compute(kept, routed)));
    if (mb.is_last_stage()) mb.report_loss(loss(y));
    return edge_of(y, ctx);
  }
  message backward(message const& back, microbatch mb, pass_context ctx) {
    auto& members = mb.grid().expert();
    auto dy = mb.is_last_stage() ? y : to_values(back[0]);
    auto const routed = all_to_all(members, own->spread(kept, dy));
    auto const returned = all_to_all(members, own->backward_expert(kept, routed));
    return edge_of(own->join(kept, dy, returned), ctx);
  }
  void weight(microbatch) { own->weight(kept); }

  static values to_values(buffer const& from) {
    std::span<float const> const all = from.as<float>();
    return {all.begin(), all.end()};
  }
};

class stage {
 public:
  stage(block& own, int replica) : block_(&own), optimizer_(own), replica_(replica) {}

  flow operator()(microbatch mb) { return in_order(passes{block_, replica_}, mb); }
  [[nodiscard]] split_optimizer& optimizer() { return optimizer_; }

 private:
  block* block_;
  split_optimizer optimizer_;
  int replica_;
};

// What one replica has.
class model {
 public:
  model(int stages, int replica, int experts, int own) {
    for (int s = 0; s < stages; ++s)
      stages_.emplace_back(blocks_.emplace_back(s, experts, own), replica);
  }
  [[nodiscard]] std::deque<stage>& stages() { return stages_; }
  [[nodiscard]] block& at(int stage) { return blocks_[static_cast<std::size_t>(stage)]; }
  // Leaves the experts out, which replicas do not share.
  [[nodiscard]] checked::plain_pipeline plain() {
    checked::plain_pipeline all;
    for (std::size_t s = 0; s < blocks_.size(); ++s)
      all.push_back({{blocks_[s].shared()}, &stages_[s].optimizer()});
    return all;
  }
  [[nodiscard]] std::vector<std::uint32_t> bits() {
    values all;
    for (auto& each : blocks_)
      for (auto const weights : {each.shared().weights, each.expert().weights})
        all.insert(all.end(), weights.begin(), weights.end());
    return checked::bits_of(all);
  }

 private:
  std::deque<block> blocks_;
  std::deque<stage> stages_;
};

template <class Backend>
std::vector<std::vector<history>> train(plan const& planned, Backend backend, grid const& stated) {
  auto const& placement = planned.problem().placement();
  return train_grid(
      planned,
      backend,
      stated,
      steps,
      [&](grid_place const& at) {
        auto const own = at.grid_of(0)->expert().place();
        return model(placement.stages(), at.data(), stated.expert, own);
      },
      [&](grid_place const& at, model& own) {
        // Replicas with the same expert add its gradients up.
        return training_options{.on_gradients_ready = [&placement, &own, at](int s, pass_context) {
          at.grid_of(placement.rank_of(s))->expert_data().all_reduce(own.at(s).expert().gradients);
        }};
      });
}

// The same in one process, one replica after another within each exchange.
std::vector<history> train_plain(grid const& stated, int stages, int microbatches) {
  grid_layout const layout(stated, stated.pipeline * stated.data);
  auto const replicas = static_cast<std::size_t>(stated.data);
  auto const members_of = [&](grid_axis axis, std::size_t replica) {
    std::vector<std::size_t> members;
    for (int rank : layout.group(axis, layout.rank_of({0, static_cast<int>(replica), 0})))
      members.push_back(static_cast<std::size_t>(layout.coordinates(rank).data));
    return members;
  };
  auto const place_of = [&](std::size_t replica) {
    auto const members = members_of(grid_axis::expert, replica);
    return static_cast<std::size_t>(std::ranges::find(members, replica) - members.begin());
  };
  std::deque<model> models;
  std::vector<std::vector<checked::plain_pipeline>> all;
  for (std::size_t r = 0; r < replicas; ++r)
    all.push_back(
        {models
             .emplace_back(
                 stages, static_cast<int>(r), stated.expert, static_cast<int>(place_of(r)))
             .plain()});
  auto const run = [&](int step, double) {
    std::vector<std::vector<double>> losses(replicas);
    for (int m = 0; m < microbatches; ++m) {
      std::vector<std::vector<kept_pass>> kept(
          replicas, std::vector<kept_pass>(static_cast<std::size_t>(stages)));
      std::vector<values> x;
      for (std::size_t r = 0; r < replicas; ++r) x.push_back(batch(step, static_cast<int>(r), m));
      // Calls `make(block, kept, replica)` for each replica, and exchanges what it gives.
      auto const exchanged = [&](int s, auto const& make) {
        std::vector<parts> sent;
        for (std::size_t r = 0; r < replicas; ++r)
          sent.push_back(make(models[r].at(s), kept[r][static_cast<std::size_t>(s)], r));
        std::vector<parts> received(replicas);
        for (std::size_t to = 0; to < replicas; ++to)
          for (auto const from : members_of(grid_axis::expert, to))
            received[to].push_back(sent[from][place_of(to)]);
        return received;
      };
      for (int s = 0; s < stages; ++s) {
        auto const at = static_cast<std::size_t>(s);
        auto const routed = exchanged(
            s, [&](block& own, kept_pass& of, std::size_t r) { return own.route(of, x[r]); });
        auto const returned = exchanged(s, [&](block& own, kept_pass& of, std::size_t r) {
          return own.compute(of, routed[r]);
        });
        for (std::size_t r = 0; r < replicas; ++r)
          x[r] = models[r].at(s).combine(kept[r][at], returned[r]);
      }
      for (std::size_t r = 0; r < replicas; ++r) losses[r].push_back(loss(x[r]));
      for (int s = stages - 1; s >= 0; --s) {
        auto const at = static_cast<std::size_t>(s);
        auto const routed = exchanged(
            s, [&](block& own, kept_pass& of, std::size_t r) { return own.spread(of, x[r]); });
        auto const returned = exchanged(s, [&](block& own, kept_pass& of, std::size_t r) {
          return own.backward_expert(of, routed[r]);
        });
        for (std::size_t r = 0; r < replicas; ++r) {
          x[r] = models[r].at(s).join(kept[r][at], x[r], returned[r]);
          models[r].at(s).weight(kept[r][at]);
        }
      }
    }
    std::set<std::size_t> done;
    for (std::size_t r = 0; r < replicas; ++r) {
      auto const members = members_of(grid_axis::expert_data, r);
      if (!done.insert(members[0]).second) continue;
      for (int s = 0; s < stages; ++s) {
        std::vector<std::span<float>> of_expert;
        for (auto const member : members)
          of_expert.push_back(models[member].at(s).expert().gradients);
        checked::give_sum(of_expert);
      }
    }
    return losses;
  };
  auto results = checked::train_plainly(all, steps, {}, {}, run);
  for (std::size_t r = 0; r < replicas; ++r) results[r].bits = models[r].bits();
  return results;
}

void check(any_policy const& policy, placement const& placement, grid const& stated) {
  auto costs = uneven_costs();
  costs.edge = edge;
  costs.recompute = {};
  problem const alone(placement, 3 * placement.ranks(), costs, 87);
  auto const planned =
      make_plan(policy, with_replicas(alone, {.count = stated.data, .latency = 20}));
  INFO(planned.policy());
  CAPTURE(stated.data, stated.expert);
  auto expected = train_plain(stated, placement.stages(), alone.microbatches());
  on_backends([&](auto backend) {
    auto found = train(planned, backend, stated);
    for (std::size_t r = 0; r < expected.size(); ++r) {
      expected[r].forget_updates();
      found[r].front().forget_updates();
      CHECK(difference(found[r].front(), expected[r]) == "");
    }
  });
}

}  // namespace

TEST_CASE("experts of other replicas give the bits of one process", "[experts][long]") {
  auto const [data, expert] = GENERATE(table<int, int>({{2, 2}, {4, 2}, {3, 3}}));
  grid const stated{.pipeline = 2, .data = data, .expert = expert};
  auto const linear = placement::linear(2);
  auto const v = placement::v_shape(2);
  for (auto const& [policy, placement] :
       {std::pair<any_policy, placement>(zb_h1{}, linear),
        {one_f_one_b{}, linear},
        {zb_v{}, v},
        {dualpipe_v{}, v},  // whose pairs exchange in F and in B
        {stp{}, v}})
    check(policy, placement, stated);
}

TEST_CASE("experts of the test get different numbers of tokens, at times none", "[experts]") {
  block const one(0, 3, 0);
  std::set<std::size_t> counts;
  for (int step = 0; step < steps; ++step)
    for (int replica = 0; replica < 3; ++replica)
      for (int m = 0; m < 6; ++m) {
        kept_pass kept;
        for (auto const& part : one.route(kept, batch(step, replica, m)))
          counts.insert(part.size() / width);
      }
  CHECK(counts.size() > 3);
  CHECK(*counts.begin() == 0);
}

TEST_CASE("experts that a pipeline cannot run are refused", "[experts]") {
  in_process_grid whole({.pipeline = 2, .data = 2, .expert = 2});
  auto const planned = [](step_kind kind) {
    return make_plan(
        zb_h1{},
        with_replicas(problem(placement::linear(2), 3, uneven_costs()), {.count = 2}),
        {.step = kind});
  };
  model own(2, 0, 2, 0);
  using enum step_kind;
  CHECK(
      refusal([&] {
        pipeline(planned(unchecked), threads{.count = 1, .place = whole.place(0)}, own.stages());
      }) ==
      "ranks that share stages or experts wait for each other in passes; leave threads.count at 0, "
      "for a thread of each rank");
  CHECK(
      refusal([&] {
        pipeline(planned(post_validated), threads{.place = whole.place(0)}, own.stages());
      }) ==
      "rank 0: replicas have different experts, so the norm that ranks agree on would be another "
      "one on each of them; lower the plan with step_kind::unchecked");
}

}  // namespace test_experts
