// SPDX-License-Identifier: Apache-2.0
//
// Processes that do not belong to a run, or do not fit into it: those without the token disturb
// nobody, and those that made a mistake hear which one, in time.
#include <zbpp/asio/detail/listener.hpp>

#include <support/catch.hpp>
#include <support/rank_processes.hpp>
#include <support/seeded.hpp>
#include <support/stranger.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace test_asio_strangers {

using namespace zbpp::test;
namespace handshake = zbpp::asio::detail;

namespace {

using bytes = std::vector<std::byte>;

std::span<std::byte const> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

bool contains(process const& p, std::string_view text) {
  return p.output().find(text) != std::string::npos;
}

// What a rank prints at its end.
std::string digests(process const& p) {
  auto const text = p.output();
  auto const at = text.find("rank ");
  return at == std::string::npos ? "no digests" : text.substr(at);
}

// Gets in by the token as a rank does, and leaves. Returns what it said, as somebody on the path
// would record it.
bytes record(std::uint16_t port, zbpp::asio::detail::link_purpose use) {
  stranger const guest(port);
  auto const hello = guest.hear(handshake::hello_size, std::chrono::seconds(10));
  REQUIRE(hello.size() == handshake::hello_size);
  auto const of_host =
      handshake::piece<sizeof(zbpp::asio::challenge)>(hello, handshake::preamble_size);
  auto const of_guest = zbpp::asio::make_challenge();
  auto const stated = static_cast<std::byte>(use);
  auto const shown = handshake::sign_as(
      handshake::guest_role,
      zbpp::asio::run_token::from_text(rank_token),
      stated,
      of_host,
      of_guest);
  bytes answer(handshake::answer_size);
  handshake::put_preamble(answer);
  answer[handshake::purpose_at] = stated;
  std::ranges::copy(of_guest, answer.begin() + handshake::challenge_at);
  std::ranges::copy(shown, answer.begin() + handshake::signature_at);
  guest.say(answer);
  auto const proof = guest.hear(sizeof(zbpp::asio::signature), std::chrono::seconds(10));
  REQUIRE(proof.size() == sizeof(zbpp::asio::signature));
  CHECK(std::ranges::any_of(proof, [](std::byte b) { return b != std::byte{}; }));
  return answer;
}

// Plays a record again. Returns whether the answer was a refusal.
bool is_refused(std::uint16_t port, bytes const& answer) {
  stranger const guest(port);
  guest.say(answer);
  auto const heard =
      guest.hear(handshake::hello_size + sizeof(zbpp::asio::signature), std::chrono::seconds(10));
  return heard.size() == handshake::hello_size + sizeof(zbpp::asio::signature) &&
         std::all_of(heard.begin() + handshake::hello_size, heard.end(), [](std::byte b) {
           return b == std::byte{};
         });
}

// Many who have no business here, some hundred of them at a time.
class crowd {
 public:
  crowd(std::vector<std::uint16_t> ports, bytes answer)
      : ports_(std::move(ports)), answer_(std::move(answer)) {}

  // One more of each sort at each port, ten times.
  void come(seeded_random& random) {
    for (int i = 0; i < 10; ++i) {
      for (auto port : ports_) {
        enter(port);
        enter(port).say(noise(random));
        enter(port).say(as_bytes("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        auto const& half = enter(port);
        half.say(std::span(answer_).first(answer_.size() / 2));
        half.close_half();
        enter(port).end_rudely();
        enter(port).say(answer_);
        slow_.emplace_back(port);
      }
      drip();
    }
  }
  [[nodiscard]] int count() const { return count_; }

 private:
  static constexpr std::size_t most_open = 300;
  static constexpr std::size_t most_slow = 80;

  stranger& enter(std::uint16_t port) {
    if (open_.size() == most_open) open_.pop_front();
    auto& guest = open_.emplace_back(port);
    if (guest.is_connected()) ++count_;
    return guest;
  }
  // One byte each, of a beginning as it ought to be.
  void drip() {
    while (slow_.size() > most_slow) slow_.pop_front();
    auto const byte = std::span(answer_).subspan(dripped_++ % answer_.size(), 1);
    for (auto const& guest : slow_) guest.say(byte);
  }
  static bytes noise(seeded_random& random) {
    bytes result(static_cast<std::size_t>(random.integer(1, 400)));
    for (auto& b : result) b = static_cast<std::byte>(random.integer(0, 255));
    return result;
  }

  std::vector<std::uint16_t> ports_;
  bytes answer_;
  std::deque<stranger> open_;
  std::deque<stranger> slow_;
  std::size_t dripped_ = 0;
  int count_ = 0;
};

std::chrono::steady_clock::time_point in_a_moment() {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(10);
}

// Has a run wait in the middle. Returns whether it does.
bool wait_for_hold(process& holder) {
  auto const deadline = soon();
  while (!contains(holder, "holds") && std::chrono::steady_clock::now() < deadline)
    if (holder.wait_until(in_a_moment())) return false;
  return contains(holder, "holds");
}

bool all_end_with(std::vector<process>& all, int status) {
  auto const deadline = soon();
  bool good = true;
  for (auto& p : all) good = p.wait_until(deadline) == status && good;
  return good;
}

}  // namespace

TEST_CASE("a crowd of strangers does not stop a run", "[asio][strangers][long]") {
  if (!std::filesystem::exists("/proc/self/fd")) return skip("/proc");
  ZBPP_SEEDED(random, 1);
  constexpr int ranks = 3;
  std::vector<std::string> const usual{"steps=300", "deadline=20000"};
  auto undisturbed = start_ranks(ranks, usual);
  auto const reached_end = all_end_with(undisturbed, 0);
  INFO(everything(undisturbed));
  REQUIRE(reached_end);

  auto disturbed = usual;
  disturbed.insert(disturbed.end(), {"fault=hold", "rank=1", "at=20:2:B"});
  auto const meeting = free_port();
  auto all = start_ranks(ranks, disturbed, meeting);
  REQUIRE(wait_for_hold(all[1]));

  std::vector<std::uint16_t> ports;
  for (auto const& p : all)
    for (auto const port : ports_of(p.id())) ports.push_back(port);
  REQUIRE(ports.size() == ranks + 1);  // a data port each, and where they met
  REQUIRE(std::ranges::count(ports, meeting) == 1);
  bytes recorded;
  for (auto const port : ports) {
    auto const link = port == meeting ? zbpp::asio::detail::link_purpose::control
                                      : zbpp::asio::detail::link_purpose::data;
    recorded = record(port, link);
    CHECK(is_refused(port, recorded));
  }

  crowd guests(ports, recorded);
  for (int i = 0; i < 3; ++i) guests.come(random);
  // An honest rank that is too late gets through the crowd, and hears what is wrong with it.
  auto late = start_rank({1, ranks, {"join_deadline=20000"}}, meeting);
  auto const deadline = soon();
  while (!late.wait_until(in_a_moment()) && std::chrono::steady_clock::now() < deadline)
    guests.come(random);
  INFO(everything(all));
  INFO("late: " << late.output());
  CHECK(late.wait_until(soon()) == 3);
  CHECK(contains(late, "is complete: rank 1 came when all 3 ranks were there"));
  CHECK(guests.count() >= 500);
  for (auto& p : all) REQUIRE_FALSE(p.wait_until(in_a_moment()).has_value());

  all[1].signal(SIGUSR1);
  for (int i = 0; i < 10 && !all[0].wait_until(in_a_moment()); ++i) guests.come(random);
  CHECK(all_end_with(all, 0));
  for (std::size_t r = 0; r < ranks; ++r) CHECK(digests(all[r]) == digests(undisturbed[r]));
}

// Mistakes in joining. The ranks wait for each other for two seconds; each process has to end by
// itself, and to say what is wrong.

namespace {

struct stranger_start {
  rank_process process;
  std::vector<std::string> says;  // each of these; nothing when it ends well
};

void check_each(std::vector<stranger_start> const& starts) {
  auto const port = free_port();
  std::vector<process> all;
  for (auto start : starts) {
    start.process.arguments.insert(
        start.process.arguments.end(), {"join_deadline=2000", "deadline=2000"});
    all.push_back(start_rank(start.process, port));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto const& says = starts[i].says;
    auto const status = all[i].wait_until(soon());
    INFO("process " << i << "\n" << everything(all));
    CHECK(status == (says.empty() ? 0 : 3));
    CHECK_FALSE(contains(all[i], starts[i].process.token));
    for (auto const& text : says) {
      INFO(text);
      CHECK(contains(all[i], text));
    }
  }
}

// All of three ranks, the last one with something else.
void check_last(
    std::vector<std::string> const& usual,
    std::vector<std::string> const& last,
    std::string const& says) {
  std::vector<stranger_start> starts;
  for (int rank = 0; rank < 3; ++rank)
    starts.push_back({{rank, 3, rank < 2 ? usual : last}, {says}});
  check_each(starts);
}

}  // namespace

TEST_CASE("two processes of one rank end all, which is told", "[asio][strangers]") {
  std::string const says = "rank 1 came twice: from 127.0.0.1:";
  check_each({{{0, 3}, {says}}, {{1, 3}, {says}}, {{1, 3}, {says}}});
}

TEST_CASE("a rank that does not come is named by all others", "[asio][strangers]") {
  std::string const says = "rank 2 of 3 did not come within 2.0 s to 127.0.0.1:";
  check_each({{{0, 3}, {says}}, {{1, 3}, {says}}});
}

TEST_CASE("ranks that rank 0 does not wait for say where they looked", "[asio][strangers]") {
  check_each({{{1, 2}, {"rank 1: did not reach rank 0 at 127.0.0.1:", "within 2.0 s"}}});
}

TEST_CASE("a rank beyond the last one ends alone", "[asio][strangers]") {
  check_each(
      {{{0, 2}, {}},
       {{1, 2}, {}},
       {{2, 2}, {"RANK is 2; it must be from 0 to 1, for WORLD_SIZE is 2"}}});
}

TEST_CASE("another number of ranks ends all, which is told", "[asio][strangers]") {
  std::string const says = "expects 4 ranks, rank 0 expects 3; start all with the same number";
  check_each({{{0, 3}, {says}}, {{1, 3}, {says}}, {{2, 4}, {"rank 2 at 127.0.0.1:", says}}});
}

TEST_CASE("a token of another run is told to who has it, and to who waits", "[asio][strangers]") {
  std::string const other = "fedcba9876543210fedcba9876543210";
  std::vector<std::string> const says{
      "rank 1 of 3 did not come within 2.0 s", "does not hold this run's token"};
  check_each(
      {{{0, 3}, says},
       {{1, 3, {}, other}, {"rank 1: 127.0.0.1:", "it holds another token"}},
       {{2, 3}, says}});
}

TEST_CASE("another policy on one rank is no agreement, on all", "[asio][strangers]") {
  check_last(
      {"policy=zb_h1"},
      {"policy=one_f_one_b"},
      "rank 2 differs from rank 0 in: policy (1F1B at rank 2, ZB-H1 at rank 0)");
}

TEST_CASE("another number of microbatches on one rank is no agreement", "[asio][strangers]") {
  check_last(
      {"microbatches=5"},
      {"microbatches=6"},
      "rank 2 differs from rank 0 in: number of microbatches (6 at rank 2, 5 at rank 0)");
}

}  // namespace test_asio_strangers
