// SPDX-License-Identifier: Apache-2.0
//
// A flow that does something else than its program says ends the step with an error that names
// both, and the next step works.
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/plan_grid.hpp>
#include <support/refusal.hpp>

#include <string>
#include <vector>

namespace test_wrong_flows {

using namespace zbpp;

namespace {

// What `refusal` gives when all goes well.
constexpr char const* nothing_refused = "<nothing was refused>";

// A stage whose flow can be exchanged.
struct scripted {
  flow (*run)(microbatch) = nullptr;
  flow operator()(microbatch mb) const { return run(mb); }
};

flow right(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
  co_await R([] {});
  message const back = co_await mb.recv_gradient();
  if (mb.is_fused()) {
    co_await BW([] {});
    co_await mb.send_gradient(y);
  } else {
    co_await B([] {});
    co_await mb.send_gradient(y);
    co_await W([] {});
  }
}

// Each of these makes one mistake.

flow empty(microbatch) { co_return; }

flow without_recv_activation(microbatch mb) {
  buffer y;
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
  message const back = co_await mb.recv_gradient();
  co_await B([] {});
  co_await mb.send_gradient(y);
  co_await W([] {});
}

flow without_recv_gradient(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
  co_await B([] {});
  co_await mb.send_gradient(y);
  co_await W([] {});
}

flow without_send_activation(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  message const back = co_await mb.recv_gradient();
  co_await B([] {});
  co_await mb.send_gradient(y);
  co_await W([] {});
}

flow without_send_gradient(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
  message const back = co_await mb.recv_gradient();
  co_await B([] {});
  co_await W([] {});
}

flow send_before_f(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await mb.send_activation(y);
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  message const back = co_await mb.recv_gradient();
  co_await B([] {});
  co_await mb.send_gradient(y);
  co_await W([] {});
}

flow send_activation_after_b(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  message const back = co_await mb.recv_gradient();
  co_await B([] {});
  co_await mb.send_activation(y);
  co_await mb.send_gradient(y);
  co_await W([] {});
}

flow send_gradient_after_f(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_gradient(y);
  message const back = co_await mb.recv_gradient();
  co_await B([] {});
  co_await mb.send_activation(y);
  co_await W([] {});
}

flow send_gradient_after_w(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
  message const back = co_await mb.recv_gradient();
  co_await B([] {});
  co_await W([] {});
  co_await mb.send_gradient(y);
}

flow send_gradient_in_w(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
  message const back = co_await mb.recv_gradient();
  co_await B([] {});
  co_await mb.send_gradient(y);
  co_await W([&] { static_cast<void>(mb.send_gradient(y)); });
}

flow sends_twice(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(4); });
  co_await mb.send_activation(y);
  co_await mb.send_activation(y);
}

flow w_before_b(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
  message const back = co_await mb.recv_gradient();
  co_await W([] {});
  co_await B([] {});
  co_await mb.send_gradient(y);
}

flow b_before_f(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await B([] {});
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
  message const back = co_await mb.recv_gradient();
  co_await mb.send_gradient(y);
  co_await W([] {});
}

flow f_twice(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
  co_await F([] {});
  message const back = co_await mb.recv_gradient();
  co_await B([] {});
  co_await mb.send_gradient(y);
  co_await W([] {});
}

flow ends_after_f(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
}

flow ends_after_b(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
  message const back = co_await mb.recv_gradient();
  co_await B([] {});
  co_await mb.send_gradient(y);
}

flow never_ends(microbatch mb) {
  buffer y;
  for (;;) {
    message const in = co_await mb.recv_activation();
    co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
    co_await mb.send_activation(y);
    message const back = co_await mb.recv_gradient();
    co_await B([] {});
    co_await mb.send_gradient(y);
    co_await W([] {});
  }
}

flow w_twice(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
  message const back = co_await mb.recv_gradient();
  co_await B([] {});
  co_await mb.send_gradient(y);
  co_await W([] {});
  co_await W([] {});
}

flow always_fused(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
  message const back = co_await mb.recv_gradient();
  co_await BW([] {});
  co_await mb.send_gradient(y);
}

flow without_bw(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
  message const back = co_await mb.recv_gradient();
  co_await B([] {});
  co_await mb.send_gradient(y);
  co_await W([] {});
}

flow recomputes_late(microbatch mb) {
  buffer y;
  message const in = co_await mb.recv_activation();
  co_await F([&](pass_context ctx) { y = ctx.allocate_edge(8); });
  co_await mb.send_activation(y);
  message const back = co_await mb.recv_gradient();
  co_await R([] {});
  co_await B([] {});
  co_await mb.send_gradient(y);
  co_await W([] {});
}

flow reports_loss_everywhere(microbatch mb) {
  message const in = co_await mb.recv_activation();
  co_await F([&] { mb.report_loss(1); });
}

plan plan_of(std::vector<std::string> const& lines, int microbatches = 1) {
  auto const where = placement::linear(static_cast<int>(lines.size()));
  return make_plan(
      "by hand",
      schedule(where, microbatches, test::passes(lines)),
      problem(where, microbatches, stage_costs{.forward = 1, .edge = 8}, 1));
}

plan split_plan() { return plan_of({"0F0 0B0 0W0", "1F0 1B0 1W0", "2F0 2B0 2W0"}); }
plan fused_plan() { return plan_of({"0F0 0BW0", "1F0 1BW0", "2F0 2BW0"}); }
plan recompute_plan() { return plan_of({"0F0 0B0 0W0", "1F0 1R0 1B0 1W0", "2F0 2B0 2W0"}); }

template <class Backend>
std::string run(plan const& planned, int stage, flow (*wrong)(microbatch), Backend backend) {
  std::vector<scripted> stages(detail::index(planned.problem().stages()), {right});
  stages[detail::index(stage)].run = wrong;
  pipeline pipe{planned, backend, stages};
  auto const text = test::refusal(errc::wrong_flow, [&] { pipe.step(); });
  CHECK(pipe.failures().size() == (text == nothing_refused ? 0 : 1));
  for (int rank = 0; rank < planned.problem().ranks(); ++rank) {
    CHECK(pipe.memory(rank).now(purpose::activation) == 0);
    CHECK(pipe.memory(rank).now(purpose::edge) == 0);
  }
  stages[detail::index(stage)].run = right;
  CHECK_NOTHROW(pipe.step());
  CHECK(pipe.failures().empty());
  return text;
}

struct mistake {
  char const* name;
  int stage;
  flow (*wrong)(microbatch);
  std::string expected;
};

// Says of the flow of stage 1 and microbatch 0 what it did at a position of rank 1.
std::string told(int position, std::string const& instruction, std::string const& did) {
  return "rank 1, position " + std::to_string(position) +
         ", stage 1, microbatch 0: the program says " + instruction +
         ", the flow of stage 1 microbatch 0 " + did +
         "; a flow awaits recv_activation, F, send_activation, R where the program has it, "
         "recv_gradient, B, send_gradient, W";
}

void check(plan const& planned, std::vector<mistake> const& mistakes) {
  for (auto const& m : mistakes) {
    INFO(m.name);
    CHECK(run(planned, m.stage, m.wrong, virtual_time{}) == m.expected);
    CHECK(run(planned, m.stage, m.wrong, threads{.count = 2}) == m.expected);
  }
}

}  // namespace

TEST_CASE("a flow that does what the program says raises nothing", "[wrong-flows]") {
  for (auto const& planned : {split_plan(), fused_plan(), recompute_plan()})
    CHECK(run(planned, 1, right, virtual_time{}) == nothing_refused);
}

TEST_CASE("a flow that leaves something out is told what", "[wrong-flows]") {
  check(
      split_plan(),
      {{"awaits nothing", 1, empty, told(1, "1F0", "went on to its end")},
       {"no recv_activation",
        1,
        without_recv_activation,
        told(1, "1F0", "has not called recv_activation()")},
       {"no recv_gradient",
        1,
        without_recv_gradient,
        told(4, "1B0", "has not called recv_gradient()")},
       {"no send_activation",
        1,
        without_send_activation,
        told(2, "1SEND_F0", "has not called send_activation()")},
       {"no send_gradient",
        1,
        without_send_gradient,
        told(5, "1SEND_B0", "has not called send_gradient()")},
       {"ends after F", 1, ends_after_f, told(4, "1B0", "has ended")},
       {"ends after B", 1, ends_after_b, told(6, "1W0", "has ended")}});
  check(fused_plan(), {{"only B", 1, ends_after_b, told(4, "1BW0", "went on to its end")}});
  check(recompute_plan(), {{"no R", 1, without_bw, told(3, "1R0", "awaits recv_gradient()")}});
}

TEST_CASE("the first stage need not receive and the last one need not send", "[wrong-flows]") {
  for (auto const& planned : {split_plan(), plan_of({"0F0 0F1 0B0 0W0 0B1 0W1"}, 2)}) {
    CHECK(run(planned, 0, without_recv_activation, virtual_time{}) == nothing_refused);
    auto const last = planned.problem().stages() - 1;
    CHECK(run(planned, last, without_send_activation, virtual_time{}) == nothing_refused);
    CHECK(run(planned, last, without_recv_gradient, virtual_time{}) == nothing_refused);
    CHECK(run(planned, 0, without_send_gradient, virtual_time{}) == nothing_refused);
  }
}

TEST_CASE("a flow that does things in another order is told what it awaits", "[wrong-flows]") {
  check(
      split_plan(),
      {{"W before B", 1, w_before_b, told(4, "1B0", "went on to W")},
       {"B before F", 1, b_before_f, told(1, "1F0", "went on to B")},
       {"F twice", 1, f_twice, told(4, "1B0", "awaits F")},
       {"BW for B and W", 1, always_fused, told(4, "1B0", "went on to BW")},
       {"sends before F", 1, send_before_f, told(1, "1F0", "went on to send_activation()")},
       {"sends the activation after B",
        1,
        send_activation_after_b,
        told(2, "1SEND_F0", "has not called send_activation()")},
       {"sends the gradient after F",
        1,
        send_gradient_after_f,
        told(2, "1SEND_F0", "has not called send_activation()")},
       {"sends the gradient after W",
        1,
        send_gradient_after_w,
        told(5, "1SEND_B0", "has not called send_gradient()")},
       {"sends the gradient once more, in W",
        1,
        send_gradient_in_w,
        told(6, "1W0", "has called send_gradient() in another pass")}});
  check(
      fused_plan(),
      {{"W before B", 1, w_before_b, told(4, "1BW0", "went on to W")},
       {"F twice", 1, f_twice, told(4, "1BW0", "awaits F")},
       {"sends the gradient after F",
        1,
        send_gradient_after_f,
        told(2, "1SEND_F0", "has not called send_activation()")}});
  check(
      recompute_plan(),
      {{"recomputes late", 1, recomputes_late, told(3, "1R0", "awaits recv_gradient()")}});
}

TEST_CASE("a flow that goes on after its last pass is told so", "[wrong-flows]") {
  check(
      split_plan(),
      {{"never ends",
        1,
        never_ends,
        told(6, "1W0", "still awaits recv_activation() after its last pass")},
       {"W twice", 1, w_twice, told(6, "1W0", "still awaits W after its last pass")}});
  check(
      fused_plan(),
      {{"never ends",
        1,
        never_ends,
        told(4, "1BW0", "still awaits recv_activation() after its last pass")}});
}

TEST_CASE("a fused backward pass takes a flow with B and W, too", "[wrong-flows]") {
  for (auto* good : {without_bw, send_gradient_after_w})
    CHECK(run(fused_plan(), 1, good, virtual_time{}) == nothing_refused);
}

TEST_CASE("a flow that sends twice is told to send one message", "[wrong-flows]") {
  check(
      split_plan(),
      {{"sends twice",
        1,
        sends_twice,
        "stage 1, microbatch 0: the flow sends twice before its first message could leave; one "
        "message holds up to 8 buffers"}});
}

TEST_CASE("only the last stage reports a loss", "[wrong-flows]") {
  check(
      split_plan(),
      {{"reports in the middle",
        1,
        reports_loss_everywhere,
        "stage 1, microbatch 0: report_loss() belongs to the last stage"}});
}

}  // namespace test_wrong_flows
