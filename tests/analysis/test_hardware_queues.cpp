// SPDX-License-Identifier: Apache-2.0
//
// How many hardware queues a program needs, compared with running its rows instruction by
// instruction: what a rank does whose device has one queue.
#include <zbpp/analysis/hardware_queues.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/analysis/verify.hpp>

#include <support/catch.hpp>
#include <support/plan_grid.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/small_programs.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace test_hardware_queues {

using namespace zbpp;
using namespace zbpp::test;
using zbpp::detail::index;

namespace {

// Runs some steps of a program. Each rank waits at every instruction: at a transfer until its other
// end is there, at its norm until all ranks are at theirs, and with the sum of tied gradients until
// all have sent theirs.
class row_by_row {
 public:
  explicit row_by_row(program const& code)
      : code_(code), map_(code.placement()), at_(index(code.ranks()), 0) {}

  [[nodiscard]] bool completes() {
    for (bool has_moved = true; has_moved;) {
      has_moved = false;
      for (int rank = 0; rank < code_.ranks(); ++rank)
        while (advance(rank)) has_moved = true;
    }
    return std::ranges::all_of(ranks(), [this](int rank) { return has_ended(rank); });
  }

 private:
  static constexpr std::size_t steps = 3;

  [[nodiscard]] std::vector<int> ranks() const {
    std::vector<int> all;
    for (int rank = 0; rank < code_.ranks(); ++rank) all.push_back(rank);
    return all;
  }
  [[nodiscard]] std::size_t length(int rank) const { return code_.instructions(rank).size(); }
  [[nodiscard]] bool has_ended(int rank) const { return at_[index(rank)] == steps * length(rank); }
  [[nodiscard]] instruction const& current(int rank) const {
    return code_.instructions(rank)[at_[index(rank)] % length(rank)];
  }
  // Whether a rank has come to some place of its row in a step, or behind.
  [[nodiscard]] bool has_reached(int rank, std::size_t step, std::size_t position) const {
    return at_[index(rank)] >= step * length(rank) + position;
  }

  bool advance(int rank) {
    if (has_ended(rank) || !may_go_on(rank)) return false;
    auto const& i = current(rank);
    if (i.is_send() || i.is_receive()) ++at_[index(other_end(rank, i))];
    ++at_[index(rank)];
    return true;
  }

  [[nodiscard]] int other_end(int rank, instruction const& i) const {
    auto const [from, to] = map_.ends(map_.of(i));
    return from == rank ? to : from;
  }

  [[nodiscard]] bool may_go_on(int rank) const {
    auto const& i = current(rank);
    auto const step = at_[index(rank)] / length(rank);
    if (i.is_send() || i.is_receive()) {
      auto const other = other_end(rank, i);
      if (has_ended(other)) return false;
      auto const& next_of_other = current(other);
      return i.is_send() != next_of_other.is_send() &&
             (next_of_other.is_send() || next_of_other.is_receive()) &&
             map_.of(i) == map_.of(next_of_other);
    }
    // What all ranks have to have come to.
    auto const wanted = [&](instruction_kind kind, std::size_t behind) {
      return std::ranges::all_of(ranks(), [&](int other) {
        auto const row = code_.instructions(other);
        for (std::size_t k = 0; k < row.size(); ++k)
          if (row[k].kind == kind && !has_reached(other, step, k + behind)) return false;
        return true;
      });
    };
    if (i.kind == instruction_kind::reduce_norm) return wanted(i.kind, 0);
    if (i.kind == instruction_kind::add_tied) return wanted(instruction_kind::send_tied, 1);
    return true;
  }

  program const& code_;
  zbpp::channel_map map_;
  std::vector<std::size_t> at_;  // by rank, how many instructions it has run
};

// @return whether one queue is enough
bool check(program const& code) {
  REQUIRE(verify(code).empty());
  std::vector<int> streams;
  for (int rank = 0; rank < code.ranks(); ++rank) streams.push_back(3 + 2 * rank);
  auto const needed = hardware_queues(code, streams);
  bool const is_safe = row_by_row(code).completes();
  CHECK(needed.reason.empty() == is_safe);
  CHECK(needed.of_rank == (is_safe ? std::vector<int>(streams.size(), 1) : streams));
  CHECK(needed.most() == (is_safe ? 1 : streams.back()));
  if (!is_safe)
    CHECK(needed.reason.front().text.find("the ranks wait in a cycle") != std::string::npos);
  return is_safe;
}

}  // namespace

TEST_CASE("one queue is enough exactly where rows run instruction by instruction", "[verify]") {
  int safe = 0;
  int unsafe = 0;
  for (int p : thinned<std::vector<int>>({1, 2, 3, 4}, {3}))
    for (auto const& placement : placements_to_run(p))
      for (int m : microbatches_to_run(p)) {
        zbpp::problem const problem(placement, m, uneven_costs());
        std::vector<int> ends;
        if (placement.stages() > 1) ends = {0, placement.stages() - 1};
        for (auto const& policy : grid_policies()) {
          if (!is_supported(policy, problem)) continue;
          INFO(name_of(policy, problem));
          auto const order = policy(problem);
          for (auto const step :
               {zbpp::step_kind::unchecked,
                zbpp::step_kind::synchronous,
                zbpp::step_kind::post_validated}) {
            for (int ahead : {0, 1, 2})
              ++(check(lower(order, {.receive_ahead = ahead, .step = step, .tied = ends}))
                     ? safe
                     : unsafe);
            CHECK(check(lower(
                order, {.step = step, .tied = ends, .layout = channel_layout::one_per_rank})));
          }
        }
      }
  CHECK(safe > thinned(100, 10));
  CHECK(unsafe > thinned(100, 10));
}

TEST_CASE("and also where receives stand anywhere that is right", "[verify]") {
  int safe = 0;
  int unsafe = 0;
  auto const programs = small_programs();
  for (std::uint64_t trial = 0; trial < thinned(2000U, 200U); ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const pick = [&](std::size_t count) {
      return static_cast<std::size_t>(values.integer(0, static_cast<std::int64_t>(count) - 1));
    };
    auto const& from = programs[pick(programs.size())];
    std::vector<std::vector<instruction>> moved;
    for (int rank = 0; rank < from.code.ranks(); ++rank) {
      auto const row = from.code.instructions(rank);
      moved.emplace_back(row.begin(), row.end());
    }
    for (int moves = 0; moves < 4; ++moves) {
      auto& row = moved[pick(moved.size())];
      auto const at = pick(row.size());
      if (!row[at].is_receive()) continue;
      for (auto back = pick(at + 1); back > 0; --back)
        std::swap(row[at - back], row[at - back + 1]);
    }
    zbpp::rows<instruction> rows;
    for (auto const& row : moved) {
      for (auto const& i : row) rows.push(i);
      rows.end_row();
    }
    auto const& placement = from.code.placement();
    auto const m = from.code.microbatches();
    auto channels = zbpp::traffic(placement, m, rows).channels();
    program const code(placement, m, std::move(rows), std::move(channels));
    if (!verify(code).empty()) continue;
    INFO(from.name);
    ++(check(code) ? safe : unsafe);
  }
  CHECK(safe > thinned(50, 5));
  CHECK(unsafe > thinned(50, 5));
}

TEST_CASE("streams are counted for each rank", "[verify]") {
  auto const code = small_programs().front().code;
  std::string const wrong = "the streams of each rank are counted, and are at least 1";
  for (auto const& streams : {std::vector<int>{}, {0}, {1, 1}})
    CHECK(refusal([&] { static_cast<void>(hardware_queues(code, streams)); }) == wrong);
}

}  // namespace test_hardware_queues
