// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/detail/stall.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/seeded.hpp>
#include <support/small_programs.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace test_asio_stall {

using namespace zbpp;
using namespace zbpp::test;
using namespace std::chrono_literals;
using zbpp::asio::progress_phase;
using zbpp::asio::progress_report;
using zbpp::asio::detail::stall_detector;

namespace {

using reports = std::vector<progress_report>;

progress_report at(int rank, progress_phase phase, std::int64_t passes, std::int64_t age = 61'234) {
  return {
      .rank = rank,
      .phase = phase,
      .step = 7,
      .passes_started = passes,
      .age_ms = age,
      .silence_ms = 0};
}

std::vector<std::string> lines(std::string const& text) {
  std::istringstream in(text);
  std::vector<std::string> result;
  for (std::string line; std::getline(in, line);) result.push_back(line);
  return result;
}

std::vector<std::string> lines_of(program const& code, reports const& all) {
  stall_detector detect(code);
  auto const text = detect(all);
  REQUIRE(text.has_value());
  return lines(*text);
}

bool begins_with(std::string const& text, std::string const& begin) {
  return text.compare(0, begin.size(), begin) == 0;
}

program of(placement const& placement, int microbatches, std::vector<std::string> const& rows) {
  return lower(schedule(placement, microbatches, passes(rows)), {.step = zbpp::step_kind::none});
}

// Runs programs pass by pass from the notes of their messages; knows nothing of the report.
class walk {
 public:
  explicit walk(program const& code)
      : code_(code), messages_(code), next_(static_cast<std::size_t>(code.ranks()), 0) {
    sent_.resize(messages_.channels().size());
    taken_ = sent_;
  }

  // Runs until nothing moves; one pass never ends, which is that many passes down its row.
  void run(int held_rank, std::int64_t held_pass) {
    for (bool moves = true; moves;) {
      moves = false;
      for (int rank = 0; rank < code_.ranks(); ++rank)
        while (can_run(rank, rank == held_rank ? held_pass : -1)) {
          moves = true;
          auto const& i = code_.instructions(rank)[at(rank)];
          auto const& note = messages_.notes(rank)[at(rank)];
          if (i.is_send()) ++sent_[static_cast<std::size_t>(note.channel)];
          if (i.is_pass() && note.channel >= 0) ++taken_[static_cast<std::size_t>(note.channel)];
          ++next_[static_cast<std::size_t>(rank)];
        }
    }
    // A pass takes its message when it starts.
    auto const& note = messages_.notes(held_rank)[at(held_rank)];
    if (note.channel >= 0) ++taken_[static_cast<std::size_t>(note.channel)];
  }

  [[nodiscard]] bool is_over(int rank) const { return at(rank) == code_.instructions(rank).size(); }
  // Whether all that a finished rank sent has been taken.
  [[nodiscard]] bool is_rid_of_all(int rank) const {
    for (std::size_t c = 0; c < sent_.size(); ++c)
      if (messages_.channels()[c].from == rank && taken_[c] < sent_[c]) return false;
    return true;
  }
  [[nodiscard]] std::size_t at(int rank) const { return next_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::int64_t passes_before(int rank) const {
    std::int64_t count = 0;
    for (auto const& i : code_.instructions(rank).first(at(rank))) count += i.is_pass() ? 1 : 0;
    return count;
  }
  [[nodiscard]] int waits_for(int rank) const {
    return messages_.map().ends(messages_.notes(rank)[at(rank)].channel).first;
  }

 private:
  [[nodiscard]] bool can_run(int rank, std::int64_t held_pass) const {
    if (is_over(rank)) return false;
    auto const& i = code_.instructions(rank)[at(rank)];
    if (!i.is_pass()) return true;
    if (passes_before(rank) == held_pass) return false;
    auto const& note = messages_.notes(rank)[at(rank)];
    return note.channel < 0 || note.sequence < sent_[static_cast<std::size_t>(note.channel)];
  }

  program const& code_;
  traffic messages_;
  std::vector<std::size_t> next_;
  std::vector<std::int32_t> sent_;
  std::vector<std::int32_t> taken_;
};

}  // namespace

TEST_CASE("a pass that does not end is blamed, wherever it stands", "[asio]") {
  int everybody = 0;
  for (auto const& small : small_programs()) {
    auto const& code = small.code;
    for (int held = 0; held < code.ranks(); ++held) {
      std::int64_t pass_number = 0;
      auto const row = code.instructions(held);
      for (std::size_t position = 0; position < row.size(); ++position) {
        if (!row[position].is_pass()) continue;
        walk ranks(code);
        ranks.run(held, pass_number);
        INFO(small.name + ", held: " + to_string(row[position]));
        // A pass whose input does not need the held one is reached by then.
        REQUIRE(ranks.at(held) == position);
        reports all;
        bool all_wait = code.ranks() > 1;
        for (int rank = 0; rank < code.ranks(); ++rank) {
          auto const passes = ranks.passes_before(rank);
          auto phase = progress_phase::waiting;
          if (rank == held)
            phase = progress_phase::in_pass;
          else if (ranks.is_over(rank))
            phase = ranks.is_rid_of_all(rank) ? progress_phase::outside : progress_phase::sending;
          all.push_back(at(rank, phase, passes + (rank == held ? 1 : 0)));
          all_wait = all_wait && phase != progress_phase::outside;
        }
        auto const text = lines_of(code, all);
        auto const runs = "runs " + std::string(to_string(row[position].kind)) + " " +
                          std::to_string(row[position].microbatch) + " of stage " +
                          std::to_string(row[position].stage) + " (position " +
                          std::to_string(position) + " of " + std::to_string(row.size()) + ")";
        for (int rank = 0; rank < code.ranks(); ++rank) {
          auto const& line = text[static_cast<std::size_t>(rank) + 1];
          auto const name = "rank " + std::to_string(rank) + ": ";
          INFO(line);
          CHECK(line.ends_with(" for 61.2 s"));
          if (rank == held) {
            CHECK(line == name + runs + " for 61.2 s");
          } else if (!ranks.is_over(rank)) {
            auto const& waits = code.instructions(rank)[ranks.at(rank)];
            CHECK(line.find("waits for ") != std::string::npos);
            CHECK(
                line.find(
                    " from rank " + std::to_string(ranks.waits_for(rank)) + " (position " +
                    std::to_string(ranks.at(rank)) + " of ") != std::string::npos);
            auto const missing =
                (waits.kind == instruction_kind::forward ? "activation " : "gradient ") +
                std::to_string(waits.microbatch) + " of stage ";
            CHECK(line.find(missing) != std::string::npos);
            CHECK(line.find("under way") == std::string::npos);
          } else if (!ranks.is_rid_of_all(rank)) {
            CHECK(begins_with(line, name + "waits for rank "));
            CHECK(line.find(" to take ") != std::string::npos);
          } else {
            CHECK(begins_with(line, name + "is outside step()"));
          }
        }
        // Whoever is still in the step waits for the held pass in the end, and nobody in a cycle.
        auto const ends = text.size() - static_cast<std::size_t>(code.ranks()) - 1;
        CHECK(ends <= 1);
        if (ends == 1)
          CHECK(text.back().ends_with("rank " + std::to_string(held) + ", which " + runs));
        if (all_wait) {
          ++everybody;
          CHECK(begins_with(text.back(), "everybody waits for rank "));
        }
        ++pass_number;
      }
    }
  }
  CHECK(everybody > 20);
}

TEST_CASE("a cycle of two is told from its lowest rank", "[asio]") {
  auto const code =
      of(placement::linear(3), 2, {"0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1", "2F1 2BW1 2F0 2BW0"});
  auto const text = lines_of(
      code,
      {at(0, progress_phase::waiting, 2),
       at(1, progress_phase::waiting, 1),
       at(2, progress_phase::waiting, 0)});
  REQUIRE(text.size() == 5);
  CHECK(
      text[0] == "the step has stalled: no rank has progressed for 61.2 s (limit 60.0 s, "
                 "rendezvous_settings::stall_deadline)");
  CHECK(begins_with(text[1], "rank 0: waits for gradient 0 of stage 1 from rank 1 (position "));
  CHECK(text[1].ends_with(", channel 1->0) for 61.2 s"));
  CHECK(begins_with(text[2], "rank 1: waits for gradient 0 of stage 2 from rank 2 (position "));
  CHECK(begins_with(text[3], "rank 2: waits for activation 1 of stage 1 from rank 1 (position "));
  CHECK(text[4] == "waiting cycle: rank 1 -> rank 2 -> rank 1");
}

TEST_CASE("a cycle of three, and two cycles at once", "[asio]") {
  auto const three = of(placement::looped(3, 2), 2, {"3F1 0F0", "1F0 4F0", "2F0 5F0"});
  auto const start = progress_phase::waiting;
  auto const text = lines_of(three, {at(0, start, 0), at(1, start, 0), at(2, start, 0)});
  CHECK(text.size() == 5);
  CHECK(text.back() == "waiting cycle: rank 0 -> rank 2 -> rank 1 -> rank 0");

  auto const two = of(placement::linear(4), 1, {"0BW0 0F0", "1F0 1BW0", "2BW0 2F0", "3F0 3BW0"});
  auto const both =
      lines_of(two, {at(0, start, 0), at(1, start, 0), at(2, start, 0), at(3, start, 0)});
  REQUIRE(both.size() == 7);
  CHECK(both[5] == "waiting cycle: rank 0 -> rank 1 -> rank 0");
  CHECK(both[6] == "waiting cycle: rank 2 -> rank 3 -> rank 2");
}

TEST_CASE("of a rank that replays its step no pass is told", "[asio]") {
  auto const code = of(placement::linear(2), 1, {"0F0 0BW0", "1F0 1BW0"});
  auto const text =
      lines_of(code, {at(0, progress_phase::replaying, 0), at(1, progress_phase::waiting, 0)});
  REQUIRE(text.size() == 4);
  CHECK(text[1] == "rank 0: replays the step, of which its host sees the end alone, for 61.2 s");
  CHECK(begins_with(text[3], "everybody waits for rank 0, which replays the step"));
}

TEST_CASE("a message that its sender has sent is under way", "[asio]") {
  auto const code = of(placement::linear(2), 2, {"0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1"});
  auto const waits = at(1, progress_phase::waiting, 0);
  auto const line = [&](progress_report const& sender) {
    return lines_of(code, {sender, waits})[2];
  };
  auto const under_way =
      "rank 1: waits for activation 0 of stage 0, which is under way from rank 0 ";
  auto const not_sent = "rank 1: waits for activation 0 of stage 0 from rank 0 ";
  CHECK(begins_with(line(at(0, progress_phase::in_pass, 1)), not_sent));
  CHECK(begins_with(line(at(0, progress_phase::waiting, 1)), under_way));
  CHECK(begins_with(line(at(0, progress_phase::in_pass, 2)), under_way));
  auto later = at(0, progress_phase::waiting, 0);
  ++later.step;
  CHECK(begins_with(line(later), under_way));
  auto earlier = at(0, progress_phase::outside, 4);
  --earlier.step;
  CHECK(begins_with(line(earlier), not_sent));
  auto const text = lines_of(code, {earlier, waits});
  CHECK(text.back() == "everybody waits for rank 0, which is outside step()");
  auto const lost = lines_of(code, {at(0, progress_phase::waiting, 2), waits});
  CHECK(begins_with(lost.back(), "everybody waits for rank 1, which waits for activation 0"));
}

TEST_CASE("a rank that is outside, silent, sends, or steps an optimizer is told so", "[asio]") {
  auto const code =
      lower(schedule(placement::linear(2), 2, passes({"0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1"})));
  auto const line = [&](int rank, reports const& all) {
    return lines_of(code, all)[static_cast<std::size_t>(rank) + 1];
  };
  auto const waits = at(0, progress_phase::waiting, 2);
  CHECK(
      line(1, {waits, at(1, progress_phase::outside, 4, 70'000)}) ==
      "rank 1: is outside step() for 70.0 s");
  auto silent = at(1, progress_phase::in_pass, 1, 5'000);
  silent.silence_ms = 65'432;
  CHECK(line(1, {waits, silent}) == "rank 1: has not been heard for 65.4 s");
  CHECK(line(1, {waits}) == "rank 1: has not told where it is");
  CHECK(
      line(1, {waits, at(1, progress_phase::in_pass, 9)}) ==
      "rank 1: tells of 9 passes, which are not of this program, for 61.2 s");
  CHECK(
      line(1, {waits, at(1, progress_phase::sending, 4)}) ==
      "rank 1: waits for rank 0 to take gradient 0 of stage 1 (channel 1->0) for 61.2 s");
  CHECK(
      line(1, {at(0, progress_phase::sending, 4), at(1, progress_phase::sending, 4)}) ==
      "rank 1: sends what is left for 61.2 s");
  CHECK(begins_with(
      line(1, {waits, at(1, progress_phase::waiting, 1)}),
      "rank 1: is about to run BW 0 of stage 1 (position "));
  CHECK(
      line(1, {waits, at(1, progress_phase::waiting, 4)}) ==
      "rank 1: steps the optimizer of stage 1, or is at the end of its program for 61.2 s");
}

TEST_CASE("a step that moves, or that nobody is in, has not stalled", "[asio]") {
  auto const code = of(placement::linear(2), 1, {"0F0 0BW0", "1F0 1BW0"});
  auto const in_pass = [](int rank, std::int64_t age) {
    return at(rank, progress_phase::in_pass, 1, age);
  };
  stall_detector detect(code, 500ms);
  CHECK_FALSE(detect(reports{}));
  CHECK_FALSE(detect(reports{in_pass(0, 500), in_pass(1, 9'000)}));
  CHECK_FALSE(detect(reports{in_pass(0, 499), in_pass(1, 9'000)}));
  CHECK_FALSE(detect(
      reports{at(0, progress_phase::outside, 2, 9'000), at(1, progress_phase::outside, 2, 9'000)}));
  CHECK(detect(reports{in_pass(0, 501), in_pass(1, 9'000)}));
  // Told once, until something moves.
  CHECK_FALSE(detect(reports{in_pass(0, 601), in_pass(1, 9'100)}));
  CHECK_FALSE(detect(reports{in_pass(0, 10), in_pass(1, 9'200)}));
  CHECK(detect(reports{in_pass(0, 510), in_pass(1, 9'700)}));
  // Age was told before the silence began, so both count.
  auto quiet = in_pass(0, 300);
  quiet.silence_ms = 300;
  stall_detector other(code, 500ms);
  CHECK(other(reports{quiet, in_pass(1, 9'000)}));
  CHECK_THROWS_AS(stall_detector(code, 0ms), error);
}

TEST_CASE("reports of any content are survived", "[asio]") {
  auto const programs = small_programs();
  int calls = 0;
  for (std::uint64_t trial = 0; trial < 3000; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const& code = random.pick(std::span(programs)).code;
    auto const number = [&](std::int64_t most) {
      if (random.chance(0.9)) return random.integer(0, most);
      return random.chance(0.5) ? std::numeric_limits<std::int64_t>::max()
                                : std::numeric_limits<std::int64_t>::min();
    };
    reports all;
    for (auto left = random.integer(0, 5); left > 0; --left)
      all.push_back(
          {.rank = static_cast<std::int32_t>(random.integer(-1, code.ranks())),
           .phase = static_cast<progress_phase>(random.integer(0, 3)),
           .step = number(1),
           .passes_started = number(15),
           .age_ms = number(1000),
           .silence_ms = number(1000)});
    stall_detector detect(code, 100ms);
    auto const text = detect(all);
    if (!text) continue;
    ++calls;
    auto const all_lines = lines(*text);
    REQUIRE(all_lines.size() > static_cast<std::size_t>(code.ranks()));
    for (int rank = 0; rank < code.ranks(); ++rank)
      CHECK(begins_with(
          all_lines[static_cast<std::size_t>(rank) + 1], "rank " + std::to_string(rank) + ": "));
  }
  CHECK(calls > 1000);
}

}  // namespace test_asio_stall
