// SPDX-License-Identifier: Apache-2.0
#include <zbpp/asio/detail/listener.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace test_asio_listener {

namespace {

namespace net = boost::asio;
using net::ip::tcp;
using zbpp::asio::io_loop;
using zbpp::asio::run_token;
using zbpp::asio::detail::link_purpose;
using zbpp::asio::detail::listener;
using zbpp::asio::detail::listener_counts;
using zbpp::asio::detail::listener_settings;
using namespace std::chrono_literals;

constexpr std::chrono::seconds enough{20};

run_token const& token() {
  static auto const shared = run_token::from_text("the token of these tests");
  return shared;
}

// A listener, its io_loop, and the guests that it handed on.
class place {
 public:
  explicit place(listener_settings const& settings = {}) {
    by_.exclusively([&] {
      listener_.emplace(
          by_,
          token(),
          [this](tcp::socket socket, link_purpose use) {
            if (on_guest) on_guest();
            guests.emplace_back(std::move(socket), use);
          },
          settings);
      most_ = settings.most_pending;
      address_ = listener_->endpoint();
    });
  }
  place(place const&) = delete;
  place& operator=(place const&) = delete;
  ~place() {
    by_.exclusively([&] {
      guests.clear();
      listener_.reset();
    });
  }

  tcp::endpoint address() const { return address_; }

  // Runs the listener until this holds, or for too long. The bound on strangers holds all the
  // while.
  template <class Predicate>
  bool becomes(Predicate done) {
    std::optional<net::steady_timer> deadline;
    bool is_over = false;
    bool is_bounded = true;
    by_.exclusively([&] {
      deadline.emplace(by_.io(), enough);
      deadline->async_wait([&](boost::system::error_code) { is_over = true; });
    });
    bool is_done = false;
    by_.run_until([&] {
      is_bounded = is_bounded && (!listener_ || listener_->pending() <= most_);
      is_done = done();
      return is_done || is_over;
    });
    by_.exclusively([&] { deadline->cancel(); });
    by_.run_until([&] { return is_over; });
    return is_done && is_bounded;
  }

  listener_counts counts() {
    return by_.exclusively([&] { return listener_->counts(); });
  }
  std::size_t pending() {
    return by_.exclusively([&] { return listener_->pending(); });
  }
  // As the io_loop's thread or the I/O thread.
  listener& inner() { return *listener_; }
  io_loop& by() { return by_; }
  void destroy() { listener_.reset(); }

  std::vector<std::pair<tcp::socket, link_purpose>> guests;
  std::function<void()> on_guest;

 private:
  io_loop by_;
  std::optional<listener> listener_;
  std::size_t most_ = 0;
  tcp::endpoint address_;
};

// The other side, on the thread of the test.
class visitor {
 public:
  explicit visitor(net::io_context& io) : io_(io), socket(io) {}
  visitor& to(tcp::endpoint const& address) {
    socket.connect(address);
    return *this;
  }
  void say(std::vector<std::byte> const& content) {
    boost::system::error_code ignored;
    net::write(socket, net::buffer(content), ignored);
  }

  // @return whether it was let in; else `why` says why not
  bool introduces_itself(
      run_token const& with = token(), link_purpose use = link_purpose::control) {
    bool is_over = false;
    bool is_in = false;
    net::co_spawn(
        io_,
        zbpp::asio::detail::introduce(socket, with, use),
        [&](std::exception_ptr const& failure) {
          is_over = true;
          is_in = !failure;
          if (failure) note(failure);
        });
    run([&] { return is_over; });
    return is_in;
  }

  // Reads until the other side closes the connection. @return whether it did
  bool is_closed() {
    bool is_over = false;
    std::array<char, 256> bin{};
    boost::system::error_code reason;
    while (!reason) {
      is_over = false;
      socket.async_read_some(net::buffer(bin), [&](boost::system::error_code found, std::size_t) {
        reason = found;
        is_over = true;
      });
      if (!run([&] { return is_over; })) return false;
    }
    return true;
  }

 private:
  void note(std::exception_ptr const& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (std::exception const& e) {
      why = e.what();
    }
  }
  template <class Predicate>
  bool run(Predicate done) {
    auto const until = std::chrono::steady_clock::now() + enough;
    while (!done() && std::chrono::steady_clock::now() < until) {
      io_.restart();
      io_.run_one_until(until);
    }
    if (done()) return true;
    boost::system::error_code ignored;
    socket.close(ignored);  // so that what was started ends before what it refers to
    io_.restart();
    io_.run();
    return false;
  }

  net::io_context& io_;

 public:
  tcp::socket socket;
  std::string why;
};

std::vector<std::byte> noise(zbpp::test::seeded_random& random) {
  std::vector<std::byte> result(static_cast<std::size_t>(random.integer(1, 400)));
  for (auto& b : result) b = static_cast<std::byte>(random.integer(0, 255));
  return result;
}

}  // namespace

TEST_CASE("a listener hands on whoever holds the token", "[asio][listener]") {
  place here;
  net::io_context io;
  CHECK(here.address().address().is_loopback());
  CHECK(here.address().port() != 0);
  for (auto const link : {link_purpose::control, link_purpose::data}) {
    visitor guest(io);
    REQUIRE(guest.to(here.address()).introduces_itself(token(), link));
    REQUIRE(here.becomes([&] { return !here.guests.empty(); }));
    here.by().exclusively([&] {
      CHECK(here.guests.back().second == link);
      tcp::no_delay is_on;
      here.guests.back().first.get_option(is_on);
      CHECK(is_on.value());
      // The connection is the same one, and nothing of what follows was read.
      net::write(guest.socket, net::buffer("hello", 5));
      std::array<char, 5> heard{};
      net::read(here.guests.back().first, net::buffer(heard));
      CHECK(std::string(heard.data(), heard.size()) == "hello");
      here.guests.clear();
    });
  }
  auto const counts = here.counts();
  CHECK(counts.admitted == 2);
  CHECK(counts.refused + counts.dropped + counts.failed == 0);
  CHECK(here.pending() == 0);
}

TEST_CASE("who does not hold the token is refused, counted and told", "[asio][listener]") {
  place here;
  net::io_context io;
  visitor guest(io);
  CHECK_FALSE(
      guest.to(here.address()).introduces_itself(run_token::from_text("some other token.")));
  CHECK(guest.why.find("refused this process: it holds another token") != std::string::npos);
  REQUIRE(here.becomes([&] { return here.inner().counts().refused == 1; }));
  CHECK(here.counts().last_reason.find("does not hold this run's token") != std::string::npos);
  CHECK(here.counts().admitted == 0);
  CHECK(here.guests.empty());
  CHECK(guest.is_closed());
}

TEST_CASE("two hundred that say nothing keep nobody out", "[asio][listener]") {
  place here({.handshake_deadline = 2s, .most_pending = 16});
  net::io_context io;
  std::vector<visitor> silent;
  silent.reserve(200);
  for (std::size_t i = 0; i < 200; ++i) {
    silent.emplace_back(io).to(here.address());
    if (i % 20 != 19) continue;
    visitor honest(io);
    CAPTURE(i, honest.why);
    REQUIRE(honest.to(here.address()).introduces_itself());
    CHECK(here.pending() <= 16);
  }
  REQUIRE(here.becomes([&] {
    return here.inner().counts().dropped == 200 && here.inner().counts().admitted == 10;
  }));
  CHECK(here.pending() == 0);
  CHECK(here.guests.size() == 10);
  for (auto& stranger : silent) CHECK(stranger.is_closed());
}

TEST_CASE("with room for one, the last to come has it", "[asio][listener]") {
  place here({.most_pending = 1});
  net::io_context io;
  visitor first(io);
  first.to(here.address());
  REQUIRE(here.becomes([&] { return here.inner().pending() == 1; }));
  visitor second(io);
  CHECK(second.to(here.address()).introduces_itself());
  CHECK(first.is_closed());
  CHECK(here.counts().dropped == 1);
  CHECK(here.counts().last_reason.find("made room for newer connections") != std::string::npos);
}

TEST_CASE("a stranger that sends a byte and no more is dropped", "[asio][listener]") {
  place here({.handshake_deadline = 2s});
  net::io_context io;
  std::vector<visitor> slow;
  slow.reserve(20);
  for (std::size_t i = 0; i < 20; ++i) {
    slow.emplace_back(io).to(here.address());
    slow.back().say({static_cast<std::byte>('z')});
  }
  visitor honest(io);
  CHECK(honest.to(here.address()).introduces_itself());
  REQUIRE(here.becomes([&] { return here.inner().counts().dropped == 20; }));
  CHECK(
      here.counts().last_reason.find("did not finish the handshake in time") != std::string::npos);
  for (auto& stranger : slow) CHECK(stranger.is_closed());
  CHECK(here.counts().admitted == 1);
}

TEST_CASE("a stranger that goes on byte by byte does not gain time", "[asio][listener]") {
  place here({.handshake_deadline = 200ms});
  net::io_context io;
  visitor slow(io);
  slow.to(here.address());
  // A byte whenever the listener has run something, fewer than an answer has.
  std::size_t said = 0;
  std::string const good_beginning("zbpp\1\0\0\0", 8);
  REQUIRE(here.becomes([&] {
    bool const is_over = here.inner().counts().dropped == 1;
    if (!is_over && said < 60) {
      slow.say({static_cast<std::byte>(said < 8 ? good_beginning[said] : 'x')});
      ++said;
    }
    return is_over;
  }));
  CHECK(here.counts().refused == 0);
  CHECK(slow.is_closed());
}

TEST_CASE("random bytes open no listener and close none", "[asio][listener]") {
  place here({.most_pending = 8});
  net::io_context io;
  for (int trial = 0; trial < 100; ++trial) {
    ZBPP_SEEDED(random, trial);
    visitor stranger(io);
    stranger.to(here.address()).say(noise(random));
    if (random.chance(0.3)) stranger.say(noise(random));
    if (trial % 10 != 9) continue;
    visitor honest(io);
    CAPTURE(honest.why);
    REQUIRE(honest.to(here.address()).introduces_itself());
  }
  REQUIRE(here.becomes([&] {
    auto const& c = here.inner().counts();
    return c.admitted == 10 && c.refused + c.dropped == 100;
  }));
  CHECK(here.guests.size() == 10);
}

TEST_CASE("a flood takes turns with those who drive", "[asio][listener]") {
  place here({.most_pending = 8});
  std::thread flood([address = here.address()] {
    net::io_context io;
    for (int i = 0; i < 1500; ++i) {
      tcp::socket socket(io);
      boost::system::error_code ignored;
      socket.connect(address, ignored);
    }
  });
  // Each of these waits until what is ready has run: that has to come to an end.
  for (int i = 0; i < 200; ++i) here.by().exclusively([] {});
  net::io_context io;
  bool is_in = false;
  for (int attempt = 0; attempt < 100 && !is_in; ++attempt) {
    visitor honest(io);
    is_in = honest.to(here.address()).introduces_itself();
  }
  flood.join();
  CHECK(is_in);
}

TEST_CASE("a listener rests between helpings of strangers", "[asio][listener]") {
  place here;
  here.by().stop();  // from here on it runs only what these calls run
  net::io_context io;
  std::vector<tcp::socket> waiting;
  for (int i = 0; i < 120; ++i) waiting.emplace_back(io).connect(here.address());
  for (int i = 0; i < 3; ++i) here.by().exclusively([] {});
  auto const taken = here.pending();
  CHECK(taken > 0);
  CHECK(taken <= 64);
  REQUIRE(
      here.becomes([&] { return here.inner().pending() + here.inner().counts().dropped == 120; }));
}

TEST_CASE("a listener survives that descriptors run out", "[asio][listener]") {
  place here;
  net::io_context io;
  visitor guest(io);
  guest.socket.open(tcp::v4());
  ::rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  int const next = ::dup(0);
  REQUIRE(next >= 0);
  ::close(next);
  auto none = usual;
  none.rlim_cur = static_cast<::rlim_t>(next);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  boost::system::error_code connected;
  guest.socket.connect(here.address(), connected);
  bool const has_failed = here.becomes([&] { return here.inner().counts().failed >= 2; });
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  REQUIRE_FALSE(connected);
  REQUIRE(has_failed);
  CHECK(here.counts().last_failure.find("Too many open files") != std::string::npos);
  CHECK(guest.introduces_itself());
  REQUIRE(here.becomes([&] { return here.inner().counts().admitted == 1; }));
}

TEST_CASE("a stopped listener lets nobody in and calls nobody", "[asio][listener]") {
  place here;
  net::io_context io;
  visitor at_the_door(io);
  visitor guest(io);
  at_the_door.to(here.address());
  REQUIRE(guest.to(here.address()).introduces_itself());
  REQUIRE(here.becomes([&] { return here.inner().pending() == 1 && here.guests.size() == 1; }));
  here.by().exclusively([&] {
    here.inner().stop();
    here.inner().stop();
    CHECK(here.inner().pending() == 0);
  });
  CHECK(at_the_door.is_closed());
  visitor late(io);
  boost::system::error_code reason;
  late.socket.connect(here.address(), reason);
  CHECK(reason == net::error::connection_refused);
  // The guest stays.
  here.by().exclusively([&] {
    net::write(here.guests.front().first, net::buffer("x", 1));
    std::array<char, 1> heard{};
    CHECK(net::read(guest.socket, net::buffer(heard)) == 1);
  });
  CHECK(here.counts().admitted == 1);
}

TEST_CASE("a guest that nobody can take counts as refused", "[asio][listener]") {
  place here;
  net::io_context io;
  here.by().exclusively([&] { here.on_guest = [] { throw std::runtime_error("no chair left"); }; });
  visitor first(io);
  REQUIRE(first.to(here.address()).introduces_itself());
  CHECK(first.is_closed());
  CHECK(here.counts().refused == 1);
  CHECK(here.counts().admitted == 0);
  CHECK(here.counts().last_reason == "no chair left");
  here.by().exclusively([&] { here.on_guest = nullptr; });
  visitor second(io);
  REQUIRE(second.to(here.address()).introduces_itself());
  REQUIRE(here.becomes([&] { return here.inner().counts().admitted == 1; }));
}

TEST_CASE("a guest may destroy the listener that let it in", "[asio][listener]") {
  place here;
  net::io_context io;
  here.by().exclusively([&] { here.on_guest = [&] { here.destroy(); }; });
  visitor guest(io);
  REQUIRE(guest.to(here.address()).introduces_itself());
  REQUIRE(here.becomes([&] { return here.guests.size() == 1; }));
  visitor late(io);
  boost::system::error_code reason;
  late.socket.connect(here.address(), reason);
  CHECK(reason == net::error::connection_refused);
}

TEST_CASE("a listener may go at any moment", "[asio][listener]") {
  // What it leaves behind on the io_loop must not touch it: the address sanitizer looks.
  for (int trial = 0; trial < 100; ++trial) {
    ZBPP_SEEDED(random, 100 + trial);
    net::io_context io;
    std::vector<visitor> visitors;
    visitors.reserve(4);
    place here({.handshake_deadline = 50ms, .most_pending = 2});
    auto const count = random.integer(0, 4);
    for (int i = 0; i < count; ++i) {
      visitors.emplace_back(io).to(here.address());
      if (random.chance(0.4)) visitors.back().say(noise(random));
    }
    auto const turns = random.integer(0, 6);
    for (int i = 0; i < turns; ++i) here.by().exclusively([] {});
    if (random.chance(0.5)) here.by().exclusively([&] { here.destroy(); });
    if (random.chance(0.5)) here.by().exclusively([] {});
  }
  SUCCEED();
}

TEST_CASE("what a listener cannot do is said where it is asked for", "[asio][listener]") {
  place here;
  io_loop by;
  auto const open = [&](listener_settings const& settings) {
    by.exclusively([&] {
      listener const server(
          by, token(), [](tcp::socket, link_purpose) {}, settings);
    });
  };
  auto const taken =
      zbpp::test::refusal(zbpp::errc::io_failed, [&] { open({.endpoint = here.address()}); });
  CHECK(
      taken == "cannot listen on address 127.0.0.1, port " + std::to_string(here.address().port()) +
                   ": Address already in use; choose a free port and an address of this machine");
  CHECK(zbpp::test::refusal([&] {
          open({.endpoint = {net::ip::make_address("192.0.2.1"), 0}});
        }).find("cannot listen on address 192.0.2.1, port 0: ") == 0);
  CHECK(zbpp::test::refusal([&] {
          open({.most_pending = 0});
        }) == "listener_settings::most_pending is 0; set at least 1");
  CHECK(zbpp::test::refusal([&] {
          open({.handshake_deadline = 0ms});
        }) == "listener_settings::handshake_deadline is 0 ms or less; set it above 0 ms");
}

}  // namespace test_asio_listener
