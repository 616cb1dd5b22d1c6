// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/detail/rank_code.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/plan_grid.hpp>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace test_rank_code {

using namespace zbpp;
using detail::make_rank_code;
using detail::ready_instruction;

namespace {

std::vector<detail::rank_code> codes_of(program const& code) {
  traffic const messages(code);
  std::vector<detail::rank_code> all;
  for (int rank = 0; rank < code.ranks(); ++rank)
    all.push_back(make_rank_code(code, messages, rank));
  return all;
}

program by_hand(
    placement const& placement, int microbatches, std::vector<std::string> const& lines) {
  return lower(schedule(placement, microbatches, test::passes(lines)));
}

}  // namespace

TEST_CASE("every instruction keeps its place, kind, chunk and microbatch", "[rank-code]") {
  auto const code =
      by_hand(placement::v_shape(2), 1, {"0F0 3F0 3B0 0B0 3W0 0W0", "1F0 2F0 2B0 1B0 2W0 1W0"});
  auto const all = codes_of(code);
  for (int rank : {0, 1}) {
    auto const row = code.instructions(rank);
    auto const& ready = all[detail::index(rank)].instructions;
    REQUIRE(ready.size() == row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      CHECK(ready[i].kind == row[i].kind);
      CHECK(int{ready[i].chunk} == code.placement().chunk_of(row[i].stage));
      CHECK(ready[i].microbatch == row[i].microbatch);
    }
  }
}

TEST_CASE(
    "flows that are alive together have different slots, and no slot is wasted", "[rank-code]") {
  for (auto const& placement : test::placements_to_run(4))
    for (int m : {1, 3, 4, 8})
      test::for_each_plan_of(
          problem(placement, m, test::uneven_costs(), 87),
          {.recomputed = true},
          [](std::string const& name, plan const& planned) {
            INFO(name);
            auto const all = codes_of(planned.program());
            for (int rank = 0; rank < planned.problem().ranks(); ++rank) {
              auto const& code = all[detail::index(rank)];
              std::vector<std::pair<int, int>> holder(
                  detail::index(code.flow_slots), {-1, -1});  // stage and microbatch
              std::set<int> used;
              std::size_t most = 0;
              bool is_right = true;
              auto take = [&](int slot, int stage, int microbatch) {
                auto& now = holder[detail::index(slot)];
                if (now == std::pair(-1, -1)) now = {stage, microbatch};
                is_right = is_right && now == std::pair(stage, microbatch);
                used.insert(slot);
                most = std::max(most, used.size());
              };
              auto const row = planned.program().instructions(rank);
              for (std::size_t i = 0; i < row.size(); ++i) {
                auto const& ready = code.instructions[i];
                if (row[i].kind == instruction_kind::optimizer_step) continue;
                take(ready.slot, row[i].stage, row[i].microbatch);
                if (ready.hand_over != ready_instruction::none)
                  take(
                      ready.hand_over,
                      row[i].stage + (row[i].kind == instruction_kind::forward ? 1 : -1),
                      row[i].microbatch);
                if (ready.frees_slot) {
                  holder[detail::index(ready.slot)] = {-1, -1};
                  used.erase(ready.slot);
                }
              }
              CHECK(is_right);
              CHECK(used.empty());
              CHECK(most == detail::index(code.flow_slots));
            }
          });
}

TEST_CASE("what ends a flow, frees its slot and recomputes is marked", "[rank-code]") {
  auto const all = codes_of(
      by_hand(placement::linear(2), 2, {"0F0 0F1 0R0 0B0 0W0 0BW1", "1F0 1B0 1F1 1W0 1B1 1W1"}));
  auto const& ready = all[0].instructions;
  // 0F0 0SEND_F0 0F1 0SEND_F1 0R0 0RECV_B0 0B0 0W0 0RECV_B1 0BW1 0STEP
  auto const position = [&](instruction_kind kind, int microbatch) {
    for (std::size_t i = 0; i < ready.size(); ++i)
      if (ready[i].kind == kind && ready[i].microbatch == microbatch) return i;
    FAIL("no such instruction");
    return std::size_t{0};
  };
  auto const f0 = position(instruction_kind::forward, 0);
  auto const f1 = position(instruction_kind::forward, 1);
  auto const w0 = position(instruction_kind::backward_weight, 0);
  auto const bw1 = position(instruction_kind::backward, 1);
  for (std::size_t i = 0; i < ready.size(); ++i) {
    INFO("position " << i);
    CHECK(ready[i].ends_flow == (i == w0 || i == bw1));
    CHECK(ready[i].frees_slot == (i == w0 || i == bw1));
    CHECK(ready[i].hand_over == ready_instruction::none);
  }
  CHECK(ready[f0].is_recomputed);
  CHECK_FALSE(ready[f1].is_recomputed);
  CHECK(all[0].flow_slots == 2);
}

TEST_CASE("a gradient that is sent after the last pass keeps the slot until then", "[rank-code]") {
  auto const all = codes_of(by_hand(placement::linear(2), 1, {"0F0 0BW0", "1F0 1BW0"}));
  auto const& ready = all[1].instructions;  // RECV_F F BW SEND_B STEP
  REQUIRE(ready.size() == 5);
  CHECK(ready[2].ends_flow);
  CHECK_FALSE(ready[2].frees_slot);
  CHECK(ready[3].frees_slot);
}

TEST_CASE("a rank may have more stages than 16 bits count", "[rank-code]") {
  constexpr int stages = (1 << 16) + 1;
  zbpp::rows<zbpp::instruction> row;
  for (int s = 0; s < stages; ++s) row.push({instruction_kind::forward, s, 0});
  row.end_row();
  zbpp::program const code(placement::custom(std::vector<int>(stages, 0)), 1, std::move(row), {});
  auto const ready = zbpp::detail::make_rank_code(code, zbpp::traffic(code), 0);
  CHECK(ready.instructions.back().chunk == stages - 1);
}

}  // namespace test_rank_code
