// SPDX-License-Identifier: Apache-2.0
#include <zbpp/asio/detail/data_connector.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/rendezvous.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/processes.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace test_asio_rendezvous {

using namespace zbpp;
using namespace std::chrono_literals;
using test::run_processes;
using test::run_ranks;
using test::start_of_rank;

namespace {

std::vector<std::string> const nothing(int ranks) {
  return std::vector<std::string>(static_cast<std::size_t>(ranks));
}

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

asio::blob random_part(test::seeded_random& rng, std::int64_t most) {
  asio::blob part(static_cast<std::size_t>(rng.integer(0, most)));
  for (auto& b : part) b = static_cast<std::byte>(rng.bits());
  return part;
}

// The part that a rank gives in a round; every rank can work out everybody's.
asio::blob part_of(std::uint64_t seed, int round, int rank) {
  test::seeded_random rng(seed, static_cast<std::uint64_t>(round * 100 + rank));
  return random_part(rng, rng.chance(0.1) ? 300'000 : 200);
}

auto const idle_process = [](asio::rendezvous&, std::size_t) {};

bool has_ipv6() {
  boost::asio::io_context io;
  boost::asio::ip::tcp::acceptor any(io);
  boost::system::error_code none;
  any.open(boost::asio::ip::tcp::v6(), none);
  if (!none) any.bind({boost::asio::ip::address_v6::loopback(), 0}, none);
  return !none;
}

// What ranks of a run on this machine say of where their data ports are; each has exchanged a
// connection with the next, in a ring, by what the others said.
std::vector<std::string> hosts_seen(
    std::string const& host, std::string const& bind, std::string const& advertise) {
  constexpr int ranks = 3;
  auto settings = test::patient_settings();
  settings.bind = bind;
  settings.advertise = advertise;
  settings.connect_deadline = 5s;
  std::vector<start_of_rank> starts;
  for (int r = 0; r < ranks; ++r) starts.push_back({r, ranks, test::test_token(), host});
  std::vector<std::string> hosts;
  auto const thrown = run_processes(starts, settings, [&](asio::rendezvous& meeting, std::size_t) {
    std::vector<channel> ring;
    for (int r = 0; r < ranks; ++r) ring.push_back({r, (r + 1) % ranks, 1, 1});
    asio::detail::data_connector connector(meeting.control_channel());
    auto const sockets = connector.connect(ring);
    for (auto const& c : ring)
      if ((c.from == meeting.rank() || c.to == meeting.rank()) !=
          sockets.at(static_cast<std::size_t>(c.from)).is_open())
        throw std::runtime_error("a channel has no connection, or one too many");
    if (meeting.rank() == 1)
      for (auto const& entry : meeting.everybody().ranks) hosts.push_back(entry.host);
    meeting.barrier();
  });
  CHECK(thrown == nothing(ranks));
  return hosts;
}

}  // namespace

TEST_CASE("all ranks find each other and know the same") {
  for (int ranks : {1, 2, 3, 5, 8}) {
    INFO(ranks << " ranks");
    std::vector<asio::roster> seen(static_cast<std::size_t>(ranks));
    auto const thrown = run_ranks(ranks, test::patient_settings(), [&](asio::rendezvous& meeting) {
      seen[static_cast<std::size_t>(meeting.rank())] = meeting.everybody();
      if (meeting.ranks() != ranks || meeting.local_rank() != meeting.rank())
        throw std::runtime_error("told another place than it was given");
    });
    CHECK(thrown == nothing(ranks));
    std::set<std::uint16_t> ports;
    for (auto const& roster : seen) {
      CHECK(roster == seen.front());
      CHECK(roster.ranks.size() == static_cast<std::size_t>(ranks));
    }
    for (auto const& entry : seen.front().ranks) {
      CHECK(entry.host == "127.0.0.1");
      ports.insert(entry.port);
    }
    CHECK(ports.size() == static_cast<std::size_t>(ranks));
    CHECK(ports.count(0) == 0);
  }
}

TEST_CASE("a rank is reached at the address it listens on, whatever address it calls from") {
  using texts = std::vector<std::string>;
  CHECK(hosts_seen("127.0.0.2", "127.0.0.2", "") == texts(3, "127.0.0.2"));
  CHECK(hosts_seen("127.0.0.1", "0.0.0.0", "") == texts(3, "127.0.0.1"));
  CHECK(hosts_seen("127.0.0.1", "0.0.0.0", "localhost") == texts(3, "localhost"));
  CHECK(hosts_seen("127.0.0.3", "0.0.0.0", "127.0.0.3") == texts(3, "127.0.0.3"));
}

TEST_CASE("IPv6 addresses are understood with brackets and without") {
  using texts = std::vector<std::string>;
  if (!has_ipv6()) return test::skip("a loopback of IPv6");
  CHECK(hosts_seen("[::1]", "[::1]", "") == texts(3, "::1"));
  CHECK(hosts_seen("::1", "::1", "[::1]") == texts(3, "::1"));
  CHECK(hosts_seen("::1", "[::]", "") == texts(3, "::1"));
  CHECK(hosts_seen("127.0.0.1", "::", "") == texts(3, "127.0.0.1"));
}

TEST_CASE("two runs have different numbers") {
  std::vector<asio::roster> seen(2);
  for (auto& roster : seen) {
    auto const thrown = run_ranks(1, test::patient_settings(), [&](asio::rendezvous& meeting) {
      roster = meeting.everybody();
    });
    CHECK(thrown == nothing(1));
  }
  CHECK(seen[0].run_id != seen[1].run_id);
}

TEST_CASE("collectives give every rank what all gave") {
  for (int ranks : {1, 2, 3, 5, 8}) {
    ZBPP_SEEDED(rng, ranks);
    auto const seed = rng.bits();
    auto const thrown = run_ranks(ranks, test::patient_settings(), [&](asio::rendezvous& meeting) {
      test::seeded_random same(seed, 0);  // the same on all ranks
      for (int round = 0; round < 30; ++round) {
        auto const kind = same.integer(0, 2);
        auto const root = static_cast<int>(same.integer(0, ranks - 1));
        auto const part = part_of(seed, round, meeting.rank());
        if (kind == 0) {
          meeting.barrier();
        } else if (kind == 1) {
          if (meeting.broadcast(part, root) != part_of(seed, round, root))
            throw std::runtime_error("a broadcast gave something else");
        } else {
          auto const all = meeting.all_gather(part);
          for (int r = 0; r < ranks; ++r)
            if (all.at(static_cast<std::size_t>(r)) != part_of(seed, round, r))
              throw std::runtime_error("an all_gather gave something else");
        }
      }
    });
    CHECK(thrown == nothing(ranks));
  }
}

TEST_CASE("a barrier holds everybody until the last has come") {
  constexpr int ranks = 4;
  std::atomic<int> before{0};
  auto const thrown = run_ranks(ranks, test::patient_settings(), [&](asio::rendezvous& meeting) {
    for (int round = 1; round <= 20; ++round) {
      ++before;
      meeting.barrier();
      if (before < ranks * round) throw std::runtime_error("a rank passed a barrier too early");
      meeting.barrier();
    }
  });
  CHECK(thrown == nothing(ranks));
}

TEST_CASE("ranks that do not come are named everywhere, with where to come to") {
  auto settings = test::patient_settings();
  settings.join_deadline = 3s;
  auto const thrown = run_processes({{0, 6}, {1, 6}, {3, 6}, {4, 6}}, settings, idle_process);
  for (auto const& text : thrown) {
    CHECK(contains(
        text,
        "ranks did not find each other: ranks 2 and 5 of 6 did not come within 3.0 s to "
        "127.0.0.1:"));
    CHECK(contains(text, "start each with the same host, port, number of ranks and token"));
  }
}

TEST_CASE("where to come to is the address that rank 0 listens on, whatever ranks were told") {
  auto settings = test::patient_settings();
  settings.join_deadline = 1s;
  settings.bind = "127.0.0.2";
  auto const thrown = run_processes({{0, 2}}, settings, idle_process);
  CHECK(contains(thrown[0], "rank 1 of 2 did not come within 1.0 s to 127.0.0.2:"));
  settings.bind = "0.0.0.0";  // any: then the one that ranks were told
  auto const of_any = run_processes({{0, 2}}, settings, idle_process);
  CHECK(contains(of_any[0], "rank 1 of 2 did not come within 1.0 s to 127.0.0.1:"));
}

TEST_CASE("a rank 0 that listens elsewhere than the ranks are told to meet knows it at once") {
  auto const text_of = [](std::string const& host, std::string const& bind, std::string advertise) {
    auto settings = test::patient_settings();  // longer than the test may take
    settings.join_deadline = std::chrono::hours(1);
    settings.bind = bind;
    settings.advertise = std::move(advertise);
    return run_processes({{0, 2, test::test_token(), host}}, settings, idle_process).front();
  };
  // 192.0.2.0/24 is for documentation: no machine has such an address (RFC 5737).
  auto const foreign = text_of("192.0.2.7", "0.0.0.0", "");
  CHECK(contains(foreign, "the ranks are to meet at 192.0.2.7:"));
  CHECK(contains(foreign, ", which is no address of rank 0's machine; set MASTER_ADDR to one"));
  CHECK(contains(text_of("192.0.2.7", "127.0.0.1", ""), "no address of rank 0's machine"));
  CHECK(contains(text_of("[2001:db8::7]", "::", ""), "no address of rank 0's machine"));
  auto const other = text_of("127.0.0.9", "127.0.0.1", "");
  CHECK(contains(other, "the ranks are to meet at 127.0.0.9:"));
  CHECK(contains(other, ", and rank 0 listens on 127.0.0.1 alone; set rendezvous_settings::bind"));
  CHECK(contains(text_of("127.0.0.9", "127.0.0.1", "node1"), "listens on 127.0.0.1 alone"));
}

TEST_CASE("a rank 0 waits where ranks may reach it") {
  auto const text_of = [](std::string const& host, std::string const& bind, std::string advertise) {
    auto settings = test::patient_settings();
    settings.join_deadline = 200ms;
    settings.bind = bind;
    settings.advertise = std::move(advertise);
    return run_processes({{0, 2, test::test_token(), host}}, settings, idle_process).front();
  };
  std::string const waited = "rank 1 of 2 did not come within 0.2 s to ";
  CHECK(contains(text_of("127.0.0.9", "0.0.0.0", ""), waited));
  CHECK(contains(text_of("localhost", "127.0.0.1", ""), waited));
  CHECK(contains(text_of("localhost", "0.0.0.0", ""), waited));
  CHECK(contains(text_of("no-such-host.invalid", "127.0.0.1", ""), waited));
  CHECK(contains(text_of("192.0.2.7", "0.0.0.0", "192.0.2.7"), waited));  // one that forwards
}

TEST_CASE("what the system or a library throws is told in plain words") {
  using asio::detail::reason_of;
  boost::asio::io_context io;
  boost::asio::ip::tcp::socket socket(io);
  std::string text;
  try {
    socket.connect({boost::asio::ip::address_v4::loopback(), test::free_port()});
  } catch (std::exception const& refused) {
    text = reason_of(refused);
  }
  CHECK(text == "Connection refused");
  std::error_code const full(EMFILE, std::generic_category());
  CHECK(
      reason_of(std::system_error(full, "epoll")) ==
      "Too many open files; allow more file descriptors with ulimit -n");
  CHECK(reason_of(std::bad_alloc()) == "out of memory");
  CHECK(reason_of(std::runtime_error("of the user")) == "of the user");
}

TEST_CASE("a rank that comes twice ends all, naming both") {
  auto settings = test::patient_settings();
  auto const thrown = run_processes({{0, 3}, {1, 3}, {1, 3}}, settings, idle_process);
  for (auto const& text : thrown) {
    CHECK(contains(text, "ranks did not find each other: rank 1 came twice: from 127.0.0.1:"));
    CHECK(contains(text, " and from 127.0.0.1:"));
    CHECK(contains(text, "give every process a rank of its own"));
  }
}

TEST_CASE("a second rank 0 is told that somebody listens there, and the others who is missing") {
  auto settings = test::patient_settings();
  settings.join_deadline = 3s;
  auto const thrown = run_processes({{0, 3}, {1, 3}, {0, 3}}, settings, idle_process);
  CHECK(contains(thrown[2], "input or output failed: cannot listen on address 127.0.0.1, port "));
  for (std::size_t i : {0U, 1U}) CHECK(contains(thrown[i], "rank 2 of 3 did not come"));
}

TEST_CASE("ranks that expect another number, or are out of range, end all") {
  auto settings = test::patient_settings();
  auto const other_number = run_processes({{0, 3}, {1, 3}, {2, 4}}, settings, idle_process);
  for (auto const& text : other_number) {
    CHECK(contains(text, "rank 2 at 127.0.0.1:"));
    CHECK(contains(text, " expects 4 ranks, rank 0 expects 3; start all with the same number"));
  }
  auto const more = run_processes({{0, 2}, {2, 3}}, settings, idle_process);
  for (auto const& text : more) CHECK(contains(text, "expects 3 ranks, rank 0 expects 2"));
}

TEST_CASE("who holds another token is told so, and the others who is missing") {
  auto settings = test::patient_settings();
  settings.join_deadline = 3s;
  auto const wrong = asio::run_token::from_text("another token altogether");
  auto const thrown = run_processes({{0, 3}, {1, 3}, {2, 3, wrong}}, settings, idle_process);
  CHECK(contains(thrown[2], "refused peer: rank 2: "));
  CHECK(contains(thrown[2], "another token"));
  for (std::size_t i : {0U, 1U}) {
    CHECK(contains(thrown[i], "rank 2 of 3 did not come within 3.0 s"));
    CHECK(contains(thrown[i], "does not hold this run's token"));
    CHECK_FALSE(contains(thrown[i], "another token altogether"));
  }
}

TEST_CASE("who comes late is sent away, and the run goes on") {
  constexpr int ranks = 3;
  std::string late;
  auto settings = test::patient_settings();
  settings.on_listening = {};
  auto const thrown = run_ranks(ranks, settings, [&](asio::rendezvous& meeting) {
    if (meeting.rank() == 1) {
      asio::launch start = meeting.control_channel().start();
      start.rank = 2;
      late = test::refusal(errc::no_rendezvous, [&] {
        asio::rendezvous surplus(start, settings, test::test_token());
      });
      start.rank = 7;
      start.ranks = 8;
      late += "|" + test::refusal(errc::no_rendezvous, [&] {
                asio::rendezvous surplus(start, settings, test::test_token());
              });
    }
    for (int round = 0; round < 3; ++round) meeting.barrier();
  });
  CHECK(thrown == nothing(ranks));
  CHECK(contains(late, "is complete: rank 2 came when all 3 ranks were there"));
  CHECK(contains(late, "is complete: rank 7 came when all 3 ranks were there"));
}

TEST_CASE("who finds no rank 0 says where it looked, how often, and why it failed") {
  auto const port = test::free_port();  // where nobody listens
  auto settings = test::patient_settings();
  settings.join_deadline = 2s;
  auto const text = test::refusal(errc::no_rendezvous, [&] {
    asio::rendezvous meeting({1, 2, 0, "127.0.0.1", port, "test"}, settings, test::test_token());
  });
  CHECK(contains(
      text,
      "rank 1: did not reach rank 0 at 127.0.0.1:" + std::to_string(port) + " within 2.0 s ("));
  CHECK(contains(text, "tries, the last one: Connection refused)"));
}

TEST_CASE("settings that cannot work are refused") {
  auto const refused = [](asio::launch const& start, auto change) {
    auto settings = test::patient_settings();
    change(settings);
    return test::refusal([&] { asio::rendezvous meeting(start, settings, test::test_token()); });
  };
  asio::launch const one{0, 1, 0, "127.0.0.1", 0, "test"};
  auto const as_is = [](auto&) {};
  CHECK(
      refused({2, 2, 0, "127.0.0.1", 1, ""}, as_is) ==
      "launch::rank is 2 and launch::ranks is 2; set a rank from 0 to ranks - 1");
  CHECK(
      refused({1, 2, 0, "127.0.0.1", 0, ""}, as_is) ==
      "launch::port is 0 on rank 1, and only rank 0 may choose a free port; set the port that rank "
      "0 listens on");
  CHECK(refused(one, [](auto& s) {
          s.deadline = 0ms;
        }) == "rendezvous_settings::deadline is 0 ms or less; set it above 0 ms");
  CHECK(
      refused(one, [](auto& s) { s.bind = "somewhere"; }) ==
      "rendezvous_settings::bind is 'somewhere'; it must be an address of this machine such as "
      "127.0.0.1");
  CHECK(refused(one, [](auto& s) {
          s.largest_blob = std::size_t{1} << 32;
        }) == "rendezvous_settings::largest_blob is above 2 GiB; set at most 2 GiB");
}

TEST_CASE("a part that is too large, or a root that is no rank, is the caller's mistake alone") {
  auto settings = test::patient_settings();
  settings.largest_blob = 1000;
  auto const thrown = run_ranks(2, settings, [&](asio::rendezvous& meeting) {
    asio::blob const fits(1000);
    asio::blob const large(1001);
    auto text = test::refusal([&] { meeting.all_gather(large); });
    if (text != "all_gather of 1001 bytes; rendezvous_settings::largest_blob allows 1000")
      throw std::runtime_error(text);
    text = test::refusal([&] { meeting.broadcast(fits, 2); });
    if (text != "broadcast from rank 2; ranks go from 0 to 1") throw std::runtime_error(text);
    meeting.all_gather(fits);
  });
  CHECK(thrown == nothing(2));
}

TEST_CASE("different calls are an error on all ranks that says who called what") {
  auto const thrown = run_ranks(3, test::patient_settings(), [&](asio::rendezvous& meeting) {
    meeting.barrier();
    if (meeting.rank() == 1)
      meeting.broadcast({}, 2);
    else
      meeting.all_gather({});
  });
  for (auto const& text : thrown) {
    CHECK(contains(text, "ranks disagree: "));
    CHECK(contains(text, "rank 1 called broadcast from rank 2"));
    CHECK(contains(text, " called all_gather"));
    CHECK(contains(text, "; all ranks have to make the same calls in the same order"));
  }
}

TEST_CASE("a rank that does not come to a collective is named on all") {
  auto settings = test::patient_settings();
  settings.collective_deadline = 3s;
  std::atomic<int> failed{0};
  auto const thrown = run_ranks(3, settings, [&](asio::rendezvous& meeting) {
    if (meeting.rank() == 2) {
      // Comes when the others have given up.
      while (failed < 2) std::this_thread::yield();
      meeting.barrier();
    }
    try {
      meeting.barrier();
    } catch (...) {
      ++failed;
      throw;
    }
  });
  for (auto const& text : thrown)
    CHECK(
        text ==
        "another rank failed: rank 2 did not come within 3.0 s: ranks 0 and 1 called barrier; "
        "rendezvous_settings::collective_deadline sets this limit");
}

TEST_CASE("a rank that leaves while others need it is named on all") {
  for (int leaver : {0, 1, 2}) {
    auto const thrown = run_ranks(3, test::patient_settings(), [&](asio::rendezvous& meeting) {
      if (meeting.rank() != leaver) meeting.barrier();
    });
    for (int r = 0; r < 3; ++r) {
      auto const& text = thrown[static_cast<std::size_t>(r)];
      INFO(text);
      if (r == leaver)
        CHECK(text.empty());
      else
        CHECK(contains(
            text, "another rank failed: rank " + std::to_string(leaver) + ": left the run; "));
    }
  }
}

TEST_CASE("a rank that ends the run gives its reason to all") {
  for (int culprit : {0, 2}) {
    auto const thrown = run_ranks(3, test::patient_settings(), [&](asio::rendezvous& meeting) {
      if (meeting.rank() == culprit) meeting.fail("no more text to learn from");
      meeting.barrier();
    });
    for (auto const& text : thrown)
      CHECK(
          text ==
          "another rank failed: rank " + std::to_string(culprit) + ": no more text to learn from");
  }
}

TEST_CASE("a rank that works alone learns by a check that the run has failed") {
  auto const thrown = run_ranks(3, test::patient_settings(), [](asio::rendezvous& meeting) {
    for (int i = 0; i < 100; ++i) meeting.check();  // nothing is wrong, and nobody is waited for
    meeting.barrier();
    if (meeting.rank() == 1) meeting.fail("no more text");
    while (meeting.rank() == 0) meeting.check();  // ends by its exception alone
    if (meeting.rank() == 2) meeting.barrier();
  });
  for (std::size_t rank : {0U, 2U})
    CHECK(thrown[rank] == "another rank failed: rank 1: no more text");
}

TEST_CASE("ranks may leave in any order when nobody needs them") {
  constexpr int ranks = 4;
  for (int trial = 0; trial < 8; ++trial) {
    ZBPP_SEEDED(rng, trial);
    std::vector<int> order{0, 1, 2, 3};
    rng.shuffle(std::span(order));
    std::atomic<std::size_t> next{0};
    auto const thrown = run_ranks(ranks, test::patient_settings(), [&](asio::rendezvous& meeting) {
      meeting.barrier();
      while (order[next] != meeting.rank()) std::this_thread::yield();
      ++next;
    });
    CHECK(thrown == nothing(ranks));
  }
}

TEST_CASE("ranks that hold different things are told whose differ, in what, and go on") {
  auto const item = [](std::string name, std::string value) {
    return zbpp::make_item(std::move(name), std::move(value));
  };
  auto const thrown = run_ranks(3, test::patient_settings(), [&](asio::rendezvous& meeting) {
    std::vector<zbpp::agreement_item> items{item("placement", "in turn"), item("policy", "zb_v")};
    meeting.agree(items);
    if (meeting.rank() == 2) items[1] = item("policy", "zb_h1");
    auto const text = test::refusal(errc::no_agreement, [&] { meeting.agree(items); });
    if (text !=
        "rank 2 differs from rank 0 in: policy (zb_h1 at rank 2, zb_v at rank 0); start all ranks "
        "with the same problem and plan")
      throw std::runtime_error(text);
    meeting.barrier();
  });
  CHECK(thrown == nothing(3));
}

}  // namespace test_asio_rendezvous
