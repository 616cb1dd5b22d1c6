// SPDX-License-Identifier: Apache-2.0
#include <zbpp/asio/measure.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/plain_flow.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
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

TEST_CASE("the costs of all stages reach every process", "[asio][measure]") {
  auto const placement = placement::v_shape(2);
  std::vector<stage_costs> all;
  for (int s = 0; s < placement.stages(); ++s) {
    auto const n = s + 1;
    all.push_back(
        {.forward = n,
         .backward_input = 2 * n,
         .backward_weight = 3 * n,
         .norm = 7 * n,
         .optimizer_step = 8 * n,
         .activation = 9 * n,
         .weight_gradient_input = 10 * n,
         .output_gradient = 11 * n,
         .recompute_input = 12 * n,
         .edge = 13 * n,
         .static_memory = 14 * n,
         .workspace = 15 * n,
         .tied = 16 * n});
    if (s % 2 == 0) {
      all.back().backward_fused = 4 * n;
      all.back().recompute = 0;
      all.back().overlapped = 6 * n;
      all.back().overlapped_fused = 7 * n;
    }
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
    auto const own = meeting.rank() == 1 ? simulate(one_f_one_b{}(stated), stated) : right;
    static_cast<void>(asio::gather_timeline(meeting, order, own));
  });
  for (auto const& text : thrown)
    CHECK(text.find("did not run its passes in the order of the schedule") != std::string::npos);
}

}  // namespace test_asio_measure
