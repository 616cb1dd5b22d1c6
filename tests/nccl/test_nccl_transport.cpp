// SPDX-License-Identifier: Apache-2.0
//
// Messages between two ranks by NCCL, on its model: what every transport promises, and what this
// one does on the device.
#include <zbpp/nccl/detail/transport.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/nccl_in_one_process.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace test_nccl_transport {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
using zbpp::buffer;
using zbpp::channel_layout;
using zbpp::message;
using zbpp::purpose;

namespace {

using words = std::span<std::uint64_t>;

// Two ranks with a channel each way, whose messages have one shape: 0 goes from rank 0 to rank 1, 1
// goes back. Each has a device.
struct two_ranks {
  explicit two_ranks(
      cuda::message_shape parts,
      int depth = 4,
      channel_layout layout = channel_layout::one_per_directed_pair,
      bool host_waits = false)
      : shapes{std::move(parts)} {
    std::vector<zbpp::channel> const channels{{0, 1, depth, depth}, {1, 0, depth, depth}};
    std::vector<cuda::channel_needs> needs;
    for (auto const& c : channels)
      needs.push_back(
          {c,
           zbpp::detail::index(depth),
           &shapes,
           std::vector<std::int32_t>(64, 0),
           std::vector<zbpp::cuda::transfer_waits>(64),
           cuda::slot_filling::by_receives});
    for (int rank : {0, 1}) {
      cuda::device_guard const here(rank);
      contexts[zbpp::detail::index(rank)] = std::make_unique<cuda::device_context>(
          cuda::rank_device{.device = rank}, 1, std::span<zbpp::pass const>(), launching);
    }
    transport.emplace(
        make_communicators(channels, {{0, 0}, {1, 1}}, layout),
        std::vector{contexts[0].get(), contexts[1].get()},
        std::move(needs),
        host_waits);
    for (int rank : {0, 1})
      transport->bind(rank, memory[zbpp::detail::index(rank)], &wakeups[zbpp::detail::index(rank)]);
  }

  [[nodiscard]] cuda::stream_ref compute(int rank) const {
    return contexts[zbpp::detail::index(rank)]->compute();
  }

  // A message of a rank, whose words follow from `number` once the device has made them.
  [[nodiscard]] message write(int rank, std::uint64_t number) {
    cuda::device_guard const here(rank);
    message msg;
    for (auto const size : shapes[0]) {
      auto part =
          memory[zbpp::detail::index(rank)].allocate(static_cast<std::size_t>(size), purpose::edge);
      auto const to = part.as<std::uint64_t>();
      cuda::check(
          model::launch(compute(rank), "write", {}, {{to.data(), to.size_bytes()}}, [to, number] {
            std::iota(to.begin(), to.end(), number * 1000);
          }));
      msg.push_back(std::move(part));
    }
    return msg;
  }

  void send(int channel, std::uint64_t number) {
    transport->send(channel, write(channel, number), 0);
  }

  // Has the device count in `right` the buffers of a message that are as `write` makes them.
  void read(int rank, message const& msg, std::uint64_t number, int& right) {
    cuda::device_guard const here(rank);
    for (auto const& part : msg.buffers()) {
      auto const from = part.as<std::uint64_t>();
      cuda::check(model::launch(
          compute(rank), "read", {{from.data(), from.size_bytes()}}, {}, [from, number, &right] {
            std::vector<std::uint64_t> expected(from.size());
            std::iota(expected.begin(), expected.end(), number * 1000);
            right += std::ranges::equal(from, expected) ? 1 : 0;
          }));
    }
  }

  void finish() {
    for (int rank : {0, 1}) compute(rank).synchronize();
    transport->mark_end();
    while (!transport->is_done()) {
    }
  }

  [[nodiscard]] zbpp::bytes in_use(int rank) const {
    return memory[zbpp::detail::index(rank)].usage().now(purpose::edge);
  }

  static constexpr cuda::launch_settings launching{};
  std::vector<cuda::message_shape> shapes;
  std::array<std::unique_ptr<cuda::device_context>, 2> contexts;
  std::array<zbpp::arena, 2> memory{
      zbpp::arena(cuda::device_memory(0)), zbpp::arena(cuda::device_memory(1))};
  std::array<zbpp::wakeup, 2> wakeups{};
  std::optional<zbpp::nccl::detail::transport>
      transport;  // goes before the memory that it refers to
};

void reset(std::uint64_t seed) {
  // A queue for each stream.
  model::reset({.seed = seed, .devices = 2, .connections = 8});
}

std::string first_fault() {
  auto const faults = model::faults();
  return faults.empty() ? "" : faults.front();
}

}  // namespace

TEST_CASE("messages of a channel arrive complete and in the order of their sends", "[nccl]") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    // Without a buffer at all, with empty ones, with more than a group takes.
    for (cuda::message_shape const& shape :
         {cuda::message_shape{8},
          {24, 0, 8},
          {8, 16, 24, 32},
          {8, 8, 8, 8, 8},
          {8, 16, 0, 8, 8, 8, 8, 8}}) {
      reset(run_seed() + seed);
      {
        two_ranks pair(shape, 6);
        int right = 0;
        for (int n = 0; n < 6; ++n) {
          pair.transport->post_receive(0, 0);
          pair.send(0, static_cast<std::uint64_t>(n));
        }
        for (int n : {2, 0, 1, 5, 4, 3}) {
          CHECK(pair.transport->arrival(0, n) != zbpp::nccl::detail::transport::not_yet);
          auto const msg = pair.transport->take(0, n, 0);
          pair.read(1, msg, static_cast<std::uint64_t>(n), right);
        }
        pair.finish();
        CHECK(right == 6 * static_cast<int>(shape.size()));
        pair.transport->drain();
        CHECK(pair.in_use(0) == 0);
        CHECK(pair.in_use(1) == 0);
      }
      CHECK(first_fault() == "");
      CHECK(model::leaks().empty());
    }
  }
}

TEST_CASE("both directions run for long in few slots, on every layout that is safe", "[nccl]") {
  for (auto const layout : {channel_layout::one_per_directed_pair, channel_layout::one_per_pair})
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      reset(run_seed() + seed);
      two_ranks pair({16, 48}, 2, layout);
      int right = 0;
      constexpr int count = 20;
      // Rank 0 sends, rank 1 answers; an answer shows that the message was consumed.
      for (int n = 0; n < count; ++n) {
        auto const number = static_cast<std::uint64_t>(n);
        pair.send(0, number);
        pair.transport->post_receive(0, 0);
        {
          auto const msg = pair.transport->take(0, n, 0);
          pair.read(1, msg, number, right);
        }
        if (n > 0) pair.transport->retire(1, n);
        pair.send(1, number + 500);
        pair.transport->post_receive(1, 0);
        auto const back = pair.transport->take(1, n, 0);
        pair.transport->retire(0, n + 1);
        pair.read(0, back, number + 500, right);
      }
      pair.finish();
      CHECK(right == 4 * count);
      CHECK(pair.in_use(0) == 0);
      CHECK(pair.in_use(1) == 16 + 48);  // nobody has told that the last answer was consumed
      pair.transport->drain();
      CHECK(pair.in_use(1) == 0);
      CHECK(first_fault() == "");
    }
}

TEST_CASE("what is sent stays with the sender until it is retired", "[nccl]") {
  reset(run_seed());
  two_ranks pair({16});
  for (std::uint64_t n = 0; n < 3; ++n) {
    pair.transport->post_receive(0, 0);
    pair.send(0, n);
  }
  CHECK(pair.in_use(0) == 3 * 16);
  CHECK(pair.in_use(1) == 3 * 16);  // open slots count on the receiver
  pair.transport->retire(0, 1);
  CHECK(pair.in_use(0) == 2 * 16);
  pair.transport->retire(0, 1);
  CHECK(pair.in_use(0) == 2 * 16);
  static_cast<void>(pair.transport->take(0, 0, 0));
  CHECK(pair.in_use(1) == 2 * 16);
  pair.finish();
  pair.transport->drain();
  CHECK(pair.in_use(0) == 0);
  CHECK(pair.in_use(1) == 0);
}

TEST_CASE("a message has exactly the shape of its edge", "[nccl]") {
  reset(run_seed());
  two_ranks pair({16, 48});
  auto const send = [&](std::vector<std::size_t> const& sizes) {
    return refusal(zbpp::errc::wrong_size, [&] {
      message msg;
      for (auto const size : sizes) msg.push_back(pair.memory[0].allocate(size, purpose::edge));
      pair.transport->send(0, std::move(msg), 0);
    });
  };
  auto const why =
      std::string(" bytes; its shape has 16 + 48; NCCL does not transmit sizes, so send ");
  CHECK(send({16, 40}) == "edge 0->1 carries 16 + 40" + why + "exactly these");
  CHECK(send({64}) == "edge 0->1 carries 64" + why + "exactly these");
  CHECK(send({16, 48, 8}) == "edge 0->1 carries 16 + 48 + 8" + why + "exactly these");
}

TEST_CASE("a step's messages make nothing and wait for nothing on the host", "[nccl]") {
  reset(run_seed());
  two_ranks pair({8, 8, 8, 8, 8, 8});
  pair.memory[0].reserve(1 << 16);
  pair.memory[1].reserve(1 << 16);
  int right = 0;
  model::start_counting();
  for (int n = 0; n < 3; ++n) {
    pair.transport->post_receive(0, 0);
    pair.send(0, static_cast<std::uint64_t>(n));
    pair.read(1, pair.transport->take(0, n, 0), static_cast<std::uint64_t>(n), right);
  }
  CHECK(model::heavy_calls().empty());
  CHECK(model::count("ncclSend") == 3 * 6);
  CHECK(model::count("ncclGroupEnd") == 2 * 3 * 2);  // four calls and two
  pair.finish();
  CHECK(right == 3 * 6);
}

TEST_CASE("nothing is issued on links that are aborted, and what waits there ends", "[nccl]") {
  reset(run_seed());
  two_ranks pair({16});
  pair.transport->post_receive(0, 0);  // nobody sends
  static_cast<void>(pair.transport->take(0, 0, 0));
  CHECK(pair.transport->is_busy());
  pair.transport->communicators().abort();
  pair.transport->post_receive(0, 0);
  pair.send(0, 0);
  pair.finish();
  CHECK_FALSE(pair.transport->is_busy());
  CHECK(first_fault() == "");
}

TEST_CASE("what the host has seen arrive before an abort is ordered behind it", "[nccl]") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    INFO("interleaving " << seed);
    reset(run_seed() + seed);
    int right = 0;
    two_ranks pair({16}, 4, channel_layout::one_per_directed_pair, true);
    pair.transport->post_receive(0, 0);
    pair.send(0, 7);
    while (pair.transport->arrival(0, 0) == zbpp::nccl::detail::transport::not_yet) {
    }
    pair.transport->communicators().abort();
    pair.read(1, pair.transport->take(0, 0, 0), 7, right);
    pair.finish();
    CHECK(right == 1);
    CHECK(first_fault() == "");
  }
}

TEST_CASE("an abort during a call of NCCL does not touch its stream", "[nccl]") {
  for (int const channel : {0, 1}) {
    reset(run_seed());
    two_ranks pair({16});
    auto& communicators = pair.transport->communicators();
    model::hold_groups();
    std::thread issuing([&] {
      if (channel == 0)
        pair.transport->post_receive(0, 0);
      else
        pair.send(1, 0);
    });
    // In the model, unlike in NCCL, a second thread may poll.
    auto const is_in_hand = [](auto const* end) { return !end->comm.is_ready(); };
    while (std::ranges::none_of(communicators.endpoints(), is_in_hand)) std::this_thread::yield();
    std::thread breaking([&] { communicators.abort(); });
    issuing.join();
    // All of this finds the call still in progress, or the communicators aborted.
    static_cast<void>(pair.transport->take(0, 0, 0));
    pair.transport->post_receive(0, 0);
    pair.send(1, 1);
    pair.transport->mark_end();
    breaking.join();
    pair.finish();
    CHECK_FALSE(pair.transport->is_busy());
    CHECK(first_fault() == "");
  }
}

TEST_CASE("a step that fails wakes who waits for messages", "[nccl]") {
  reset(run_seed());
  two_ranks pair({16});
  std::array const before{pair.wakeups[0].load(), pair.wakeups[1].load()};
  pair.transport->abort();
  CHECK(pair.wakeups[0].load() != before[0]);
  CHECK(pair.wakeups[1].load() != before[1]);
}

}  // namespace test_nccl_transport
