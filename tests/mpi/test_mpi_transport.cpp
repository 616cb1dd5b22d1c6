// SPDX-License-Identifier: Apache-2.0
//
// The transport of MPI between two ranks in one process, which MPI starts alone.
#include <zbpp/mpi/detail/channel_ends.hpp>
#include <zbpp/mpi/detail/transport.hpp>

#include <support/both_ends.hpp>
#include <support/catch.hpp>
#include <support/mpi_pair.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/transport_suite.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace test_mpi_transport {

namespace {

using zbpp::arena;
using zbpp::bytes;
using zbpp::channel;
using zbpp::errc;
using zbpp::message;
using zbpp::purpose;
using zbpp::mpi::detail::most_in_header;
using zbpp::mpi::detail::send_mode;
using zbpp::mpi::detail::transport;
using zbpp::test::holds_soon;
using zbpp::test::mpi_pair;
using zbpp::test::refusal;
using zbpp::test::two_ranks;

std::byte byte_of(std::uint32_t number, std::size_t part, std::size_t i) {
  return static_cast<std::byte>(number * 31 + part * 7 + i + (i >> 8));
}

message make_message(arena& memory, std::uint32_t number, std::vector<std::size_t> const& sizes) {
  message msg;
  for (std::size_t p = 0; p < sizes.size(); ++p) {
    auto part = memory.allocate(sizes[p], purpose::edge);
    for (std::size_t i = 0; i < sizes[p]; ++i) part.data()[i] = byte_of(number, p, i);
    msg.push_back(std::move(part));
  }
  return msg;
}

bool is_message(message const& msg, std::uint32_t number, std::vector<std::size_t> const& sizes) {
  bool is_right = msg.size() == sizes.size();
  for (std::size_t p = 0; is_right && p < sizes.size(); ++p) {
    is_right = msg[p].size() == sizes[p];
    for (std::size_t i = 0; is_right && i < sizes[p]; ++i)
      is_right = msg[p].data()[i] == byte_of(number, p, i);
  }
  return is_right;
}

auto make_pair(bytes largest, send_mode mode = send_mode::plain) {
  return [=](int, std::vector<channel> const& channels) {
    return std::make_unique<mpi_pair>(channels, largest, mode);
  };
}

// Sends messages of all forms, of which between one and five are under way.
template <class Random>
void exchange(Random& random, send_mode mode) {
  constexpr std::size_t declared = 3000;
  two_ranks<mpi_pair> pair(make_pair(declared, mode), 5);
  std::vector<std::vector<std::size_t>> sent;
  std::int32_t taken = 0;
  for (std::uint32_t n = 0; n < 400; ++n) {
    std::vector<std::size_t> sizes;
    switch (random.integer(0, 4)) {
      case 0: sizes = {declared}; break;
      case 1: sizes = {static_cast<std::size_t>(random.integer(0, declared))}; break;
      case 2: sizes = {most_in_header + static_cast<std::size_t>(random.integer(0, 1))}; break;
      case 3: break;
      default:
        for (int i = 0; i < 8; ++i)
          sizes.push_back(static_cast<std::size_t>(random.integer(0, declared / 8)));
    }
    pair.transport->post_receive(0, declared);
    pair.transport->send(0, make_message(pair.memory[0], n, sizes), 0);
    sent.push_back(std::move(sizes));
    auto const most = static_cast<std::uint32_t>(random.integer(0, 4));
    for (; n - static_cast<std::uint32_t>(taken) + 1 > most; ++taken) {
      auto const k = static_cast<std::uint32_t>(taken);
      INFO("message " << k);
      REQUIRE(is_message(pair.receive(0, taken, declared), k, sent[k]));
      pair.transport->retire(0, taken + 1);
    }
  }
  pair.transport->drain();
  CHECK(pair.in_use(0) == 0);
  CHECK(pair.in_use(1) == 0);
}

}  // namespace

TEST_CASE("a transport of MPI does what every transport has to do", "[mpi]") {
  STATIC_REQUIRE(zbpp::transport<transport>);
  STATIC_REQUIRE(zbpp::acknowledging_transport<transport>);
  STATIC_REQUIRE(zbpp::multi_step_transport<transport>);
  for (bytes const largest : {bytes{512}, bytes{0}})
    for (auto const mode : {send_mode::plain, send_mode::synchronous})
      DYNAMIC_SECTION("largest message: " << largest << ", mode " << static_cast<int>(mode)) {
        zbpp::test::check_transport<mpi_pair>(make_pair(largest, mode));
      }
}

TEST_CASE("messages of all sizes and forms arrive in order, as they were", "[mpi]") {
  for (std::uint64_t trial = 0; trial < 4; ++trial) {
    ZBPP_SEEDED(random, trial);
    exchange(random, trial % 2 == 0 ? send_mode::plain : send_mode::synchronous);
  }
}

TEST_CASE("a message of the declared size is taken where MPI wrote it", "[mpi]") {
  constexpr std::size_t declared = 5000;
  two_ranks<mpi_pair> pair(make_pair(declared), 2);
  auto const aside = pair.memory[1].usage().now(purpose::receive);
  CHECK(aside >= 3 * bytes{declared});
  std::vector<std::byte const*> places;
  for (std::int32_t n = 0; n < 12; ++n) {
    auto const number = static_cast<std::uint32_t>(n);
    pair.transport->post_receive(0, declared);
    pair.transport->send(0, make_message(pair.memory[0], number, {declared}), 0);
    auto const msg = pair.receive(0, n, declared);
    CHECK(is_message(msg, number, {declared}));
    CHECK(pair.in_use(1) == bytes{declared});
    CHECK(pair.memory[1].usage().now(purpose::receive) == aside);
    pair.transport->retire(0, n + 1);
  }
}

TEST_CASE("an evaluation's sender gets no further than its receiver has slots", "[mpi]") {
  constexpr std::size_t declared = 100'000;
  for (auto const& [size, largest] :
       {std::pair(std::size_t{8}, 0), std::pair(declared, 0), std::pair(declared, 100'000)}) {
    constexpr int depth = 3;
    two_ranks<mpi_pair> pair(make_pair(largest, send_mode::synchronous), depth);
    auto& sender = pair.transport->end(0);
    std::int32_t sent = 0;
    // One receive more than there are slots is open, so that a message may come while all are full.
    for (; sent < 8; ++sent) {
      pair.transport->send(0, make_message(pair.memory[0], 0, {size}), 0);
      for (int i = 0; i < 100; ++i) {
        sender.poll();
        pair.transport->end(1).poll();
      }
      if (!sender.is_released(0, sent + 1)) break;
      pair.transport->retire(0, sent + 1);
    }
    CHECK(sent == depth + 1);
    for (std::int32_t n = 0; n <= sent; ++n) {
      pair.transport->post_receive(0, static_cast<bytes>(size));
      CHECK(is_message(pair.receive(0, n, static_cast<bytes>(size)), 0, {size}));
    }
    pair.transport->drain();
  }
}

TEST_CASE("in training a small message is delivered before its receiver looks", "[mpi]") {
  for (bytes const largest : {bytes{0}, bytes{1000}}) {
    two_ranks<mpi_pair> pair(make_pair(largest), 8);
    auto& sender = pair.transport->end(0);
    for (std::int32_t n = 0; n < 8; ++n) {
      pair.transport->send(0, make_message(pair.memory[0], 0, {8}), 0);
      CHECK(holds_soon([&] {
        sender.poll();
        return sender.is_released(0, n + 1);
      }));
    }
    CHECK(sender.is_flushed());
    for (std::int32_t n = 0; n < 8; ++n) {
      pair.transport->post_receive(0, 8);
      CHECK(is_message(pair.receive(0, n, 8), 0, {8}));
    }
    pair.transport->drain();
  }
}

TEST_CASE("another thread moves messages on, and takes no memory of the arena", "[mpi]") {
  constexpr std::size_t declared = 200'000;
  two_ranks<mpi_pair> pair(make_pair(declared), 2);
  pair.transport->post_receive(0, declared);
  pair.transport->send(0, make_message(pair.memory[0], 1, {declared}), 0);
  auto const before = pair.memory[1].usage().now(purpose::receive);
  auto& receiver = pair.transport->end(1);
  while (receiver.arrival(0, 0) == transport::not_yet) {
    receiver.poll_aside();
    pair.transport->end(0).poll_aside();
  }
  CHECK(pair.memory[1].usage().now(purpose::receive) == before);
  CHECK(pair.wakeups[1].load() > 0);
  CHECK(is_message(pair.transport->take(0, 0, declared), 1, {declared}));

  // For others the receiver has to take memory, which its own thread does.
  pair.transport->post_receive(0, declared);
  pair.transport->send(0, make_message(pair.memory[0], 2, {declared / 2}), 0);
  for (int i = 0; i < 1000; ++i) {
    receiver.poll_aside();
    pair.transport->end(0).poll_aside();
  }
  CHECK(receiver.arrival(0, 1) == transport::not_yet);
  CHECK(pair.memory[1].usage().now(purpose::receive) == before);
  CHECK(is_message(pair.receive(0, 1, declared), 2, {declared / 2}));
  pair.transport->drain();
}

TEST_CASE("messages of an older step are given up where they arrive", "[mpi]") {
  for (std::size_t const size : {std::size_t{8}, std::size_t{4000}, std::size_t{3000}}) {
    INFO("size " << size);
    two_ranks<mpi_pair> pair(make_pair(4000), 3);
    auto& sender = pair.transport->end(0);
    auto& receiver = pair.transport->end(1);
    // The receiver begins the next step before it has looked.
    for (std::uint32_t n = 0; n < 3; ++n)
      sender.send(0, make_message(pair.memory[0], n, {size}), 0);
    CHECK(receiver.begin_step(1));
    while (!sender.is_flushed()) {
      sender.poll();
      receiver.poll();
    }
    CHECK(sender.begin_step(0));
    sender.send(0, make_message(pair.memory[0], 9, {size}), 0);
    CHECK(is_message(pair.receive(0, 0, 0), 9, {size}));
    CHECK(receiver.arrival(0, 1) == transport::not_yet);
    CHECK(pair.in_use(1) == 0);
    sender.retire(0, 1);
    while (!sender.is_flushed()) sender.poll();
  }
}

TEST_CASE("a step may begin while a message of it is half there", "[mpi]") {
  for (std::size_t const size : {std::size_t{8}, std::size_t{4000}, std::size_t{3000}}) {
    INFO("size " << size);
    two_ranks<mpi_pair> pair(make_pair(4000), 3);
    auto& sender = pair.transport->end(0);
    auto& receiver = pair.transport->end(1);
    // So many that what the receiver knows of a message has taken the place of an older one's.
    for (std::uint32_t n = 0; n < 20; ++n) {
      auto const sequence = static_cast<std::int32_t>(n);
      pair.transport->post_receive(0, static_cast<bytes>(size));
      pair.transport->send(0, make_message(pair.memory[0], n, {size}), 0);
      CHECK(is_message(pair.receive(0, sequence, static_cast<bytes>(size)), n, {size}));
      pair.transport->retire(0, sequence + 1);
    }
    CHECK(sender.begin_step(0));
    sender.send(0, make_message(pair.memory[0], 77, {size}), 0);
    // Reads the header of the message, and takes no memory for a buffer that is not declared.
    for (int i = 0; i < 1000; ++i) {
      receiver.poll_aside();
      sender.poll_aside();
    }
    CHECK(receiver.begin_step(1));
    REQUIRE(holds_soon([&] {
      if (receiver.arrival(0, 0) != transport::not_yet) return true;
      receiver.poll();
      sender.poll();
      return false;
    }));
    CHECK(is_message(receiver.take(0, 0, static_cast<bytes>(size)), 77, {size}));
    CHECK(receiver.arrival(0, 1) == transport::not_yet);
    sender.retire(0, 1);
    while (!sender.is_flushed()) sender.poll();
  }
}

TEST_CASE("a message that its channel has no room for is refused", "[mpi]") {
  two_ranks<mpi_pair> pair(make_pair(100), 1);
  CHECK(refusal(errc::wrong_size, [&] {
          pair.transport->send(0, make_message(pair.memory[0], 0, {60, 60}), 0);
        }) == "a message of 120 bytes; its channel carries at most 100 at once");
  CHECK(refusal([&] {
          for (int i = 0; i < 3; ++i)
            pair.transport->send(0, make_message(pair.memory[0], 0, {8}), 0);
        }) == "a channel has at most channel.in_flight messages that are not retired");
}

}  // namespace test_mpi_transport
