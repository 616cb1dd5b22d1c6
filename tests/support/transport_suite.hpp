// SPDX-License-Identifier: Apache-2.0
//
// What every transport has to do. A transport's test calls `check_transport` with a function that
// makes one; it runs all sections, within the test case it is called from.
#pragma once

#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/transport.hpp>

#include <support/catch.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Two ranks with a channel each way: 0 goes from rank 0 to rank 1, 1 goes back.
template <class Transport>
struct two_ranks {
  /// @param make  called with the number of ranks and the channels, gives the transport by
  ///              std::unique_ptr
  template <class Make>
  explicit two_ranks(Make make, int depth = 4)
      : transport(make(2, std::vector<channel>{{0, 1, depth, depth}, {1, 0, depth, depth}})) {
    for (int rank : {0, 1})
      transport->bind(rank, memory[detail::index(rank)], &wakeups[detail::index(rank)]);
  }

  /// Makes a message of `parts` buffers in the memory of a rank, whose bytes follow from `number`.
  [[nodiscard]] message write(int rank, std::uint32_t number, std::size_t parts = 1) {
    message msg;
    for (std::size_t i = 0; i < parts; ++i) {
      auto part = memory[detail::index(rank)].allocate((number % 5 + i) * 8, purpose::edge);
      for (auto& word : part.template as<std::uint64_t>()) word = number * 100 + i;
      msg.push_back(std::move(part));
    }
    return msg;
  }

  /// Whether a message is the one that `write` makes of `number`.
  [[nodiscard]] static bool is_right(
      message const& msg, std::uint32_t number, std::size_t parts = 1) {
    bool right = msg.size() == parts;
    for (std::size_t i = 0; i < msg.size(); ++i) {
      right = right && msg[i].size() == (number % 5 + i) * 8;
      for (auto word : msg[i].template as<std::uint64_t>())
        right = right && word == number * 100 + i;
    }
    return right;
  }

  void send(int channel, std::uint32_t number, std::size_t parts = 1) {
    transport->send(channel, write(channel, number, parts), 0);
  }

  /// Waits for a message as an engine does: it looks, and goes to sleep until the wakeup is
  /// notified. A transport that gets on only while its rank looks says `is_polled`.
  void wait_for(int channel, std::int32_t sequence) {
    auto& wake = wakeups[detail::index(1 - channel)];
    for (;;) {
      auto const heard = wake.load(std::memory_order_acquire);
      if (transport->arrival(channel, sequence) != Transport::not_yet) return;
      if constexpr (requires { Transport::is_polled; })
        std::this_thread::yield();
      else
        wake.wait(heard, std::memory_order_relaxed);
    }
  }

  [[nodiscard]] message receive(int channel, std::int32_t sequence, bytes most) {
    wait_for(channel, sequence);
    return transport->take(channel, sequence, most);
  }

  [[nodiscard]] bytes in_use(int rank) const {
    return memory[detail::index(rank)].usage().now(purpose::edge);
  }

  std::array<arena, 2> memory;
  std::array<wakeup, 2> wakeups{};
  std::unique_ptr<Transport> transport;  // goes before the memory that it refers to
};

/// Runs all that every transport has to pass.
/// @param make  called with the number of ranks and the channels, gives a std::unique_ptr
template <class Transport, class Make>
void check_transport(Make make) {
  SECTION("messages of a channel arrive complete and in the order of their sends") {
    two_ranks<Transport> pair(make, 9);
    CHECK(pair.transport->arrival(0, 0) == Transport::not_yet);
    for (std::uint32_t n = 0; n < 9; ++n) {
      pair.transport->post_receive(0, 500);
      pair.send(0, n, n);  // the first one has no buffers at all
      CHECK(pair.transport->arrival(0, static_cast<std::int32_t>(n) + 1) == Transport::not_yet);
    }
    for (std::uint32_t n = 0; n < 9; ++n)
      CHECK(pair.is_right(pair.receive(0, static_cast<std::int32_t>(n), 500), n, n));
  }

  SECTION("messages that have arrived may be taken in any order") {
    two_ranks<Transport> pair(make);
    for (std::uint32_t n = 0; n < 3; ++n) {
      pair.transport->post_receive(0, 100);
      pair.send(0, n);
    }
    for (std::uint32_t n : {2U, 0U, 1U})
      CHECK(pair.is_right(pair.receive(0, static_cast<std::int32_t>(n), 100), n));
  }

  SECTION("a send needs no open receive") {
    two_ranks<Transport> pair(make);
    pair.send(0, 3);
    pair.transport->post_receive(0, 100);
    CHECK(pair.is_right(pair.receive(0, 0, 100), 3));
  }

  SECTION("the two directions do not disturb each other") {
    two_ranks<Transport> pair(make);
    for (int c : {0, 1}) {
      pair.transport->post_receive(c, 100);
      pair.send(c, static_cast<std::uint32_t>(c) + 1);
    }
    for (int c : {0, 1})
      CHECK(pair.is_right(pair.receive(c, 0, 100), static_cast<std::uint32_t>(c) + 1));
  }

  SECTION("an open slot counts on the receiver until its message is taken") {
    two_ranks<Transport> pair(make);
    pair.transport->post_receive(0, 100);
    pair.transport->post_receive(0, 40);
    CHECK(pair.in_use(1) == 140);
    pair.send(0, 2);
    auto msg = pair.receive(0, 0, 100);
    CHECK(pair.in_use(1) == 40 + 16);
    msg.clear();
    CHECK(pair.in_use(1) == 40);
  }

  SECTION("what is sent stays with the sender until it is retired") {
    two_ranks<Transport> pair(make);
    for (std::uint32_t n = 1; n < 4; ++n) {
      pair.transport->post_receive(0, 100);
      pair.send(0, n);
    }
    CHECK(pair.in_use(0) == 8 + 16 + 24);
    static_cast<void>(pair.receive(0, 0, 100));
    CHECK(pair.in_use(0) == 8 + 16 + 24);
    pair.transport->retire(0, 1);
    CHECK(pair.in_use(0) == 16 + 24);
    pair.transport->retire(0, 1);
    CHECK(pair.in_use(0) == 16 + 24);
    for (std::int32_t n : {1, 2}) static_cast<void>(pair.receive(0, n, 100));
    pair.transport->retire(0, 3);
    CHECK(pair.in_use(0) == 0);
  }

  SECTION("what is received is a copy of the sender's bytes") {
    two_ranks<Transport> pair(make);
    pair.transport->post_receive(0, 100);
    auto sent = pair.write(0, 1);
    auto const* data = sent[0].data();
    pair.transport->send(0, std::move(sent), 0);
    auto const received = pair.receive(0, 0, 100);
    CHECK(received[0].data() != data);
    pair.transport->retire(0, 1);
    CHECK(pair.is_right(received, 1));
  }

  SECTION("draining lets go of everything, and counting starts anew") {
    two_ranks<Transport> pair(make);
    for (int round = 0; round < 3; ++round) {
      for (std::uint32_t n = 1; n < 4; ++n) {
        pair.transport->post_receive(0, 100);
        pair.send(0, n);
      }
      pair.transport->post_receive(1, 100);
      CHECK(pair.is_right(pair.receive(0, 0, 100), 1));
      pair.transport->retire(0, 1);
      pair.transport->drain();
      CHECK(pair.in_use(0) == 0);
      CHECK(pair.in_use(1) == 0);
      CHECK(pair.transport->arrival(0, 0) == Transport::not_yet);
    }
  }

  SECTION("aborting wakes those who wait") {
    two_ranks<Transport> pair(make);
    std::array<std::uint32_t, 2> const before{pair.wakeups[0].load(), pair.wakeups[1].load()};
    std::vector<std::jthread> waiting;
    for (std::size_t i : {0U, 1U})
      waiting.emplace_back([&, i] { pair.wakeups[i].wait(before[i]); });
    pair.transport->abort();
    waiting.clear();  // joins: without a wake-up this would hang
    CHECK(pair.wakeups[0].load() != before[0]);
    CHECK(pair.wakeups[1].load() != before[1]);
  }

  SECTION("who sees that a message has arrived sees its bytes, whatever woke him") {
    constexpr std::int32_t count = 200;
    two_ranks<Transport> pair(make, count);
    bool is_right = true;
    {
      std::jthread const receiver([&] {
        for (std::int32_t n = 0; n < count; ++n) {
          while (pair.transport->arrival(0, n) == Transport::not_yet) std::this_thread::yield();
          auto const msg = pair.transport->take(0, n, 0);
          is_right = is_right && pair.is_right(msg, static_cast<std::uint32_t>(n));
        }
      });
      for (std::int32_t n = 0; n < count; ++n) pair.send(0, static_cast<std::uint32_t>(n));
    }
    CHECK(is_right);
  }

  SECTION("two threads may send to each other at the same time") {
    constexpr int depth = 3;
    constexpr std::int32_t count = 3000;
    two_ranks<Transport> pair(make, 2 * depth);
    std::array<bool, 2> is_right{true, true};
    // A side sends at most `depth` messages more than it has taken. So when the other side sent its
    // message k it had taken k + 1 - depth of mine, and 2 * depth of mine are under way at most.
    auto run = [&](int rank) {
      int const out = rank;
      int const in = 1 - rank;
      std::int32_t sent = 0;
      for (std::int32_t taken = 0; taken < count; ++taken) {
        for (; sent < count && sent < taken + depth; ++sent)
          pair.send(out, static_cast<std::uint32_t>(sent));
        pair.transport->post_receive(in, 100);
        auto const msg = pair.receive(in, taken, 100);
        auto& right = is_right[detail::index(rank)];
        right = right && pair.is_right(msg, static_cast<std::uint32_t>(taken));
        if (taken >= depth) pair.transport->retire(out, taken - depth + 1);
      }
    };
    {
      std::jthread const first(run, 0);
      std::jthread const second(run, 1);
    }
    CHECK(is_right[0]);
    CHECK(is_right[1]);
    pair.transport->drain();
    CHECK(pair.in_use(0) == 0);
    CHECK(pair.in_use(1) == 0);
  }
}

}  // namespace zbpp::test
