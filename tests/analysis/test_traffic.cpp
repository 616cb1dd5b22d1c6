// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/traffic.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>

#include <support/catch.hpp>
#include <support/independent_check.hpp>
#include <support/instructions.hpp>
#include <support/policy_grid.hpp>
#include <support/thinned.hpp>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace test_traffic {

using namespace zbpp;
using namespace zbpp::test;

namespace {

std::map<std::pair<int, int>, depth> depths_of(traffic const& messages) {
  std::map<std::pair<int, int>, depth> result;
  for (auto const& c : messages.channels()) result[{c.from, c.to}] = {c.slots, c.in_flight};
  return result;
}

// The numbers of messages retired at each position, by the definition.
int retired_at(
    independent_check const& check,
    program const& code,
    std::pair<int, int> channel,
    int position) {
  int count = 0;
  for (auto const& i : code.instructions(channel.first))
    if (i.is_send() && check.channel_of(i) == channel && check.is_known_consumed(i, position))
      ++count;
  return count;
}

}  // namespace

TEST_CASE("channels are the directed pairs of ranks with neighbouring stages", "[traffic]") {
  channel_map const map(placement::looped(3, 2));
  std::vector<std::pair<int, int>> ends;
  for (int c = 0; c < map.size(); ++c) ends.push_back(map.ends(c));
  CHECK(ends == std::vector<std::pair<int, int>>{{0, 1}, {0, 2}, {1, 0}, {1, 2}, {2, 0}, {2, 1}});
  for (int c = 0; c < map.size(); ++c) {
    CHECK(map.between(map.ends(c).first, map.ends(c).second) == c);
    CHECK(map.ends(map.reverse(c)) == std::pair(map.ends(c).second, map.ends(c).first));
  }
  CHECK(map.between(0, 0) == channel_map::none);
  CHECK(map.between(7, 0) == channel_map::none);
  CHECK(channel_map(placement::linear(1)).size() == 0);
}

TEST_CASE("messages take the channel between the ranks of their stages", "[traffic]") {
  channel_map const map(placement::v_shape(2));
  auto const of = [&](std::string const& text) { return map.of(parse_instruction(text)); };
  auto const down = map.between(0, 1);
  auto const up = map.between(1, 0);
  CHECK(map.size() == 2);
  CHECK(of("0SEND_F0") == down);
  CHECK(of("1RECV_F0") == down);
  CHECK(of("2SEND_F0") == up);
  CHECK(of("3RECV_F0") == up);
  CHECK(of("1SEND_B0") == up);
  CHECK(of("0RECV_B0") == up);
  CHECK(of("3SEND_B0") == down);
  CHECK(of("1SEND_F0") == channel_map::none);  // stage 2 is on the same rank
  CHECK(of("3SEND_F0") == channel_map::none);  // the last stage
  CHECK(of("0RECV_F0") == channel_map::none);
  CHECK(of("0SEND_B0") == channel_map::none);
  CHECK(of("1F0") == channel_map::none);
  CHECK(of("0STEP") == channel_map::none);
}

TEST_CASE("a pass takes its input from the channel of the stage before or behind", "[traffic]") {
  channel_map const map(placement::v_shape(2));
  auto const of = [&](std::string const& text) {
    return map.of_input(parse_instruction(text).as_pass());
  };
  CHECK(of("0F0") == channel_map::none);
  CHECK(of("1F0") == map.between(0, 1));
  CHECK(of("2F0") == channel_map::none);
  CHECK(of("3F0") == map.between(1, 0));
  CHECK(of("3B0") == channel_map::none);
  CHECK(of("2BW0") == map.between(0, 1));
  CHECK(of("1B0") == channel_map::none);
  CHECK(of("0B0") == map.between(1, 0));
  CHECK(of("0W0") == channel_map::none);
  CHECK(of("1R0") == channel_map::none);
}

TEST_CASE("notes number the messages of a channel and find their consumers", "[traffic]") {
  program const code(
      placement::linear(2),
      2,
      instructions(
          {"0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0RECV_B1 0B0 0W0 0B1 0W1",
           "1RECV_F0 1RECV_F1 1F0 1F1 1B0 1SEND_B0 1B1 1SEND_B1 1W0 1W1"}),
      {});
  traffic const messages(code);
  auto const sequences = [&](int rank) {
    std::vector<int> all;
    for (auto const& note : messages.notes(rank)) all.push_back(note.sequence);
    return all;
  };
  CHECK(sequences(0) == std::vector<int>{-1, 0, -1, 1, 0, 1, 0, -1, 1, -1});
  CHECK(sequences(1) == std::vector<int>{0, 1, 0, 1, -1, 0, -1, 1, -1, -1});
  auto const retired = [&](int rank) {
    std::vector<int> all;
    for (auto const& note : messages.notes(rank)) all.push_back(note.retired);
    return all;
  };
  // Rank 1 has consumed both activations when it sends its first gradient.
  CHECK(retired(0) == std::vector<int>{-1, -1, -1, -1, -1, -1, 2, -1, 2, -1});
  CHECK(retired(1) == std::vector<int>{-1, -1, 0, 0, -1, -1, -1, -1, -1, -1});
  CHECK(
      messages.channels() == std::vector<zbpp::channel>{
                                 {.from = 0, .to = 1, .slots = 2, .in_flight = 2},
                                 {.from = 1, .to = 0, .slots = 2, .in_flight = 2}});
}

TEST_CASE("a message behind one that is still needed is not taken back", "[traffic]") {
  // Rank 1 consumes the second activation first, so its first gradient retires nothing.
  program const code(
      placement::linear(2),
      2,
      instructions(
          {"0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B1 0BW1 0RECV_B0 0BW0",
           "1RECV_F0 1RECV_F1 1F1 1BW1 1SEND_B1 1F0 1BW0 1SEND_B0"}),
      {});
  traffic const messages(code);
  CHECK(messages.notes(0)[5].retired == 0);
  CHECK(messages.notes(0)[7].retired == 2);
}

TEST_CASE("what has no other end is left without a number", "[traffic]") {
  program const code(
      placement::linear(2),
      1,
      instructions({"0F0 0RECV_B0 0B0 0W0", "1F0 1B0 1W0 1SEND_F0 1RECV_B0"}),
      {});
  traffic const messages(code);
  CHECK(messages.notes(1)[0].sequence == -1);
  CHECK(messages.notes(1)[3].channel == channel_map::none);
  CHECK(messages.notes(1)[4].channel == channel_map::none);
  CHECK(messages.notes(0)[2].sequence == 0);
  CHECK(messages.notes(0)[2].retired == -1);
}

TEST_CASE("depths and retirements are those of the definition on every policy", "[traffic]") {
  int cases = 0;
  zbpp::test::for_each_schedule(
      {1, 2, 3, 4},
      [&](zbpp::any_policy const& decide,
          zbpp::problem const& problem,
          zbpp::schedule const& order) {
        if (problem.stages() * problem.microbatches() > zbpp::test::thinned(40, 24))
          return;  // the definition takes cubic time
        INFO(zbpp::test::name_of(decide, problem));
        for (int ahead : {0, 1, 3}) {
          auto const code = zbpp::lower(order, {.receive_ahead = ahead});
          traffic const messages(code);
          independent_check const check(
              code.placement(), code.microbatches(), code.instructions().nested());
          CHECK(depths_of(messages) == check.depths());
          bool is_same = true;
          for (int rank = 0; rank < code.ranks(); ++rank) {
            auto const notes = messages.notes(rank);
            for (std::size_t i = 0; i < notes.size(); ++i) {
              if (notes[i].retired < 0) continue;
              auto const back = messages.map().ends(messages.map().reverse(notes[i].channel));
              is_same =
                  is_same && notes[i].retired == retired_at(check, code, back, static_cast<int>(i));
            }
          }
          CHECK(is_same);
          ++cases;
        }
      });
  CHECK(cases > zbpp::test::thinned(200, 100));
}

}  // namespace test_traffic
