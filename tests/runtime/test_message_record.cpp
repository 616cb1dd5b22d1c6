// SPDX-License-Identifier: Apache-2.0
//
// Records of the messages of steps: each message is there once, with times that fit the passes.
#include <zbpp/analysis/explain.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/model/message_record.hpp>

#include <support/backends.hpp>
#include <support/checked_model.hpp>
#include <support/plain_flow.hpp>

namespace test_message_record {

using namespace zbpp;
using namespace zbpp::test;

namespace {

constexpr stage_costs even{
    .forward = 100, .backward_input = 100, .backward_weight = 90, .activation = 1, .edge = 8};

// Where a pass is in a step.
struct place {
  timed_pass const* timed = nullptr;
  ticks free = 0;  // when its rank was free for it
};

// The places of the passes that make and need a message.
std::pair<place, place> ends_of(timed_message const& m, timeline const& line) {
  bool const is_forward = m.pass.kind == pass_kind::forward;
  auto const maker = m.pass.stage + (is_forward ? -1 : 1);
  auto const find = [&](int rank, auto is_it) {
    place found;
    ticks free = 0;
    for (auto const& timed : line[rank]) {
      // A pair began, with both inputs, as one.
      auto const before = std::exchange(free, std::max(free, timed.end));
      if (is_it(timed.pass)) found = {&timed, timed.pass.is_paired ? timed.start : before};
    }
    REQUIRE(found.timed != nullptr);
    return found;
  };
  return {
      find(
          m.from,
          [&](pass const& p) {
            return p.stage == maker && p.microbatch == m.pass.microbatch &&
                   (is_forward ? p.kind == pass_kind::forward : p.makes_input_gradient());
          }),
      find(m.to, [&](pass const& p) { return p == m.pass; })};
}

// What holds for each step: all messages are there, in the order in which they are sent.
void check_places(plan const& planned, message_record const& record) {
  traffic const messages(planned.program());
  REQUIRE(record.ranks() == messages.map().size());
  std::size_t needed = 0;
  for (int rank = 0; rank < planned.problem().ranks(); ++rank)
    for (auto const& p : planned.schedule().passes(rank)) {
      auto const channel = messages.map().of_input(p);
      if (channel == channel_map::none) continue;
      ++needed;
      auto const of_channel = std::as_const(record)[channel];
      CHECK(std::ranges::count(of_channel, p, &timed_message::pass) == 1);
    }
  CHECK(record.size() == needed);
  for (int c = 0; c < record.ranks(); ++c) {
    auto const row = std::as_const(record)[c];
    for (auto const& m : row) CHECK(std::pair(m.from, m.to) == messages.map().ends(c));
    CHECK(std::ranges::is_sorted(row, {}, &timed_message::sent));
  }
}

void check_order(message_record const& record, timeline const& line) {
  for (auto const& m : record.all()) {
    INFO(to_string(m));
    auto const [made, needed] = ends_of(m, line);
    bool const is_ordered = made.timed->end <= m.sent && m.sent <= m.arrived &&
                            m.arrived <= m.taken && m.taken <= needed.timed->start;
    CHECK(is_ordered);
  }
}

}  // namespace

TEST_CASE("under virtual time a message travels as long as stated", "[message-record]") {
  for (int p : {1, 2, thinned(4, 3)})
    for (auto const& placement : placements_to_run(p)) {
      problem const stated(placement, 2 * p + 1, even, 7);
      on_plans(stated, {}, [](plan const& planned) {
        std::vector<plain_flow> stages(detail::index(planned.problem().stages()));
        pipeline pipe{planned, virtual_time{.records_messages = true}, stages};
        for (int i = 0; i < 2; ++i) {
          auto const& step = pipe.step();
          check_places(planned, step.messages);
          check_order(step.messages, step.measured);
          for (auto const& m : step.messages.all()) {
            auto const [made, needed] = ends_of(m, step.measured);
            CHECK(m.sent == made.timed->end);
            CHECK(m.arrived == m.sent + 7);
            CHECK(m.taken == std::max(m.arrived, needed.free));
          }
        }
      });
    }
}

TEST_CASE(
    "a message that is slow arrives late, and a late rank takes it late", "[message-record]") {
  for (int trial = 0; trial < thinned(20, 5); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(2, 5));
    auto const planned = make_plan(zb_h1{}, problem(placement::linear(p), 2 * p, even, 7));
    std::vector<plain_flow> stages(detail::index(p));
    std::vector<ticks> took;  // of messages in the order in which they are sent
    virtual_noise noise{
        .pass_time = [&](int, pass const&, ticks stated) { return stated + random.integer(0, 20); },
        .message_time =
            [&](int, ticks stated) { return took.emplace_back(stated + random.integer(0, 90)); },
    };
    pipeline pipe{planned, virtual_time{.noise = noise, .records_messages = true}, stages};
    auto const& step = pipe.step();
    check_order(step.messages, step.measured);
    std::vector<ticks> recorded;
    for (auto const& m : step.messages.all()) recorded.push_back(m.arrived - m.sent);
    std::ranges::sort(recorded);
    std::ranges::sort(took);
    CHECK(recorded == took);
  }
}

TEST_CASE("nothing is recorded unless it is asked for", "[message-record]") {
  auto const planned = make_plan(zb_h1{}, problem(placement::linear(3), 6, even));
  std::vector<plain_flow> stages(3);
  pipeline on_threads{planned, threads{}, stages};
  CHECK(on_threads.step().messages.size() == 0);
  pipeline virtually{planned, virtual_time{}, stages};
  CHECK(virtually.step().messages.size() == 0);
}

TEST_CASE("between threads a message arrives when it is sent, or as stated", "[message-record]") {
  for (auto const& placement : {placement::linear(3), placement::v_shape(2)})
    for (bool const emulates : {false, true}) {
      constexpr ticks transfer = 20'000;
      problem const stated(placement, 6, even, transfer);
      on_plans(stated, {}, [&](plan const& planned) {
        INFO((emulates ? ", emulated" : ""));
        std::vector<plain_flow> stages(detail::index(planned.problem().stages()));
        pipeline pipe{
            planned, threads{.emulates_transfers = emulates, .records_messages = true}, stages};
        pipe.step();
        auto const& step = pipe.step();
        check_places(planned, step.messages);
        check_order(step.messages, step.measured);
        for (auto const& m : step.messages.all()) {
          if (emulates)
            CHECK(m.arrived >= m.sent + transfer);
          else
            CHECK(m.arrived == m.sent);
        }
      });
    }
}

TEST_CASE("steps that follow each other have records of their own", "[message-record]") {
  problem const small(placement::linear(3), 5, checked::costs(), 87);
  for (auto const kind : {step_kind::synchronous, step_kind::post_validated}) {
    // Some steps are amended, so that the next one begins anew.
    checked::model all({.stages = 3, .faults = {{.step = 3, .stage = 1, .microbatch = 2}}});
    auto const planned = make_plan(zb_h1{}, small, {.step = kind});
    pipeline pipe(planned, threads{.records_messages = true}, all.stages(), {.clip = 1e-3});
    int steps = 0;
    std::vector<timed_message> before;
    pipe.run(12, [&](step_result const& step) {
      INFO("step " << steps);
      ++steps;
      check_places(planned, step.messages);
      check_order(step.messages, step.measured);
      auto const now = step.messages.all();
      for (std::size_t i = 0; i < before.size(); ++i) CHECK(now[i].sent > before[i].sent);
      before.assign(now.begin(), now.end());
    });
    CHECK(steps == 12);
  }
}

TEST_CASE("where W run while a rank waits, records and explanations fit", "[message-record]") {
  auto const planned = make_plan(zb_h1{}, problem(placement::linear(4), 9, even, 7));
  std::vector<plain_flow> stages(4);
  virtual_noise const noise{
      .message_time = [](int from, ticks stated) { return from == 1 ? stated + 150 : stated; }};
  pipeline pipe{
      planned,
      virtual_time{.noise = noise, .records_messages = true},
      stages,
      {.on_stall = {.runs_w = true}}};
  bool moved = false;
  for (int i = 0; i < 4; ++i) {
    auto const& step = pipe.step();
    check_places(planned, step.messages);
    check_order(step.messages, step.measured);
    for (int rank = 0; rank < 4; ++rank)
      moved |= !std::ranges::equal(
          step.measured[rank], planned.schedule().passes(rank), {}, &timed_pass::pass);
    auto const found = explain(planned, step.measured, {.messages = step.messages.all()});
    for (auto const& rank : found.ranks) CHECK(rank.sum() == found.measured);
    CHECK(found.message_gain > 0);
    CHECK(found.host_gain == 0);
  }
  CHECK(moved);
}

TEST_CASE("a timed message is written for people", "[message-record]") {
  timed_message m{.pass = {pass_kind::backward_input, 2, 5}, .from = 3, .to = 2, .sent = 100};
  CHECK(to_string(m) == "2B5 from rank 3 to 2: sent 100, arrived ?, taken ?");
  m.arrived = -5;
  m.taken = 0;
  CHECK(to_string(m) == "2B5 from rank 3 to 2: sent 100, arrived -5, taken 0");
}

}  // namespace test_message_record
