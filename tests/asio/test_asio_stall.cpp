// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/detail/stall.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/group_link.hpp>
#include <zbpp/runtime/state_link.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/seeded.hpp>
#include <support/small_programs.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace test_asio_stall {

using namespace zbpp;
using namespace zbpp::test;
using namespace std::chrono_literals;
using zbpp::asio::progress_phase;
using zbpp::asio::progress_report;
using zbpp::asio::wait_kind;
using zbpp::asio::detail::stall_detector;

namespace {

using reports = std::vector<progress_report>;

// Of a rank that is in or behind what it began last, as the host of a device tells.
progress_report at(
    int rank,
    progress_phase phase,
    std::optional<instruction> const& last,
    std::int64_t age = 61'234) {
  return {
      .rank = rank,
      .phase = phase,
      .step = 7,
      .at = last,
      .wait = {},
      .age_ms = age,
      .silence_ms = 0};
}
// Of a rank that tells in what it waits, and whom where no message says that.
progress_report waiting(int rank, instruction const& in, int peer = -1) {
  auto report = at(rank, progress_phase::waiting, in);
  report.wait = {
      .peer = peer,
      .kind = wait_kind::instruction,
      .call = static_cast<std::uint8_t>(in.kind),
      .axis = grid_axis::pipeline};
  return report;
}
progress_report in_group(progress_report report, call_of_group call, grid_axis axis, int peer) {
  report.wait = {peer, wait_kind::group, static_cast<std::uint8_t>(call), axis};
  return report;
}
instruction pass_of(instruction_kind kind, int stage, int microbatch) {
  return {kind, stage, microbatch};
}

std::string const head = "the step has stalled: no rank has progressed for 61.2 s (limit 60.0 s, "
                         "rendezvous_settings::stall_deadline), and ";

std::string text_of(program const& code, reports const& all, grid_layout const* layout = nullptr) {
  stall_detector detect(
      code, 60s, layout == nullptr ? nullptr : std::make_shared<grid_layout const>(*layout));
  auto const text = detect(all);
  REQUIRE(text.has_value());
  REQUIRE(text->find(head) == 0);
  return text->substr(head.size());
}

std::size_t count(std::string const& text, std::string const& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string name(int rank) { return "rank " + std::to_string(rank); }
std::string words(instruction const& i) {
  return std::string(to_string(i.kind)) + " " + std::to_string(i.microbatch) + " of stage " +
         std::to_string(i.stage);
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
  // For whom a finished rank waits that is not rid of all.
  [[nodiscard]] bool waits_to_send(int rank, int to) const {
    for (std::size_t c = 0; c < sent_.size(); ++c)
      if (messages_.channels()[c].from == rank && messages_.channels()[c].to == to &&
          taken_[c] < sent_[c])
        return true;
    return false;
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
  int chains = 0;
  for (auto const& small : small_programs())
    for (bool const says : {true, false})  // in what it waits
      for (int held = 0; held < small.code.ranks(); ++held) {
        auto const& code = small.code;
        auto const row = code.instructions(held);
        std::int64_t pass_number = 0;
        for (std::size_t position = 0; position < row.size(); ++position) {
          if (!row[position].is_pass()) continue;
          walk ranks(code);
          ranks.run(held, pass_number++);
          INFO(small.name + ", held: " + to_string(row[position]));
          // A pass whose input does not need the held one is reached by then.
          REQUIRE(ranks.at(held) == position);
          reports all;
          int first = -1;
          for (int rank = 0; rank < code.ranks(); ++rank) {
            auto const own = code.instructions(rank);
            std::optional<instruction> last;
            for (auto const& i : own.first(ranks.at(rank)))
              if (i.is_pass()) last = i;
            bool const waits = rank != held && !(ranks.is_over(rank) && ranks.is_rid_of_all(rank));
            if (waits && first < 0) first = rank;
            if (rank == held)
              all.push_back(at(rank, progress_phase::in_pass, row[position]));
            else if (ranks.is_over(rank))
              all.push_back(
                  at(rank, waits ? progress_phase::sending : progress_phase::outside, own.back()));
            else if (says)
              all.push_back(waiting(rank, own[ranks.at(rank)]));
            else
              all.push_back(at(rank, progress_phase::waiting, last));
          }
          auto const text = text_of(code, all);
          INFO(text);
          auto const end = " waits for no rank: it runs " + words(row[position]) + " for 61.2 s";
          // Nobody else is suspected, or named behind it.
          REQUIRE(text.ends_with(end));
          auto left = text.substr(0, text.size() - end.size());
          CHECK(left.ends_with(first < 0 ? name(held) : " for " + name(held) + ", which"));
          CHECK(text.find(" or ") == std::string::npos);
          for (int rank = first; rank >= 0 && rank != held;) {
            ++chains;
            auto const begin = name(rank) + " waits in ";
            REQUIRE(left.find(begin) == 0);
            auto const to = left.find(" for rank ");
            auto const next = to == std::string::npos ? held : left[to + 10] - '0';
            auto const in = left.substr(begin.size(), to - begin.size());
            if (ranks.is_over(rank)) {
              CHECK(in.find("SEND_") == 0);
              CHECK(ranks.waits_to_send(rank, next));
            } else {
              CHECK(in == words(code.instructions(rank)[ranks.at(rank)]));
              CHECK(next == ranks.waits_for(rank));
            }
            // `for rank 2, which waits in ...`, and at the end `for rank 2, which waits for no ...`
            if (next == held) break;
            left = name(next) + left.substr(left.find(", which") + 7);
            rank = next;
          }
        }
      }
  CHECK(chains > 200);
}

TEST_CASE("of ranks that wait for each other no one is suspected", "[asio]") {
  auto const code =
      of(placement::linear(3), 2, {"0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1", "2F1 2BW1 2F0 2BW0"});
  CHECK(
      text_of(
          code,
          {at(0, progress_phase::waiting, pass_of(instruction_kind::forward, 0, 1)),
           at(1, progress_phase::waiting, pass_of(instruction_kind::forward, 1, 0)),
           at(2, progress_phase::waiting, std::nullopt)}) ==
      "rank 1 waits in BW 0 of stage 1 for rank 2, which waits in F 1 of stage 2 for rank 1: they "
      "wait for each other");
}

TEST_CASE("a cycle of three, and of two cycles the first", "[asio]") {
  auto const three = of(placement::looped(3, 2), 2, {"3F1 0F0", "1F0 4F0", "2F0 5F0"});
  auto const start = [](int rank) { return at(rank, progress_phase::waiting, std::nullopt); };
  CHECK(
      text_of(three, {start(0), start(1), start(2)}) ==
      "rank 0 waits in F 1 of stage 3 for rank 2, which waits in F 0 of stage 2 for rank 1, which "
      "waits in F 0 of stage 1 for rank 0: they wait for each other");
  auto const two = of(placement::linear(4), 1, {"0BW0 0F0", "1F0 1BW0", "2BW0 2F0", "3F0 3BW0"});
  CHECK(
      text_of(two, {start(0), start(1), start(2), start(3)}) ==
      "rank 0 waits in BW 0 of stage 0 for rank 1, which waits in F 0 of stage 1 for rank 0: they "
      "wait for each other");
}

TEST_CASE("of a rank that replays its step no pass is told", "[asio]") {
  auto const code = of(placement::linear(2), 1, {"0F0 0BW0", "1F0 1BW0"});
  CHECK(
      text_of(
          code,
          {at(0, progress_phase::replaying, std::nullopt),
           at(1, progress_phase::waiting, std::nullopt)}) ==
      "rank 1 waits in F 0 of stage 1 for rank 0, which waits for no rank: it replays the step, of "
      "which its host sees the end alone, for 61.2 s");
}

TEST_CASE("a message that its sender has sent is no reason to suspect that rank", "[asio]") {
  auto const code = of(placement::linear(2), 2, {"0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1"});
  auto const first = pass_of(instruction_kind::forward, 0, 0);
  auto const second = pass_of(instruction_kind::forward, 0, 1);
  for (auto const& waits :
       {at(1, progress_phase::waiting, std::nullopt),
        waiting(1, pass_of(instruction_kind::forward, 1, 0))}) {
    auto const is_sent = [&](progress_report const& sender) {
      auto const text = text_of(code, {sender, waits});
      INFO(text);
      return text.find("in F 0 of stage 1 for rank 0, which") == std::string::npos;
    };
    CHECK_FALSE(is_sent(at(0, progress_phase::in_pass, first)));
    CHECK(is_sent(at(0, progress_phase::between, first)));
    CHECK(is_sent(at(0, progress_phase::waiting, first)));
    CHECK(is_sent(at(0, progress_phase::in_pass, second)));
    auto later = at(0, progress_phase::waiting, std::nullopt);
    ++later.step;
    CHECK(is_sent(later));
    auto earlier = at(0, progress_phase::outside, pass_of(instruction_kind::backward, 0, 1));
    --earlier.step;
    CHECK_FALSE(is_sent(earlier));
    CHECK(
        text_of(code, {earlier, waits}) ==
        "rank 1 waits in F 0 of stage 1 for rank 0, which waits for no rank: it is outside step() "
        "for 61.2 s");
    CHECK(
        text_of(code, {at(0, progress_phase::waiting, second), waits}) ==
        "rank 0 waits in BW 0 of stage 0 for rank 1, which waits for no rank: it waits in F 0 of "
        "stage 1 for what rank 0 has sent for 61.2 s");
  }
}

TEST_CASE("a rank that is outside, silent, or between two passes is told so", "[asio]") {
  auto const code = lower(
      schedule(placement::linear(2), 2, passes({"0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1"})),
      {.step = step_kind::synchronous});
  auto const waits = at(0, progress_phase::waiting, pass_of(instruction_kind::forward, 0, 1));
  auto const last = pass_of(instruction_kind::backward, 1, 1);
  auto const end = [&](std::optional<progress_report> const& other) {
    auto const text = text_of(code, other ? reports{waits, *other} : reports{waits});
    std::string const begin =
        "rank 0 waits in BW 0 of stage 0 for rank 1, which waits for no rank: it ";
    REQUIRE(text.find(begin) == 0);
    return text.substr(begin.size());
  };
  auto outside = at(1, progress_phase::outside, last, 70'000);
  --outside.step;
  CHECK(end(outside) == "is outside step() for 70.0 s");
  auto silent = at(1, progress_phase::in_pass, pass_of(instruction_kind::forward, 1, 0), 5'000);
  silent.silence_ms = 65'432;
  CHECK(end(silent) == "has not been heard for 65.4 s");
  CHECK(end({}) == "has not told where it is");
  CHECK(
      end(at(1, progress_phase::in_pass, pass_of(instruction_kind::forward, 9, 0))) ==
      "tells of F 0 of stage 9, which is not of this program, for 61.2 s");
  CHECK(end(at(1, progress_phase::between, std::nullopt)) == "begins the step for 61.2 s");
  CHECK(
      end(at(1, progress_phase::between, pass_of(instruction_kind::forward, 1, 0))) ==
      "has run F 0 of stage 1 for 61.2 s");
  // Behind the passes: rank 0 waits in its NORM or VALIDATE, as it says itself.
  auto const norm = waiting(0, {instruction_kind::validate, 0, 0}, state_map(code).between(1, 0));
  for (auto const& [kind, text] : std::vector<std::pair<instruction_kind, std::string>>{
           {instruction_kind::reduce_norm, "NORM"},
           {instruction_kind::optimizer_step, "STEP of stage 1"}})
    CHECK(
        text_of(code, {norm, at(1, progress_phase::between, instruction{kind, 1, 0})}) ==
        "rank 0 waits in VALIDATE for rank 1, which waits for no rank: it runs " + text +
            " for 61.2 s");
  CHECK(
      text_of(
          code,
          {at(0, progress_phase::sending, pass_of(instruction_kind::backward, 0, 1)),
           at(1, progress_phase::sending, last)})
          .find("sends what is left") != std::string::npos);
}

namespace {

grid_layout const& cube() {
  static grid_layout const layout({.pipeline = 2, .data = 2, .tensor = 2}, 8);
  return layout;
}

}  // namespace

TEST_CASE("a rank in a call of a group waits for the member that has not come", "[asio][grid]") {
  auto const code = of(placement::linear(2), 2, {"0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1"});
  // Ranks are numbered tensor first, then replicas. Rank 5 hangs between two calls of an F.
  auto const f = pass_of(instruction_kind::forward, 1, 0);
  reports all;
  for (int rank = 0; rank < 8; ++rank)
    all.push_back(
        rank < 4 ? waiting(rank, pass_of(instruction_kind::backward, 0, 0))
                 : at(rank, progress_phase::in_pass, f));
  all[4] = in_group(all[4], call_of_group::all_reduce, grid_axis::tensor, 5);
  all[6] = in_group(all[6], call_of_group::barrier, grid_axis::data, 4);
  all[7] = in_group(all[7], call_of_group::barrier, grid_axis::data, 5);
  CHECK(
      text_of(code, all, &cube()) ==
      "rank 0 (pipeline 0, replica 0, tensor 0) waits in BW 0 of stage 0 for rank 4 (pipeline 1, "
      "replica 0, tensor 0), which waits in all_reduce of its tensor group in F 0 of stage 1 for "
      "rank 5 (pipeline 1, replica 0, tensor 1), which waits for no rank: it runs F 0 of stage 1 "
      "for 61.2 s");
  // One that waits for all of the run waits for the first that has not come.
  all[2] = at(2, progress_phase::outside, pass_of(instruction_kind::backward, 0, 1));
  all[2].wait = {0, wait_kind::run, 0, {}};
  all[0] = all[3] = all[2];
  all[0].rank = 0;
  all[3].rank = 3;
  CHECK(
      text_of(code, all, &cube())
          .find("rank 0 (pipeline 0, replica 0, tensor 0) waits in barrier for rank 1 (") == 0);
  all[0].wait = all[2].wait = all[3].wait = {.kind = wait_kind::decision};
  CHECK(
      text_of(code, all, &cube())
          .find("rank 0 (pipeline 0, replica 0, tensor 0) waits in run() behind a step for rank 1 "
                "(") == 0);
}

TEST_CASE("a rank that adds gradients up waits for the replicas that are behind", "[asio]") {
  grid_layout const layout({.pipeline = 1, .data = 3}, 3);
  auto const problem = with_replicas(
      zbpp::problem(placement::linear(1), 2, stage_costs{.forward = 1}), {.count = 3});
  auto const code = make_plan(one_f_one_b{}, problem).program();
  auto const row = code.instructions(0);
  REQUIRE(reduces_gradients(code));
  auto const last = *std::ranges::find_if(
      row.rbegin(), row.rend(), [](instruction const& i) { return i.is_pass(); });
  // A device does not tell, a host does.
  instruction const sum{instruction_kind::finish_reduction, 0, 0};
  auto const waits = at(0, progress_phase::waiting, last);
  auto const told = waiting(0, sum, 2);
  auto other = waits;
  other.rank = 1;
  auto const end =
      " waits in REDUCED of stage 0 for rank 2 (replica 2), which waits for no rank: it "
      "runs " +
      words(last) + " for 61.2 s";
  for (auto const& first : {waits, told})
    CHECK(
        text_of(code, {first, other, at(2, progress_phase::in_pass, last)}, &layout) ==
        "rank 0 (replica 0)" + end);
  // All have given theirs, and one has not given the others what it adds up.
  CHECK(
      text_of(
          code,
          {told, at(1, progress_phase::outside, sum), at(2, progress_phase::between, sum)},
          &layout) ==
      "rank 0 (replica 0) waits in REDUCED of stage 0 for rank 2 (replica 2), which waits for no "
      "rank: it runs REDUCED of stage 0 for 61.2 s");
}

TEST_CASE("a rank without room for what it sends waits for its receiver", "[asio]") {
  auto const code = of(placement::linear(2), 2, {"0F0 0F1", "1F0 1F1"});
  auto const f = pass_of(instruction_kind::forward, 1, 0);
  CHECK(
      text_of(
          code,
          {waiting(0, pass_of(instruction_kind::send_activation, 0, 1)),
           at(1, progress_phase::in_pass, f)}) ==
      "rank 0 waits in SEND_F 1 of stage 0 for rank 1, which waits for no rank: it runs F 0 of "
      "stage 1 for 61.2 s");
}

TEST_CASE("of all waits that lead to one rank, or in cycles, that rank is named", "[asio]") {
  auto const code = of(placement::linear(2), 2, {"0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1"});
  std::string const no_rank = " waits for no rank: it ";
  int cycles = 0;
  int left_out = 0;
  for (std::uint64_t trial = 0; trial < 2000; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const data = static_cast<int>(random.integer(1, 4));
    auto const tensor = static_cast<int>(random.integer(1, 3));
    grid_layout const layout({.pipeline = 2, .data = data, .tensor = tensor}, 2 * data * tensor);
    auto const ranks = layout.ranks();
    auto const hung = static_cast<int>(random.integer(0, ranks - 1));
    reports all;
    std::vector<int> next(static_cast<std::size_t>(ranks), -1);
    for (int rank = 0; rank < ranks; ++rank) {
      auto const stage = layout.coordinates(rank).pipeline;
      all.push_back(
          at(rank,
             random.chance(0.8) ? progress_phase::in_pass : progress_phase::between,
             instruction{instruction_kind::forward, stage, 0}));
      if (rank == hung) {
        all.back().age_ms = 70'000;
        continue;
      }
      int peer = rank;
      while (peer == rank) peer = static_cast<int>(random.integer(0, ranks - 1));
      next[static_cast<std::size_t>(rank)] = peer;
      all.back() = in_group(
          all.back(),
          static_cast<call_of_group>(random.integer(0, 6)),
          random.chance(0.5) ? grid_axis::tensor : grid_axis::data,
          peer);
    }
    auto const full_name = [&](int rank) {
      return name(rank) + " (" + zbpp::coordinates_text(layout, rank) + ")";
    };
    auto const text = text_of(code, all, &layout);
    INFO(text);
    CHECK(count(text, no_rank) == 1);
    auto const before = text.substr(0, text.find(no_rank));
    CHECK((before == full_name(hung) || before.ends_with(" for " + full_name(hung) + ", which")));
    CHECK(count(text, "the same holds") == 0);
    CHECK(count(text, full_name(hung)) == 1);
    cycles += count(text, "wait for each other") > 0 ? 1 : 0;
    left_out += count(text, "waits through") > 0 ? 1 : 0;
    // Each wait that is told is one.
    int rank = -1;
    for (int other = 0; other < ranks; ++other)
      if (text.find(full_name(other)) == 0) rank = other;
    REQUIRE(rank >= 0);
    auto told = text;
    while (rank != hung) {
      told = told.substr(full_name(rank).size());
      auto const to = told.find(" for rank ") + 5;
      auto const is_direct = told.find(" waits in ") == 0;
      CHECK((is_direct || told.find(" waits through ") == 0));
      int found = -1;
      for (int other = 0; other < ranks; ++other)
        if (told.compare(to, full_name(other).size(), full_name(other)) == 0) found = other;
      REQUIRE(found >= 0);
      CHECK((!is_direct || found == next[static_cast<std::size_t>(rank)]));
      told = full_name(found) + told.substr(to + full_name(found).size());
      if (told.find(", which") == full_name(found).size())
        told = full_name(found) + told.substr(full_name(found).size() + 7);
      rank = found;
    }
  }
  CHECK(cycles > 100);
  CHECK(left_out > 5);
}

TEST_CASE("a step that moves, or that nobody is in, has not stalled", "[asio]") {
  auto const code = of(placement::linear(2), 1, {"0F0 0BW0", "1F0 1BW0"});
  auto const in_pass = [](int rank, std::int64_t age) {
    return at(rank, progress_phase::in_pass, pass_of(instruction_kind::forward, rank, 0), age);
  };
  stall_detector detect(code, 500ms);
  CHECK_FALSE(detect(reports{}));
  CHECK_FALSE(detect(reports{in_pass(0, 500), in_pass(1, 9'000)}));
  CHECK_FALSE(detect(reports{in_pass(0, 499), in_pass(1, 9'000)}));
  CHECK_FALSE(detect(reports{
      at(0, progress_phase::outside, {}, 9'000), at(1, progress_phase::outside, {}, 9'000)}));
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
    for (auto left = random.integer(0, 5); left > 0; --left) {
      auto const at = instruction{
          static_cast<instruction_kind>(random.integer(0, instruction_kinds - 1)),
          static_cast<std::int32_t>(random.integer(-1, 6)),
          static_cast<std::int32_t>(random.integer(-1, 4))};
      all.push_back(
          {.rank = static_cast<std::int32_t>(random.integer(-1, code.ranks())),
           .phase = static_cast<progress_phase>(random.integer(0, 5)),
           .step = number(1),
           .at = random.chance(0.8) ? std::optional(at) : std::nullopt,
           .wait =
               {.peer = static_cast<std::int32_t>(random.integer(-2, 9)),
                .kind = static_cast<wait_kind>(random.integer(0, 4)),
                .call = static_cast<std::uint8_t>(random.integer(0, 255)),
                .axis = static_cast<grid_axis>(random.integer(0, 4))},
           .age_ms = number(1000),
           .silence_ms = number(1000)});
    }
    stall_detector detect(code, 100ms);
    auto const text = detect(all);
    if (!text) continue;
    ++calls;
    CHECK(count(*text, "rank ") > 0);
    CHECK(text->find('\n') == std::string::npos);
    CHECK(
        count(*text, " waits for no rank: it ") + count(*text, ": they wait for each other") == 1);
  }
  CHECK(calls > 1000);
}

}  // namespace test_asio_stall
