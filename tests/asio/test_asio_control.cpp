// SPDX-License-Identifier: Apache-2.0
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/control_connection.hpp>
#include <zbpp/asio/detail/data_connector.hpp>
#include <zbpp/asio/detail/io_parts.hpp>
#include <zbpp/asio/detail/listener.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/model/program.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/processes.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

namespace test_asio_control {

using namespace zbpp;
using namespace std::chrono_literals;
using asio::rank_failure;
using asio::detail::control_connection;
using asio::detail::control_kind;
using asio::detail::stop_progress;
using boost_tcp = boost::asio::ip::tcp;
using test::run_ranks;

namespace {

constexpr auto test_limit = 20s;  // a test that has to wait longer fails

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

std::string name_of_first(std::vector<rank_failure> const& failures) {
  return failures.empty() ? "nothing" : to_error(failures.front()).what();
}

rank_failure failure_of(int rank) {
  return {
      {rank, 4, 2, rank},
      instruction{instruction_kind::forward, 2, rank},
      errc::wrong_flow,
      "pass of rank " + std::to_string(rank)};
}

// A process that joins a run and then does as a test says.
class raw_member {
 public:
  raw_member(std::uint16_t port, int rank, int ranks, std::uint16_t data_port = 1) {
    socket_.connect({boost::asio::ip::address_v4::loopback(), port});
    std::exception_ptr failed;
    boost::asio::co_spawn(
        io_,
        asio::detail::introduce(socket_, token_, asio::detail::link_purpose::control),
        [&](std::exception_ptr wrong) { failed = wrong; });
    io_.run_for(test_limit);
    if (failed) std::rethrow_exception(failed);
    send(
        control_kind::join,
        write(asio::detail::join_request{rank, ranks, ZBPP_VERSION, {"", data_port}}));
  }

  void send(control_kind kind, asio::blob const& payload = {}) {
    asio::wire_writer to;
    to.put(static_cast<std::uint32_t>(payload.size())).put(static_cast<std::uint8_t>(kind));
    send_bytes(to.append(payload).take());
  }
  void tell(stop_progress reached) { send(control_kind::stopping, asio::detail::write(reached)); }
  void send_bytes(asio::blob const& bytes) {
    boost::system::error_code ignored;  // the other side may have closed already
    boost::asio::write(socket_, boost::asio::buffer(bytes), ignored);
  }

  // Reads frames up to one of the kind; the other side may close instead.
  std::optional<asio::blob> read(control_kind wanted) {
    for (;;) {
      auto const header = read_bytes(5);
      if (!header) return {};
      asio::wire_reader from(*header);
      auto const size = from.get<std::uint32_t>();
      auto const kind = static_cast<control_kind>(from.get<std::uint8_t>());
      auto payload = read_bytes(size);
      if (!payload || kind == wanted) return payload;
    }
  }
  void close() { socket_.close(); }
  int native() { return socket_.native_handle(); }

 private:
  std::optional<asio::blob> read_bytes(std::size_t count) {
    asio::blob bytes(count);
    for (std::size_t got = 0; got < count;) {
      pollfd waits{socket_.native_handle(), POLLIN, 0};
      if (::poll(&waits, 1, 20'000) != 1) return {};
      auto const n = ::recv(socket_.native_handle(), bytes.data() + got, count - got, 0);
      if (n <= 0) return {};
      got += static_cast<std::size_t>(n);
    }
    return bytes;
  }

  asio::run_token token_ = test::test_token();
  boost::asio::io_context io_;
  boost_tcp::socket socket_{io_};
};

// Runs `ranks` ranks, the last one of which is raw: `act(raw_member&)` when the run is complete.
// The others wait in a barrier, or as stated. @return what those threw
template <class Act>
std::vector<std::string> run_with_raw(
    int ranks,
    asio::rendezvous_settings settings,
    Act act,
    std::function<void(asio::rendezvous&)> const& others = &asio::rendezvous::barrier,
    std::uint16_t data_port = 1) {
  std::vector<std::string> thrown(static_cast<std::size_t>(ranks - 1));
  std::promise<std::uint16_t> listening;
  auto const port = listening.get_future().share();
  std::vector<std::thread> threads;
  for (int r = 0; r + 1 < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        auto own = settings;
        asio::launch start{r, ranks, r, "127.0.0.1", 0, "test"};
        if (r == 0)
          own.on_listening = [&](std::uint16_t number) { listening.set_value(number); };
        else
          start.port = port.get();
        asio::rendezvous meeting(start, own, test::test_token());
        others(meeting);
      } catch (std::exception const& wrong) {
        thrown[static_cast<std::size_t>(r)] = wrong.what();
      }
    });
  raw_member raw(port.get(), ranks - 1, ranks, data_port);
  bool const was_complete = raw.read(control_kind::welcome).has_value();
  act(raw);
  for (auto& t : threads) t.join();
  CHECK(was_complete);
  return thrown;
}

// What a step does on a rank: learns of the first failure, and that all ranks know of it; settles.
struct step_stub {
  explicit step_stub(asio::control& of_rank, std::function<void()> on_all_informed = {})
      : control(of_rank) {
    set(
        {.on_failure = [this](rank_failure const& first) { stopped.set_value(first); },
         .on_all_informed =
             [this, on_all_informed] {
               if (on_all_informed) on_all_informed();
               all_informed.set_value();  // throws when it is called again
             }});
  }
  ~step_stub() { set({}); }

  std::vector<rank_failure> wait_and_settle() {
    if (has_stopped.wait_for(test_limit) != std::future_status::ready)
      throw std::runtime_error("nobody told that the run has failed");
    auto const first = has_stopped.get();
    auto failures = control.settle();
    if (std::ranges::find(failures, first) == failures.end() && first.code != errc::peer_failed)
      throw std::runtime_error("the verdict lacks what ranks were told at first");
    wait_until_all_are_told();
    return failures;
  }
  void wait_until_all_are_told() {
    if (all_informed.get_future().wait_for(test_limit) != std::future_status::ready)
      throw std::runtime_error("nobody told that all ranks know of the failure");
  }

  void set(asio::failure_calls calls) {
    control.loop().exclusively([&] { control.on_failure(std::move(calls)); });
  }

  asio::control& control;
  std::promise<rank_failure> stopped;
  std::future<rank_failure> has_stopped = stopped.get_future();
  std::promise<void> all_informed;
};

}  // namespace

// A rank that had sent its last message slept until the next heartbeat where another thread had
// taken the notification.
TEST_CASE("what is called before the loop sleeps may be all that a wait is for") {
  struct note {
    bool is_wanted = false;
    bool is_made = false;
  } one;
  asio::io_loop loop;
  boost::asio::steady_timer limit(loop.io());
  bool is_late = false;
  loop.exclusively([&] {
    auto const make = [](void* given) {
      auto& here = *static_cast<note*>(given);
      here.is_made = here.is_made || here.is_wanted;
    };
    loop.on_notify(make, &one);
    limit.expires_after(test_limit);
    limit.async_wait([&](auto const& cancelled) { is_late = is_late || !cancelled; });
  });
  loop.run_until([&] {
    one.is_wanted = true;
    return one.is_made || is_late;
  });
  CHECK_FALSE(is_late);
  loop.exclusively([&] {
    loop.forget(&one);
    limit.cancel();
  });
}

TEST_CASE("what fails on some ranks at once reaches all, the same one first, none missing") {
  for (int ranks : {1, 2, 3, 5, 8}) {
    for (int trial = 0; trial < 4; ++trial) {
      ZBPP_SEEDED(rng, ranks * 10 + trial);
      std::vector<char> fails(static_cast<std::size_t>(ranks));
      for (auto& f : fails) f = trial == 0 || rng.chance(0.5);
      fails[static_cast<std::size_t>(rng.integer(0, ranks - 1))] = 1;
      std::vector<std::vector<rank_failure>> seen(fails.size());
      std::vector<std::string> later(fails.size());
      auto const thrown =
          run_ranks(ranks, test::patient_settings(), [&](asio::rendezvous& meeting) {
            auto const r = static_cast<std::size_t>(meeting.rank());
            auto& control = meeting.control_channel();
            step_stub step(control);
            meeting.barrier();
            seen[r] =
                fails[r] ? control.settle(failure_of(meeting.rank())) : step.wait_and_settle();
            if (control.settle() != seen[r]) throw std::runtime_error("the verdict has changed");
            try {
              meeting.barrier();
            } catch (error const& wrong) {
              later[r] = wrong.what();
            }
          });
      CHECK(thrown == std::vector<std::string>(fails.size()));
      for (std::size_t r = 0; r < fails.size(); ++r) {
        CHECK(seen[r] == seen[0]);
        CHECK(later[r] == name_of_first(seen[0]));
        auto const own = failure_of(static_cast<int>(r));
        CHECK(std::count(seen[0].begin(), seen[0].end(), own) == fails[r]);
      }
      auto const number = std::count(fails.begin(), fails.end(), char{1});
      CHECK(seen[0].size() == static_cast<std::size_t>(number));
    }
  }
}

TEST_CASE("all ranks know of a failure before any may give up messages") {
  for (int ranks : {1, 2, 3, 5, 8})
    for (int trial = 0; trial < 4; ++trial) {
      ZBPP_SEEDED(random, ranks * 10 + trial);
      auto const culprit = static_cast<int>(random.integer(0, ranks - 1));
      // Runs no step, so it gives up nothing, and nobody waits for it.
      auto const outside = static_cast<int>(random.integer(0, 2 * ranks));
      std::atomic<int> informed{0};
      std::vector<std::vector<int>> known(static_cast<std::size_t>(ranks));
      auto const thrown =
          run_ranks(ranks, test::patient_settings(), [&](asio::rendezvous& meeting) {
            auto& control = meeting.control_channel();
            auto const rank = meeting.rank();
            meeting.barrier();
            asio::failure_calls calls{
                .on_failure =
                    [&](rank_failure const&) {
                      for (int i = 0; i < 2 * rank; ++i) std::this_thread::yield();
                      ++informed;
                    },
                .on_all_informed =
                    [&, rank] { known[static_cast<std::size_t>(rank)].push_back(informed); }};
            auto const set = [&](asio::failure_calls const& calls_of_rank) {
              control.loop().exclusively([&] { control.on_failure(calls_of_rank); });
            };
            if (rank != outside) set(calls);
            meeting.barrier();
            if (rank == culprit) control.settle(failure_of(rank));
            try {
              meeting.barrier();
            } catch (error const&) {  // the failure
            }
            set({});
          });
      for (auto const& text : thrown) CHECK(text == "");
      auto const in_steps = outside < ranks ? ranks - 1 : ranks;
      for (int rank = 0; rank < ranks; ++rank) {
        INFO("rank " << rank << ", culprit " << culprit << ", outside of a step " << outside);
        auto const expected = rank == outside ? std::vector<int>{} : std::vector{in_steps};
        CHECK(known[static_cast<std::size_t>(rank)] == expected);
      }
    }
}

TEST_CASE("nobody may give up messages until the last rank says that it knows, or a limit") {
  for (bool const answers : {true, false}) {
    auto settings = test::patient_settings();
    if (!answers) settings.deadline = 2s;  // the limit is a quarter of it
    std::atomic<int> know{0};
    bool was_early = false;
    bool are_told = false;
    auto const others = [&](asio::rendezvous& meeting) {
      step_stub step(meeting.control_channel(), [&] { ++know; });
      if (meeting.rank() == 0)
        meeting.control_channel().settle(failure_of(0));
      else
        step.wait_and_settle();
    };
    auto const thrown = run_with_raw(
        3,
        settings,
        [&](raw_member& raw) {
          raw.read(control_kind::stop);
          was_early = answers && know != 0;
          if (answers) raw.tell(stop_progress::informed);
          are_told = raw.read(control_kind::all_informed).has_value();
          raw.tell(stop_progress::ended);
          raw.read(control_kind::verdict);
          raw.close();
        },
        others);
    for (auto const& text : thrown) CHECK(text == "");
    CHECK_FALSE(was_early);
    CHECK(are_told);
    CHECK(know == 2);
  }
}

TEST_CASE("a failure carries place, instruction, code and text to every rank") {
  auto const thrown = run_ranks(3, test::patient_settings(), [&](asio::rendezvous& meeting) {
    if (meeting.rank() == 2) meeting.control_channel().settle(failure_of(2));
    meeting.barrier();
  });
  for (auto const& text : thrown)
    CHECK(text == "wrong flow: rank 2, position 4, stage 2, microbatch 2: in 2F2: pass of rank 2");
}

TEST_CASE("a rank in its own code hears of a failure at its next call") {
  std::atomic<bool> has_failed{false};
  auto const thrown = run_ranks(2, test::patient_settings(), [&](asio::rendezvous& meeting) {
    if (meeting.rank() == 1) {
      meeting.control_channel().settle(failure_of(1));
      has_failed = true;
    }
    while (!has_failed) std::this_thread::yield();
    meeting.barrier();
  });
  for (auto const& text : thrown) CHECK(contains(text, "pass of rank 1"));
}

TEST_CASE("hearsay about a rank that failed is left out, its own words are not") {
  std::vector<rank_failure> seen;
  auto const thrown = run_ranks(3, test::patient_settings(), [&](asio::rendezvous& meeting) {
    auto& control = meeting.control_channel();
    step_stub step(control);
    meeting.barrier();
    rank_failure const lost{{2, -1, -1, -1}, {}, errc::peer_failed, "channel closed"};
    if (meeting.rank() == 0) {
      control.loop().exclusively([&] { control.report(lost); });
      seen = step.wait_and_settle();
    } else {
      step.has_stopped.wait_for(test_limit);
      auto more = lost;
      more.text = meeting.rank() == 1 ? "another channel closed" : "the stage threw";
      control.settle(more);
    }
  });
  CHECK(thrown == std::vector<std::string>(3));
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].text == "the stage threw");
}

TEST_CASE("a rank 0 that leaves after a large outcome waits for those who are slow to read it") {
  asio::blob const large(std::size_t{48} << 20);
  bool is_whole = false;
  auto const thrown = run_with_raw(
      2,
      test::patient_settings(),
      [&](raw_member& raw) {
        asio::detail::collective_call const call{
            0,
            asio::collective::broadcast,
            0,
            {},
            asio::rank_call::of(asio::collective::broadcast, 0)};
        raw.send(control_kind::call, write(call));
        ::poll(nullptr, 0, 1000);  // is slow: longer than a rank lingers when it leaves
        auto const outcome = raw.read(control_kind::outcome);
        is_whole = outcome && outcome->size() > large.size();
      },
      [&](asio::rendezvous& meeting) { meeting.broadcast(large, 0); });
  CHECK(thrown == std::vector<std::string>(1));
  CHECK(is_whole);
}

TEST_CASE("a process that ends is named on all ranks") {
  for (int ranks : {2, 3, 5}) {
    auto const thrown =
        run_with_raw(ranks, test::patient_settings(), [](raw_member& raw) { raw.close(); });
    for (auto const& text : thrown)
      CHECK(
          text == "rank " + std::to_string(ranks - 1) +
                      ": its process has ended or its connection broke (it closed the "
                      "connection)");
  }
}

TEST_CASE("what a rank says of itself goes before what others notice of it, in any order") {
  enum class word { nothing, goodbye, of_pipeline, failure, end };
  for (auto const said :
       {word::nothing, word::goodbye, word::of_pipeline, word::failure, word::end})
    for (int noticing : {0, 1}) {
      std::promise<void> noticed;
      auto const is_noticed = noticed.get_future().share();
      auto const thrown = run_with_raw(
          3,
          test::patient_settings(),
          [&](raw_member& raw) {
            // Nothing that this rank says comes before the others have lost it.
            REQUIRE(raw.read(control_kind::stop));
            if (said == word::of_pipeline)
              raw.send(
                  control_kind::note,
                  asio::detail::write(
                      asio::rank_call{.kind = asio::call_kind::destroy_pipeline, .pipeline = 1}));
            if (said == word::goodbye) raw.send(control_kind::bye);
            if (said == word::failure)
              raw.send(control_kind::report, asio::detail::write(failure_of(2)));
            if (said == word::end) return raw.close();
            raw.tell(stop_progress::ended);
            raw.read(control_kind::verdict);
          },
          [&](asio::rendezvous& meeting) {
            auto& control = meeting.control_channel();
            asio::rank_call call{.kind = asio::call_kind::run, .pipeline = 1};
            call.steps.step = 4;
            control.begin_run(call);
            if (meeting.rank() == noticing)
              control.loop().exclusively([&] {
                control.report({{2, -1, -1, -1}, {}, errc::peer_failed, "its channel broke"});
              });
            for (;;) control.check(), std::this_thread::yield();
          });
      for (auto const& text : thrown) {
        INFO(text);
        // Where it leaves a pipeline that others use, both may be named.
        auto const left = "rank 2: left the run; rank";
        if (said == word::nothing) CHECK(text == "rank 2: its channel broke");
        if (said == word::goodbye) CHECK(contains(text, left));
        if (said == word::of_pipeline) CHECK(contains(text, left));
        if (said == word::failure) CHECK(contains(text, "pass of rank 2"));
        if (said == word::end) CHECK(contains(text, "rank 2: its process has ended"));
      }
    }
}

TEST_CASE("a connection that is reset is named on all ranks") {
  auto const thrown = run_with_raw(3, test::patient_settings(), [](raw_member& raw) {
    linger const at_once{1, 0};
    ::setsockopt(raw.native(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    raw.close();
  });
  for (auto const& text : thrown)
    CHECK(
        text == "rank 2: its process has ended or its connection broke (Connection reset by peer)");
}

TEST_CASE("a process that joins and then says nothing is named on all ranks, and told why") {
  auto settings = test::patient_settings();
  settings.deadline = 3s;
  bool is_told = false;
  auto const thrown = run_with_raw(3, settings, [&](raw_member& raw) {
    auto const verdict = raw.read(control_kind::verdict);
    is_told = verdict && asio::detail::read_failures(*verdict).front().location.rank == 2;
  });
  for (auto const& text : thrown)
    CHECK(
        text == "rank 2: has not been heard for 3.0 s; it is stopped, overloaded or cut off; "
                "rendezvous_settings::deadline sets this limit");
  CHECK(is_told);
}

TEST_CASE("a frame that never ends is silence") {
  auto settings = test::patient_settings();
  settings.deadline = 2s;
  auto const thrown = run_with_raw(2, settings, [&](raw_member& raw) {
    asio::wire_writer half;
    half.put(std::uint32_t{1000}).put(static_cast<std::uint8_t>(control_kind::call)).put(1);
    raw.send_bytes(half.take());
    raw.read(control_kind::verdict);
  });
  CHECK(contains(thrown[0], "rank 1: has not been heard for 2.0 s"));
}

TEST_CASE("a rank that joins and leaves before all are there is named, with why") {
  auto settings = test::patient_settings();
  settings.join_deadline = 2s;
  std::promise<std::uint16_t> listening;
  settings.on_listening = [&](std::uint16_t number) { listening.set_value(number); };
  std::thread others([port = listening.get_future()]() mutable {
    auto const number = port.get();
    raw_member gives_up(number, 1, 4);
    gives_up.send(control_kind::bye);
    raw_member(number, 2, 4).close();
    gives_up.read(control_kind::stop);  // until rank 0 closes
  });
  auto const text = test::refusal(errc::no_rendezvous, [&] {
    asio::rendezvous meeting({0, 4, 0, "127.0.0.1", 0, "test"}, settings, test::test_token());
  });
  others.join();
  CHECK(contains(text, "ranks 1, 2 and 3 of 4 did not come within 2.0 s to 127.0.0.1:"));
  std::string const left = " joined, and left before all were there (";
  CHECK(contains(text, "; rank 1" + left + "it gave up); look at its output"));
  CHECK(contains(text, "; rank 2" + left));
}

TEST_CASE("a process that sends what is no frame is the one that failed") {
  auto const send = [](control_kind kind, asio::blob payload = {}) {
    return [kind, payload](raw_member& raw) { raw.send(kind, payload); };
  };
  auto const bytes_of = [](std::uint32_t size, int kind) {
    asio::wire_writer to;
    to.put(size).put(static_cast<std::uint8_t>(kind));
    return [bytes = to.take()](raw_member& raw) { raw.send_bytes(bytes); };
  };
  auto settings = test::patient_settings();
  settings.largest_blob = 1000;
  auto const text_after = [&](auto act) { return run_with_raw(2, settings, act).front(); };
  auto const begin = std::string(
      "rank 1: its process has ended or its connection broke (it sent an invalid frame: ");

  CHECK(
      text_after(bytes_of(0xffffffff, 1)) ==
      begin + "a frame of 4294967295 bytes; at most 262496 are expected there)");
  CHECK(text_after(bytes_of(0, 200)) == begin + "a frame of kind 200)");
  CHECK(contains(text_after(send(control_kind::welcome)), begin + "a frame of kind 1, which only"));
  CHECK(contains(text_after(send(control_kind::report)), begin + "expected 4 more bytes"));
  CHECK(contains(text_after(send(control_kind::heartbeat, asio::blob(3))), begin));
  asio::detail::collective_call call{7, asio::collective::barrier, 0, {}};
  CHECK(
      text_after(send(control_kind::call, write(call))) ==
      begin + "a collective call out of turn)");
  call = {0, asio::collective::broadcast, 2, {}};
  CHECK(
      text_after(send(control_kind::call, write(call))) ==
      begin + "a call from root 2 of 2 ranks)");
}

TEST_CASE("random bytes of a member end the run, not the process") {
  for (int trial = 0; trial < 20; ++trial) {
    ZBPP_SEEDED(rng, trial);
    auto const thrown = run_with_raw(2, test::patient_settings(), [&](raw_member& raw) {
      asio::blob bytes(static_cast<std::size_t>(rng.integer(5, 400)));
      for (auto& b : bytes) b = static_cast<std::byte>(rng.bits());
      // Short frames of unknown content, so that not only sizes are refused.
      if (rng.chance(0.5)) {
        bytes[0] = static_cast<std::byte>(rng.integer(0, 40));
        bytes[1] = bytes[2] = bytes[3] = std::byte{0};
        bytes[4] = static_cast<std::byte>(rng.integer(0, 12));
      }
      raw.send_bytes(bytes);
      raw.close();
    });
    CHECK(contains(thrown.front(), "rank 1: "));
  }
}

TEST_CASE("a stranger that holds the token but does not join is sent away") {
  auto settings = test::patient_settings();
  auto const thrown = run_ranks(2, settings, [&](asio::rendezvous& meeting) {
    if (meeting.rank() == 1) {
      auto const& start = meeting.control_channel().start();
      raw_member late(start.port, 1, 2);
      auto const refusal = late.read(control_kind::stop);
      if (!refusal ||
          !contains(asio::detail::read<asio::rank_failure>(*refusal).text, "is complete"))
        throw std::runtime_error("a late process was not refused");
      raw_member bad(start.port, 1, 2);
      bad.send(control_kind::call);
      if (!bad.read(control_kind::stop)) throw std::runtime_error("not refused");
    }
    meeting.barrier();
  });
  CHECK(thrown == std::vector<std::string>(2));
}

namespace {

// A rank 0 that completes the run of two and does as a test says at a frame of rank 1.
class raw_coordinator final : public asio::detail::connection_owner {
 public:
  template <class Act>
  raw_coordinator(control_kind when, Act act) : when_(when), act_(act) {
    loop_.exclusively([&] {
      listener_.emplace(
          loop_, test::test_token(), [this](boost_tcp::socket socket, asio::detail::link_purpose) {
            guest_ = std::make_shared<control_connection>(std::move(socket), *this, 1000);
            guest_->start();
          });
    });
  }
  ~raw_coordinator() {
    loop_.exclusively([&] {
      listener_->stop();
      if (guest_ != nullptr) guest_->close();
    });
    loop_.stop();
  }

  [[nodiscard]] std::uint16_t port() const { return listener_->endpoint().port(); }

 private:
  void on_frame(control_connection& from, control_kind kind, std::span<std::byte const>) override {
    if (kind == control_kind::join) {
      asio::roster all;
      all.ranks = {{"", 1}, {"127.0.0.1", 2}};
      from.send(control_kind::welcome, asio::detail::write(all));
    }
    if (kind == when_) act_(from);
  }
  void on_lost(control_connection&, std::string const&) override {}

  asio::io_loop loop_;
  control_kind when_;
  std::function<void(control_connection&)> act_;
  std::optional<asio::detail::listener> listener_;
  std::shared_ptr<control_connection> guest_;
};

// What a rank throws in a barrier when its rank 0 acts so.
template <class Act>
std::string thrown_under(
    asio::rendezvous_settings const& settings, Act act, control_kind when = control_kind::join) {
  raw_coordinator const coordinator(when, act);
  try {
    asio::rendezvous meeting(
        {1, 2, 1, "127.0.0.1", coordinator.port(), "test"}, settings, test::test_token());
    meeting.barrier();
  } catch (error const& wrong) {
    return wrong.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("a deadline that passes while this process is suspended waits for what has come") {
  boost::asio::io_context io;
  asio::detail::timeout deadline(io);
  std::string order;
  auto const start = std::chrono::steady_clock::now();
  deadline.set(300ms, [&] { order += "late"; });
  // Like a frame: its payload is read after its head.
  boost::asio::post(io, [&] {
    order += "head ";
    boost::asio::post(io, [&] { order += "payload "; });
  });
  while (std::chrono::steady_clock::now() < start + 500ms) std::this_thread::yield();
  io.run();
  CHECK(order == "head payload late");
}

TEST_CASE("silence is noticed when its limit is reached, not some time after") {
  // The clocks of one io_context are called in the order in which they end. A machine that wakes
  // this process late delays the call on purpose; then it is tried again.
  constexpr auto limit = 200ms;
  bool was_late = true;
  for (int trial = 0; trial < 50 && was_late; ++trial) {
    boost::asio::io_context io;
    auto const heard = std::chrono::steady_clock::now() + 30ms;
    std::string order;
    asio::detail::silence_limit watched(
        io,
        limit,
        [&] { return std::chrono::steady_clock::now() - heard; },
        [&] {
          order += "silent ";
          watched.stop();
        });
    watched.start();
    boost::asio::steady_timer after(io, heard + limit + 15ms);
    after.async_wait([&](boost::system::error_code const&) { order += "after"; });
    boost::asio::steady_timer before(io, heard + limit - 1ms);
    before.async_wait([&](boost::system::error_code const&) { order += "before "; });
    io.run();
    was_late = std::chrono::steady_clock::now() - heard > limit + 50ms;
    if (!was_late) CHECK(order == "before silent after");
  }
  CHECK_FALSE(was_late);
}

TEST_CASE("a process knows for how long it was suspended, until it has caught up") {
  boost::asio::io_context io;
  std::vector<std::chrono::milliseconds> seen;
  asio::detail::pulse beats(io, 10ms, [&](bool) { seen.push_back(beats.suspension()); });
  beats.start();
  auto const suspended_until = std::chrono::steady_clock::now() + 400ms;
  while (std::chrono::steady_clock::now() < suspended_until) std::this_thread::yield();
  CHECK(beats.suspension() >= 400ms);  // before any handler runs
  io.run_one();
  REQUIRE(seen.size() == 1);
  CHECK(seen.front() >= 400ms);
  CHECK(beats.suspension() >= 400ms);  // what came meanwhile is still to be read
}

TEST_CASE("a rank says itself that rank 0 is lost") {
  auto settings = test::patient_settings();
  CHECK(thrown_under(settings, [](control_connection& to) {
          to.finish(20s);
        }) == "rank 0: its process has ended or its connection broke (it closed the connection)");
  CHECK(contains(
      thrown_under(
          settings, [](control_connection& to) { to.send(control_kind::stop, asio::blob(3)); }),
      "rank 0: its process has ended or its connection broke (it sent an invalid frame"));
  // Before the call, or while this rank waits for its outcome.
  for (auto when : {control_kind::join, control_kind::call})
    CHECK(
        thrown_under(
            settings,
            [](control_connection& to) {
              asio::wire_writer calls;
              to.send(control_kind::bye, calls.put(std::uint64_t{0}).take());
            },
            when) == "rank 0: left the run; rank 1 called barrier");
  settings.deadline = 2s;
  CHECK(
      thrown_under(settings, [](control_connection&) {}) ==
      "rank 0: has not been heard for 2.0 s; it is stopped, overloaded or cut off; "
      "rendezvous_settings::deadline sets this limit");
}

TEST_CASE("a rank 0 that stops and then says nothing does not hold the others") {
  auto settings = test::patient_settings();
  settings.deadline = 2s;
  auto const text = thrown_under(settings, [](asio::detail::control_connection& to) {
    to.send(control_kind::stop, asio::detail::write(failure_of(0)));
  });
  CHECK(contains(text, "pass of rank 0"));
}

TEST_CASE("a rank that loses rank 0 may give up messages, too") {
  auto settings = test::patient_settings();
  settings.deadline = 2s;
  std::vector<std::function<void(asio::detail::control_connection&)>> const ends{
      [](auto& to) { to.finish(20s); },
      [](auto&) {},
      [](auto& to) { to.send(control_kind::stop, asio::detail::write(failure_of(0))); }};
  for (auto const& act : ends) {
    raw_coordinator const coordinator(control_kind::call, act);
    asio::rendezvous meeting(
        {1, 2, 1, "127.0.0.1", coordinator.port(), "test"}, settings, test::test_token());
    step_stub step(meeting.control_channel());
    CHECK_THROWS_AS(meeting.barrier(), error);
    CHECK_NOTHROW(step.wait_until_all_are_told());
  }
}

TEST_CASE("the watchdog sees what all ranks told, and ends the run") {
  auto settings = test::patient_settings();
  settings.deadline = 2s;
  auto const thrown = run_ranks(3, settings, [&](asio::rendezvous& meeting) {
    auto& control = meeting.control_channel();
    control.watch([](std::span<asio::progress_report const> all) -> std::optional<std::string> {
      std::string text;
      for (auto const& report : all) {
        if (!report.at || report.at->microbatch != report.rank) return {};
        text += "rank " + std::to_string(report.rank) + " waits in step " +
                std::to_string(report.step) + "; ";
      }
      return text;
    });
    control.board().begin_step(7);
    control.board().enter(
        asio::progress_phase::in_pass, {instruction_kind::forward, 0, meeting.rank()});
    if (meeting.rank() == 0) {
      meeting.barrier();
    } else {
      step_stub step(control);
      step.wait_and_settle();
      control.check();
    }
  });
  for (auto const& text : thrown)
    CHECK(
        text ==
        "a step stalled: rank 0 waits in step 7; rank 1 waits in step 7; rank 2 waits in step 7; ");
}

TEST_CASE("data connections are handed over, those too that come before anybody wants them") {
  auto const thrown = run_ranks(3, test::patient_settings(), [&](asio::rendezvous& meeting) {
    auto& control = meeting.control_channel();
    std::atomic<int> guests{0};
    auto const take = [&](boost_tcp::socket socket) { guests += socket.is_open() ? 1 : 0; };
    bool const is_early = meeting.rank() == 1;
    control.on_data_connection(nullptr);  // the rendezvous wants them, too
    if (is_early) control.on_data_connection(take);
    meeting.barrier();

    boost::asio::io_context io;
    std::vector<boost_tcp::socket> sockets;
    int introduced = 0;
    sockets.reserve(3);
    for (int r = 0; r < 3; ++r) {
      auto const& to = meeting.everybody().ranks[static_cast<std::size_t>(r)];
      sockets.emplace_back(io).connect({boost::asio::ip::make_address(to.host), to.port});
      boost::asio::co_spawn(
          io,
          asio::detail::introduce(
              sockets.back(), control.token(), asio::detail::link_purpose::data),
          [&](std::exception_ptr wrong) { introduced += wrong ? 0 : 1; });
    }
    io.run_for(test_limit);
    if (introduced != 3) throw std::runtime_error("a data connection was not admitted");
    meeting.barrier();
    if (!is_early) control.on_data_connection(take);
    auto const end = std::chrono::steady_clock::now() + test_limit;
    while (guests < 3 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    if (guests != 3) throw std::runtime_error("a data connection did not arrive");
    control.on_data_connection(nullptr);
    meeting.barrier();
  });
  CHECK(thrown == std::vector<std::string>(3));
}

namespace {

// A port of this machine that listens and accepts nothing.
class deaf_port {
 public:
  /// @param drops  whether what calls is dropped silently, as by a firewall, for the queue is full
  explicit deaf_port(bool drops) {
    acceptor_.listen(drops ? 0 : 16);
    if (!drops) return;
    // The kernel takes one or two more than it says.
    for (auto& caller : callers_)
      caller.async_connect(acceptor_.local_endpoint(), [](boost::system::error_code const&) {});
    io_.run_for(200ms);
  }
  [[nodiscard]] std::uint16_t number() const { return acceptor_.local_endpoint().port(); }

 private:
  static boost_tcp::acceptor bound(boost::asio::io_context& io) {
    boost_tcp::acceptor result(io, boost_tcp::v4());
    result.bind({boost::asio::ip::address_v4::loopback(), 0});
    return result;
  }

  boost::asio::io_context io_;
  boost_tcp::acceptor acceptor_ = bound(io_);
  std::vector<boost_tcp::socket> callers_ = [this] {
    std::vector<boost_tcp::socket> all;
    for (int i = 0; i < 4; ++i) all.emplace_back(io_);
    return all;
  }();
};

// What ranks 0 and 1 throw when rank 0 connects this channel with rank 2, whose data port this is.
std::vector<std::string> thrown_by_connecting(channel const& wanted, std::uint16_t data_port) {
  auto settings = test::patient_settings();
  settings.connect_deadline = 1s;
  settings.deadline = 4s;
  return run_with_raw(
      3,
      settings,
      [](raw_member& raw) {
        raw.send(
            control_kind::call,
            write(asio::detail::collective_call{0, asio::collective::barrier, 0, {}}));
        {  // Lives as others do, until it hears of the failure.
          std::jthread const alive([&raw](std::stop_token const& stop) {
            asio::wire_writer report;
            fields(report, asio::progress_report{});
            while (!stop.stop_requested()) {
              raw.send(control_kind::heartbeat, report.bytes());
              ::poll(nullptr, 0, 100);
            }
          });
          raw.read(control_kind::stop);
        }
        raw.tell(stop_progress::ended);
        raw.read(control_kind::verdict);
        raw.close();
      },
      [&](asio::rendezvous& meeting) {
        asio::detail::data_connector connector(meeting.control_channel());
        static_cast<void>(connector.connect({wanted}));
        meeting.barrier();
      },
      data_port);
}

}  // namespace

TEST_CASE("a data port that cannot be reached is named on all ranks, with who calls and why not") {
  auto const text = [](std::uint16_t port, std::string const& why) {
    return "rank 0: cannot reach rank 2 at 127.0.0.1:" + std::to_string(port) +
           " for its messages within 1.0 s: " + why +
           "; check rendezvous_settings::bind and ::advertise of both, and firewalls between them; "
           "rendezvous_settings::connect_deadline sets this limit";
  };
  auto const closed = test::free_port();
  for (auto const& report : thrown_by_connecting({0, 2, 1, 1}, closed))
    CHECK(report == text(closed, "Connection refused"));
  deaf_port const firewalled(true);
  for (auto const& thrown : thrown_by_connecting({0, 2, 1, 1}, firewalled.number()))
    CHECK(thrown == text(firewalled.number(), "no answer; a firewall may drop what is sent there"));
  deaf_port const stopped(false);
  for (auto const& refusal : thrown_by_connecting({0, 2, 1, 1}, stopped.number()))
    CHECK(
        refusal == text(
                       stopped.number(),
                       "it does not accept the connection; it may be stopped or overloaded"));
}

TEST_CASE("a rank that does not call is named on all ranks, with the address where it should") {
  for (auto const& report : thrown_by_connecting({2, 0, 1, 1}, 1)) {
    CHECK(contains(report, "rank 0: rank 2 has not connected to 127.0.0.1:"));
    CHECK(contains(report, " for its messages within 1.0 s"));
  }
}

TEST_CASE("a hundred runs in which something goes wrong all end") {
  auto settings = test::patient_settings();
  settings.collective_deadline = 3s;
  settings.deadline = 5s;
  for (int trial = 0; trial < 100; ++trial) {
    ZBPP_SEEDED(rng, trial);
    auto const ranks = static_cast<int>(rng.integer(1, 5));
    auto const seed = rng.bits();
    std::mutex guard;
    std::vector<std::string> reports;  // by ranks that learnt of a failure
    std::atomic<bool> has_first_left{false};
    auto const thrown = run_ranks(ranks, settings, [&](asio::rendezvous& meeting) {
      test::seeded_random random(seed, static_cast<std::uint64_t>(meeting.rank()));
      auto& control = meeting.control_channel();
      try {
        for (int round = 0; round < 4; ++round) {
          auto const act = random.integer(0, 19);
          if (meeting.rank() == 0 && (act == 0 || act == 3)) has_first_left = true;
          if (act == 0) return;  // leaves
          if (act == 1) control.settle(failure_of(meeting.rank()));
          if (act == 2)
            control.loop().exclusively([&] { control.report(failure_of(meeting.rank())); });
          if (act == 3) throw std::runtime_error("of the user");
          if (act == 4)
            meeting.all_gather(asio::blob(1000));
          else
            meeting.barrier();
        }
      } catch (error const& wrong) {
        std::scoped_lock const lock(guard);
        reports.emplace_back(wrong.what());
      }
    });
    for (auto const& text : thrown) CHECK((text.empty() || text == "of the user"));
    INFO(Catch::Detail::stringify(reports));
    // Without rank 0, each begins with what went wrong on itself.
    if (has_first_left) continue;
    for (auto const& text : reports) CHECK(text == reports.front());
  }
}

}  // namespace test_asio_control
