// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/verify.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>

#include <support/catch.hpp>
#include <support/independent_check.hpp>
#include <support/instructions.hpp>
#include <support/mutations.hpp>
#include <support/policy_grid.hpp>
#include <support/random_timeline.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/small_programs.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace test_verify {

using namespace zbpp;
using namespace zbpp::test;

namespace {

program rebuilt(program const& origin, nested_rows const& rows) {
  return {
      origin.placement(), origin.microbatches(), zbpp::rows<instruction>(rows), origin.channels()};
}

// Whether a diagnostic names a rank, a position and the instruction that stands there, or that is
// missing there.
bool names_its_place(diagnostic const& d, program const& code) {
  if (d.location.rank < 0 || d.location.rank >= code.ranks() || d.location.position < 0)
    return false;
  if (d.text.rfind(to_string(d.instruction) + ": ", 0) != 0) return false;
  auto const row = code.instructions(d.location.rank);
  auto const position = static_cast<std::size_t>(d.location.position);
  if (d.fault == fault::missing) return position <= row.size();
  return position < row.size() && row[position] == d.instruction;
}

// Whether a program is right by every rule written down plainly, on one channel per directed pair.
bool is_right(independent_check const& check, program const& code) {
  if (!check.has_each_once() || !check.keeps_dependences() || !check.keeps_channel_order() ||
      !check.keeps_cut())
    return false;
  for (auto const& [ends, needed] : check.depths())
    for (auto const& stated : code.channels())
      if (std::pair(stated.from, stated.to) == ends &&
          (stated.slots < needed.slots || stated.in_flight < needed.in_flight))
        return false;
  return !check.can_deadlock(channel_layout::one_per_directed_pair);
}

// The faults of a program on a linear placement whose channels are as deep as it needs.
std::vector<std::string> faults(std::vector<std::string> const& lines, int m) {
  auto const placement = placement::linear(static_cast<int>(lines.size()));
  auto const all = instructions(lines);
  std::vector<std::string> texts;
  for (auto const& found : verify(program(placement, m, all, {{0, 1, m, m}, {1, 0, m, m}})))
    texts.push_back(to_string(found));
  return texts;
}

using texts = std::vector<std::string>;

}  // namespace

TEST_CASE(
    "verify accepts every policy on every shape, fused or not, with receives ahead",
    "[verify][long]") {
  int cases = 0;
  zbpp::test::for_each_schedule(
      zbpp::test::thinned<std::vector<int>>(
          {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32}, {1, 2, 3, 5, 8}),
      [&](zbpp::any_policy const& decide, problem const& problem, schedule const& order) {
        auto const accepts = [&](schedule const& variant, int ahead) {
          auto const found = verify(zbpp::lower(variant, {.receive_ahead = ahead}), problem);
          if (!found.empty())
            FAIL_CHECK(
                zbpp::test::name_of(decide, problem)
                << ", receives " << ahead << " ahead: " << to_string(found.front()));
          ++cases;
        };
        for (auto step : {zbpp::step_kind::synchronous, zbpp::step_kind::post_validated}) {
          auto const ends =
              problem.stages() > 1 ? std::vector<int>{0, problem.stages() - 1} : std::vector<int>{};
          for (auto const& tied : {std::vector<int>{}, ends}) {
            auto const found = verify(zbpp::lower(order, {.step = step, .tied = tied}), problem);
            if (!found.empty())
              FAIL_CHECK(
                  zbpp::test::name_of(decide, problem)
                  << ", ranks agree before steps: " << to_string(found.front()));
          }
        }
        auto const fused = zbpp::fuse_backward(order);
        if (problem.ranks() > 5) {  // one of the eight combinations for each
          auto const ahead = problem.microbatches() % 4;
          accepts(problem.microbatches() % 3 == 0 ? fused : order, ahead);
          return;
        }
        for (int ahead = 0; ahead <= 3; ++ahead) {
          accepts(order, ahead);
          accepts(fused, ahead);
        }
      });
  CHECK(cases > zbpp::test::thinned(3000, 500));
}

TEST_CASE("verify accepts R in front of any B", "[verify]") {
  zbpp::test::for_each_schedule(
      {1, 2, 4},
      [&](zbpp::any_policy const& decide, problem const& problem, schedule const& order) {
        auto const found = verify(zbpp::lower(zbpp::test::with_recompute(order)), problem);
        INFO(zbpp::test::name_of(decide, problem));
        CHECK(found.empty());
      });
}

// A change is left out of "must be refused" only where it provably gives another right program: an
// R is optional, so is the step of an only stage, a stage may step at once, and what is swapped or
// moved over nothing that it depends on keeps every rule. Of those the independent check says which
// are right, and they are counted below.
TEST_CASE("verify refuses every single change of a small program that breaks a rule", "[verify]") {
  std::map<change, std::pair<int, int>> found;  // refused, and right programs all the same
  for (auto const& [name, code] : zbpp::test::small_programs()) {
    INFO(name);
    REQUIRE(verify(code).empty());
    auto const origin = code.instructions().nested();
    zbpp::test::for_each_mutant(
        code.placement(), code.microbatches(), origin, [&](mutant const& spoilt) {
          auto const changed = rebuilt(code, spoilt.rows);
          independent_check const check(code.placement(), code.microbatches(), spoilt.rows);
          auto const diagnostics = verify(changed);
          bool const refused = !diagnostics.empty();
          bool const must_refuse = spoilt.crosses_dependence ||
                                   (spoilt.kind != change::swapped &&
                                    spoilt.kind != change::moved && !spoilt.changes_optional);
          bool const named =
              std::all_of(diagnostics.begin(), diagnostics.end(), [&](diagnostic const& d) {
                return names_its_place(d, changed);
              });
          if ((must_refuse && !refused) || refused == is_right(check, changed) || !named)
            FAIL_CHECK(
                name << ", " << to_string(spoilt.kind) << ", " << spoilt.text << ": "
                     << (refused ? to_string(diagnostics.front()) : "accepted"));
          ++(refused ? found[spoilt.kind].first : found[spoilt.kind].second);
        });
  }
  auto const counts = [&](change kind) {
    return std::to_string(found[kind].first) + " refused, " + std::to_string(found[kind].second) +
           " right";
  };
  CHECK(counts(change::dropped) == "721 refused, 3 right");
  CHECK(counts(change::repeated) == "11710 refused, 0 right");
  CHECK(counts(change::other_kind) == "13025 refused, 7 right");
  CHECK(counts(change::other_stage) == "2940 refused, 0 right");
  CHECK(counts(change::other_microbatch) == "2213 refused, 1 right");
  CHECK(counts(change::swapped) == "5262 refused, 231 right");
  CHECK(counts(change::moved) == "9069 refused, 567 right");
}

TEST_CASE("verify names what does not exist", "[verify]") {
  CHECK(
      faults({"2F0 0F1 0F0 0BW0 0STEP1"}, 1) ==
      texts{
          "bad id at rank 0, position 0, stage 2, microbatch 0: 2F0: stages go from 0 to 0",
          "bad id at rank 0, position 1, stage 0, microbatch 1: 0F1: microbatches go from 0 to 0",
          "bad id at rank 0, position 4, stage 0, microbatch 1: 0STEP: an instruction of a "
          "stage or rank carries microbatch 0"});
  CHECK(
      faults({"1F0 0SEND_B0", "1SEND_F0"}, 1) ==
      texts{
          "bad id at rank 0, position 0, stage 1, microbatch 0: 1F0: its stage belongs to rank 1",
          "bad id at rank 0, position 1, stage 0, microbatch 0: 0SEND_B0: no message crosses "
          "there: the neighbouring stage is on the same rank or missing",
          "bad id at rank 1, position 0, stage 1, microbatch 0: 1SEND_F0: no message crosses "
          "there: the neighbouring stage is on the same rank or missing"});
  program const odd(
      placement::linear(1),
      1,
      zbpp::rows<instruction>(
          nested_rows{{{static_cast<instruction_kind>(zbpp::instruction_kinds), 0, 0}}}),
      {});
  REQUIRE(verify(odd).size() == 1);
  CHECK(
      to_string(verify(odd).front()) ==
      "bad id at rank 0, position 0, stage 0, microbatch 0: 0?0: there is no such instruction");
}

TEST_CASE("verify names where ranks validate wrongly", "[verify]") {
  CHECK(
      faults({"0F0 0BW0 0NORM 0STEP"}, 1) ==
      texts{
          "missing at rank 0, position 4, stage 0, microbatch 0: 0VALIDATE: it is missing; it must "
          "stand before the end"});
  CHECK(
      faults({"0F0 0BW0 0STEP 0NORM 0VALIDATE"}, 1) ==
      texts{"dependence at rank 0, position 2, stage 0, microbatch 0: 0STEP: it needs 0NORM, which "
            "stands at 3"});
  CHECK(
      faults(
          {"0F0 0SEND_F0 0RECV_B0 0BW0 0NORM 0VALIDATE 0STEP",
           "1RECV_F0 1F0 1BW0 1NORM 1SEND_B0 1VALIDATE 1STEP"},
          1) ==
      texts{"dependence at rank 1, position 3, stage 1, microbatch 0: 1NORM: it needs 1SEND_B0, "
            "which stands at 4"});
  CHECK(
      faults({"0F0 0BW0 0NORM 0STEP 0VALIDATE"}, 1) ==
      texts{
          "dependence at rank 0, position 3, stage 0, microbatch 0: 0STEP: it needs the validation "
          "at 4"});
  CHECK(
      faults({"0F0 0BW0 0VALIDATE 0NORM 0STEP"}, 1) ==
      texts{
          "dependence at rank 0, position 1, stage 0, microbatch 0: 0BW0: it cannot be undone, so "
          "it must stand behind the validation at 2"});
  CHECK(
      faults(
          {"0F0 0SEND_F0 0VALIDATE 0RECV_B0 0BW0 0NORM 0STEP",
           "1RECV_F0 1F0 1BW0 1SEND_B0 1NORM 1VALIDATE 1STEP"},
          1) ==
      texts{
          "cut at rank 0, position 6, stage 0, microbatch 0: 0STEP: it waits for the norm, and its "
          "rank validates the step before, as the last rank does not"});
  CHECK(
      faults(
          {"0F0 0SEND_F0 0RECV_B0 0BW0 0NORM 0VALIDATE 0STEP",
           "1RECV_F0 1F0 1VALIDATE 1BW0 1SEND_B0 1NORM 1STEP"},
          1) ==
      texts{"cut at rank 0, position 5, stage 0, microbatch 0: 0VALIDATE: it validates this step; "
            "the last rank validates the step before"});
  CHECK(
      faults(
          {"0F0 0SEND_F0 0VALIDATE 0RECV_B0 0BW0 0NORM 0STEP",
           "1VALIDATE 1RECV_F0 1F0 1BW0 1SEND_B0 1NORM 1STEP"},
          1) ==
      texts{"cut at rank 1, position 0, stage 1, microbatch 0: 1VALIDATE: before it the rank "
            "receives "
            "0 messages of channel 0->1; rank 0 sends 1 before its own validation; make the two "
            "numbers equal"});
}

TEST_CASE("verify names where stages step at once wrongly", "[verify]") {
  CHECK(faults(
            {"0F0 0SEND_F0 0VALIDATE 0RECV_B0 0BW0 0NORM 0STEP_NOW",
             "1RECV_F0 1F0 1BW0 1SEND_B0 1NORM 1VALIDATE 1STEP"},
            1)
            .empty());
  CHECK(
      faults({"0F0 0BW0 0STEP_NOW"}, 1) ==
      texts{
          "missing at rank 0, position 3, stage 0, microbatch 0: 0NORM: it is missing; it must "
          "stand before the end",
          "missing at rank 0, position 3, stage 0, microbatch 0: 0VALIDATE: it is missing; it must "
          "stand before the end"});
  CHECK(
      faults({"0F0 0BW0 0STEP_NOW 0NORM 0VALIDATE"}, 1) ==
      texts{"dependence at rank 0, position 2, stage 0, microbatch 0: 0STEP_NOW: it needs 0NORM, "
            "which stands at 3"});
  CHECK(
      faults({"0F0 0BW0 0NORM 0STEP_NOW 0VALIDATE 0STEP"}, 1) ==
      texts{
          "repeated at rank 0, position 5, stage 0, microbatch 0: 0STEP: it already stands at 3"});
  CHECK(
      faults(
          {"0F0 0SEND_F0 0RECV_B0 0BW0 0VALIDATE 0NORM 0STEP_NOW",
           "1RECV_F0 1F0 1BW0 1SEND_B0 1NORM 1VALIDATE 1STEP"},
          1) ==
      texts{"dependence at rank 0, position 3, stage 0, microbatch 0: 0BW0: it may need the "
            "verdict, so it must stand behind the validation at 4"});
  CHECK(
      faults({"0F0 0VALIDATE 0BW0 0NORM 0STEP_NOW"}, 1) ==
      texts{"cut at rank 0, position 4, stage 0, microbatch 0: 0STEP_NOW: it cannot be undone, and "
            "the ranks validate the step before; let them validate this step"});
  CHECK(
      faults(
          {"0F0 0SEND_F0 0RECV_B0 0BW0 0NORM 0VALIDATE 0STEP",
           "1RECV_F0 1F0 1SEND_F0 1VALIDATE 1RECV_B0 1BW0 1SEND_B0 1NORM 1STEP_NOW",
           "2RECV_F0 2F0 2BW0 2SEND_B0 2NORM 2VALIDATE 2STEP"},
          1) ==
      texts{"cut at rank 1, position 3, stage 1, microbatch 0: 1VALIDATE: it validates the step "
            "before; the last rank and one before this one validate this step"});
  CHECK(
      faults(
          {"0F0 0SEND_F0 0RECV_B0 0BW0 0SEND_T 0ADD_T 0NORM 0STEP_NOW 0VALIDATE",
           "1RECV_F0 1F0 1BW0 1SEND_B0 1SEND_T 1ADD_T 1NORM 1VALIDATE 1STEP"},
          1) ==
      texts{
          "dependence at rank 0, position 7, stage 0, microbatch 0: 0STEP_NOW: the weights of its "
          "stage are tied, and step alike; make it an optimizer step that waits for the norm"});
}

TEST_CASE("verify names what is missing and the last place where it could stand", "[verify]") {
  CHECK(
      faults({"0F0 0BW0 0SEND_F0", "1RECV_F0 1F0 1R0 1W0 1SEND_B0 1STEP"}, 1) ==
      texts{
          "missing at rank 0, position 1, stage 0, microbatch 0: 0RECV_B0: it is missing; it must "
          "stand before 0BW0",
          "missing at rank 0, position 3, stage 0, microbatch 0: 0STEP: it is missing; it must "
          "stand before the end",
          "missing at rank 1, position 3, stage 1, microbatch 0: 1B0: it is missing; it must "
          "stand before 1W0"});
  CHECK(
      faults({"0B0 0R0 0STEP"}, 1) ==
      texts{
          "missing at rank 0, position 1, stage 0, microbatch 0: 0F0: it is missing; it must "
          "stand before 0R0",
          "missing at rank 0, position 2, stage 0, microbatch 0: 0W0: it is missing; it must "
          "stand before 0STEP"});
}

TEST_CASE("verify names what stands twice", "[verify]") {
  CHECK(
      faults({"0F0 0BW0 0F0"}, 1) ==
      texts{"repeated at rank 0, position 2, stage 0, microbatch 0: 0F0: it already stands at 0"});
  CHECK(
      faults({"0F0 0B0 0BW0"}, 1) ==
      texts{"repeated at rank 0, position 1, stage 0, microbatch 0: 0B0: 0BW0 already does it"});
}

TEST_CASE("verify names what stands before what it needs", "[verify]") {
  CHECK(
      faults({"0BW0 0F0"}, 1) ==
      texts{"dependence at rank 0, position 0, stage 0, microbatch 0: 0BW0: it needs 0F0, which "
            "stands at 1"});
  CHECK(
      faults({"0F0 0F1 0B0 0B1 0W0 0STEP 0W1"}, 2) ==
      texts{"dependence at rank 0, position 5, stage 0, microbatch 0: 0STEP: it needs 0W1, which "
            "stands at 6"});
  CHECK(
      faults({"0F0 0SEND_F0 0RECV_B0 0BW0", "1F0 1RECV_F0 1SEND_B0 1BW0"}, 1) ==
      texts{
          "dependence at rank 1, position 0, stage 1, microbatch 0: 1F0: it needs 1RECV_F0, which "
          "stands at 1",
          "dependence at rank 1, position 2, stage 1, microbatch 0: 1SEND_B0: it needs 1BW0, which "
          "stands at 3"});
}

TEST_CASE("an order of W that is right but for the last bits is told apart", "[verify]") {
  auto const text =
      "sum order at rank 0, position 5, stage 0, microbatch 0: 0W0: W of stage 0 runs microbatch 1 "
      "before 0: the sums of gradients differ in their last bits from a plain loop";
  CHECK(faults({"0F0 0F1 0B0 0B1 0W1 0W0 0STEP"}, 2) == texts{text});
  CHECK(
      faults({"0F0 0F1 0F2 0F3 0BW3 0BW1 0BW2 0BW0"}, 4) ==
      texts{"sum order at rank 0, position 5, stage 0, microbatch 1: 0BW1: W of stage 0 runs "
            "microbatch 3 before 1: the sums of gradients differ in their last bits from a plain "
            "loop; 3 W in all stand behind a later one"});
  // F and B may have any order.
  CHECK(faults({"0F1 0F0 0B1 0B0 0W0 0W1"}, 2).empty());
  for (int f = 0; f <= static_cast<int>(fault::sum_order); ++f)
    CHECK(is_remark(static_cast<fault>(f)) == (static_cast<fault>(f) == fault::sum_order));
  problem const one(placement::linear(1), 2, stage_costs{});
  program const code(placement::linear(1), 2, instructions({"0F0 0F1 0B0 0B1 0W1 0W0 0STEP"}), {});
  CHECK(
      zbpp::test::refusal(zbpp::errc::refused_program, [&] { verify_or_throw(code, one); })
          .find(
              "the program is refused, sum order: 0W0: W of stage 0 runs microbatch 1 before 0") !=
      std::string::npos);
}

// Orders that keep each dependence and nothing else: at random, one of the passes that may run
// next.
TEST_CASE("random orders are right by their dependences, whatever the order of W", "[verify]") {
  int remarks = 0;
  for (int trial = 0; trial < 300; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const order = zbpp::test::random_runnable_schedule(values);
    auto const code = zbpp::lower(order, {.layout = channel_layout::one_per_rank});
    bool ascends = true;
    for (int rank = 0; rank < order.ranks(); ++rank) {
      std::map<int, int> latest;
      for (auto const& p : order.passes(rank)) {
        if (!p.makes_weight_gradient()) continue;
        ascends = ascends && (latest.count(p.stage) == 0 || latest[p.stage] < p.microbatch);
        latest[p.stage] = p.microbatch;
      }
    }
    auto const found = verify(code, channel_layout::one_per_rank);
    INFO((found.empty() ? std::string() : to_string(found.front())));
    CHECK(found.size() == (ascends ? 0U : 1U));
    if (found.size() != 1) continue;
    ++remarks;
    CHECK(found.front().fault == fault::sum_order);
    CHECK(names_its_place(found.front(), code));
    // A fault of another kind is told in place of the remark.
    auto rows = code.instructions().nested();
    std::reverse(rows.front().begin(), rows.front().end());
    auto const spoilt = verify(rebuilt(code, rows));
    CHECK(!spoilt.empty());
    CHECK(std::none_of(
        spoilt.begin(), spoilt.end(), [](diagnostic const& d) { return is_remark(d.fault); }));
  }
  CHECK(remarks > 100);
}

TEST_CASE("verify names the message on whose place the ends of a channel disagree", "[verify]") {
  CHECK(
      faults(
          {"0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0BW0 0RECV_B1 0BW1",
           "1RECV_F1 1RECV_F0 1F0 1BW0 1SEND_B0 1F1 1BW1 1SEND_B1"},
          2) ==
      texts{"channel order at rank 1, position 1, stage 1, microbatch 0: 1RECV_F0: here it is "
            "message 1 of channel 0->1; rank 0 sends it at position 1 as message 0"});
}

TEST_CASE("verify refuses channels that are stated too shallow, where they overflow", "[verify]") {
  auto const code = zbpp::lower(
      zbpp::one_f_one_b{}(problem(placement::linear(2), 3, stage_costs{})), {.receive_ahead = 1});
  REQUIRE(
      code.channels() == std::vector<zbpp::channel>{
                             {.from = 0, .to = 1, .slots = 1, .in_flight = 2},
                             {.from = 1, .to = 0, .slots = 2, .in_flight = 2}});
  auto const with = [&](std::vector<zbpp::channel> const& channels) {
    texts result;
    program const spoilt(code.placement(), code.microbatches(), code.instructions(), channels);
    for (auto const& d : verify(spoilt)) {
      CHECK(names_its_place(d, spoilt));
      result.push_back(to_string(d));
    }
    return result;
  };
  CHECK(with(code.channels()).empty());
  CHECK(with({{0, 1, 9, 9}, {1, 0, 9, 9}}).empty());
  CHECK(with({{5, 6, 0, 0}, {0, 1, 1, 2}, {1, 0, 2, 2}, {1, 1, 0, 0}}).empty());
  CHECK(
      with({{0, 1, 1, 1}, {1, 0, 1, 2}}) ==
      texts{
          "channel depth at rank 0, position 4, stage 0, microbatch 1: 0SEND_F1: here channel "
          "0->1 has more messages in flight than the program states; it needs 1 slots and 2 "
          "messages in flight",
          "channel depth at rank 0, position 9, stage 0, microbatch 2: 0RECV_B2: here channel "
          "1->0 has more slots than the program states; it needs 2 slots and 2 messages in "
          "flight"});
  CHECK(with({{0, 1, 1, 2}}).size() == 2);
  CHECK(with({{0, 1, 1, 2}, {1, 0, -1, -1}}).size() == 2);
}

TEST_CASE("whether two crossing sends may run depends on the channel layout", "[verify]") {
  auto const order = schedule(
      placement::looped(2, 2),
      2,
      passes({"0F0 0F1 2F0 2F1 2BW0 2BW1 0BW0 0BW1", "1F0 1F1 3F0 3F1 3BW0 3BW1 1BW0 1BW1"}));
  auto const code = zbpp::lower(order);
  auto const rows = code.instructions();
  CHECK(zbpp::test::text_of(rows[0]).find("0SEND_F1 2RECV_F0") != std::string::npos);
  CHECK(zbpp::test::text_of(rows[1]).find("1SEND_F0 1RECV_F1") != std::string::npos);
  CHECK(verify(code).empty());
  for (auto layout : {channel_layout::one_per_rank, channel_layout::one_per_pair}) {
    auto const found = verify(code, layout);
    REQUIRE(found.size() == 1);
    CHECK(found.front().fault == fault::deadlock);
    CHECK(names_its_place(found.front(), code));
  }
}

TEST_CASE("verify refuses a program that needs more memory than a rank has", "[verify]") {
  auto const placement = placement::linear(2);
  stage_costs const costs{.activation = 10, .weight_gradient_input = 4, .edge = 1};
  auto const code = zbpp::lower(zbpp::one_f_one_b{}(problem(placement, 3, costs)));
  auto const peaks = zbpp::peak_memory(code, problem(placement, 3, costs));
  auto const found = [&](zbpp::bytes first, zbpp::bytes second) {
    return verify(code, problem(placement, 3, costs, 0, {first, second}));
  };
  CHECK(verify(code, problem(placement, 3, costs)).empty());
  CHECK(found(peaks[0].total, peaks[1].total).empty());
  auto const less = found(peaks[0].total, peaks[1].total - 1);
  REQUIRE(less.size() == 1);
  CHECK(less.front().fault == fault::memory);
  CHECK(less.front().location.rank == 1);
  CHECK(less.front().location.position == peaks[1].position);
  CHECK(names_its_place(less.front(), code));
  auto const total = std::to_string(peaks[1].total);
  CHECK(
      less.front().text == to_string(less.front().instruction) + ": here the rank needs " + total +
                               " bytes; its limit is " + std::to_string(peaks[1].total - 1) +
                               "; greedy_auto searches for an order that fits");
  CHECK(found(0, 0).size() == 2);
}

TEST_CASE("a program is not verified against another problem", "[verify]") {
  auto const code = zbpp::lower(zbpp::gpipe{}(problem(placement::linear(2), 2, stage_costs{})));
  for (problem const& other :
       {problem(placement::linear(2), 3, stage_costs{}),
        problem(placement::linear(3), 2, stage_costs{})}) {
    auto const found = verify(code, other);
    REQUIRE(found.size() == 1);
    CHECK(
        to_string(found.front()) ==
        "bad id: program and problem differ in placement or microbatches");
  }
}

TEST_CASE("verify_or_throw throws every fault, at the place of the first", "[verify]") {
  problem const problem(placement::linear(1), 1, stage_costs{});
  auto const code = zbpp::lower(zbpp::gpipe{}(problem));
  CHECK_NOTHROW(zbpp::verify_or_throw(code, problem));
  CHECK(
      zbpp::test::refusal(
          zbpp::errc::refused_program,
          [&] {
            zbpp::verify_or_throw(
                rebuilt(code, {{{instruction_kind::backward_input, 0, 0}}}), problem);
          }) ==
      "rank 0, position 0, stage 0, microbatch 0: the program is refused, missing: 0F0: it is "
      "missing; it "
      "must stand before 0B0\n"
      "missing at rank 0, position 1, stage 0, microbatch 0: 0W0: it is missing; it must stand "
      "before the end");
}

TEST_CASE("an empty program of a long step is refused without filling the memory", "[verify]") {
  zbpp::rows<zbpp::instruction> row;
  row.end_row();
  auto const found = verify(zbpp::program(zbpp::placement::linear(1), 1'000'000, row, {}));
  CHECK(found.size() >= 1000);
  CHECK(found.size() < 1010);
}

}  // namespace test_verify
