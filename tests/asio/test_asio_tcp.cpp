// SPDX-License-Identifier: Apache-2.0
#include <zbpp/asio/detail/channel_ends.hpp>
#include <zbpp/asio/detail/tcp_transport.hpp>

#include <support/catch.hpp>
#include <support/seeded.hpp>
#include <support/tcp_pair.hpp>
#include <support/transport_suite.hpp>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace test_asio_tcp {

namespace {

namespace net = boost::asio;
using zbpp::arena;
using zbpp::bytes;
using zbpp::channel;
using zbpp::errc;
using zbpp::message;
using zbpp::purpose;
using zbpp::wakeup;
using zbpp::asio::detail::message_frame;
using zbpp::asio::detail::message_frame_kind;
using zbpp::asio::detail::tcp_transport;
using zbpp::test::holds_soon;
using zbpp::test::losses;
using zbpp::test::make_connection;
using zbpp::test::stuck_guard;
using zbpp::test::tcp_pair;

constexpr auto not_yet = tcp_transport::not_yet;

// A message whose bytes follow from its number.
message make_message(arena& memory, std::uint32_t number, std::vector<std::size_t> const& sizes) {
  message msg;
  for (auto size : sizes) {
    auto part = memory.allocate(size, purpose::edge);
    for (std::size_t i = 0; i < size; ++i)
      part.data()[i] = static_cast<std::byte>(number * 31 + i + (i >> 8));
    msg.push_back(std::move(part));
  }
  return msg;
}

bool is_message(message const& msg, std::uint32_t number, std::vector<std::size_t> const& sizes) {
  bool right = msg.size() == sizes.size();
  for (std::size_t p = 0; right && p < sizes.size(); ++p) {
    right = msg[p].size() == sizes[p] && msg[p].use_count() == 1;
    for (std::size_t i = 0; right && i < sizes[p]; ++i)
      right = msg[p].data()[i] == static_cast<std::byte>(number * 31 + i + (i >> 8));
  }
  return right;
}

// Waits as an engine does: it drives until the message is there.
[[nodiscard]] bool wait_for(tcp_pair& pair, int rank, int channel, std::int32_t sequence) {
  pair.io_loop(rank).run_until([&] {
    return pair.end(rank).arrival(channel, sequence) != not_yet || !pair.lost.all().empty();
  });
  return pair.end(rank).arrival(channel, sequence) != not_yet;
}

// One rank whose peer is a plain socket.
struct lone_rank {
  // Channel 0 comes in, channel 1 goes out; three blocks, 100 bytes each.
  explicit lone_rank(bytes largest = 100)
      : transport(
            sockets, 1, {{0, 1, 2, 4}, {1, 0, 2, 4}}, {largest, largest}, lost.handler(), {4096}) {
    for (int c : {0, 1}) {
      auto ends = make_connection(sockets.io(), io);
      transport.connect(c, std::move(ends.first));
      peer.push_back(std::move(ends.second));
    }
    transport.bind(1, memory, &wake);
  }

  void write(int channel, std::span<std::byte const> content) {
    net::write(
        peer[static_cast<std::size_t>(channel)], net::buffer(content.data(), content.size()));
  }
  void write(int channel, message_frame const& f, std::size_t payload = 0) {
    std::vector<std::byte> all(message_frame::most_size);
    all.resize(encode(f, all.data()));
    all.resize(all.size() + payload, std::byte{7});
    write(channel, all);
  }
  [[nodiscard]] bool loses(int channel, std::string const& why) {
    auto const is_lost = holds_soon([this] { return !lost.all().empty(); });
    if (!is_lost) return false;
    auto const first = lost.all().front();
    INFO(first.second);
    CHECK(first.second.find(why) != std::string::npos);
    CHECK(
        first.second.find(channel == 0 ? "from rank 0 to rank 1" : "from rank 1 to rank 0") !=
        std::string::npos);
    return first.first == channel;
  }

  losses lost;
  arena memory;
  wakeup wake{0};
  net::io_context io;
  zbpp::asio::io_loop sockets;
  tcp_transport transport;
  std::vector<net::ip::tcp::socket> peer;
};

message_frame header(std::uint32_t sequence, std::vector<std::uint64_t> const& sizes) {
  message_frame f{.sequence = sequence};
  for (auto size : sizes) f.sizes[f.parts++] = size;
  return f;
}

}  // namespace

TEST_CASE("a TCP transport does what every transport has to do", "[asio]") {
  STATIC_REQUIRE(zbpp::transport<tcp_transport>);
  stuck_guard const guard;
  for (bytes const largest : {bytes{512}, bytes{0}})
    DYNAMIC_SECTION("largest message: " << largest) {
      zbpp::test::check_transport<tcp_pair>([&](int, std::vector<channel> const& channels) {
        return std::make_unique<tcp_pair>(channels, largest);
      });
    }
}

TEST_CASE("a receiver that takes nothing bounds what its sender writes", "[asio]") {
  stuck_guard const guard;
  constexpr std::int32_t slots = 3;
  constexpr std::int32_t count = 40;
  std::array<arena, 2> memory;
  tcp_pair pair({{0, 1, slots, count}}, 64);
  for (int rank : {0, 1}) pair.bind(rank, memory[static_cast<std::size_t>(rank)], nullptr);
  for (std::int32_t n = 0; n < count; ++n)
    pair.send(0, make_message(memory[0], static_cast<std::uint32_t>(n), {64}), 0);
  REQUIRE(wait_for(pair, 1, 0, slots));
  for (std::int32_t n = 0; n < count; ++n) {
    // Whatever else is under way gets a chance; it must not be there.
    for (int rank : {0, 1, 0, 1}) pair.io_loop(rank).exclusively([] {});
    if (n + slots + 1 < count) {
      CHECK(pair.arrival(0, n + slots + 1) == not_yet);
      CHECK_FALSE(pair.end(0).is_flushed());
    }
    REQUIRE(wait_for(pair, 1, 0, n));
    CHECK(is_message(pair.take(0, n, 0), static_cast<std::uint32_t>(n), {64}));
  }
  CHECK(holds_soon([&] { return pair.end(0).is_flushed(); }));
}

TEST_CASE("large messages come in one piece, through small and large buffers", "[asio]") {
  stuck_guard const guard;
  for (int const buffers : {0, 32768})
    for (bool const declared : {true, false}) {
      auto const size = buffers == 0 ? std::size_t{8} << 20 : std::size_t{300000};
      std::vector<std::size_t> const whole{size};
      std::vector<std::size_t> const parts{size / 2, 0, 4096, 1, size / 4};
      std::array<arena, 2> memory;
      tcp_pair pair(
          {{0, 1, 1, 3}},
          declared ? static_cast<bytes>(size) : 0,
          {bytes{1} << 30, buffers, buffers});
      for (int rank : {0, 1}) pair.bind(rank, memory[static_cast<std::size_t>(rank)], nullptr);
      pair.send(0, make_message(memory[0], 1, whole), 0);
      pair.send(0, make_message(memory[0], 2, parts), 0);
      pair.send(0, make_message(memory[0], 3, {5}), 0);
      std::int32_t number = 0;
      for (auto const& sizes : {whole, parts, std::vector<std::size_t>{5}}) {
        REQUIRE(wait_for(pair, 1, 0, number));
        auto const msg = pair.take(0, number++, 0);
        CHECK(is_message(msg, static_cast<std::uint32_t>(number), sizes));
      }
      pair.retire(0, 3);
      CHECK(memory[0].usage().now(purpose::edge) == 0);
      CHECK(memory[1].usage().now(purpose::edge) == 0);
      CHECK(
          memory[1].usage().now(purpose::receive) == (declared ? 2 * static_cast<bytes>(size) : 0));
    }
}

TEST_CASE("empty handles stay empty handles, and empty buffers stay buffers", "[asio]") {
  stuck_guard const guard;
  std::array<arena, 2> memory;
  tcp_pair pair({{0, 1, 2, 2}}, 64);
  for (int rank : {0, 1}) pair.bind(rank, memory[static_cast<std::size_t>(rank)], nullptr);
  pair.send(0, message(zbpp::buffer{}), 0);
  pair.send(0, message(memory[0].allocate(0), zbpp::buffer{}, memory[0].allocate(3)), 0);
  REQUIRE(wait_for(pair, 1, 0, 1));
  auto const first = pair.take(0, 0, 0);
  auto const second = pair.take(0, 1, 0);
  REQUIRE(first.size() == 1);
  CHECK_FALSE(first[0]);
  REQUIRE(second.size() == 3);
  CHECK((second[0] && second[0].size() == 0));
  CHECK_FALSE(second[1]);
  CHECK(second[2].size() == 3);
}

// Each rank is an engine of its own: nothing but messages keeps the two together, so one of them
// may be a step ahead.
TEST_CASE("two ranks exchange random messages for many steps", "[asio]") {
  stuck_guard const guard;
  for (int trial = 0; trial < 6; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const slots = static_cast<int>(random.integer(0, 4));
    auto const depth = static_cast<std::int32_t>(random.integer(1, 5));
    auto const count = static_cast<std::int32_t>(random.integer(1, 60));
    constexpr int steps = 12;
    std::vector<std::vector<std::size_t>> shapes(7);
    for (auto& shape : shapes)
      for (auto parts = random.integer(0, 8); parts > 0; --parts)
        shape.push_back(
            static_cast<std::size_t>(random.integer(0, random.chance(0.2) ? 9000 : 90)));
    auto const shape_of = [&](std::int32_t n, int step) -> auto const& {
      return shapes[static_cast<std::size_t>(n * 3 + step) % shapes.size()];
    };
    auto const largest = random.chance(0.5) ? bytes{8 * 9000} : bytes{0};
    std::array<arena, 2> memory;
    tcp_pair pair({{0, 1, slots, 2 * depth}, {1, 0, slots, 2 * depth}}, largest);
    std::array<int, 2> right{};
    auto const run = [&](int rank) {
      auto& own = memory[static_cast<std::size_t>(rank)];
      auto& end = pair.end(rank);
      for (int step = 0; step < steps; ++step) {
        std::int32_t sent = 0;
        for (std::int32_t taken = 0; taken < count; ++taken) {
          for (; sent < count && sent < taken + depth; ++sent)
            end.send(
                rank, make_message(own, static_cast<std::uint32_t>(sent), shape_of(sent, step)), 0);
          end.post_receive(1 - rank, 100);
          if (!wait_for(pair, rank, 1 - rank, taken)) return;
          auto const msg = end.take(1 - rank, taken, 100);
          right[static_cast<std::size_t>(rank)] +=
              is_message(msg, static_cast<std::uint32_t>(taken), shape_of(taken, step)) ? 1 : 0;
          if (taken >= depth) end.retire(rank, taken - depth + 1);
        }
        pair.io_loop(rank).run_until([&] { return end.is_flushed() || !pair.lost.all().empty(); });
        end.drain();
      }
    };
    for (int rank : {0, 1}) pair.bind(rank, memory[static_cast<std::size_t>(rank)], nullptr);
    {
      std::jthread const other(run, 1);
      run(0);
    }
    CHECK(pair.lost.all() == std::vector<std::pair<int, std::string>>{});
    CHECK(right == std::array<int, 2>{steps * count, steps * count});
    for (auto const& m : memory) CHECK(m.usage().now(purpose::edge) == 0);
  }
}

TEST_CASE("a message that comes byte by byte arrives", "[asio]") {
  stuck_guard const guard;
  lone_rank rank;
  std::vector<std::byte> all(message_frame::most_size);
  all.resize(encode(header(0, {3, message_frame::no_buffer, 20}), all.data()));
  all.resize(all.size() + 23, std::byte{9});
  for (auto const& one : all) {
    CHECK(rank.transport.arrival(0, 0) == not_yet);
    rank.write(0, {&one, 1});
    rank.sockets.exclusively([] {});
  }
  REQUIRE(holds_soon([&] { return rank.transport.arrival(0, 0) != not_yet; }));
  auto const msg = rank.transport.take(0, 0, 0);
  REQUIRE(msg.size() == 3);
  CHECK(msg[2].data()[19] == std::byte{9});
  CHECK(rank.wake.load() == 1);
}

TEST_CASE("what is no valid frame closes the channel, with a reason", "[asio]") {
  stuck_guard const guard;
  lone_rank rank;
  auto const text = std::as_bytes(std::span("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  SECTION("bytes of another protocol, as a message") {
    rank.write(0, text);
    CHECK(rank.loses(0, "found the bytes 71, 69 where a frame begins"));
  }
  SECTION("bytes of another protocol, as a credit") {
    rank.write(1, text);
    CHECK(rank.loses(1, "found the bytes 71, 69 where a frame begins"));
  }
  SECTION("a wrong sequence") {
    rank.write(0, header(0, {5}), 5);
    rank.write(0, header(2, {5}), 5);
    CHECK(rank.loses(0, "found message 2 of step 0; expected message 1 of step 0"));
    CHECK(rank.transport.arrival(0, 0) != not_yet);
    CHECK(rank.transport.take(0, 0, 0).total_size() == 5);
  }
  SECTION("more bytes than declared") {
    rank.write(0, header(0, {101}));
    CHECK(rank.loses(0, "part 0 of message 0 has 101 bytes; the whole message has at most 100"));
  }
  SECTION("more messages than there is room for") {
    for (std::uint32_t n = 0; n < 4; ++n) rank.write(0, header(n, {1}), 1);
    CHECK(rank.loses(0, "found message 3 of step 0 before there was room"));
  }
  SECTION("half a frame, then the end") {
    rank.write(0, header(0, {50}), 20);
    rank.peer[0].close();
    CHECK(rank.loses(0, "the peer closed the connection"));
    CHECK(rank.transport.arrival(0, 0) == not_yet);
  }
  SECTION("the end of the channel that goes out") {
    rank.peer[1].close();
    CHECK(rank.loses(1, "the peer closed the connection"));
  }
  SECTION("a credit for more than there can be room for") {
    rank.write(1, {.kind = message_frame_kind::credit, .has_credit = true, .credit = 4});
    CHECK(rank.loses(1, "the receiver allows message 4, counted from 1; after 0 messages"));
  }
  SECTION("such a credit with a message") {
    auto f = header(0, {1});
    f.has_credit = true;
    f.credit = 100;
    rank.write(0, f, 1);
    CHECK(rank.loses(1, "the receiver allows message 100"));
  }
  SECTION("a message where credits come") {
    rank.write(1, header(0, {1}), 1);
    CHECK(rank.loses(1, "found a frame of kind 1; this end takes kind 2, a credit"));
  }
}

TEST_CASE("a message of undeclared size is bounded, too", "[asio]") {
  stuck_guard const guard;
  lone_rank rank(0);
  rank.write(0, header(0, {4000, 97}));
  CHECK(rank.loses(0, "part 1 of message 0 has 97 bytes; the whole message has at most 4096"));
}

TEST_CASE("random bytes end a channel and nothing else", "[asio]") {
  stuck_guard const guard;
  for (int trial = 0; trial < 30; ++trial) {
    ZBPP_SEEDED(random, trial);
    lone_rank rank(random.chance(0.5) ? 100 : 0);
    auto const c = static_cast<int>(random.integer(0, 1));
    std::vector<std::byte> all(message_frame::most_size);
    encode(header(0, {1, 2, 3}), all.data());
    for (auto at = static_cast<std::size_t>(random.integer(0, 40)); at < all.size(); ++at)
      all[at] = static_cast<std::byte>(random.integer(0, 255));
    boost::system::error_code ignored;
    for (int i = 0; i < 20 && !ignored; ++i)
      net::write(rank.peer[static_cast<std::size_t>(c)], net::buffer(all), ignored);
    rank.peer[static_cast<std::size_t>(c)].close(ignored);
    REQUIRE(holds_soon([&] { return !rank.lost.all().empty(); }));
    for (int i = 0; i < 3; ++i) rank.sockets.exclusively([] {});
    // The other channel goes on, unless a credit that came with a message was wrong.
    if (rank.lost.all().size() == 1) CHECK(rank.lost.all()[0].first == c);
    CHECK(rank.lost.all().size() <= 2);
  }
}

TEST_CASE("a channel that is lost wakes who waits for it", "[asio]") {
  stuck_guard const guard;
  losses lost;
  zbpp::asio::io_loop sockets;
  net::io_context io;
  bool is_lost = false;
  tcp_transport transport(
      sockets, 1, {{0, 1, 1, 1}}, {8}, [&](int, std::string const&) { is_lost = true; });
  arena memory;
  auto ends = make_connection(sockets.io(), io);
  transport.connect(0, std::move(ends.first));
  transport.bind(1, memory, nullptr);
  std::jthread const closer([&] { ends.second.close(); });
  sockets.run_until([&] { return is_lost || transport.arrival(0, 0) != not_yet; });
  CHECK(is_lost);
}

TEST_CASE("after a drain before all was written a connection carries no more", "[asio]") {
  stuck_guard const guard;
  lone_rank rank;
  for (std::uint32_t n = 0; n < 4; ++n)
    rank.transport.send(1, make_message(rank.memory, n, {9}), 0);
  CHECK_FALSE(rank.transport.is_flushed());  // there is room for three
  CHECK(rank.memory.usage().now(purpose::edge) == 36);
  rank.sockets.exclusively([] {});  // writes what nobody may have had the time to
  rank.transport.drain();
  CHECK(rank.memory.usage().now(purpose::edge) == 0);
  CHECK(rank.lost.all().empty());
  rank.transport.close();  // without which the peer would wait
  std::vector<std::byte> all(1000);
  boost::system::error_code failure;
  auto const count = net::read(rank.peer[1], net::buffer(all), failure);
  CHECK(failure == net::error::eof);
  CHECK(count == 3 * (message_frame::base_size + 8 + 9));
}

TEST_CASE("what was sent arrives although its sender goes at once", "[asio]") {
  stuck_guard const guard;
  for (int round = 0; round < 40; ++round) {
    arena memory;
    wakeup wake{0};
    losses lost;
    net::io_context io;
    zbpp::asio::io_loop sockets;
    std::vector<channel> const channels{{0, 1, 2, 4}};
    auto transport = std::make_unique<tcp_transport>(
        sockets, 0, channels, std::vector<zbpp::bytes>{100}, lost.handler());
    auto ends = make_connection(sockets.io(), io);
    auto& peer = ends.second;
    transport->connect(0, std::move(ends.first));
    transport->bind(0, memory, &wake);
    for (std::uint32_t n = 0; n < 3; ++n) transport->send(0, make_message(memory, n, {9}), 0);
    // Who closes with unread bytes resets the connection: here are credits to leave unread.
    std::vector<std::byte> credit(message_frame::most_size);
    message_frame const given{.kind = message_frame_kind::credit, .has_credit = true, .credit = 3};
    credit.resize(encode(given, credit.data()));
    for (int i = 0; i < 20; ++i) net::write(peer, net::buffer(credit));
    std::jthread const leaving([&] { transport.reset(); });
    std::vector<std::byte> all(1000);
    boost::system::error_code failure;
    auto const count = net::read(peer, net::buffer(all), failure);
    CHECK(failure == net::error::eof);
    CHECK(count == 3 * (message_frame::base_size + 8 + 9));
    peer.close();
    CHECK(lost.all().empty());
  }
}

TEST_CASE("wrong uses of a TCP transport are refused", "[asio]") {
  stuck_guard const guard;
  lone_rank rank;
  auto code_of = [](auto act) {
    try {
      act();
    } catch (zbpp::error const& e) {
      return static_cast<int>(e.code());
    }
    return -1;
  };
  auto const bad = static_cast<int>(errc::bad_argument);
  CHECK(code_of([&] {
          rank.transport.send(1, make_message(rank.memory, 1, {60, 41}), 0);
        }) == static_cast<int>(errc::wrong_size));
  CHECK(code_of([&] {
          for (int i = 0; i < 9; ++i) rank.transport.send(1, make_message(rank.memory, 1, {1}), 0);
        }) == bad);
  CHECK(code_of([&] { rank.transport.bind(0, rank.memory, nullptr); }) == bad);
  CHECK(code_of([&] { rank.transport.bind(1, rank.memory, nullptr); }) == bad);
  for (int c : {-1, 0, 2})
    CHECK(code_of([&] {
            rank.transport.connect(c, net::ip::tcp::socket(rank.sockets.io()));
          }) == bad);
  tcp_transport other(rank.sockets, 1, {{0, 1, 1, 1}}, {8}, rank.lost.handler());
  CHECK(code_of([&] {
          other.connect(0, net::ip::tcp::socket(rank.sockets.io()));
        }) == static_cast<int>(errc::io_failed));
  CHECK(code_of([&] { tcp_transport(rank.sockets, 1, {{0, 1, 1, 1}}, {}, {}); }) == bad);
  CHECK(code_of([&] { tcp_transport(rank.sockets, 1, {{0, 1, 1, 1}}, {-1}, {}); }) == bad);
  CHECK(code_of([&] { tcp_transport(rank.sockets, 1, {{0, 1, 1, 1}}, {1}, {}, {0}); }) == bad);
}

}  // namespace test_asio_tcp
