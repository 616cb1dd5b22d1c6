// SPDX-License-Identifier: Apache-2.0
//
// Experts spread over replicas: a stage sends its tokens to the members that have their experts and
// gets them back, in F and in B. All replicas have the bits of one process that computes one after
// another, also where pairs of F and B run both passes with exchanges of their own.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/optim/layer.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/policy/dualpipe_v.hpp>
#include <zbpp/policy/stp.hpp>
#include <zbpp/runtime/in_process_grid.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/plan_grid.hpp>
#include <support/refusal.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace test_experts {

using namespace zbpp::test;
using zbpp::any_policy;
using zbpp::grid_axis;
using zbpp::grid_place;
using zbpp::in_process_grid;
using zbpp::pass_context;
using zbpp::pipeline;
using zbpp::plan;
using zbpp::threads;
using zbpp::virtual_time;
using zbpp::test::checked::noise;

namespace {

constexpr std::size_t tokens = 7;
constexpr std::size_t width = 3;
constexpr int steps = 4;
constexpr zbpp::bytes edge = tokens * width * sizeof(float);

using values = std::vector<float>;
using parts = std::vector<values>;  // by member of the expert group

std::uint64_t key(int number) { return static_cast<std::uint64_t>(number); }

// What one microbatch keeps.
struct kept_pass {
  values x;
  std::vector<std::size_t> expert;  // by token
  values gate;                      // by token
  values out;                       // of the experts, by token
  values d_logit;                   // by token
  parts received;                   // tokens that the expert here gets
  parts outputs;                    // what it makes of them
  parts dz;
};

// A router, and one of as many experts as the expert group has members.
class block {
 public:
  block(int stage, int experts, int own)
      : router_(static_cast<std::size_t>(experts) * width),
        d_router_(router_.size()),
        expert_(width * width),
        d_expert_(expert_.size()) {
    for (std::size_t i = 0; i < router_.size(); ++i) router_[i] = noise(3, key(stage), 1, i);
    for (std::size_t i = 0; i < expert_.size(); ++i) expert_[i] = noise(5, key(stage), key(own), i);
  }

  [[nodiscard]] zbpp::optim::layer router() { return {.weights = router_, .gradients = d_router_}; }
  [[nodiscard]] zbpp::optim::layer expert() { return {.weights = expert_, .gradients = d_expert_}; }

  // Gives the tokens that go to each expert: as many as the router says, perhaps none.
  [[gnu::noinline]] parts route(kept_pass& kept, values x) const {
    kept.x = std::move(x);
    kept.expert.assign(tokens, 0);
    kept.gate.assign(tokens, 0);
    parts to(router_.size() / width);
    for (std::size_t n = 0; n < tokens; ++n) {
      float best = 0;
      for (std::size_t e = 0; e < to.size(); ++e) {
        float logit = 0;
        for (std::size_t i = 0; i < width; ++i)
          logit += router_[e * width + i] * kept.x[n * width + i];
        if (e > 0 && logit <= best) continue;
        best = logit;
        kept.expert[n] = e;
      }
      kept.gate[n] = std::tanh(best);
      append(to[kept.expert[n]], kept.x, n);
    }
    return to;
  }
  // Gives what the expert makes of tokens, by the member they came from.
  [[gnu::noinline]] parts compute(kept_pass& kept, parts received) const {
    kept.received = std::move(received);
    kept.outputs.assign(kept.received.size(), {});
    for (std::size_t from = 0; from < kept.received.size(); ++from) {
      auto const& x = kept.received[from];
      auto& y = kept.outputs[from];
      y.assign(x.size(), 0);
      for (std::size_t n = 0; n < x.size() / width; ++n)
        for (std::size_t o = 0; o < width; ++o) {
          for (std::size_t i = 0; i < width; ++i)
            y[n * width + o] += expert_[o * width + i] * x[n * width + i];
          y[n * width + o] = std::tanh(y[n * width + o]);
        }
    }
    return kept.outputs;
  }
  [[gnu::noinline]] values combine(kept_pass& kept, parts const& returned) const {
    kept.out = in_order(kept, returned);
    auto y = kept.x;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += kept.gate[i / width] * kept.out[i];
    return y;
  }
  [[gnu::noinline]] parts spread(kept_pass& kept, values const& dy) const {
    kept.d_logit.assign(tokens, 0);
    parts to(router_.size() / width);
    values d(dy.size());
    for (std::size_t n = 0; n < tokens; ++n) {
      float d_gate = 0;
      for (std::size_t i = 0; i < width; ++i) {
        d_gate += dy[n * width + i] * kept.out[n * width + i];
        d[n * width + i] = dy[n * width + i] * kept.gate[n];
      }
      kept.d_logit[n] = d_gate * (1 - kept.gate[n] * kept.gate[n]);
      append(to[kept.expert[n]], d, n);
    }
    return to;
  }
  [[gnu::noinline]] parts backward(kept_pass& kept, parts const& received) const {
    kept.dz = received;
    parts dx(received.size());
    for (std::size_t from = 0; from < dx.size(); ++from) {
      auto& dz = kept.dz[from];
      dx[from].assign(dz.size(), 0);
      for (std::size_t n = 0; n < dz.size() / width; ++n)
        for (std::size_t o = 0; o < width; ++o) {
          auto const y = kept.outputs[from][n * width + o];
          dz[n * width + o] *= 1 - y * y;
          for (std::size_t i = 0; i < width; ++i)
            dx[from][n * width + i] += expert_[o * width + i] * dz[n * width + o];
        }
    }
    return dx;
  }
  [[gnu::noinline]] values join(kept_pass const& kept, values dy, parts const& returned) const {
    auto const of_experts = in_order(kept, returned);
    for (std::size_t i = 0; i < dy.size(); ++i)
      dy[i] += of_experts[i] +
               router_[kept.expert[i / width] * width + i % width] * kept.d_logit[i / width];
    return dy;
  }
  // Adds up for the own expert and the router; nothing is sent.
  [[gnu::noinline]] void weight(kept_pass const& kept) {
    for (std::size_t from = 0; from < kept.dz.size(); ++from)
      for (std::size_t n = 0; n < kept.dz[from].size() / width; ++n)
        for (std::size_t o = 0; o < width; ++o)
          for (std::size_t i = 0; i < width; ++i)
            d_expert_[o * width + i] +=
                kept.dz[from][n * width + o] * kept.received[from][n * width + i];
    for (std::size_t n = 0; n < tokens; ++n)
      for (std::size_t i = 0; i < width; ++i)
        d_router_[kept.expert[n] * width + i] += kept.d_logit[n] * kept.x[n * width + i];
  }

 private:
  static void append(values& to, values const& from, std::size_t token) {
    for (std::size_t i = 0; i < width; ++i) to.push_back(from[token * width + i]);
  }
  // What came back from the experts, by token.
  [[nodiscard]] static values in_order(kept_pass const& kept, parts const& returned) {
    std::vector<std::size_t> taken(returned.size());
    values all;
    for (std::size_t n = 0; n < tokens; ++n)
      append(all, returned[kept.expert[n]], taken[kept.expert[n]]++);
    return all;
  }

  values router_;
  values d_router_;
  values expert_;
  values d_expert_;
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

// Steps the router and the expert of a stage. Gradients of the router are added up over all
// replicas; those of the expert are left to the stage, since replicas have different ones.
class split_optimizer final : public zbpp::optimizer {
 public:
  explicit split_optimizer(block& own) : shared_({own.router()}), expert_({own.expert()}) {}

  [[nodiscard]] int layers() const override { return 2; }
  void measure(std::span<zbpp::gradient_state> states, pass_context ctx) override {
    shared_.measure(states.first(1), ctx);
    expert_.measure(states.last(1), ctx);
  }
  void step(zbpp::step_settings const& settings, pass_context ctx) override {
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
  zbpp::optim::sgd shared_;
  zbpp::optim::sgd expert_;
};

parts all_to_all(zbpp::group& members, parts const& sent) {
  std::vector<std::span<float const>> const all(sent.begin(), sent.end());
  parts received;
  members.all_to_all(all, received);
  return received;
}

class stage {
 public:
  stage(int number, int replica, int experts, int own)
      : replica_(replica),
        block_(std::make_unique<block>(number, experts, own)),
        optimizer_(std::make_unique<split_optimizer>(*block_)) {}

  zbpp::flow operator()(zbpp::microbatch mb) {
    auto& members = mb.grid().expert();
    kept_pass kept;
    values y;
    zbpp::message in = co_await mb.recv_activation();
    zbpp::buffer out;
    co_await zbpp::F([&](pass_context ctx) {
      auto const step = static_cast<int>(mb.step());
      auto x = mb.is_first_stage() ? batch(step, replica_, mb.index()) : to_values(in[0]);
      auto const routed = all_to_all(members, block_->route(kept, std::move(x)));
      y = block_->combine(kept, all_to_all(members, block_->compute(kept, routed)));
      if (mb.is_last_stage()) mb.report_loss(loss(y));
      out = to_buffer(y, ctx);
    });
    in.clear();
    co_await mb.send_activation(std::move(out));
    zbpp::message const back = co_await mb.recv_gradient();
    auto b = [&](pass_context ctx) {
      auto dy = mb.is_last_stage() ? y : to_values(back[0]);
      auto const routed = all_to_all(members, block_->spread(kept, dy));
      auto const returned = all_to_all(members, block_->backward(kept, routed));
      out = to_buffer(block_->join(kept, std::move(dy), returned), ctx);
    };
    auto w = [&](pass_context) { block_->weight(kept); };
    if (mb.is_fused()) {
      auto both = [&](pass_context ctx) {
        b(ctx);
        w(ctx);
      };
      co_await zbpp::BW(both);
      co_await mb.send_gradient(std::move(out));
    } else {
      co_await zbpp::B(b);
      co_await mb.send_gradient(std::move(out));
      co_await zbpp::W(w);
    }
  }
  [[nodiscard]] split_optimizer& optimizer() { return *optimizer_; }
  [[nodiscard]] block& weights() { return *block_; }

 private:
  static values to_values(zbpp::buffer const& from) {
    std::span<float const> const all = from.as<float>();
    return {all.begin(), all.end()};
  }
  static zbpp::buffer to_buffer(values const& from, pass_context ctx) {
    auto to = ctx.allocate_edge(from.size() * sizeof(float));
    std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
    return to;
  }

  int replica_;
  std::unique_ptr<block> block_;
  std::unique_ptr<split_optimizer> optimizer_;
};

// What a replica gives: losses, then all weights.
struct outcome {
  std::vector<double> losses;
  values weights;
  friend bool operator==(outcome const&, outcome const&) = default;
};

void note_weights(outcome& to, std::span<float const> weights) {
  to.weights.insert(to.weights.end(), weights.begin(), weights.end());
}

template <class Backend>
std::vector<outcome> train(plan const& planned, Backend backend, zbpp::grid const& stated) {
  in_process_grid whole(stated);
  std::vector<outcome> all(static_cast<std::size_t>(stated.data));
  auto const& placement = planned.problem().placement();
  whole.run([&](grid_place const& at) {
    auto& result = all[static_cast<std::size_t>(at.data())];
    auto const own = at.grid_of(0)->expert().place();
    std::vector<stage> stages;
    for (int s = 0; s < placement.stages(); ++s)
      stages.emplace_back(s, at.data(), stated.expert, own);
    auto place = backend;
    place.place = at;
    // Replicas with the same expert add its gradients up.
    zbpp::training_options const options{.on_gradients_ready = [&](int s, pass_context) {
      auto const gradients = stages[static_cast<std::size_t>(s)].weights().expert().gradients;
      at.grid_of(placement.rank_of(s))->expert_data().all_reduce(gradients);
    }};
    pipeline replica(planned, place, stages, options);
    replica.run(steps, [&](zbpp::step_result const& step) {
      result.losses.insert(result.losses.end(), step.losses.begin(), step.losses.end());
    });
    for (auto& each : stages) {
      note_weights(result, each.weights().router().weights);
      note_weights(result, each.weights().expert().weights);
    }
  });
  return all;
}

// The same in one process, one replica after another within each exchange.
std::vector<outcome> train_plain(zbpp::grid const& stated, int stages, int microbatches) {
  zbpp::grid_layout const layout(stated, stated.pipeline * stated.data);
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
  auto const exchanged = [&](std::vector<parts> const& sent) {
    std::vector<parts> received(replicas);
    for (std::size_t to = 0; to < replicas; ++to)
      for (auto const from : members_of(grid_axis::expert, to))
        received[to].push_back(sent[from][place_of(to)]);
    return received;
  };
  std::vector<std::vector<block>> model(replicas);
  std::vector<std::vector<split_optimizer>> optimizers(replicas);
  for (std::size_t r = 0; r < replicas; ++r) {
    for (int s = 0; s < stages; ++s)
      model[r].emplace_back(s, stated.expert, static_cast<int>(place_of(r)));
    for (auto& each : model[r]) optimizers[r].emplace_back(each);
  }
  std::vector<outcome> all(replicas);
  zbpp::arena memory;
  auto const count = static_cast<std::size_t>(stages);
  for (int step = 0; step < steps; ++step) {
    for (int m = 0; m < microbatches; ++m) {
      std::vector<std::vector<kept_pass>> kept(replicas, std::vector<kept_pass>(count));
      std::vector<values> x;
      for (std::size_t r = 0; r < replicas; ++r) x.push_back(batch(step, static_cast<int>(r), m));
      std::vector<parts> sent(replicas);
      for (std::size_t s = 0; s < count; ++s) {
        for (std::size_t r = 0; r < replicas; ++r) sent[r] = model[r][s].route(kept[r][s], x[r]);
        auto received = exchanged(sent);
        for (std::size_t r = 0; r < replicas; ++r)
          sent[r] = model[r][s].compute(kept[r][s], received[r]);
        received = exchanged(sent);
        for (std::size_t r = 0; r < replicas; ++r)
          x[r] = model[r][s].combine(kept[r][s], received[r]);
      }
      for (std::size_t r = 0; r < replicas; ++r) all[r].losses.push_back(loss(x[r]));
      for (std::size_t s = count; s-- > 0;) {
        for (std::size_t r = 0; r < replicas; ++r) sent[r] = model[r][s].spread(kept[r][s], x[r]);
        auto received = exchanged(sent);
        for (std::size_t r = 0; r < replicas; ++r)
          sent[r] = model[r][s].backward(kept[r][s], received[r]);
        received = exchanged(sent);
        for (std::size_t r = 0; r < replicas; ++r) {
          x[r] = model[r][s].join(kept[r][s], x[r], received[r]);
          model[r][s].weight(kept[r][s]);
        }
      }
    }
    for (std::size_t s = 0; s < count; ++s) {
      auto const give_sums = [&](std::vector<std::size_t> const& members, auto const& layer_of) {
        auto const first = layer_of(model[members[0]][s]).gradients;
        values sums(first.begin(), first.end());
        for (std::size_t n = 1; n < members.size(); ++n)
          for (std::size_t i = 0; i < sums.size(); ++i)
            sums[i] += layer_of(model[members[n]][s]).gradients[i];
        for (auto const member : members)
          std::ranges::copy(sums, layer_of(model[member][s]).gradients.begin());
      };
      give_sums(members_of(grid_axis::data, 0), [](block& of) { return of.router(); });
      std::set<std::size_t> done;
      for (std::size_t r = 0; r < replicas; ++r) {
        auto const members = members_of(grid_axis::expert_data, r);
        if (done.insert(members[0]).second)
          give_sums(members, [](block& of) { return of.expert(); });
      }
    }
    for (auto& own : optimizers)
      for (auto& each : own)
        each.step({.updates = step, .learning_rate = 0.001}, pass_context(memory));
  }
  for (std::size_t r = 0; r < replicas; ++r)
    for (auto& each : model[r]) {
      note_weights(all[r], each.router().weights);
      note_weights(all[r], each.expert().weights);
    }
  return all;
}

void check(any_policy const& policy, zbpp::placement const& placement, zbpp::grid const& stated) {
  auto costs = uneven_costs();
  costs.edge = edge;
  costs.recompute = {};
  zbpp::problem const alone(placement, 3 * placement.ranks(), costs, 87);
  auto const planned =
      zbpp::make_plan(policy, with_replicas(alone, {.count = stated.data, .latency = 20}));
  INFO(planned.policy());
  CAPTURE(stated.data, stated.expert);
  auto const expected = train_plain(stated, placement.stages(), alone.microbatches());
  CHECK(train(planned, threads{}, stated) == expected);
  CHECK(train(planned, virtual_time{}, stated) == expected);
}

}  // namespace

TEST_CASE("experts of other replicas give the bits of one process", "[experts][long]") {
  auto const [data, expert] = GENERATE(table<int, int>({{2, 2}, {4, 2}, {3, 3}}));
  zbpp::grid const stated{.pipeline = 2, .data = data, .expert = expert};
  auto const linear = zbpp::placement::linear(2);
  auto const v = zbpp::placement::v_shape(2);
  for (auto const& [policy, placement] :
       {std::pair<any_policy, zbpp::placement>(zbpp::zb_h1{}, linear),
        {zbpp::one_f_one_b{}, linear},
        {zbpp::zb_v{}, v},
        {zbpp::dualpipe_v{}, v},  // whose pairs exchange in F and in B
        {zbpp::stp{}, v}})
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
  auto const planned = [](zbpp::step_kind kind) {
    return zbpp::make_plan(
        zbpp::zb_h1{},
        with_replicas(zbpp::problem(zbpp::placement::linear(2), 3, uneven_costs()), {.count = 2}),
        {.step = kind});
  };
  std::vector<stage> stages;
  for (int s = 0; s < 2; ++s) stages.emplace_back(s, 0, 2, 0);
  using enum zbpp::step_kind;
  CHECK(
      refusal([&] {
        pipeline(planned(unchecked), threads{.count = 1, .place = whole.place(0)}, stages);
      }) ==
      "ranks that share stages or experts wait for each other in passes; leave threads.count at 0, "
      "for a thread of each rank");
  CHECK(
      refusal(
          [&] { pipeline(planned(post_validated), threads{.place = whole.place(0)}, stages); }) ==
      "rank 0: replicas have different experts, so the norm that ranks agree on would be another "
      "one on each of them; lower the plan with step_kind::unchecked");
}

}  // namespace test_experts
