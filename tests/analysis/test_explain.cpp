// SPDX-License-Identifier: Apache-2.0
//
// Explanations of steps whose causes of delay are planted: what is found is their size to the tick.
#include <zbpp/analysis/explain.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/io/chrome_trace.hpp>
#include <zbpp/io/explanation_drawing.hpp>
#include <zbpp/io/explanation_text.hpp>
#include <zbpp/io/svg.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/stp.hpp>
#include <zbpp/policy/zb_v.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/plain_flow.hpp>
#include <support/plan_grid.hpp>
#include <support/random_problem.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/svg_text.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace test_explain {

using namespace zbpp;

namespace {

constexpr stage_costs even{
    .forward = 100, .backward_input = 100, .backward_weight = 90, .activation = 1, .edge = 8};

plan zb_h1_plan(int ranks, ticks transfer = 5) {
  return make_plan(zb_h1{}, problem(placement::linear(ranks), 2 * ranks + 1, even, transfer));
}

// A step that the engine runs with other times than those of the plan, and its messages.
struct recorded_step {
  timeline measured;
  message_record messages;
};

recorded_step recorded_with(plan const& planned, virtual_noise noise) {
  std::vector<test::plain_flow> stages(detail::index(planned.problem().stages()));
  pipeline pipe{planned, virtual_time{.noise = std::move(noise), .records_messages = true}, stages};
  auto const& step = pipe.step();
  return {step.measured, step.messages};
}

// The same where ranks wait for nothing before some passes, or pairs, known by their last one: what
// they take longer by in the engine stands before them afterwards.
template <class Late>
recorded_step recorded_late(plan const& planned, virtual_noise noise, Late const& late) {
  std::map<pass, ticks> waited;
  auto longer = noise;
  longer.pass_time = [&](int rank, pass const& p, ticks stated) {
    auto const took = noise.pass_time ? noise.pass_time(rank, p, stated) : stated;
    return took + (waited[p] = late(p));
  };
  auto step = recorded_with(planned, longer);
  for (int rank = 0; rank < step.measured.ranks(); ++rank) {
    auto const row = step.measured[rank];
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i].start += waited[row[i].pass];
      if (row[i].pass.is_paired) row[i - 1].start = row[i].start;
    }
  }
  return step;
}

// The same without a record.
timeline measured_with(plan const& planned, virtual_noise noise) {
  std::vector<test::plain_flow> stages(detail::index(planned.problem().stages()));
  pipeline pipe{planned, virtual_time{std::move(noise)}, stages};
  return pipe.step().measured;
}

// A plan in which passes run in pairs.
plan planned_pairs() {
  auto costs = even;
  costs.overlapped = 150;
  return make_plan(stp{}, problem(placement::v_shape(3), 9, costs, 5));
}

// A stage whose optimizer step takes some time.
struct updating_flow : test::plain_flow {
  ticks took = 0;

  void update(pass_context) {
    auto const begin = threads::pass_observer::clock();
    for (int i = 0; i < 1000; ++i) took = threads::pass_observer::clock() - begin;
  }
};

// What holds for each explanation.
void check_sums(explanation const& found, timeline const& measured) {
  ticks begin = measured.all().front().start;
  for (auto const& timed : measured.all()) begin = std::min(begin, timed.start);
  for (auto const& rank : found.ranks) {
    CHECK(rank.sum() == found.measured);
    for (auto const part :
         {rank.work,
          rank.longer,
          rank.bubble,
          rank.imbalance,
          rank.sent_late,
          rank.messages,
          rank.taken_late,
          rank.host,
          rank.optimizer,
          rank.gain})
      CHECK(part >= 0);
    for (auto const part : rank.for_rank) CHECK(part >= 0);
  }
  ticks path = 0;
  for (auto const& p : found.critical) {
    path += p.waited;
    CHECK(p.start == path);
    path += p.end - p.start;
    CHECK(p.end == path);
    CHECK(p.sent_late >= 0);
    CHECK(p.taken_late >= 0);
    CHECK(p.sent_late + p.taken_late <= p.waited);
    CHECK((p.cause == wait_cause::none) == (p.waited == 0));
  }
  CHECK(path == makespan(measured) - begin);
  CHECK(found.worst.size() <= 5);
  for (std::size_t i = 0; i < found.worst.size(); ++i) {
    auto const& d = found.worst[i];
    CHECK(d.gain > 0);
    CHECK(d.took > d.planned);
    CHECK(d.gain <= d.took - d.planned);
    if (i > 0) CHECK(d.gain <= found.worst[i - 1].gain);
  }
}

explanation explained(plan const& planned, timeline const& measured) {
  auto found = explain(planned, measured);
  check_sums(found, measured);
  CHECK(!found.has_messages);
  CHECK(found.send_gain == 0);
  for (auto const& rank : found.ranks) CHECK((rank.sent_late == 0 && rank.taken_late == 0));
  return found;
}

explanation explained(plan const& planned, recorded_step const& step) {
  auto found = explain(planned, step.measured, {.messages = step.messages.all()});
  check_sums(found, step.measured);
  CHECK(found.has_messages == (step.messages.size() > 0));  // one rank sends none
  return found;
}

ticks sum_of(explanation const& found, ticks rank_account::*part) {
  ticks sum = 0;
  for (auto const& rank : found.ranks) sum += rank.*part;
  return sum;
}

}  // namespace

TEST_CASE("a step that went as planned has its bubble and nothing else", "[explain]") {
  for (int p : {1, 2, test::thinned(4, 3)})
    for (auto const& placement : test::placements_to_run(p)) {
      ZBPP_SEEDED(random, p);
      std::vector<stage_costs> costs;
      for (int s = 0; s < placement.stages(); ++s) {
        costs.push_back(even);
        costs.back().forward += random.integer(0, 50);
      }
      problem const problem(placement, 2 * p + 1, costs, 7);
      test::for_each_plan_of(problem, {}, [](std::string const& name, plan const& planned) {
        INFO(name);
        auto const found = explained(planned, planned.timeline());
        CHECK(found.planned == found.measured);
        CHECK(found.worst.empty());
        CHECK(found.message_gain == 0);
        CHECK(found.host_gain == 0);
        ticks most = 0;
        for (auto const& rank : found.ranks) most = std::max(most, rank.work);
        for (auto const& rank : found.ranks) {
          CHECK(rank.work + rank.bubble + rank.imbalance == found.planned);
          CHECK(rank.imbalance <= most - rank.work);
          CHECK(rank.gain == 0);
        }
      });
    }
}

TEST_CASE("a slow rank is found, with what it costs", "[explain]") {
  for (int p : {2, 3, 5})
    for (int slow = 0; slow < p; ++slow) {
      auto const planned = zb_h1_plan(p);
      auto const line =
          measured_with(planned, {.pass_time = [slow](int rank, pass const&, ticks stated) {
                          return rank == slow ? stated * 3 / 2 : stated;
                        }});
      auto const found = explained(planned, line);
      INFO(p << " ranks, rank " << slow << " is slow");
      CHECK(found.measured > found.planned);
      for (int rank = 0; rank < p; ++rank) {
        auto const& account = found.ranks[detail::index(rank)];
        CHECK(account.longer == (rank == slow ? account.work / 2 : 0));
        CHECK(account.host == 0);
        // Without it the step is the planned one; the others give nothing.
        CHECK(account.gain == (rank == slow ? found.measured - found.planned : 0));
      }
      for (auto const& d : found.worst) CHECK(d.rank == slow);
    }
}

TEST_CASE("one slow pass is named, with what it costs", "[explain]") {
  auto const planned = zb_h1_plan(4);
  int on_path = 0;
  for (auto const& slow : planned.schedule().passes().all()) {
    auto const line = measured_with(planned, {.pass_time = [&](int, pass const& p, ticks stated) {
                                      return p == slow ? stated + 1000 : stated;
                                    }});
    auto const found = explained(planned, line);
    INFO(to_string(slow));
    auto const rank = planned.problem().placement().rank_of(slow.stage);
    CHECK(found.ranks[detail::index(rank)].longer == 1000);
    auto const cost = found.measured - found.planned;
    CHECK(found.ranks[detail::index(rank)].gain == cost);
    if (cost == 0) {
      CHECK(found.worst.empty());
      continue;
    }
    ++on_path;
    REQUIRE(found.worst.size() == 1);
    CHECK(
        found.worst.front() == delay{
                                   rank,
                                   slow,
                                   delay_kind::pass,
                                   found.worst.front().planned,
                                   found.worst.front().planned + 1000,
                                   cost});
    CHECK(std::ranges::count(found.critical, slow, &critical_pass::pass) == 1);
  }
  CHECK(on_path > 0);
}

TEST_CASE("a slow link is found, with what it costs", "[explain]") {
  auto const planned = zb_h1_plan(4, 20);
  for (int from : {0, 1, 2, 3}) {
    auto const line = measured_with(planned, {.message_time = [from](int rank, ticks stated) {
                                      return rank == from ? stated + 70 : stated;
                                    }});
    auto const found = explained(planned, line);
    INFO("from rank " << from);
    CHECK(found.measured > found.planned);
    CHECK(found.message_gain == found.measured - found.planned);
    CHECK(found.host_gain == 0);
    for (auto const& rank : found.ranks) {
      CHECK(rank.longer == 0);
      CHECK(rank.gain == 0);
    }
    REQUIRE(!found.worst.empty());
    for (auto const& d : found.worst) {
      CHECK(d.kind == delay_kind::message);
      CHECK(d.planned == 20);
      CHECK(d.took == 90);
    }
  }
}

TEST_CASE("a late host is found, with what it costs", "[explain]") {
  auto const planned = zb_h1_plan(4);
  pass const late{pass_kind::backward_weight, 1, 2};
  auto const step =
      recorded_late(planned, {}, [&](pass const& p) { return p == late ? ticks{777} : ticks{0}; });
  auto const found = explained(planned, step.measured);
  CHECK(found.ranks[1].host == 777);
  CHECK(found.host_gain == found.measured - found.planned);
  CHECK(found.message_gain == 0);
  for (auto const& rank : found.ranks) CHECK(rank.longer == 0);
}

TEST_CASE("by its record, a late start is told from a slow message", "[explain]") {
  auto const planned = zb_h1_plan(4, 20);
  int on_path = 0;
  for (auto const& late : planned.schedule().passes().all()) {
    if (late == pass{}) continue;  // the step begins with it
    auto const step = recorded_late(
        planned, {}, [&](pass const& p) { return p == late ? ticks{777} : ticks{0}; });
    INFO(to_string(late));
    auto const found = explained(planned, step);
    auto const rank = detail::index(planned.problem().placement().rank_of(late.stage));
    // A pass of the first or last stage may need nothing of other ranks, as W does.
    bool const needs_message =
        std::ranges::count(step.messages.all(), late, &timed_message::pass) == 1;
    CHECK(found.ranks[rank].taken_late == (needs_message ? 777 : 0));
    CHECK(found.ranks[rank].host == (needs_message ? 0 : 777));
    CHECK(sum_of(found, &rank_account::taken_late) + sum_of(found, &rank_account::host) == 777);
    CHECK(sum_of(found, &rank_account::sent_late) == 0);
    CHECK(found.message_gain == 0);
    CHECK(found.send_gain == 0);
    CHECK(found.host_gain == found.measured - found.planned);
    for (auto const& account : found.ranks) CHECK((account.longer == 0 && account.gain == 0));
    if (found.host_gain == 0) continue;
    ++on_path;
    REQUIRE(found.worst.size() == 1);
    CHECK(
        found.worst.front() == delay{
                                   static_cast<int>(rank),
                                   late,
                                   delay_kind::start,
                                   0,
                                   777,
                                   found.measured - found.planned});
    auto const at = std::ranges::find(found.critical, late, &critical_pass::pass);
    REQUIRE(at != found.critical.end());
    CHECK(at->taken_late == (needs_message ? 777 : 0));
  }
  CHECK(on_path > 0);
}

TEST_CASE("by its record, a slow link is found as it is without", "[explain]") {
  auto const planned = zb_h1_plan(4, 20);
  for (int from : {0, 1, 2, 3}) {
    auto const step = recorded_with(planned, {.message_time = [from](int rank, ticks stated) {
                                      return rank == from ? stated + 70 : stated;
                                    }});
    INFO("from rank " << from);
    auto const found = explained(planned, step);
    CHECK(found.message_gain == found.measured - found.planned);
    CHECK(found.host_gain == 0);
    CHECK(sum_of(found, &rank_account::taken_late) == 0);
    CHECK(sum_of(found, &rank_account::sent_late) == 0);
    // Only by the record is it known what messages took that nobody waited for.
    CHECK(found.ranks == explain(planned, step.measured).ranks);
    REQUIRE(!found.worst.empty());
    for (auto const& d : found.worst) {
      CHECK(d.kind == delay_kind::message);
      CHECK(d.planned == 20);
      CHECK(d.took == 90);
    }
  }
}

TEST_CASE("by its record, a slow rank is found as it is without", "[explain]") {
  for (auto const& planned :
       {zb_h1_plan(3),
        make_plan(zb_v{}, problem(placement::v_shape(3), 7, even, 5)),
        planned_pairs()}) {
    auto const step = recorded_with(planned, {.pass_time = [](int rank, pass const&, ticks stated) {
                                      return rank == 1 ? stated * 3 / 2 : stated;
                                    }});
    auto found = explained(planned, step);
    found.has_messages = false;
    CHECK(found == explain(planned, step.measured));
    for (auto const& d : found.worst) CHECK(d.kind == delay_kind::pass);
  }
}

TEST_CASE("by its record, a late send is told from a slow message", "[explain]") {
  auto const planned = zb_h1_plan(3, 20);
  auto const slow = recorded_with(planned, {.message_time = [](int rank, ticks stated) {
                                    return rank == 1 ? stated + 70 : stated;
                                  }});
  // Of the 70 that each message of rank 1 is late, 30 are those of its send.
  auto step = slow;
  for (int channel = 0; channel < step.messages.ranks(); ++channel)
    for (auto& m : step.messages[channel])
      if (m.from == 1) m.sent += 30;
  auto const found = explained(planned, step);
  auto const without = explained(planned, slow);
  CHECK(found.measured == without.measured);
  CHECK(found.send_gain > 0);
  CHECK(found.message_gain > 0);
  CHECK(found.message_gain < without.message_gain);
  CHECK(sum_of(found, &rank_account::sent_late) > 0);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    auto const& account = found.ranks[rank];
    CHECK(account.taken_late == 0);
    CHECK(account.for_rank == without.ranks[rank].for_rank);
    CHECK(account.sent_late % 30 == 0);
  }
  // On the critical path both are whole.
  int sends = 0;
  for (auto const& d : found.worst) {
    sends += d.kind == delay_kind::send ? 1 : 0;
    CHECK(d.took == (d.kind == delay_kind::send ? 30 : 60));
    CHECK(d.planned == (d.kind == delay_kind::send ? 0 : 20));
  }
  CHECK(sends > 0);
  for (auto const& p : found.critical) CHECK((p.sent_late == 0 || p.sent_late == 30));
  auto const text = to_text(found, time_unit::microseconds);
  CHECK(text.find("for ranks  sent late  messages  taken late   host") != std::string::npos);
  CHECK(text.find(" was sent 0.030 us late; without that the step ends ") != std::string::npos);
  CHECK(text.find("\nwith messages sent at once the step ends ") != std::string::npos);
  CHECK(text.find(", sent late 0.") != std::string::npos);
}

TEST_CASE("under noise all parts add up, and gains are those of a step without it", "[explain]") {
  for (int trial = 0; trial < test::thinned(60, 15); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 5));
    auto costs = even;
    if (trial % 2 == 0) costs.overlapped = 150;
    problem const linear(placement::linear(p), 3 * p, costs, random.integer(0, 30));
    problem const on_v(placement::v_shape(p), 3 * p, costs, random.integer(0, 30));
    for (auto const& planned :
         {make_plan(zb_h1{}, linear), make_plan(zb_v{}, on_v), make_plan(stp{}, on_v)}) {
      INFO(planned.policy() << ", " << p << " ranks");
      virtual_noise const noise{
          .pass_time = [&](int,
                           pass const&,
                           ticks stated) { return stated * random.integer(80, 150) / 100; },
          .message_time = [&](int, ticks stated) { return stated + random.integer(0, 40); }};
      auto const [line, messages] = recorded_late(planned, noise, [&](pass const&) {
        return random.chance(0.2) ? random.integer(1, 50) : 0;
      });
      auto const split = explained(planned, recorded_step{line, messages});
      CHECK(split.send_gain == 0);
      auto const found = explained(planned, line);
      for (auto const& rank : found.ranks) CHECK(rank.gain <= found.measured);
      CHECK(found.message_gain < found.measured);
      // The same step later, or given as that of the plan, says the same.
      auto later = line;
      for (int rank = 0; rank < later.ranks(); ++rank)
        for (auto& timed : later[rank]) {
          timed.start += 123;
          timed.end += 123;
        }
      CHECK(explain(planned, later) == found);
    }
  }
}

TEST_CASE("gaps between passes, as threads have, change no more than their sum", "[explain]") {
  for (int trial = 0; trial < test::thinned(12, 6); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto costs = even;
    for (auto* const time : {&costs.forward, &costs.backward_input, &costs.backward_weight})
      *time *= 1000;
    costs.overlapped = 150'000;
    int const ranks = 3 + trial % 2;
    ticks const transfer = trial % 3 == 0 ? 0 : 5000;
    for (auto const& planned :
         {make_plan(zb_h1{}, problem(placement::linear(ranks), 9, costs, transfer)),
          make_plan(one_f_one_b{}, problem(placement::linear(ranks), 9, costs, transfer)),
          make_plan(zb_v{}, problem(placement::v_shape(ranks), 9, costs, transfer)),
          make_plan(stp{}, problem(placement::v_shape(ranks), 12, costs, transfer))}) {
      INFO(planned.policy() << ", " << ranks << " ranks, messages of " << transfer);
      virtual_noise const noise{.pass_time = [&](int rank, pass const&, ticks stated) {
        return rank == trial % ranks ? stated * 3 / 2 : stated;
      }};
      auto const plain = explained(planned, measured_with(planned, noise));
      ticks gaps = 0;
      auto const step = recorded_late(planned, noise, [&](pass const&) {
        auto const gap = random.integer(1, 1000);
        gaps += gap;
        return gap;
      });
      for (auto const& found : {explained(planned, step.measured), explained(planned, step)}) {
        auto const is_near = [&](ticks a, ticks b) { return std::abs(a - b) <= gaps; };
        CHECK(is_near(found.message_gain, plain.message_gain));
        CHECK(found.host_gain <= gaps);
        for (std::size_t r = 0; r < found.ranks.size(); ++r) {
          auto const& with = found.ranks[r];
          auto const& without = plain.ranks[r];
          CHECK(with.work == without.work);
          CHECK(with.longer == without.longer);
          CHECK(is_near(with.gain, without.gain));
          // Of the two messages of a pair, another one may be the last.
          if (planned.policy() == "STP") continue;
          CHECK(is_near(with.messages, without.messages));
          CHECK(is_near(with.bubble, without.bubble));
          for (std::size_t other = 0; other < with.for_rank.size(); ++other)
            CHECK(is_near(with.for_rank[other], without.for_rank[other]));
          CHECK(with.host + with.taken_late <= gaps);
        }
        // A wait for a message is one for its rank, but for the time of the message.
        for (auto const& p : found.critical)
          if (p.cause == wait_cause::message) CHECK(p.waited <= transfer + gaps);
      }
    }
  }
}

TEST_CASE("on threads a record splits waits, and moves none from rank to rank", "[explain]") {
  auto const planned = make_plan(zb_h1{}, problem(placement::linear(3), 12, even, 0));
  std::vector<test::plain_flow> stages(3);
  pipeline pipe{planned, threads{.records_messages = true}, stages};
  for (int i = 0; i < 20; ++i) {
    auto const& result = pipe.step();
    recorded_step const step{result.measured, result.messages};
    auto const with = explained(planned, step);
    auto const without = explained(planned, step.measured);
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK(with.ranks[r].for_rank == without.ranks[r].for_rank);
      auto const rest = [](rank_account const& account) {
        return account.sent_late + account.messages + account.taken_late + account.host;
      };
      CHECK(rest(with.ranks[r]) == rest(without.ranks[r]));
    }
  }
}

// Runs steps of a plan whose stages take optimizer steps of 3000, and checks that these are found.
// Returns on how many ranks some are between passes.
template <class Stages>
int check_optimizer_steps(plan const& planned, Stages&& stages) {
  int between_passes = 0;
  pipeline pipe{planned, virtual_time{}, stages};
  for (int step = 0; step < 3; ++step) {
    auto const& result = pipe.step();
    auto const found = explain(planned, result.measured, {.ranks = result.ranks});
    check_sums(found, result.measured);
    ticks last = 0;
    for (int rank = 0; rank < 3; ++rank) {
      auto const& account = found.ranks[detail::index(rank)];
      auto const ended = result.ranks[detail::index(rank)].ended;
      auto const own = 3000 * std::ssize(planned.problem().placement().stages_of(rank));
      CHECK(account.optimizer >= own);
      CHECK(account.host == 0);
      if (ended - result.measured[rank].back().end < own) ++between_passes;
      last = std::max(last, ended);
    }
    CHECK(found.measured == last - result.measured[0].front().start);
    CHECK(found.host_gain == 0);
  }
  return between_passes;
}

TEST_CASE("optimizer steps are in the account, whoever takes them", "[explain]") {
  auto costs = test::checked::costs();
  costs.optimizer_step = 3000;
  int between_passes = 0;
  for (auto const& placement : {placement::linear(3), placement::v_shape(3)})
    for (auto const kind :
         {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated}) {
      problem const problem(placement, 9, costs, 5);
      auto const planned = placement.stages() == 3 ? make_plan(zb_h1{}, problem, {.step = kind})
                                                   : make_plan(zb_v{}, problem, {.step = kind});
      INFO(planned.policy() << ", kind " << static_cast<int>(kind));
      test::checked::model all({.stages = problem.stages()});
      between_passes += check_optimizer_steps(planned, all.stages());
      if (kind != step_kind::unchecked) continue;
      std::vector<updating_flow> updating(detail::index(problem.stages()));
      between_passes += check_optimizer_steps(planned, updating);
    }
  CHECK(between_passes > 0);
}

TEST_CASE("on threads a step lasts until its last update has ended", "[explain]") {
  auto const planned =
      make_plan(zb_h1{}, problem(placement::linear(3), 9, even, 0), {.step = step_kind::unchecked});
  std::vector<updating_flow> stages(3);
  pipeline pipe{planned, threads{}, stages};
  for (int step = 0; step < 10; ++step) {
    auto const& result = pipe.step();
    auto const found = explain(planned, result.measured, {.ranks = result.ranks});
    check_sums(found, result.measured);
    for (std::size_t r = 0; r < 3; ++r) CHECK(found.ranks[r].optimizer >= stages[r].took);
  }
}

TEST_CASE("the optimizer step belongs to the step where it is given", "[explain]") {
  auto const planned = zb_h1_plan(3);
  auto const& line = planned.timeline();
  std::vector<rank_update> updates(3);
  for (int rank = 0; rank < 3; ++rank) {
    auto& update = updates[detail::index(rank)];
    update.measured = line[rank].back().end;
    update.stepped = update.measured + 40;
    update.validated = update.measured + (rank == 1 ? 500 : 10);
  }
  auto const found = explain(planned, line, {.ranks = updates});
  CHECK(found.ranks[0].optimizer == 40);
  CHECK(found.ranks[1].optimizer == 500);
  CHECK(found.measured == std::max(line[1].back().end + 500, makespan(line)));
  for (auto const& rank : found.ranks) CHECK(rank.sum() == found.measured);
}

TEST_CASE("records that are not of the step are refused", "[explain]") {
  auto const planned = zb_h1_plan(2);
  auto const right = recorded_with(planned, {});
  auto const refused = [&](auto const& change) {
    auto rows = right.messages.nested();
    change(rows);
    message_record const record(rows);
    return test::refusal(errc::bad_argument, [&] {
      static_cast<void>(explain(planned, right.measured, {.messages = record.all()}));
    });
  };
  using nested = std::vector<std::vector<timed_message>>;
  auto const lacks =
      "stage 1, microbatch 3: the record lacks the message to 1F3, or a time of it; give that of "
      "all ranks; give the plan that ran";
  CHECK(refused([](nested& rows) { rows[0].erase(rows[0].begin() + 3); }).ends_with(lacks));
  for (auto const time : {&timed_message::sent, &timed_message::arrived, &timed_message::taken})
    CHECK(
        refused([&](nested& rows) { rows[0][3].*time = timed_message::unknown; }).ends_with(lacks));
  CHECK(
      refused([](nested& rows) { rows[0][3].pass.stage = 2; }) ==
      "the record holds a message to 2F3, which the plan does not have; give the plan that ran");
  for (auto const& change : std::vector<void (*)(timed_message&)>{
           [](timed_message& m) { m.sent -= 1; },
           [](timed_message& m) { m.arrived = m.taken + 1; },
           [](timed_message& m) { m.taken += 100'000; }}) {
    auto const text = refused([&](nested& rows) { change(rows[0][3]); });
    CHECK(
        text.find(
            "the times of a message do not fit those of passes: 1F3 from rank 0 to 1: sent ") !=
        std::string::npos);
    CHECK(text.ends_with("; the record is of another step, or a clock ran backwards"));
  }
}

TEST_CASE("messages that arrive before they are sent, by the error of clocks", "[explain]") {
  auto const planned = zb_h1_plan(3);
  ZBPP_SEEDED(random, 0);
  auto step = recorded_with(planned, {.message_time = [&](int, ticks stated) {
                              return stated + random.integer(0, 100);
                            }});
  // The clocks of ranks 1 and 2 are wrong by more than a message takes.
  for (int rank : {1, 2})
    for (auto& timed : step.measured[rank]) {
      timed.start -= 40 * rank;
      timed.end -= 40 * rank;
    }
  for (int channel = 0; channel < step.messages.ranks(); ++channel)
    for (auto& m : step.messages[channel]) {
      m.sent -= 40 * m.from;
      m.arrived -= 40 * m.to;
      m.taken -= 40 * m.to;
    }
  auto const found = explained(planned, step);
  auto const clocks = clock_offsets(step.messages, 3);
  auto const said =
      explain(planned, step.measured, {.messages = step.messages.all(), .clocks = clocks});
  CHECK(said.clock_error == std::max(clocks[1].error, clocks[2].error));
  CHECK(said.ranks == found.ranks);
  CHECK(
      to_text(said, time_unit::nanoseconds)
          .find(
              " more\nclocks are set to that of rank 0 within " + std::to_string(said.clock_error) +
              ".000 ns\n\n") != std::string::npos);
}

TEST_CASE("steps that are not of the plan are refused", "[explain]") {
  auto const planned = zb_h1_plan(2);
  auto const refused = [&](auto const& change) {
    auto rows = planned.timeline().nested();
    change(rows);
    return test::refusal(errc::bad_argument, [&] { (void)explain(planned, timeline(rows)); });
  };
  using nested = std::vector<std::vector<timed_pass>>;
  CHECK(refused([](nested& rows) {
          rows.pop_back();
        }) == "the measured step has 1 ranks and the plan 2; give the plan that ran");
  CHECK(
      refused([](nested& rows) { rows[1].pop_back(); }) ==
      "rank 1: the measured step ran 14 passes here, the plan has 15; give the passes of all "
      "ranks; "
      "give the plan that ran");
  CHECK(
      refused([](nested& rows) {
        rows[0][2].pass = rows[0][0].pass;
      }).find("holds 0F0 here, where the plan does not have it, or not twice") !=
      std::string::npos);
  CHECK(refused([](nested& rows) {
          rows[0][2].pass.stage = 7;
        }).find("holds 7") != std::string::npos);
  CHECK(refused([](nested& rows) {
          rows[0][2].end = rows[0][2].start - 1;
        }).find("end before it starts; the clock of this rank ran backwards") != std::string::npos);
  CHECK(
      refused([](nested& rows) {
        rows[0][2].start = rows[0][1].end - 1;
      }).find("start before the pass in front of it ends; the clock of this rank ran backwards") !=
      std::string::npos);
  CHECK(refused([](nested& rows) {
          std::swap(rows[0][0].pass, rows[0].back().pass);
        }).find("ranks wait for each other for ever") != std::string::npos);
  CHECK(test::refusal(errc::bad_argument, [&] {
          (void)explain(planned, planned.timeline(), {.worst = -1});
        }) == "explain_options::worst is below 0; give a number from 0");
  std::vector<rank_update> const one(1);
  CHECK(
      test::refusal(
          errc::bad_argument,
          [&] { (void)explain(planned, planned.timeline(), {.ranks = one}); }) ==
      "explain_options::ranks has other ranks than the step; give those of all ranks, or none");
}

TEST_CASE("an explanation is drawn below its plan", "[explain]") {
  for (auto const& planned :
       {zb_h1_plan(3), make_plan(zb_v{}, problem(placement::v_shape(2), 5, even, 5))}) {
    auto const measured =
        measured_with(planned, {.pass_time = [](int rank, pass const& p, ticks stated) {
                        return p.microbatch % 2 == rank % 2 ? stated * 3 / 2 : stated;
                      }});
    auto const found = explain(planned, measured);
    auto const lines = explanation_drawing(planned, measured, found);
    REQUIRE(lines.size() == 2);
    CHECK(lines[0].line == planned.timeline());
    CHECK(lines[0].path.empty());
    auto const& drawn = lines[1];
    CHECK(makespan(drawn.line) == found.measured);
    // What is marked of a rank is what its account says.
    for (int rank = 0; rank < measured.ranks(); ++rank) {
      ticks longer = 0;
      for (auto const& span : drawn.longer)
        if (span.rank == rank) longer += span.end - span.start;
      CHECK(longer == found.ranks[detail::index(rank)].longer);
    }
    REQUIRE(drawn.path.size() == found.critical.size());
    for (std::size_t i = 0; i < drawn.path.size(); ++i)
      CHECK(
          drawn.path[i] ==
          rank_span{found.critical[i].rank, found.critical[i].start, found.critical[i].end});
    auto const svg = to_svg(lines);
    CHECK(test::xml_fault(svg) == "");
    CHECK(test::count(svg, "class=\"path\"") == 2);  // and in the legend
    CHECK(test::count(svg, " longer than planned</title>") == drawn.longer.size());
    auto const trace = to_chrome_trace(lines);
    CHECK(test::count(trace, "\"cat\":\"critical\"") == drawn.path.size());
    CHECK(test::count(trace, "\"cat\":\"longer\"") == drawn.longer.size());
    // Without marks there is nothing of them in the picture.
    CHECK(test::count(to_svg(planned.timeline()), "path\" transform") == 0);
    auto wrong = lines;
    wrong[1].path.push_back({measured.ranks(), 0, 1});
    CHECK(test::refusal(errc::bad_argument, [&] {
            (void)to_svg(wrong);
          }).starts_with("path and longer: each span is of a rank of the timeline"));
    wrong[1].path.back() = {0, 2, 1};
    CHECK_THROWS_AS(to_chrome_trace(wrong), error);
  }
  auto const one = zb_h1_plan(2);
  auto const other = zb_h1_plan(3);
  CHECK(test::refusal(errc::bad_argument, [&] {
          (void)explanation_drawing(one, other.timeline(), explain(other, other.timeline()));
        }).starts_with("explanation_drawing: the step has a pass that the plan does not"));
}

TEST_CASE("an explanation is written for people", "[explain]") {
  auto const planned = zb_h1_plan(2);
  auto const line = measured_with(planned, {.pass_time = [](int rank, pass const&, ticks stated) {
                                    return rank == 1 ? stated * 3 / 2 : stated;
                                  }});
  auto const text = to_text(explain(planned, line, {.worst = 1}), time_unit::microseconds);
  CHECK(
      text ==
      "step 2.280 us; planned 1.580 us, 44.3 % more\n"
      "\n"
      "rank  passes  longer  bubble  imbalance  for ranks  messages   host  optimizer   gain\n"
      "0      1.450   0.000   0.130      0.000      0.685     0.015  0.000      0.000  0.000  "
      "waits "
      "most for rank 1\n"
      "1      1.450   0.725   0.105      0.000      0.000     0.000  0.000      0.000  0.700\n"
      "\n"
      "critical path, 16 passes: rank 0 0.100 us, rank 1 2.175 us (0.725 longer), messages 0.005 "
      "us, host 0.000 us\n"
      "1F0 on rank 1 took 0.150 us for 0.100; at that the step ends 0.050 sooner\n"
      "with the passes of rank 1 as planned the step ends 0.700 us sooner\n");
}

TEST_CASE("what changed from one step to another is written for people", "[explain]") {
  auto const planned = zb_h1_plan(2);
  auto const line = measured_with(planned, {.pass_time = [](int rank, pass const&, ticks stated) {
                                    return rank == 1 ? stated * 3 / 2 : stated;
                                  }});
  auto const slow = explain(planned, line);
  auto const fast = explain(planned, planned.timeline());
  auto const unit = time_unit::microseconds;
  CHECK(
      changes_text(slow, fast, unit) ==
      "step -0.700 us, -30.7 %\n"
      "\n"
      "rank  passes  longer  bubble  imbalance  for ranks  messages   host  optimizer    gain\n"
      "0      0.000   0.000   0.000      0.000     -0.685    -0.015  0.000      0.000   0.000\n"
      "1      0.000  -0.725  +0.025      0.000      0.000     0.000  0.000      0.000  -0.700\n");
  CHECK(changes_text(fast, slow, unit).starts_with("step +0.700 us, +44.3 %\n"));
  CHECK(test::refusal([&] {
          static_cast<void>(changes_text(slow, explanation{}, unit));
        }) == "the steps to compare have different numbers of ranks; give two steps of one plan");
}

}  // namespace test_explain
