// SPDX-License-Identifier: Apache-2.0
#include <support/catch.hpp>
#include <support/count_allocations.hpp>
#include <support/tcp_pair.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>

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

TEST_CASE("a message by TCP allocates nothing once such a step was run", "[asio]") {
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

}  // namespace test_asio_no_allocation
