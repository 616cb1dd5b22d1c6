// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/deadlock.hpp>

#include <support/catch.hpp>
#include <support/independent_check.hpp>
#include <support/instructions.hpp>
#include <support/mutations.hpp>
#include <support/small_programs.hpp>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace test_deadlock {

using namespace zbpp;
using namespace zbpp::test;

namespace {

constexpr channel_layout layouts[] = {
    channel_layout::one_per_rank,
    channel_layout::one_per_pair,
    channel_layout::one_per_directed_pair};

std::vector<diagnostic> search(program const& code, channel_layout layout) {
  return zbpp::detail::find_deadlock(code, traffic(code), layout);
}

// Whether a text shows a cycle: names joined by "waits for", the last of which is the first.
bool shows_circle(std::string text) {
  auto const start = text.find(" wait in a cycle: ");
  if (start == std::string::npos) return false;
  text = text.substr(start + std::string(" wait in a cycle: ").size());
  std::string const joint = " waits for ";
  auto const first = text.substr(0, text.find(joint));
  auto const last = text.substr(text.rfind(joint) + joint.size());
  return first.rfind("rank ", 0) == 0 && first == last;
}

}  // namespace

TEST_CASE("every channel layout has words of its own", "[deadlock]") {
  CHECK(to_string(channel_layout::one_per_rank) == "one channel per rank");
  CHECK(to_string(channel_layout::one_per_pair) == "one channel per rank pair");
  CHECK(to_string(channel_layout::one_per_directed_pair) == "one channel per directed pair");
}

// Rank 0 ships an activation before it opens the slot for the one that comes back; rank 1 ships
// that one before it opens the slot for the first. In one queue the two sends wait for each other.
TEST_CASE("two sends that cross deadlock in one queue and pass in two", "[deadlock]") {
  program const code(
      placement::looped(2, 2),
      2,
      instructions(
          {"0F0 0SEND_F0 0F1 0SEND_F1 2RECV_F0 2F0 2SEND_F0 2RECV_F1 2F1 2SEND_F1 "
           "2RECV_B0 2BW0 2SEND_B0 2RECV_B1 2BW1 2SEND_B1 0RECV_B0 0BW0 0RECV_B1 0BW1",
           "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 3RECV_F0 3F0 3RECV_F1 3F1 "
           "3BW0 3SEND_B0 3BW1 3SEND_B1 1RECV_B0 1BW0 1SEND_B0 1RECV_B1 1BW1 1SEND_B1"}),
      {});
  CHECK(search(code, channel_layout::one_per_directed_pair).empty());
  auto const found = search(code, channel_layout::one_per_rank);
  REQUIRE(found.size() == 1);
  CHECK(found.front().fault == zbpp::fault::deadlock);
  CHECK(found.front().location == zbpp::location{0, 3, 0, 1});
  CHECK(
      found.front().text ==
      "0SEND_F1: with one channel per rank the ranks wait in a cycle: "
      "rank 0 position 3 (0SEND_F1) waits for rank 1 position 2 (1SEND_F0) waits for "
      "rank 0 position 3 (0SEND_F1)");
  CHECK(search(code, channel_layout::one_per_pair).size() == 1);  // two ranks are one pair
}

TEST_CASE(
    "a pass before the send that its input depends on is a deadlock on any layout", "[deadlock]") {
  program const code(
      placement::linear(2),
      1,
      instructions({"0F0 0RECV_B0 0BW0 0SEND_F0", "1RECV_F0 1F0 1BW0 1SEND_B0"}),
      {});
  for (auto layout : layouts) {
    auto const found = search(code, layout);
    REQUIRE(found.size() == 1);
    CHECK(shows_circle(found.front().text));
  }
  CHECK(
      search(code, channel_layout::one_per_directed_pair).front().text ==
      "0BW0: with one channel per directed pair the ranks wait in a cycle: "
      "rank 0 position 2 (0BW0) waits for rank 1 position 1 (1F0) waits for "
      "rank 0 position 2 (0BW0)");
}

TEST_CASE(
    "a slot opened early holds up another pair only where a rank has one channel", "[deadlock]") {
  // A ring of three ranks. Rank 0 opens the slot for what comes back before it ships the first.
  program const code(
      placement::looped(3, 2),
      1,
      instructions(
          {"3RECV_F0 0F0 0SEND_F0 3F0 3SEND_F0 3RECV_B0 3BW0 3SEND_B0 0RECV_B0 0BW0",
           "1RECV_F0 1F0 1SEND_F0 4RECV_F0 4F0 4SEND_F0 4RECV_B0 4BW0 4SEND_B0 1RECV_B0 1BW0 "
           "1SEND_B0",
           "2RECV_F0 2F0 2SEND_F0 5RECV_F0 5F0 5BW0 5SEND_B0 2RECV_B0 2BW0 2SEND_B0"}),
      {});
  CHECK(search(code, channel_layout::one_per_directed_pair).empty());
  CHECK(search(code, channel_layout::one_per_pair).empty());
  auto const found = search(code, channel_layout::one_per_rank);
  REQUIRE(found.size() == 1);
  CHECK(
      found.front().text == "2F0: with one channel per rank the ranks wait in a cycle: "
                            "rank 2 position 1 (2F0) waits for rank 1 position 1 (1F0) waits for "
                            "rank 0 position 0 (3RECV_F0) waits for rank 2 position 1 (2F0)");
}

TEST_CASE(
    "the search agrees with visiting every state, for every order of small programs",
    "[deadlock][long]") {
  std::map<channel_layout, std::pair<int, int>> found;  // fine and stuck
  for (auto const& [name, code] : zbpp::test::small_programs()) {
    auto const examine = [&](zbpp::test::nested_rows const& rows, std::string const& text) {
      independent_check const check(code.placement(), code.microbatches(), rows);
      if (!check.has_each_once() || !check.keeps_dependences() || !check.keeps_channel_order())
        return;
      program const spoilt(
          code.placement(), code.microbatches(), zbpp::rows<zbpp::instruction>(rows), {});
      for (auto layout : layouts) {
        auto const stuck = search(spoilt, layout);
        bool const is_right = stuck.empty() != check.can_deadlock(layout);
        if (!is_right || (!stuck.empty() && !shows_circle(stuck.front().text)))
          FAIL_CHECK(name << ", " << text << ", " << to_string(layout));
        ++(stuck.empty() ? found[layout].first : found[layout].second);
      }
    };
    examine(code.instructions().nested(), "as it is");
    zbpp::test::for_each_mutant(
        code.placement(),
        code.microbatches(),
        code.instructions().nested(),
        [&](zbpp::test::mutant const& spoilt) { examine(spoilt.rows, spoilt.text); });
  }
  auto const counts = [&](channel_layout layout) {
    return std::to_string(found[layout].first) + " end, " + std::to_string(found[layout].second) +
           " are stuck";
  };
  CHECK(counts(channel_layout::one_per_rank) == "283 end, 1142 are stuck");
  CHECK(counts(channel_layout::one_per_pair) == "303 end, 1122 are stuck");
  CHECK(counts(channel_layout::one_per_directed_pair) == "1293 end, 132 are stuck");
}

}  // namespace test_deadlock
