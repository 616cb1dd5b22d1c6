// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace test_flow {

using namespace zbpp;

namespace {

plan plan_of(std::vector<std::string> const& lines, int microbatches = 1) {
  auto const placement = placement::linear(static_cast<int>(lines.size()));
  return make_plan(
      "by hand",
      schedule(placement, microbatches, test::passes(lines)),
      problem(placement, microbatches, stage_costs{.forward = 1, .edge = 64}));
}

// Runs one step of a function as every stage.
void run(plan const& planned, flow (*stage)(microbatch)) {
  std::vector<flow (*)(microbatch)> stages(detail::index(planned.problem().stages()), stage);
  pipeline pipe{planned, virtual_time{}, stages};
  pipe.step();
}

std::string story;
void tell(std::string const& text) { story += text + " "; }

}  // namespace

TEST_CASE("what a flow awaits is no aggregate and cannot be dropped by mistake", "[flow]") {
  auto work = [] {};
  STATIC_REQUIRE_FALSE(std::is_aggregate_v<decltype(F(work))>);
  STATIC_REQUIRE_FALSE(std::is_aggregate_v<decltype(BW(work))>);
  STATIC_REQUIRE_FALSE(std::is_aggregate_v<decltype(std::declval<microbatch>().recv_activation())>);
  STATIC_REQUIRE(std::is_trivially_destructible_v<decltype(W(work))>);
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<flow>);
  STATIC_REQUIRE(std::is_nothrow_move_constructible_v<flow>);
}

TEST_CASE("a flow runs up to the first await that belongs to a later pass", "[flow]") {
  story.clear();
  run(plan_of({"0F0 0B0 0W0"}), [](microbatch mb) -> flow {
    tell("start");
    message const in = co_await mb.recv_activation();
    tell("received");
    co_await F([] { tell("F"); });
    tell("after-F");
    co_await mb.send_activation();
    tell("sent");
    message const back = co_await mb.recv_gradient();
    tell("gradient");
    co_await B([] { tell("B"); });
    co_await mb.send_gradient();
    tell("after-B");
    co_await W([] { tell("W"); });
    tell("end");
  });
  CHECK(story == "start received F after-F sent gradient B after-B W end ");
}

TEST_CASE("flows of several microbatches are interleaved as the program says", "[flow]") {
  story.clear();
  run(plan_of({"0F0 0F1 0B0 0B1 0W0 0W1"}, 2), [](microbatch mb) -> flow {
    auto const name = std::to_string(mb.index());
    co_await F([&] { tell("F" + name); });
    co_await B([&] { tell("B" + name); });
    tell("between" + name);
    co_await W([&] { tell("W" + name); });
  });
  CHECK(story == "F0 F1 B0 between0 B1 between1 W0 W1 ");
}

TEST_CASE("a closure may take the place or nothing, be named or not, and change itself", "[flow]") {
  story.clear();
  run(plan_of({"0F0 0B0 0W0"}), [](microbatch) -> flow {
    int calls = 0;
    auto named = [&calls](pass_context ctx) {
      ++calls;
      if (ctx.kind() == backend_kind::host && ctx.native() == nullptr) tell("host");
    };
    co_await F(named);
    co_await B([calls]() mutable { tell(std::to_string(++calls)); });
    auto owner = [text = std::make_unique<std::string>("owner")] { tell(*text); };
    co_await W(owner);
    co_return;
  });
  CHECK(story == "host 2 owner ");
}

TEST_CASE("what a closure returns is ignored", "[flow]") {
  story.clear();
  run(plan_of({"0F0 0B0 0W0"}), [](microbatch) -> flow {
    co_await F([] { return 1; });
    co_await B([](pass_context) { return std::string("two"); });
    co_await W([] {
      tell("W");
      return 3.0;
    });
  });
  CHECK(story == "W ");
}

TEST_CASE("a recomputation is done where the program says and nowhere else", "[flow]") {
  auto const stage = [](microbatch mb) -> flow {
    auto const name = std::to_string(mb.index());
    co_await F([&] { tell((mb.is_recomputed() ? "f" : "F") + name); });
    co_await R([&] { tell("R" + name); });
    message const back = co_await mb.recv_gradient();
    if (mb.is_fused()) {
      co_await BW([&] { tell("BW" + name); });
    } else {
      co_await B([&] { tell("B" + name); });
      co_await W([&] { tell("W" + name); });
    }
  };
  story.clear();
  run(plan_of({"0F0 0F1 0R1 0B0 0B1 0F2 0R2 0W0 0W1 0BW2"}, 3), stage);
  CHECK(story == "F0 f1 R1 B0 B1 f2 R2 W0 W1 BW2 ");
  story.clear();
  run(plan_of({"0F0 0B0 0W0"}), stage);
  CHECK(story == "F0 B0 W0 ");
}

TEST_CASE("a flow that never starts is destroyed with what it was given", "[flow]") {
  auto const guarded = [](std::shared_ptr<int>) -> flow { co_return; };
  auto counted = std::make_shared<int>(1);
  {
    flow one = guarded(counted);
    CHECK(counted.use_count() == 2);
    flow two = std::move(one);
    CHECK(counted.use_count() == 2);
    two = guarded(nullptr);
    CHECK(counted.use_count() == 1);
  }
  CHECK(counted.use_count() == 1);
}

namespace {

struct seen {
  int index = -1;
  int count = -1;
  int stage = -1;
  int stages = -1;
  bool is_first_stage = false;
  bool is_last_stage = false;
  std::int64_t step = -1;
  bool is_training = false;
  bool is_recomputed = false;
  bool is_fused = false;

  friend bool operator==(seen const&, seen const&) = default;
};

struct looking {
  std::vector<seen>* all = nullptr;

  flow operator()(microbatch mb) {
    message const in = co_await mb.recv_activation();
    co_await F([&] {
      look(mb);
      if (mb.is_last_stage()) mb.report_loss(0);
    });
    co_await mb.send_activation();
    co_await R([&] { look(mb); });
    message const back = co_await mb.recv_gradient();
    if (mb.is_fused()) {
      co_await BW([&] { look(mb); });
      co_await mb.send_gradient();
      co_return;
    }
    co_await B([&] { look(mb); });
    co_await mb.send_gradient();
    co_await W([] {});
  }
  void look(microbatch mb) const {
    all->push_back(
        {mb.index(),
         mb.count(),
         mb.stage(),
         mb.stages(),
         mb.is_first_stage(),
         mb.is_last_stage(),
         mb.step(),
         mb.is_training(),
         mb.is_recomputed(),
         mb.is_fused()});
  }
};

}  // namespace

TEST_CASE("a microbatch knows where it is and what is done with it", "[microbatch]") {
  std::vector<seen> all;
  std::vector<looking> stages(2, {&all});
  auto const planned = plan_of({"0F0 0B0 0W0 0F1 0R1 0BW1", "1F0 1BW0 1F1 1B1 1W1"}, 2);
  pipeline pipe{planned, virtual_time{}, stages};
  pipe.step();
  using list = std::vector<seen>;
  auto const of = [&](int stage) {
    list result;
    for (auto const& one : all)
      if (one.stage == stage) result.push_back(one);
    return result;
  };
  CHECK(
      of(0) == list{
                   {0, 2, 0, 2, true, false, 0, true, false, false},
                   {0, 2, 0, 2, true, false, 0, true, false, false},
                   {1, 2, 0, 2, true, false, 0, true, true, false},
                   {1, 2, 0, 2, true, false, 0, true, true, false},
                   {1, 2, 0, 2, true, false, 0, true, true, true}});
  CHECK(
      of(1) == list{
                   {0, 2, 1, 2, false, true, 0, true, false, false},
                   {0, 2, 1, 2, false, true, 0, true, false, true},
                   {1, 2, 1, 2, false, true, 0, true, false, false},
                   {1, 2, 1, 2, false, true, 0, true, false, false}});
  all.clear();
  pipe.evaluate();
  CHECK(
      of(1) == list{
                   {0, 2, 1, 2, false, true, 1, false, false, false},
                   {1, 2, 1, 2, false, true, 1, false, false, false}});
}

}  // namespace test_flow
