// SPDX-License-Identifier: Apache-2.0
//
// A flow that does something else than its program says ends the step with an error that names
// both, and the next step works.
#include <support/backends.hpp>

#include <sstream>

namespace test_wrong_flows {

using namespace zbpp;
using namespace zbpp::test;

namespace {

// What `refusal` gives when all goes well.
constexpr char const* nothing_refused = "<nothing was refused>";

// Does what a script says, word by word: ra and rg receive the activation and the gradient, sa and
// sg send them; F, R, B, W and BW are passes. "back" is what a right flow does after rg, "FL" is an
// F that reports a loss, "Wsg" a W that sends the gradient, and "again" begins anew.
flow follow(microbatch mb, std::string script) {
  buffer y;
  message in;
  auto make = [&](pass_context ctx) { y = ctx.allocate_edge(8); };
  std::istringstream words(script);
  for (std::string word; words >> word;) {
    if (word == "ra") in = co_await mb.recv_activation();
    if (word == "rg") in = co_await mb.recv_gradient();
    if (word == "sa") co_await mb.send_activation(y);
    if (word == "sg") co_await mb.send_gradient(y);
    if (word == "F") co_await F(make);
    if (word == "FL") co_await F([&] { mb.report_loss(1); });
    if (word == "R") co_await R([] {});
    if (word == "B") co_await B([] {});
    if (word == "W") co_await W([] {});
    if (word == "Wsg") co_await W([&] { static_cast<void>(mb.send_gradient(y)); });
    if (word == "BW") co_await BW([] {});
    if (word == "back") words = std::istringstream(mb.is_fused() ? "BW sg" : "B sg W");
    if (word == "again") words = std::istringstream(script);
  }
}

constexpr char const* right = "ra F sa R rg back";

// A stage whose script can be exchanged.
struct scripted {
  std::string script = right;
  flow operator()(microbatch mb) const { return follow(mb, script); }
};

plan plan_of(std::vector<std::string> const& lines, int microbatches = 1) {
  auto const placement = placement::linear(static_cast<int>(lines.size()));
  return make_plan(
      "by hand",
      schedule(placement, microbatches, passes(lines)),
      problem(placement, microbatches, stage_costs{.forward = 1, .edge = 8}, 1));
}

plan split_plan() { return plan_of({"0F0 0B0 0W0", "1F0 1B0 1W0", "2F0 2B0 2W0"}); }
plan fused_plan() { return plan_of({"0F0 0BW0", "1F0 1BW0", "2F0 2BW0"}); }
plan recompute_plan() { return plan_of({"0F0 0B0 0W0", "1F0 1R0 1B0 1W0", "2F0 2B0 2W0"}); }

template <class Backend>
std::string run(plan const& planned, int stage, std::string const& script, Backend backend) {
  std::vector<scripted> stages(detail::index(planned.problem().stages()));
  stages[detail::index(stage)].script = script;
  pipeline pipe{planned, backend, stages};
  auto const text = refusal(errc::wrong_flow, [&] { pipe.step(); });
  CHECK(pipe.failures().size() == (text == nothing_refused ? 0 : 1));
  for (int rank = 0; rank < planned.problem().ranks(); ++rank) {
    CHECK(pipe.memory(rank).now(purpose::activation) == 0);
    CHECK(pipe.memory(rank).now(purpose::edge) == 0);
  }
  stages[detail::index(stage)].script = right;
  CHECK_NOTHROW(pipe.step());
  CHECK(pipe.failures().empty());
  return text;
}

// Says of the flow of stage 1 and microbatch 0 what it did at a position of rank 1.
std::string text_of(int position, std::string const& instruction, std::string const& did) {
  return "rank 1, position " + std::to_string(position) +
         ", stage 1, microbatch 0: the program says " + instruction +
         ", the flow of stage 1 microbatch 0 " + did +
         "; a flow awaits recv_activation, F, send_activation, R where the program has it, "
         "recv_gradient, B, send_gradient, W";
}

// A script of stage 1 with one mistake, and what the step says of it.
struct mistake {
  std::string script;
  std::string expected;
};

void check(plan const& planned, std::vector<mistake> const& mistakes) {
  for (auto const& [script, expected] : mistakes) {
    INFO(script);
    CHECK(run(planned, 1, script, virtual_time{}) == expected);
    CHECK(run(planned, 1, script, threads{.count = 2}) == expected);
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
      {{"", text_of(1, "1F0", "went on to its end")},
       {"F sa rg B sg W", text_of(1, "1F0", "has not called recv_activation()")},
       {"ra F sa B sg W", text_of(4, "1B0", "has not called recv_gradient()")},
       {"ra F rg B sg W", text_of(2, "1SEND_F0", "has not called send_activation()")},
       {"ra F sa rg B W", text_of(5, "1SEND_B0", "has not called send_gradient()")},
       {"ra F sa", text_of(4, "1B0", "has ended")},
       {"ra F sa rg B sg", text_of(6, "1W0", "has ended")}});
  check(fused_plan(), {{"ra F sa rg B sg", text_of(4, "1BW0", "went on to its end")}});
  check(recompute_plan(), {{"ra F sa rg B sg W", text_of(3, "1R0", "awaits recv_gradient()")}});
}

TEST_CASE("the first stage need not receive and the last one need not send", "[wrong-flows]") {
  for (auto const& planned : {split_plan(), plan_of({"0F0 0F1 0B0 0W0 0B1 0W1"}, 2)}) {
    auto const last = planned.problem().stages() - 1;
    CHECK(run(planned, 0, "F sa rg B sg W", virtual_time{}) == nothing_refused);
    CHECK(run(planned, last, "ra F rg B sg W", virtual_time{}) == nothing_refused);
    CHECK(run(planned, last, "ra F sa B sg W", virtual_time{}) == nothing_refused);
    CHECK(run(planned, 0, "ra F sa rg B W", virtual_time{}) == nothing_refused);
  }
}

TEST_CASE("a flow that does things in another order is told what it awaits", "[wrong-flows]") {
  check(
      split_plan(),
      {{"ra F sa rg W B sg", text_of(4, "1B0", "went on to W")},
       {"ra B F sa rg sg W", text_of(1, "1F0", "went on to B")},
       {"ra F sa F rg B sg W", text_of(4, "1B0", "awaits F")},
       {"ra F sa rg BW sg", text_of(4, "1B0", "went on to BW")},
       {"ra sa F rg B sg W", text_of(1, "1F0", "went on to send_activation()")},
       {"ra F rg B sa sg W", text_of(2, "1SEND_F0", "has not called send_activation()")},
       {"ra F sg rg B sa W", text_of(2, "1SEND_F0", "has not called send_activation()")},
       {"ra F sa rg B W sg", text_of(5, "1SEND_B0", "has not called send_gradient()")},
       {"ra F sa rg B sg Wsg", text_of(6, "1W0", "has called send_gradient() in another pass")}});
  check(
      fused_plan(),
      {{"ra F sa rg W B sg", text_of(4, "1BW0", "went on to W")},
       {"ra F sa F rg B sg W", text_of(4, "1BW0", "awaits F")},
       {"ra F sg rg B sa W", text_of(2, "1SEND_F0", "has not called send_activation()")}});
  check(recompute_plan(), {{"ra F sa rg R B sg W", text_of(3, "1R0", "awaits recv_gradient()")}});
}

TEST_CASE("a flow that goes on after its last pass is told so", "[wrong-flows]") {
  auto const endless = "ra F sa rg B sg W again";
  auto const expected = "still awaits recv_activation() after its last pass";
  check(
      split_plan(),
      {{endless, text_of(6, "1W0", expected)},
       {"ra F sa rg B sg W W", text_of(6, "1W0", "still awaits W after its last pass")}});
  check(fused_plan(), {{endless, text_of(4, "1BW0", expected)}});
}

TEST_CASE("a fused backward pass takes a flow with B and W, too", "[wrong-flows]") {
  for (auto const* good : {"ra F sa rg B sg W", "ra F sa rg B W sg"})
    CHECK(run(fused_plan(), 1, good, virtual_time{}) == nothing_refused);
}

TEST_CASE("a flow that sends twice is told to send one message", "[wrong-flows]") {
  check(
      split_plan(),
      {{"ra F sa sa",
        "stage 1, microbatch 0: the flow sends twice before its first message could leave; one "
        "message holds up to 8 buffers"}});
}

TEST_CASE("only the last stage reports a loss", "[wrong-flows]") {
  check(
      split_plan(), {{"ra FL", "stage 1, microbatch 0: report_loss() belongs to the last stage"}});
}

}  // namespace test_wrong_flows
