// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/stage.hpp>
// What the checks need besides.
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/plain_flow.hpp>
#include <support/refusal.hpp>

#include <array>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace test_stage {

using namespace zbpp;

namespace {

// Stages and things that are none.

struct archetype {
  flow operator()(microbatch) { co_return; }
};
struct only_const {
  flow operator()(microbatch) const { co_return; }
};
struct updates : archetype {
  void update(pass_context) {}
};
struct returns_nothing {
  void operator()(microbatch) {}
};
struct returns_a_reference {
  flow& operator()(microbatch);
};
struct takes_an_index {
  flow operator()(int) { co_return; }
};

// Plain passes and things that are none.

struct plain {
  struct saved {};
  message forward(saved&, message const&, microbatch, pass_context) { return {}; }
  message backward_input(saved&, message const&, microbatch, pass_context) { return {}; }
  void backward_weight(saved&, microbatch, pass_context) {}
};
struct gives_buffers : plain {
  buffer forward(saved&, message const&, microbatch, pass_context) { return {}; }
  buffer backward_input(saved&, message const&, microbatch, pass_context) { return {}; }
};
struct fused : plain {
  message backward(saved&, message const&, microbatch, pass_context) { return {}; }
};
struct recomputes : plain {
  void recompute(saved&, microbatch, pass_context) {}
};
struct recomputes_without_place : plain {
  void recompute(saved&, microbatch) {}
};
struct updates_plainly : plain {
  void update(pass_context) {}
};
struct without_saved {
  message forward(int&, message const&, microbatch, pass_context) { return {}; }
  message backward_input(int&, message const&, microbatch, pass_context) { return {}; }
  void backward_weight(int&, microbatch, pass_context) {}
};
struct saved_needs_arguments {
  struct saved {
    explicit saved(int) {}
  };
  message forward(saved&, message const&, microbatch, pass_context) { return {}; }
  message backward_input(saved&, message const&, microbatch, pass_context) { return {}; }
  void backward_weight(saved&, microbatch, pass_context) {}
};
struct without_w {
  struct saved {};
  message forward(saved&, message const&, microbatch, pass_context) { return {}; }
  message backward_input(saved&, message const&, microbatch, pass_context) { return {}; }
};
struct gives_numbers : plain {
  int forward(saved&, message const&, microbatch, pass_context) { return 0; }
};
struct fuses_into_nothing : plain {
  void backward(saved&, message const&, microbatch, pass_context) {}
};

}  // namespace

TEST_CASE("the stage concept takes what makes flows and nothing else", "[stage]") {
  STATIC_REQUIRE(stage<archetype>);
  STATIC_REQUIRE(stage<only_const>);
  STATIC_REQUIRE(stage<only_const const>);
  STATIC_REQUIRE(stage<test::plain_flow>);
  STATIC_REQUIRE(stage<flow (*)(microbatch)>);
  STATIC_REQUIRE(stage<stage_ref>);
  STATIC_REQUIRE(stage<as_flow<plain>>);
  STATIC_REQUIRE_FALSE(stage<archetype const>);
  STATIC_REQUIRE_FALSE(stage<int>);
  STATIC_REQUIRE_FALSE(stage<returns_nothing>);
  STATIC_REQUIRE_FALSE(stage<returns_a_reference>);
  STATIC_REQUIRE_FALSE(stage<takes_an_index>);
  STATIC_REQUIRE_FALSE(stage<plain>);

  STATIC_REQUIRE(updating_stage<updates>);
  STATIC_REQUIRE(updating_stage<as_flow<updates_plainly>>);
  STATIC_REQUIRE_FALSE(updating_stage<archetype>);
  STATIC_REQUIRE_FALSE(updating_stage<as_flow<plain>>);
}

TEST_CASE("the concepts of plain passes take what has them and nothing else", "[stage]") {
  STATIC_REQUIRE(plain_passes<plain>);
  STATIC_REQUIRE(plain_passes<gives_buffers>);
  STATIC_REQUIRE(plain_passes<fused>);
  STATIC_REQUIRE(plain_passes<fuses_into_nothing>);
  STATIC_REQUIRE_FALSE(plain_passes<archetype>);
  STATIC_REQUIRE_FALSE(plain_passes<without_saved>);
  STATIC_REQUIRE_FALSE(plain_passes<saved_needs_arguments>);
  STATIC_REQUIRE_FALSE(plain_passes<without_w>);
  STATIC_REQUIRE_FALSE(plain_passes<gives_numbers>);
  STATIC_REQUIRE_FALSE(plain_passes<int>);

  STATIC_REQUIRE(plain_fused_pass<fused>);
  STATIC_REQUIRE_FALSE(plain_fused_pass<plain>);
  STATIC_REQUIRE_FALSE(plain_fused_pass<fuses_into_nothing>);

  STATIC_REQUIRE(plain_recompute_pass<recomputes>);
  STATIC_REQUIRE_FALSE(plain_recompute_pass<plain>);
  STATIC_REQUIRE_FALSE(plain_recompute_pass<recomputes_without_place>);
}

namespace {

// Notes its passes; `saved` tells which microbatch it belongs to.
struct noting {
  struct saved {
    int microbatch = -1;
    std::vector<std::string> passes;  // of this microbatch alone
  };
  std::vector<std::string>* notes = nullptr;

  message forward(saved& kept, message const& in, microbatch mb, pass_context ctx) {
    CHECK(kept.microbatch == -1);
    kept.microbatch = mb.index();
    note(kept, "F", mb, in);
    return mb.is_last_stage() ? message{} : make(ctx, mb.index(), 2);
  }
  message backward_input(saved& kept, message const& gradient, microbatch mb, pass_context ctx) {
    note(kept, "B", mb, gradient);
    return mb.is_first_stage() ? message{} : make(ctx, mb.index(), 3);
  }
  void backward_weight(saved& kept, microbatch mb, pass_context) {
    note(kept, "W", mb, {});
    CHECK(kept.passes == std::vector<std::string>{"F", "B", "W"});
  }

  static message make(pass_context ctx, int value, std::size_t parts) {
    message msg;
    for (std::size_t i = 0; i < parts; ++i) {
      msg.push_back(ctx.allocate_edge(4));
      msg[i].as<int>()[0] = value;
    }
    return msg;
  }
  void note(saved& kept, char const* action, microbatch mb, message const& msg) const {
    CHECK(kept.microbatch == mb.index());
    for (auto const& part : msg.buffers()) CHECK(part.as<int>()[0] == mb.index());
    kept.passes.emplace_back(action);
    notes->push_back(
        std::to_string(mb.stage()) + action + std::to_string(mb.index()) + " of " +
        std::to_string(msg.size()));
  }
};

struct noting_fused : noting {
  message backward(saved& kept, message const& gradient, microbatch mb, pass_context ctx) {
    note(kept, "BW", mb, gradient);
    return mb.is_first_stage() ? message{} : make(ctx, mb.index(), 3);
  }
};

// Runs two stages of two microbatches on one rank each, the first split and the second fused.
template <class Object>
std::vector<std::vector<std::string>> notes_of(std::vector<std::string> const& lines) {
  std::vector<std::vector<std::string>> notes(2);
  std::vector<Object> objects(2);
  std::vector<as_flow<Object>> stages;
  for (std::size_t s = 0; s < 2; ++s) {
    objects[s].notes = &notes[s];
    stages.emplace_back(objects[s]);
  }
  auto const placement = placement::linear(2);
  problem const problem(placement, 2, stage_costs{.forward = 1, .edge = 12});
  auto const planned = make_plan("by hand", schedule(placement, 2, test::passes(lines)), problem);
  pipeline pipe{planned, virtual_time{}, stages};
  pipe.step();
  return notes;
}

}  // namespace

TEST_CASE("plain passes run in the order of the program, each with what it is to get", "[stage]") {
  auto const notes = notes_of<noting>({"0F0 0F1 0B0 0B1 0W0 0W1", "1F0 1B0 1F1 1W0 1B1 1W1"});
  CHECK(
      notes[0] == std::vector<std::string>{
                      "0F0 of 0", "0F1 of 0", "0B0 of 3", "0B1 of 3", "0W0 of 0", "0W1 of 0"});
  CHECK(
      notes[1] == std::vector<std::string>{
                      "1F0 of 2", "1B0 of 0", "1F1 of 2", "1W0 of 0", "1B1 of 0", "1W1 of 0"});
}

TEST_CASE("a fused pass runs the fused function where there is one, else B and W", "[stage]") {
  std::vector<std::string> const lines{"0F0 0F1 0BW0 0B1 0W1", "1F0 1BW0 1F1 1BW1"};
  auto const both = notes_of<noting_fused>(lines);
  CHECK(
      both[0] ==
      std::vector<std::string>{"0F0 of 0", "0F1 of 0", "0BW0 of 3", "0B1 of 3", "0W1 of 0"});
  CHECK(both[1] == std::vector<std::string>{"1F0 of 2", "1BW0 of 0", "1F1 of 2", "1BW1 of 0"});
  auto const split = notes_of<noting>(lines);
  CHECK(
      split[0] == std::vector<std::string>{
                      "0F0 of 0", "0F1 of 0", "0B0 of 3", "0W0 of 0", "0B1 of 3", "0W1 of 0"});
}

TEST_CASE("plain passes without recompute() refuse a program with R", "[stage]") {
  CHECK(
      test::refusal(
          errc::wrong_flow,
          [] {
            notes_of<noting>({"0F0 0F1 0R0 0B0 0W0 0B1 0W1", "1F0 1B0 1W0 1F1 1B1 1W1"});
          }) ==
      "rank 0, position 4, stage 0, microbatch 0: the program says 0R0, the flow of stage 0 "
      "microbatch 0 awaits recv_gradient(); a flow awaits recv_activation, F, send_activation, R "
      "where the program has it, recv_gradient, B, send_gradient, W");
}

TEST_CASE("stages of plain objects can be made, assigned and copied as values are", "[stage]") {
  using stage_type = as_flow<noting>;
  STATIC_REQUIRE(std::is_convertible_v<noting&, stage_type>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<stage_type, noting>);  // it would refer to nothing
  STATIC_REQUIRE_FALSE(std::is_constructible_v<stage_type, noting const&>);
  STATIC_REQUIRE(std::is_copy_assignable_v<stage_type> && std::is_copy_constructible_v<stage_type>);

  std::array<std::vector<std::string>, 2> notes;
  std::vector<noting> objects{{&notes[0]}, {&notes[1]}};
  auto const planned =
      make_plan(zb_h1{}, problem(placement::linear(2), 3, stage_costs{.forward = 1, .edge = 12}));
  auto const check = [&](auto stages) {
    for (auto& each : notes) each.clear();
    pipeline pipe{planned, virtual_time{}, stages};
    pipe.step();
    for (auto const& each : notes) CHECK(each.size() == 9);
  };
  std::vector<stage_type> stages(objects.begin(), objects.end());
  check(stages);
  stages.assign(objects.begin(), objects.end());
  check(stages);
  stages = {objects[0], objects[1]};
  check(stages);
  stages.clear();
  for (auto& each : objects) stages.push_back(each);
  check(stages);
  stages.erase(stages.begin());
  stages.insert(stages.begin(), objects[0]);
  check(stages);
  auto other = std::vector<stage_type>{objects[1], objects[1]};
  other = stages;
  check(other);
  other.front() = objects[0];
  check(other);
  check(std::array<stage_type, 2>{objects[0], objects[1]});
  check(std::vector<stage_ref>(stages.begin(), stages.end()));
  check(std::vector{as_flow(objects[0]), as_flow(objects[1])});
}

TEST_CASE("a stage may be const, a function pointer or a lambda", "[stage]") {
  STATIC_REQUIRE_FALSE(std::is_constructible_v<stage_ref, flow (&)(microbatch)>);
  auto const planned =
      make_plan(zb_h1{}, problem(placement::linear(2), 3, stage_costs{.forward = 1, .edge = 8}));
  struct fixed {
    flow operator()(microbatch mb) const { return test::plain_flow{}(mb); }
  };
  auto const check = [&](auto const& stages) {
    pipeline pipe{planned, virtual_time{}, stages};
    CHECK(pipe.step().losses[2] == test::plain_flow::expected_loss(2, 2));
  };
  check(std::vector<fixed>(2));
  auto const lambda = [](microbatch mb) { return test::plain_flow{}(mb); };
  check(std::vector(2, lambda));
  flow (*const pointer)(microbatch) = lambda;
  check(std::vector(2, pointer));
  check(std::vector<stage_ref>{lambda, pointer});
}

TEST_CASE(
    "a reference to a stage runs that stage, and updates it if it can be updated", "[stage]") {
  struct counting {
    int made = 0;
    int updates = 0;
    flow operator()(microbatch mb) {
      ++made;
      return test::plain_flow{}(mb);
    }
    void update(pass_context) { ++updates; }
  };
  counting one;
  test::plain_flow other;
  stage_ref const first(one);
  stage_ref const copy = first;
  stage_ref const second(other);
  auto const planned =
      make_plan(zb_h1{}, problem(placement::linear(2), 3, stage_costs{.forward = 1, .edge = 8}));
  pipeline pipe{planned, virtual_time{}, std::vector<stage_ref>{copy, second}};
  pipe.step();
  CHECK(one.made == 3);
  CHECK(one.updates == 1);
}

}  // namespace test_stage
