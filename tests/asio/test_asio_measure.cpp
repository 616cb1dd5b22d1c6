// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/explain.hpp>
#include <zbpp/asio/measure.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/plain_flow.hpp>
#include <support/refusal.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace test_asio_measure {

using namespace zbpp;

namespace {

problem stated_problem() {
  std::vector<stage_costs> costs;
  for (int s = 0; s < 3; ++s)
    costs.push_back(
        {.forward = 100 + s,
         .backward_input = 150,
         .backward_weight = 70,
         .activation = 64 * (s + 1),
         .edge = 16});
  return {placement::linear(3), 6, costs, transfer_costs(13)};
}

void check_all(std::vector<std::string> const& thrown) {
  for (auto const& text : thrown) CHECK(text.empty());
}

}  // namespace

TEST_CASE("the timelines of processes become one on one clock", "[asio][measure]") {
  auto const stated = stated_problem();
  auto const order = zb_h1{}(stated);
  auto const right = simulate(order, stated);
  std::vector<timeline> gathered(3);
  check_all(test::run_ranks(3, test::patient_settings(), [&](asio::rendezvous& meeting) {
    // Each process knows its own passes only, by a clock of its own.
    timeline own;
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == meeting.rank())
        for (auto const& timed : right[rank])
          own.push({timed.pass, timed.start + 1000 * rank, timed.end + 1000 * rank});
      own.end_row();
    }
    gathered[static_cast<std::size_t>(meeting.rank())] = asio::gather_timeline(meeting, order, own);
  }));
  for (auto const& line : gathered) CHECK(line == right);
}

TEST_CASE("steps of processes with records of messages are set by these", "[asio][measure]") {
  auto const planned = make_plan(zb_h1{}, stated_problem());
  std::vector<test::plain_flow> stages(3);
  pipeline virtually{
      planned,
      virtual_time{
          .noise = {.message_time = [](int from, ticks stated) { return stated + 7 * from; }},
          .records_messages = true},
      stages};
  auto const right = virtually.step();
  auto const ahead = [](int rank) { return ticks{1000} * rank; };
  std::vector<asio::gathered_step> gathered(3);
  check_all(test::run_ranks(3, test::patient_settings(), [&](asio::rendezvous& meeting) {
    // Each process knows its own times only, by a clock of its own.
    step_result own;
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == meeting.rank())
        for (auto const& timed : right.measured[rank])
          own.measured.push({timed.pass, timed.start + ahead(rank), timed.end + ahead(rank)});
      own.measured.end_row();
    }
    own.messages = right.messages;
    for (int channel = 0; channel < own.messages.ranks(); ++channel)
      for (auto& m : own.messages[channel]) {
        for (auto* time : {&m.arrived, &m.taken})
          *time = m.to == meeting.rank() ? *time + ahead(m.to) : timed_message::unknown;
        m.sent = m.from == meeting.rank() ? m.sent + ahead(m.from) : timed_message::unknown;
      }
    gathered[detail::index(meeting.rank())] = asio::gather_step(meeting, planned, own);
  }));
  for (auto const& step : gathered) {
    REQUIRE(step.clocks.size() == 3);
    for (int rank = 0; rank < 3; ++rank) {
      auto const& clock = step.clocks[detail::index(rank)];
      CHECK(std::abs(clock.ahead - ahead(rank)) <= clock.error);
      // Half of the round trips on the way, and what clocks drift in a step.
      CHECK(clock.error <= 30 * rank);
      auto const moved = ahead(rank) - clock.ahead;
      auto const first = right.measured[0].front().start;
      CHECK(
          step.measured[rank].front().start == right.measured[rank].front().start + moved - first);
    }
    REQUIRE(step.messages.size() == right.messages.size());
    for (std::size_t i = 0; i < step.messages.size(); ++i) {
      auto const& m = step.messages.all()[i];
      auto const& of = right.messages.all()[i];
      CHECK(m.pass == of.pass);
      CHECK(m.taken - m.arrived == of.taken - of.arrived);
      auto const& [from, to] = std::pair(
          step.clocks[detail::index(m.from)].ahead - ahead(m.from),
          step.clocks[detail::index(m.to)].ahead - ahead(m.to));
      CHECK(m.arrived - m.sent == of.arrived - of.sent - to + from);
    }
  }
}

TEST_CASE("a step over TCP is gathered with its messages", "[asio][measure]") {
  auto const planned = make_plan(zb_h1{}, stated_problem());
  std::vector<asio::gathered_step> gathered(3);
  check_all(test::run_ranks(3, test::patient_settings(), [&](asio::rendezvous& meeting) {
    std::vector<test::plain_flow> stages(1);
    pipeline pipe{planned, asio::tcp(meeting, {.records_messages = true}), stages};
    pipe.step();
    auto const& own = pipe.step();
    for (auto const& m : own.messages.all())
      if (m.to == meeting.rank() && (m.arrived == timed_message::unknown || m.taken < m.arrived))
        throw std::runtime_error(to_string(m));
    gathered[detail::index(meeting.rank())] = asio::gather_step(meeting, planned, own);
  }));
  for (auto const& step : gathered) {
    CHECK(step.measured == gathered[0].measured);
    CHECK(step.messages == gathered[0].messages);
    CHECK(step.clocks == gathered[0].clocks);
    CHECK(step.ranks == gathered[0].ranks);
  }
  auto const& [measured, messages, clocks, updates] = gathered[0];
  ticks last = 0;
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(updates[detail::index(rank)].ended >= measured[rank].back().end);
    last = std::max(last, updates[detail::index(rank)].ended);
  }
  auto const found = explain(planned, measured, {.ranks = updates, .messages = messages.all()});
  CHECK(found.measured == last);
  for (auto const& account : found.ranks) CHECK(account.sum() == last);
  CHECK(messages.size() == 24);
  ticks drift = 0;  // what the clocks may have drifted in the step
  for (auto const& clock : clocks) drift = std::max(drift, clock.error);
  for (auto const& m : messages.all()) {
    INFO(to_string(m));
    CHECK(m.arrived + drift >= m.sent);
    CHECK(m.taken >= m.arrived);
    auto const needed = std::ranges::find(measured[m.to], m.pass, &timed_pass::pass);
    REQUIRE(needed != measured[m.to].end());
    CHECK(needed->start >= m.taken);
  }
}

TEST_CASE("steps without records are gathered as timelines are", "[asio][measure]") {
  auto const planned = make_plan(zb_h1{}, stated_problem());
  std::vector<std::string> refused(3);
  check_all(test::run_ranks(3, test::patient_settings(), [&](asio::rendezvous& meeting) {
    std::vector<test::plain_flow> stages(1);
    bool const records = meeting.rank() == 1;
    pipeline pipe{planned, asio::tcp(meeting, {.records_messages = records}), stages};
    auto own = pipe.step();
    refused[detail::index(meeting.rank())] = test::refusal(
        errc::bad_argument, [&] { static_cast<void>(asio::gather_step(meeting, planned, own)); });
    own.messages = {};
    auto const all = asio::gather_step(meeting, planned, own);
    auto const line = asio::gather_timeline(meeting, planned.schedule(), own.measured);
    if (all.measured != line || all.messages.size() > 0 || !all.clocks.empty())
      throw std::runtime_error("another step");
  }));
  for (auto const& text : refused)
    CHECK(
        text ==
        "rank 0: gather_step: the rank recorded other messages than those of the plan, or none; "
        "set records_messages on all ranks, and give the plan that ran");
}

TEST_CASE("the costs of all stages reach every process", "[asio][measure]") {
  auto const placement = placement::v_shape(2);
  std::vector<stage_costs> all;
  ticks value = 0;
  for (int s = 0; s < placement.stages(); ++s) {
    auto& costs = all.emplace_back();
    for (auto const& field : detail::cost_fields)
      if (field.optional == nullptr || s % 2 == 0) field.set(costs, ++value);
    if (s % 2 == 0) costs.recompute = 0;
  }
  check_all(test::run_ranks(2, test::patient_settings(), [&](asio::rendezvous& meeting) {
    std::vector<stage_costs> own;
    for (int const s : placement.stages_of(meeting.rank())) own.push_back(all[detail::index(s)]);
    if (asio::gather_costs(meeting, placement, own) != all) throw std::runtime_error("other costs");
    bool const is_root = meeting.rank() == 1;
    if (asio::broadcast_costs(meeting, is_root ? all : own, 1) != all)
      throw std::runtime_error("other costs of the root");
    if (!asio::broadcast_costs(meeting, {}).empty()) throw std::runtime_error("costs of nothing");
  }));
}

TEST_CASE("all processes measure the same problem", "[asio][measure]") {
  auto const stated = stated_problem();
  std::vector<std::optional<problem>> found(3);
  check_all(test::run_ranks(3, test::patient_settings(), [&](asio::rendezvous& meeting) {
    std::vector<test::plain_flow> stages(1);
    pipeline pipe{make_plan(zb_h1{}, stated), asio::tcp(meeting), stages};
    auto const rank = static_cast<std::size_t>(meeting.rank());
    found[rank] = asio::measure(meeting, pipe, {.load = std::chrono::milliseconds(1), .steps = 4});
  }));
  REQUIRE(found[0].has_value());
  CHECK(found[0] == found[1]);
  CHECK(found[0] == found[2]);
  CHECK(found[0]->costs(2).activation == 192);
  CHECK(found[0]->costs(2) != stated.costs(2));  // its times are measured
}

TEST_CASE("a rank that ran other passes is refused on every rank", "[asio][measure]") {
  auto const stated = stated_problem();
  auto const order = zb_h1{}(stated);
  auto const right = simulate(order, stated);
  auto const thrown = test::run_ranks(3, test::patient_settings(), [&](asio::rendezvous& meeting) {
    auto const own = meeting.rank() == 1 ? simulate(gpipe{}(stated), stated) : right;
    static_cast<void>(asio::gather_timeline(meeting, order, own));
  });
  for (auto const& text : thrown)
    CHECK(text.find("did not run its passes in the order of the schedule") != std::string::npos);
}

}  // namespace test_asio_measure
