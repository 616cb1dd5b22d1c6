// SPDX-License-Identifier: Apache-2.0
//
// What crosses an edge: several buffers, of sizes that vary up to what the costs declare.
#include <support/backends.hpp>
#include <support/pass_order.hpp>

namespace test_edges {

using namespace zbpp;
using namespace zbpp::test;

namespace {

// Sends buffers of chosen sizes both ways, and counts what it receives and does not recognise.
struct sender {
  using sizes = std::vector<std::size_t>;

  std::function<sizes(int stage, int microbatch)> forward;
  std::function<sizes(int stage, int microbatch)> backward;
  int wrong = 0;

  struct passes {
    sender* own;

    message forward(message const& in, microbatch mb, pass_context ctx) const {
      if (!mb.is_first_stage()) own->expect(in, own->forward(mb.stage() - 1, mb.index()));
      return make(ctx, own->forward(mb.stage(), mb.index()));
    }
    message backward(message const& back, microbatch mb, pass_context ctx) const {
      if (!mb.is_last_stage()) own->expect(back, own->backward(mb.stage() + 1, mb.index()));
      return make(ctx, own->backward(mb.stage(), mb.index()));
    }
    static void weight(microbatch) {}
  };
  flow operator()(microbatch mb) { return in_order(passes{this}, mb); }

  static message make(pass_context ctx, sizes const& all) {
    message msg;
    for (std::size_t i = 0; i < all.size(); ++i) {
      msg.push_back(ctx.allocate_edge(all[i]));
      for (auto& byte : msg[i].as<std::uint8_t>()) byte = static_cast<std::uint8_t>(all[i] + i);
    }
    return msg;
  }
  void expect(message const& msg, sizes const& all) {
    bool right = msg.size() == all.size();
    for (std::size_t i = 0; i < msg.size() && right; ++i) {
      right = msg[i].size() == all[i];
      for (auto byte : msg[i].as<std::uint8_t>())
        right = right && byte == static_cast<std::uint8_t>(all[i] + i);
    }
    if (!right) ++wrong;
  }
};

problem with_edge(placement placement, int microbatches, bytes edge) {
  return {std::move(placement), microbatches, stage_costs{.forward = 1, .edge = edge}, 1};
}

sender::sizes constant(int, int) { return {16}; }

// What a step says when one message of a pipeline has `size` bytes where 16 are declared.
template <class Backend>
std::string refusal_of(
    placement const& placement, Backend backend, bool is_forward, int stage, std::size_t size) {
  auto const wrong = [=](int s, int m) {
    return s == stage && m == 1 ? sender::sizes{size - 9, 9} : constant(s, m);
  };
  auto const right = [](int s, int m) { return constant(s, m); };
  std::string text;
  on_plans(with_edge(placement, 2, 16), {.fused = false}, [&](plan const& p) {
    if (!text.empty()) return;
    std::vector<sender> stages(detail::index(placement.stages()), {right, right});
    for (auto& s : stages) (is_forward ? s.forward : s.backward) = wrong;
    pipeline pipe{p, backend, stages};
    text = refusal(errc::wrong_size, [&] { pipe.step(); });
    for (int rank = 0; rank < placement.ranks(); ++rank)
      CHECK(pipe.memory(rank).in_use == std::array<bytes, purposes>{});
    for (auto& s : stages) (is_forward ? s.forward : s.backward) = right;
    CHECK_NOTHROW(pipe.step());
  });
  return text.substr(text.find("edge"));
}

}  // namespace

TEST_CASE("an edge carries as many buffers as a message holds", "[edges]") {
  auto const sizes = [](int stage, int microbatch) {
    sender::sizes all;
    for (int i = 0; i < (stage + microbatch) % 9; ++i)
      all.push_back(static_cast<std::size_t>((i * 37 + microbatch * 11 + stage) % 90));
    return all;
  };
  auto const back = [&](int stage, int microbatch) { return sizes(stage + 3, microbatch * 2); };
  for (auto const& placement : placements_to_run(3))
    on_plans(with_edge(placement, 9, 800), {}, [&](plan const& planned) {
      on_backends([&](auto backend) {
        std::vector<sender> stages(detail::index(placement.stages()), {sizes, back});
        pipeline pipe{planned, backend, stages};
        pipe.step();
        pipe.step();
        for (auto const& s : stages) CHECK(s.wrong == 0);
      });
    });
}

TEST_CASE("an edge that carries more than was declared is named", "[edges]") {
  on_backends([](auto backend) {
    auto const linear = placement::linear(3);
    CHECK(
        refusal_of(linear, backend, true, 1, 17) ==
        "edge 1->2 carries 17 bytes of activation; the costs declare at most 16");
    CHECK(
        refusal_of(linear, backend, false, 1, 40) ==
        "edge 1->0 carries 40 bytes of gradient; the costs declare at most 16");
    auto const v = placement::v_shape(2);  // stages 1 and 2 share a rank
    CHECK(
        refusal_of(v, backend, true, 1, 17) ==
        "edge 1->2 carries 17 bytes of activation; the costs declare at most 16");
    CHECK(
        refusal_of(v, backend, false, 2, 17) ==
        "edge 2->1 carries 17 bytes of gradient; the costs declare at most 16");
  });
}

namespace {

// Runs a step in which all messages have these sizes, and all arrive as they were sent.
template <class Backend>
void check_step(
    plan const& planned,
    Backend backend,
    sender::sizes const& forward,
    sender::sizes const& backward) {
  auto const always = [](sender::sizes const& all) { return [=](int, int) { return all; }; };
  std::vector<sender> stages(3, {always(forward), always(backward)});
  pipeline pipe{planned, backend, stages};
  CHECK_NOTHROW(pipe.step());
  for (auto const& s : stages) CHECK(s.wrong == 0);
}

}  // namespace

TEST_CASE("an edge carries up to what was declared, and anything where nothing was", "[edges]") {
  auto const planned = make_plan(zb_h1{}, with_edge(placement::linear(3), 4, 16));
  for (std::size_t const size : {16U, 10U, 0U}) check_step(planned, virtual_time{}, {size}, {});
  check_step(
      make_plan(zb_h1{}, with_edge(placement::linear(3), 4, 0)), threads{}, {100'000}, {100'000});
}

TEST_CASE("channels may be listed in any order", "[edges]") {
  auto const made = make_plan(zb_h1{}, with_edge(placement::linear(3), 7, 16));
  auto const original = made.program();
  auto channels = original.channels();
  REQUIRE(channels.size() == 4);
  std::swap(channels[0], channels[3]);
  channels[1].in_flight += 5;
  plan const planned(
      made.policy(),
      made.problem(),
      made.schedule(),
      program(original.placement(), original.microbatches(), original.instructions(), channels));
  check_step(planned, virtual_time{}, {16}, {16});
}

}  // namespace test_edges
