// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/socket_grid.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/count_allocations.hpp>
#include <support/group_suite.hpp>
#include <support/plain_flow.hpp>
#include <support/tcp_pair.hpp>

#include <array>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace test_asio_no_allocation {

namespace {

using zbpp::arena;
using zbpp::bytes;
using zbpp::message;
using zbpp::purpose;

// Sends a message and gets one back, `turns` times; those of rank 0 are larger than what the kernel
// takes at once.
void exchange(zbpp::test::tcp_pair& pair, int rank, arena& memory, int turns) {
  auto& end = pair.end(rank);
  for (std::int32_t n = 0; n < turns; ++n) {
    auto const send = [&] {
      message msg(memory.allocate(rank == 0 ? std::size_t{8} << 20 : 100, purpose::edge));
      if (n % 2 == 1) msg.push_back(memory.allocate(50, purpose::edge));
      end.send(rank, std::move(msg), 0);
    };
    if (rank == 0) send();
    pair.io_loop(rank).run_until([&] { return end.arrival(1 - rank, n) == 0; });
    static_cast<void>(end.take(1 - rank, n, 0));
    end.retire(rank, n);
    if (rank == 1) send();
  }
  pair.io_loop(rank).run_until([&] { return end.is_flushed(); });
  end.drain();
}

}  // namespace

TEST_CASE("a message by TCP allocates nothing once such a step was run", "[asio][long]") {
  zbpp::test::stuck_guard const guard;
  for (bytes const largest : {(bytes{8} << 20) + 50, bytes{0}})
    DYNAMIC_SECTION("largest message: " << largest) {
      std::array<arena, 2> memory;
      zbpp::test::tcp_pair pair({{0, 1, 1, 2}, {1, 0, 1, 2}}, largest);
      for (int rank : {0, 1}) pair.bind(rank, memory[static_cast<std::size_t>(rank)], nullptr);
      std::int64_t allocated = -1;
      // The thread of the other rank is there from the start, so that all that is counted is ours.
      auto const run = [&](int rank) {
        exchange(pair, rank, memory[static_cast<std::size_t>(rank)], 20);
        auto const count = zbpp::test::count_allocations(
            [&] { exchange(pair, rank, memory[static_cast<std::size_t>(rank)], 200); });
        if (rank == 0) allocated = count;
      };
      {
        std::jthread const other(run, 1);
        run(0);
      }
      CHECK(allocated == 0);
      CHECK(pair.lost.all().empty());
    }
}

TEST_CASE("a step over TCP allocates nothing once such a step was run", "[asio]") {
  zbpp::test::stuck_guard const guard;
  auto settings = zbpp::test::patient_settings();
  settings.deadline = std::chrono::hours(1);  // so that no heartbeat, which allocates, comes
  settings.stall_deadline = std::chrono::hours(1);
  zbpp::stage_costs costs{.forward = 1, .backward_input = 1, .backward_weight = 1};
  costs.edge = sizeof(double);
  zbpp::problem const problem(zbpp::placement::linear(2), 4, costs);
  auto const planned = zbpp::make_plan(zbpp::zb_h1{}, problem);
  std::barrier<> both(2);
  std::int64_t allocated = -1;
  auto const thrown = zbpp::test::run_ranks(2, settings, [&](zbpp::asio::rendezvous& meeting) {
    std::array stages{zbpp::test::plain_flow()};
    zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting, {.records_messages = true}), stages);
    auto const run = [&] {
      for (int i = 0; i < 100; ++i) pipe.step();
      both.arrive_and_wait();
    };
    run();
    if (meeting.rank() == 0)
      allocated = zbpp::test::count_allocations(run);
    else
      run();
    both.arrive_and_wait();
  });
  for (auto const& text : thrown) CHECK(text == "");
  CHECK(allocated == 0);
}

TEST_CASE("a collective call over TCP allocates nothing once such a call was made", "[asio]") {
  zbpp::test::stuck_guard const guard;
  auto settings = zbpp::test::patient_settings();
  settings.deadline = std::chrono::hours(1);  // so that no heartbeat, which allocates, comes
  settings.stall_deadline = std::chrono::hours(1);
  std::vector<std::string> thrown;
  auto const run_members = [&](int size, auto work) {
    thrown = zbpp::test::run_ranks(size, settings, [&](zbpp::asio::rendezvous& meeting) {
      zbpp::wakeup wake{0};
      zbpp::asio::socket_grid groups(meeting, zbpp::grid_layout({}, size), wake);
      groups.connect();
      work(groups.grid().data());
    });
  };
  for (int const size : {2, 3}) {
    CHECK(zbpp::test::allocations_of_calls(run_members, size, 20, [] {
            return zbpp::test::allocations.load();
          }) == 0);
    for (auto const& text : thrown) CHECK(text == "");
  }
}

TEST_CASE("a step of replicas over TCP allocates no more once such a step was run", "[asio]") {
  namespace checked = zbpp::test::checked;
  zbpp::test::stuck_guard const guard;
  auto settings = zbpp::test::patient_settings();
  settings.deadline = std::chrono::hours(1);  // so that no heartbeat, which allocates, comes
  settings.stall_deadline = std::chrono::hours(1);
  zbpp::problem const problem = checked::make_problem(zbpp::placement::v_shape(1), 4, 87, {});
  // What the flows of a process take by themselves.
  auto const steps_take = [&](int replicas) {
    auto const planned = zbpp::make_plan(
        zbpp::zb_v{},
        replicas == 1 ? problem : zbpp::with_replicas(problem, {.count = replicas}),
        {.step = zbpp::step_kind::post_validated});
    std::barrier<> all(replicas);
    std::int64_t before = 0;
    std::int64_t behind = -1;
    auto const thrown = zbpp::test::run_ranks(replicas, settings, [&](zbpp::asio::rendezvous& run) {
      checked::model own({.stages = 2});
      zbpp::pipeline each(
          planned,
          zbpp::asio::tcp(run, zbpp::grid_layout({.data = replicas}, replicas)),
          own.stages());
      for (int step = 0; step < 8; ++step) each.step();
      all.arrive_and_wait();
      if (run.rank() == 0) before = zbpp::test::allocations.load();
      all.arrive_and_wait();
      for (int step = 0; step < 50; ++step) each.step();
      all.arrive_and_wait();
      if (run.rank() == 0) behind = zbpp::test::allocations.load();
      all.arrive_and_wait();
    });
    for (auto const& text : thrown) CHECK(text == "");
    return behind - before;
  };
  auto const alone = steps_take(1);
  for (int const replicas : {2, 3}) CHECK(steps_take(replicas) == replicas * alone);
}

}  // namespace test_asio_no_allocation
