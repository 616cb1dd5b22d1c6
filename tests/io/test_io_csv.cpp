// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/lower.hpp>
#include <zbpp/io/csv.hpp>
#include <zbpp/io/detail/csv_reader.hpp>
#include <zbpp/policy/dualpipe_v.hpp>
#include <zbpp/policy/interleaved.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <support/catch.hpp>
#include <support/policy_grid.hpp>
#include <support/random_timeline.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace test_io_csv {

using namespace zbpp;

namespace {

// What a reader says of a text that it refuses.
template <class Read>
std::string refusal(Read read) {
  return test::refusal(errc::bad_format, [&] { static_cast<void>(read()); });
}

bool is_read(std::string const& refused) { return refused == "<nothing was refused>"; }

std::vector<std::string> cells_of(std::string const& line) {
  std::vector<std::string> cells;
  std::istringstream stream(line);
  for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
  return cells;
}

// What the runtime demands, told from the text alone: each send has one wait behind it, each stage
// is gathered before its first pass, and its gradients are reduced behind its last backward pass.
void check_demands(std::string const& text, problem const& problem) {
  std::istringstream stream(text);
  std::multiset<std::string> pending;
  std::map<std::string, int> backwards;
  std::set<std::string> gathered;
  std::set<std::string> reduced;
  bool right = true;
  for (std::string line; std::getline(stream, line);) {
    for (auto const& cell : cells_of(line)) {
      auto const at = cell.find_first_not_of("0123456789");
      auto const stage = cell.substr(0, at);
      auto const rest = cell.substr(at);
      if (rest.starts_with("SEND")) pending.insert(stage + rest);
      if (rest.starts_with("WAIT_SEND"))
        right = right && pending.erase(stage + rest.substr(5)) == 1;
      if (rest == "UNSHARD") right = gathered.insert(stage).second && right;
      if (rest[0] == 'F' || rest[0] == 'I' || rest[0] == 'B' || rest[0] == 'W')
        right = right && (rest.starts_with("WAIT") ||
                          (gathered.count(stage) == 1 && reduced.count(stage) == 0));
      if (rest == "WAIT_REDUCE_GRAD") right = right && reduced.count(stage) == 1;
      if (rest[0] == 'B' || (rest[0] == 'W' && rest[1] != 'A')) ++backwards[stage];
      if (rest == "REDUCE_GRAD")
        right = right && backwards[stage] == problem.microbatches() && reduced.insert(stage).second;
      if (rest == "RESHARD") right = right && reduced.count(stage) == 1;
    }
    right = right && pending.empty();
  }
  if (!right || static_cast<int>(reduced.size()) != problem.stages()) FAIL_CHECK(text);
}

problem unit_problem(placement placement, int microbatches) {
  return {std::move(placement), microbatches, stage_costs{1, 1, 1}};
}

}  // namespace

TEST_CASE("a schedule is written as PyTorch writes it", "[io][csv]") {
  schedule const order(
      placement::v_shape(1),
      2,
      {{{pass_kind::forward, 0, 0},
        {pass_kind::forward, 1, 0},
        {pass_kind::backward_input, 1, 0},
        {pass_kind::backward_weight, 1, 0},
        {pass_kind::backward, 0, 0},
        {pass_kind::recompute, 0, 1}}});
  CHECK(to_csv(order) == "0F0,1F0,1I0,1W0,0B0,0R1\n");
}

TEST_CASE("a program is written with its transfers and steps", "[io][csv]") {
  auto const order = one_f_one_b{}(unit_problem(placement::linear(2), 1));
  CHECK(
      to_csv(lower(order)) == "0F0,0SEND_F0,0RECV_B0,0B0,0STEP\n"
                              "1RECV_F0,1F0,1B0,1SEND_B0,1STEP\n");
}

TEST_CASE("idle cells, spaces and lines that end in CR LF are read", "[io][csv]") {
  auto const order = schedule_from_csv("0F0,,0F1,\r\n, 1F0 ,\t1F1");
  CHECK(order.placement() == placement::linear(2));
  CHECK(order.microbatches() == 2);
  CHECK(to_csv(order) == "0F0,0F1\n1F0,1F1\n");
}

TEST_CASE("the placement is seen in the cells", "[io][csv]") {
  auto const order = schedule_from_csv("0F0,3F0\n1F0,2F0\n");
  CHECK(order.placement() == placement::v_shape(2));
  CHECK(schedule_from_csv("2F0,1F0\n0F0\n").placement() == placement::custom({1, 0, 0}));
}

TEST_CASE("random schedules read back to the same value", "[io][csv]") {
  for (int trial = 0; trial < 200; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const whole = test::random_schedule(values);
    CHECK(schedule_from_csv(to_csv(whole)) == whole);
    auto const part = test::random_schedule(values, 0.2);
    CHECK(schedule_from_csv(to_csv(part), part.placement(), part.microbatches()) == part);
  }
}

TEST_CASE("programs of all policies read back to the same value", "[io][csv]") {
  auto const linear = unit_problem(placement::linear(4), 8);
  auto const v = unit_problem(placement::v_shape(4), 8);
  auto const looped = unit_problem(placement::looped(4, 2), 8);
  for (auto const& order :
       {gpipe{}(linear),
        one_f_one_b{}(linear),
        zb_h1{}(linear),
        zb_h2{}(linear),
        zb_v{}(v),
        interleaved{}(looped)}) {
    for (lower_options options : {lower_options{}, lower_options{2, zbpp::step_kind::none}}) {
      auto const code = lower(order, options);
      CHECK(program_from_csv(to_csv(code)) == code);
      CHECK(program_from_csv(to_csv(code), code.placement(), code.microbatches()) == code);
    }
    CHECK(schedule_from_csv(to_csv(order)) == order);
    CHECK(to_csv(program_from_csv(to_csv(order))) == to_csv(order));
  }
}

TEST_CASE("a bad cell is refused with line, cell, what was found and what is right", "[io][csv]") {
  CHECK(
      refusal([] { return schedule_from_csv("0F0,0F1\n1F0,1X1\n"); }) ==
      "line 2, cell 2: found '1X1'; expected F, I, W, B or R after the stage, for a schedule has "
      "passes only");
  CHECK(
      refusal([] { return schedule_from_csv("0F0 ,0F1;0F2\n"); }) ==
      "line 1, cell 2: found '0F1;0F2'; expected nothing after 0F1; in this text, commas "
      "separate cells");
}

TEST_CASE("the passes of a pair are read one after the other, as written", "[io][csv]") {
  auto const text = "0F0,0F1,(0F2;1B0)OVERLAP_F_B, (1I1;0F3)OVERLAP_F_B ,1F0\n";
  auto const placement = placement::custom({0, 0});
  auto const order = schedule_from_csv(text, placement, 4);
  CHECK(to_csv(order) == "0F0,0F1,0F2,1B0,1I1,0F3,1F0\n");
  CHECK(
      program_from_csv(text, placement, 4).instructions() ==
      program_from_csv(to_csv(order), placement, 4).instructions());
  CHECK(overlapped_pairs_in_csv(text) == 2);
  CHECK(overlapped_pairs_in_csv(to_csv(order)) == 0);
}

TEST_CASE("pairs of F and BW are written where asked for, and read back", "[io][csv]") {
  auto const problem = unit_problem(placement::v_shape(4), 10);
  auto const order = dualpipe_v{}(problem);
  auto const paired = to_csv(order, {.overlap = true});
  CHECK(overlapped_pairs_in_csv(paired) > 0);
  CHECK(schedule_from_csv(paired) == order);
  CHECK(to_csv(schedule_from_csv(paired), {.overlap = true}) == paired);
  CHECK(overlapped_pairs_in_csv(to_csv(order)) == 0);
  // Rank 0: F of both chunks in turn, until the m - 2p + 1 rounds of F, BW, F, BW, each two pairs;
  // then p - 1 rounds of BW, F, BW, each one.
  auto const line = paired.substr(0, paired.find('\n'));
  CHECK(overlapped_pairs_in_csv(line) == 2 * (10 - 8 + 1) + 3);
  CHECK(line.find("(0F7;7B3)OVERLAP_F_B,(7F4;0B0)OVERLAP_F_B") != std::string::npos);

  schedule const alike(
      placement::v_shape(1),
      2,
      {{{pass_kind::forward, 0, 0},
        {pass_kind::forward, 1, 0},
        {pass_kind::backward, 1, 0},
        {pass_kind::forward, 0, 1},
        {pass_kind::backward, 0, 0},
        {pass_kind::forward, 1, 1},
        {pass_kind::backward_input, 0, 0}}});
  CHECK(to_csv(alike, {.overlap = true}) == "0F0,1F0,1B0,0F1,0B0,1F1,0I0\n");
}

TEST_CASE("random orders written with pairs read back to the same value", "[io][csv]") {
  for (int trial = 0; trial < 200; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const whole = test::random_schedule(values);
    CHECK(schedule_from_csv(to_csv(whole, {.overlap = true})) == whole);
    auto const code = program_from_csv(to_csv(whole));
    CHECK(program_from_csv(to_csv(code, {.overlap = true})) == code);
  }
}

TEST_CASE("actions that only PyTorch's runtime has are counted and left out", "[io][csv]") {
  auto const plain = "0F0,0SEND_F0,0RECV_B0,0B0\n"
                     "1RECV_F0,1F0,1B0,1SEND_B0\n";
  auto const dumped =
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\r\n"
      "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1RESHARD,1WAIT_SEND_"
      "B0\r\n";
  CHECK(program_from_csv(dumped) == program_from_csv(plain));
  CHECK(
      ignored_actions_in_csv(dumped) == std::vector<ignored_action>{
                                            {"UNSHARD", 2},
                                            {"RESHARD", 2},
                                            {"REDUCE_GRAD", 2},
                                            {"WAIT_REDUCE_GRAD", 2},
                                            {"WAIT_SEND_F", 1},
                                            {"WAIT_SEND_B", 1}});
  CHECK(ignored_actions_in_csv(plain).empty());
  CHECK(to_csv(program_from_csv(dumped), {.for_pytorch = true}) == [&] {
    std::string text(dumped);
    std::erase(text, '\r');
    return text;
  }());
}

TEST_CASE("ids of what is left out are checked, too", "[io][csv]") {
  auto const two = placement::linear(2);
  auto const read = [&](char const* text) {
    return refusal([&] { return program_from_csv(text, two, 1); });
  };
  CHECK(
      read("0F0,2UNSHARD\n1F0\n") ==
      "line 1, cell 2: found '2UNSHARD'; expected a stage from 0 to 1");
  CHECK(
      read("0F0,1RESHARD\n1F0\n") ==
      "line 1, cell 2: found '1RESHARD'; expected only stages of this rank; that one is on rank 1");
  CHECK(
      read("0F0,0SEND_F1,0WAIT_SEND_F1\n1F0\n") ==
      "line 1, cell 2: found '0SEND_F1'; expected a microbatch from 0 to 0");
}

TEST_CASE("extra actions anywhere in a file leave its program as it is", "[io][csv]") {
  for (int trial = 0; trial < 100; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const code = lower(test::random_schedule(values));
    std::string text;
    std::int64_t added = 0;
    for (int rank = 0; rank < code.ranks(); ++rank) {
      std::vector<instruction> sent;
      auto const stages = code.placement().stages_of(rank);
      char const* comma = "";
      auto const put = [&](std::string const& cell) {
        text += comma + cell;
        comma = ",";
      };
      auto const some_stage = [&] {
        return std::to_string(stages[static_cast<std::size_t>(
            values.integer(0, static_cast<int>(stages.size()) - 1))]);
      };
      std::set<instruction>
          ever;  // a random order may send twice; what is waited for is one of them
      for (auto const& i : code.instructions(rank)) {
        for (auto const* name : {"UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD"})
          if (values.chance(0.1)) {
            put(some_stage() + name);
            ++added;
          }
        if (values.chance(0.3) && !sent.empty()) {
          auto const& last = sent.back();
          put(std::to_string(last.stage) +
              (last.moves_activation() ? "WAIT_SEND_F" : "WAIT_SEND_B") +
              std::to_string(last.microbatch));
          sent.pop_back();
          ++added;
        }
        std::string cell;
        detail::add_cell(cell, i);
        put(cell);
        if (i.is_send() && ever.insert(i).second) sent.push_back(i);
      }
      text += '\n';
    }
    CAPTURE(text);
    CHECK(program_from_csv(text, code.placement(), code.microbatches()) == code);
    std::int64_t counted = 0;
    for (auto const& action : ignored_actions_in_csv(text)) counted += action.count;
    CHECK(counted == added);
  }
}

TEST_CASE("every policy's program is written as PyTorch's runtime demands it", "[io][csv][long]") {
  int cases = 0;
  test::for_each_schedule(
      {1, 2, 4}, [&](any_policy const& decide, problem const& problem, schedule const& order) {
        INFO(test::name_of(decide, problem));
        auto const passes = order.passes().all();
        if (std::any_of(passes.begin(), passes.end(), [](pass const& p) {
              return p.kind == pass_kind::recompute;
            }))
          return;  // refused, as below
        for (auto step : {step_kind::none, step_kind::unchecked, step_kind::post_validated}) {
          auto const code =
              lower(order, {.step = step, .tied = {}, .layout = channel_layout::one_per_rank});
          auto const text = to_csv(code, {.for_pytorch = true});
          auto const bare = lower(
              order, {.step = step_kind::none, .tied = {}, .layout = channel_layout::one_per_rank});
          // Passes and transfers are all there, in their order; nothing else is but what it wants.
          if (step == step_kind::none) CHECK(program_from_csv(text) == code);
          if (step == step_kind::unchecked) CHECK(program_from_csv(text) == bare);
          check_demands(text, problem);
          ++cases;
        }
        CHECK(schedule_from_csv(to_csv(order, {.for_pytorch = true})) == order);
      });
  CHECK(cases > 100);
}

TEST_CASE("a send is waited for as soon as a message proves that it was consumed", "[io][csv]") {
  auto const order = one_f_one_b{}(unit_problem(placement::linear(2), 2));
  auto const code = lower(order, {.layout = channel_layout::one_per_rank});
  CHECK(
      to_csv(code, {.for_pytorch = true}) ==
      "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1,0WAIT_SEND_F1,"
      "0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\n"
      "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,"
      "1WAIT_REDUCE_GRAD,1RESHARD,1WAIT_SEND_B0,1WAIT_SEND_B1\n");
}

TEST_CASE("what PyTorch's runtime could not run is not written for it", "[io][csv]") {
  csv_options const options{.for_pytorch = true};
  schedule const again(
      placement::linear(1),
      1,
      {{{pass_kind::forward, 0, 0}, {pass_kind::recompute, 0, 0}, {pass_kind::backward, 0, 0}}});
  auto const r =
      "0R0: PyTorch's pipelining runtime has no R; plan without it, and let the stage's module "
      "recompute";
  CHECK(test::refusal(errc::bad_argument, [&] { static_cast<void>(to_csv(again, options)); }) == r);
  CHECK(test::refusal(errc::bad_argument, [&] {
          static_cast<void>(to_csv(lower(again), options));
        }) == r);
  // The first program of docs/verify.md that deadlocks on one channel per rank.
  auto const crossed = program_from_csv("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                                        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  auto const refused =
      test::refusal(errc::refused_program, [&] { static_cast<void>(to_csv(crossed, options)); });
  CHECK(refused.find("PyTorch's runtime could not run the program, deadlock") != std::string::npos);
  CHECK(refused.find(".layout = channel_layout::one_per_rank") != std::string::npos);
  auto const short_one = program_from_csv("0F0,0F1,0B0\n", placement::linear(1), 2);
  CHECK(test::refusal(errc::refused_program, [&] {
          static_cast<void>(to_csv(short_one, options));
        }).find("missing") != std::string::npos);
}

TEST_CASE("every malformed file is refused at its place", "[io][csv]") {
  struct fault {
    std::string text;
    std::string place;
    std::string expected;
  };
  std::vector<fault> const faults{
      {"", "line 1: found nothing", "one line for each rank"},
      {"\n", "line 1: found no action", "at least one"},
      {"\n\n,,\n", "line 1: found no action", "at least one"},
      {"0F0\n\n1F0\n", "line 2: found no action", "at least one"},
      {"0F0\n,,\n1F0", "line 2: found no action", "at least one"},
      {"F0", "line 1, cell 1", "begins with a stage"},
      {"-1F0", "line 1, cell 1", "begins with a stage"},
      {"+1F0", "line 1, cell 1", "begins with a stage"},
      {"2147483648F0", "line 1, cell 1", "from 0 to 2147483647"},
      {"99999999999999999999F0", "line 1, cell 1", "from 0 to 2147483647"},
      {"0F0,0F", "line 1, cell 2", "a microbatch from 0"},
      {"0F0,0F-1", "line 1, cell 2", "after the stage"},
      {"0F2147483648", "line 1, cell 1", "a microbatch from 0 to 2147483647"},
      {"0F0x", "line 1, cell 1", "nothing after 0F0"},
      {"0F0 0F1", "line 1, cell 1", "nothing after 0F0"},
      {"0F0.5", "line 1, cell 1", "nothing after 0F0"},
      {"0F0F0", "line 1, cell 1", "nothing after 0F0"},
      {"0f0", "line 1, cell 1", "after the stage"},
      {"0FF0", "line 1, cell 1", "after the stage"},
      {"0BW0", "line 1, cell 1", "after the stage"},
      {"0 F0", "line 1, cell 1", "after the stage"},
      {"00", "line 1, cell 1", "after the stage"},
      {"0", "line 1, cell 1", "after the stage"},
      {"0SENDF0", "line 1, cell 1", "after the stage"},
      {"0UNSHARD", "line 1: found no cell with a microbatch", "at least one pass"},
      {"0F0,0UNSHARD0", "line 1, cell 2", "nothing after 0UNSHARD"},
      {"0F0,0RESHARDED", "line 1, cell 2", "WAIT_SEND_F or WAIT_SEND_B after the stage"},
      {"0F0,0REDUCE_GRAD1", "line 1, cell 2", "nothing after 0REDUCE_GRAD"},
      {"0F0,0WAIT_REDUCE_GRADS", "line 1, cell 2", "after the stage"},
      {"0F0,UNSHARD", "line 1, cell 2", "begins with a stage"},
      {"0F0,1UNSHARD", "line 1: found 1 passes", "at least 2"},
      {"0F0,2UNSHARD", "line 1, cell 2", "a cell with stage 1 too"},
      {"0F0\n0UNSHARD,1F0", "line 2, cell 1", "stage 0 on one rank only"},
      {"0F0,0WAIT_SEND_F", "line 1, cell 2", "a microbatch from 0"},
      {"0F0,0WAIT_RECV_F0", "line 1, cell 2", "after the stage"},
      {"0F0,0WAIT_SEND_F0", "line 1, cell 2", "its 0SEND_F0 before it"},
      {"0F0,0WAIT_SEND_F0,0SEND_F0", "line 1, cell 2", "its 0SEND_F0 before it"},
      {"0F0,0SEND_F0,0WAIT_SEND_B0", "line 1, cell 3", "its 0SEND_B0 before it"},
      {"0F0,0SEND_F0,0WAIT_SEND_F0,0WAIT_SEND_F0", "line 1, cell 4", "and no other wait"},
      {"0F0,0SEND_F0\n1F0,0WAIT_SEND_F0", "line 2, cell 2", "its 0SEND_F0 before it"},
      {"(0F1;0UNSHARD)OVERLAP_F_B", "line 1, cell 1", "after the stage"},
      {"(0F1;0WAIT_SEND_B0)OVERLAP_F_B", "line 1, cell 1", "an F and a B or I of two microbatches"},
      {"(0F1;1B0)", "line 1, cell 1", "a pair like (0F7;7B3)OVERLAP_F_B"},
      {"(0F1;1B0)OVERLAP", "line 1, cell 1", "a pair like (0F7;7B3)OVERLAP_F_B"},
      {"(0F1,1B0)OVERLAP_F_B", "line 1, cell 1", "a pair like (0F7;7B3)OVERLAP_F_B"},
      {"(0F1 ;1B0)OVERLAP_F_B", "line 1, cell 1", "a pair like (0F7;7B3)OVERLAP_F_B"},
      {"(0F1;1B0;0F2)OVERLAP_F_B", "line 1, cell 1", "a pair like (0F7;7B3)OVERLAP_F_B"},
      {"0F0,(0F1;1B0)OVERLAP_F_B2", "line 1, cell 2", "nothing after the pair"},
      {"(0F1)OVERLAP_F_B", "line 1, cell 1", "a pair like (0F7;7B3)OVERLAP_F_B"},
      {"()OVERLAP_F_B", "line 1, cell 1", "begins with a stage"},
      {"(0F1;)OVERLAP_F_B", "line 1, cell 1", "begins with a stage"},
      {"((0F1;1B0)OVERLAP_F_B", "line 1, cell 1", "begins with a stage"},
      {"(0F1;1F0)OVERLAP_F_B", "line 1, cell 1", "an F and a B or I of two microbatches"},
      {"(0B1;1B0)OVERLAP_F_B", "line 1, cell 1", "an F and a B or I of two microbatches"},
      {"(0F1;1W0)OVERLAP_F_B", "line 1, cell 1", "an F and a B or I of two microbatches"},
      {"(0F1;1B1)OVERLAP_F_B", "line 1, cell 1", "an F and a B or I of two microbatches"},
      {"(0F1;0STEP)OVERLAP_F_B", "line 1, cell 1", "after the stage"},
      {std::string("0F0\0", 4), "line 1, cell 1", "nothing after 0F0"},
      {"0STEP1", "line 1, cell 1", "nothing after 0STEP"},
      {"0F0\n0F1", "line 2, cell 1", "stage 0 on one rank only; line 1 has it too"},
      {"0F0\n2F0", "line 2, cell 1", "a cell with stage 1 too"},
      {"1F0", "line 1, cell 1", "a cell with stage 0 too"},
      {"2147483647F0", "line 1, cell 1", "a cell with stage 0 too"},
      {"0F1", "line 1, cell 1", "a cell with microbatch 0 too"},
      {"0F0,0F1,,0F3", "line 1, cell 4", "a cell with microbatch 2 too"},
      {"0F2147483647", "line 1, cell 1", "a cell with microbatch 0 too"},
      {"0STEP", "line 1: found no cell with a microbatch", "at least one pass"}};
  for (auto const& f : faults) {
    CAPTURE(f.text);
    auto const text = refusal([&] { return program_from_csv(f.text); });
    CAPTURE(text);
    CHECK(text.starts_with(f.place));
    CHECK(text.find("; expected ") != std::string::npos);
    CHECK(text.find(f.expected) != std::string::npos);
    auto const of_schedule = refusal([&] { return schedule_from_csv(f.text); });
    CHECK(of_schedule.starts_with("line "));
  }
}

TEST_CASE("what spreadsheets and editors leave in a file is read", "[io][csv]") {
  std::string const bom = "\xEF\xBB\xBF";
  std::string const nbsp = "\xC2\xA0";
  auto const plain = schedule_from_csv("0F0,0F1,0I0,0W0,0B1\n1F0,1I0,1F1,1B1,1W0\n");
  for (auto const& text :
       {bom + "0F0,0F1,0I0,0W0,0B1\n1F0,1I0,1F1,1B1,1W0\n",
        bom + "0F0,0F1,0I0,0W0,0B1\r\n" + bom + "1F0,1I0,1F1,1B1,1W0\r\n\r\n",
        std::string("0F0,0F1,0I0,0W0,0B1\r1F0,1I0,1F1,1B1,1W0\r"),
        std::string("0F0,0F1,0I0,0W0,0B1\r1F0,1I0,1F1,1B1,1W0"),
        std::string("0F0,0F1,0I0,0W0,0B1\r\r\n1F0,1I0,1F1,1B1,1W0\r\r\n"),
        std::string("0F0,0F1,0I0,0W0,0B1,,,\n1F0,1I0,1F1,1B1,1W0,,,\n,,,\n \n\n"),
        std::string("\"0F0\",\"0F1\",\"\",\"0I0\",\" 0W0 \",0B1\n \"1F0\" ,\"1I0\",1F1,1B1,1W0"),
        std::string("0F0;0F1;0I0;0W0;0B1\n1F0;1I0;1F1;1B1;1W0;;\n;;\n"),
        std::string("\"0F0\";\"0F1\";0I0;0W0;0B1\n1F0; 1I0 ;1F1;1B1;1W0\n"),
        std::string("0F0\t0F1\t0I0\t\t0W0\t0B1\n1F0\t1I0\t 1F1\t1B1\t1W0\t\n"),
        bom + "sep=;\r\n0F0;0F1;0I0;0W0;0B1\r\n1F0;1I0;1F1;1B1;1W0\r\n",
        std::string("sep=,\n0F0,0F1,0I0,0W0,0B1\n1F0,1I0,1F1,1B1,1W0\n"),
        std::string("sep=\t\n0F0\t0F1\t0I0\t0W0\t0B1\n1F0\t1I0\t1F1\t1B1\t1W0\n"),
        nbsp + "0F0" + nbsp + ",0F1\xE2\x80\xAF,0I0 " + nbsp + " ,0W0,0B1 \n1F0,1I0,1F1,1B1,1W0"}) {
    CAPTURE(text);
    CHECK(is_read(refusal([&] {
      CHECK(schedule_from_csv(text) == plain);
      CHECK(schedule_from_csv(text, plain.placement(), 2) == plain);
      CHECK(program_from_csv(text) == program_from_csv(to_csv(plain)));
      CHECK(ignored_actions_in_csv(text).empty());
      return 0;
    })));
  }
  auto const placement = placement::custom({0, 0});
  auto const paired = schedule_from_csv("0F0,0F1,0F2,1B0,1I1,0F3\n", placement, 4);
  for (auto const* text :
       {"0F0;0F1;(0F2;1B0)OVERLAP_F_B;(1I1;0F3)OVERLAP_F_B\n",
        "0F0;0F1;\"(0F2;1B0)OVERLAP_F_B\";\"(1I1;0F3)OVERLAP_F_B\"\n",
        "0F0\t0F1\t(0F2;1B0)OVERLAP_F_B\t(1I1;0F3)OVERLAP_F_B\n",
        "\"0F0\",\"0F1\",\"(0F2;1B0)OVERLAP_F_B\",\"(1I1;0F3)OVERLAP_F_B\"\n"}) {
    CAPTURE(text);
    CHECK(schedule_from_csv(text, placement, 4) == paired);
    CHECK(overlapped_pairs_in_csv(text) == 2);
  }
  // With a placement, a line may be empty: its rank runs nothing.
  auto const three = placement::linear(3);
  CHECK(to_csv(schedule_from_csv("0F0\n1F0\n\n", three, 1)) == "0F0\n1F0\n\n");
  CHECK(to_csv(schedule_from_csv("0F0\n1F0\n\n,,\n", three, 1)) == "0F0\n1F0\n\n");
}

TEST_CASE("a file of random lines reads the same however it is written", "[io][csv]") {
  for (int trial = 0; trial < 100; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const choose = [&](int count) {
      return static_cast<std::size_t>(values.integer(0, count - 1));
    };
    auto const order = test::random_schedule(values);
    auto const separator = std::string(1, ",;\t"[choose(3)]);
    auto const* const end = std::vector{"\n", "\r\n", "\r", "\r\r\n"}[choose(4)];
    std::string text = values.chance(0.5) ? "\xEF\xBB\xBF" : "";
    if (values.chance(0.3)) text += "sep=" + separator + end;
    std::istringstream lines(to_csv(order, {.overlap = values.chance(0.5)}));
    for (std::string line; std::getline(lines, line);) {
      for (auto const& cell : cells_of(line)) {
        auto const* const blank = std::vector{"", " ", "\xC2\xA0", "  "}[choose(4)];
        auto const* const quote = values.chance(0.3) ? "\"" : "";
        text += blank + std::string(quote) + cell + quote + blank + separator;
      }
      text += end;
    }
    for (auto left = values.integer(0, 3); left > 0; --left) text += separator + end;
    CAPTURE(text);
    CHECK(schedule_from_csv(text) == order);
  }
}

TEST_CASE("what a file cannot mean is refused with what was found and what is right", "[io][csv]") {
  auto const refused = [](std::string const& text) {
    return refusal([&] { return schedule_from_csv(text); });
  };
  auto const utf8 = "; expected UTF-8, as `iconv -t UTF-8` makes it, or an editor that saves it so";
  using namespace std::string_literals;
  for (auto const& text :
       {"\xFF\xFE"
        "0\0F\0"s,
        "\xFE\xFF\0"
        "0\0F"s,
        "0\0F\0"s + "0\0\n\0"s,
        "\0"
        "0\0F\0"
        "0\0\n"s,
        "\xFF\xFE"s})
    CHECK(refused(text) == "line 1: found UTF-16" + std::string(utf8));
  for (auto const& text :
       {"\xFF\xFE\0\0"
        "0\0\0\0"s,
        "\0\0\xFE\xFF\0\0\0"
        "0"s})
    CHECK(refused(text) == "line 1: found UTF-32" + std::string(utf8));
  CHECK(
      refused("\x1F\x8B\x08\0"s) == "line 1: found a text compressed by gzip; expected the text "
                                    "itself; decompress the file first");
  CHECK(refused("\xEF\xBB\xBF") == "line 1: found nothing; expected one line for each rank");
  CHECK(refused("sep=;\n") == "line 2: found nothing; expected one line for each rank");
  CHECK(
      refused("sep=|\n0F0|0F1\n") ==
      "line 1: found 'sep=|'; expected a comma, a semicolon or a tab");
  CHECK(refused("sep=;\n0F0;0F1\n0F2\n")
            .starts_with("line 3, cell 1: found '0F2'; expected stage 0 on one rank only; line 2"));
  CHECK(
      refused("0F0\0,0F1\n"s) == "line 1, cell 1: found '0F0<U+0000>'; expected nothing after 0F0");
  CHECK(
      refused("0F0\n\x1A") ==
      "line 2, cell 1: found '<U+001A>'; expected a cell like 0F3 that begins with a stage from 0 "
      "to 2147483647");
  CHECK(refused("0F0,0\xC2\xA0"
                "F1\n")
            .starts_with("line 1, cell 2: found '0<U+00A0>F1'; expected F, "));
  CHECK(refused("0F0,0F\xE2\x80\x8B"
                "1\n")
            .starts_with("line 1, cell 2: found '0F<U+200B>1'; "));
  auto const quotes = "; expected one action, with a quote before and behind it or none";
  for (auto const* cell :
       {"\"0F1", "\"", "\"0F1\"x", "\"0F1\"\"", "\"\"\"0F1\"\"\"", "\"0F1\" \"0F2\""})
    CHECK(
        refused("0F0," + std::string(cell)) ==
        "line 1, cell 2: found '" + std::string(cell) + "'" + quotes);
  CHECK(refused("0F0,\"0F1\n0F2\"") == "line 1, cell 2: found '\"0F1'" + std::string(quotes));
  CHECK(
      refused("\"0F0,0F1\"\n") ==
      "line 1, cell 1: found '\"0F0,0F1\"'; expected nothing after 0F0; quotes hold one cell");
  CHECK(
      refused("0F0,0F1\n1F0;1F1\n") ==
      "line 2, cell 1: found '1F0;1F1'; expected nothing after 1F0; in this text, commas separate "
      "cells");
  CHECK(refused("0F0;0F1\n1F0\t1F1\n").ends_with("in this text, semicolons separate cells"));
  CHECK(refused("0F0,0;1\n").starts_with("line 1, cell 2: found '0;1'; expected F, I"));
}

TEST_CASE("a schedule does not take transfers and steps", "[io][csv]") {
  for (std::string cell : {"0SEND_F0", "0RECV_F0", "0SEND_B0", "0RECV_B0", "0STEP", "0UNSHARD"}) {
    CHECK(
        refusal([&] { return schedule_from_csv("0F0," + cell); }).starts_with("line 1, cell 2: "));
    CHECK(is_read(refusal([&] { return program_from_csv("0F0," + cell); })));
  }
}

TEST_CASE("a file that does not fit the given placement or count is refused", "[io][csv]") {
  auto const two = placement::linear(2);
  auto read =
      [](char const* text, placement const& placement, std::optional<int> microbatches = {}) {
        return refusal([&] { return schedule_from_csv(text, placement, microbatches); });
      };
  CHECK(is_read(read("0F0\n1F0\n", two)));
  CHECK(
      read("0F0\n", two) ==
      "line 1: found 1 lines; expected 2, one for each rank of the placement");
  CHECK(read("0F0\n1F0\n\n0F1\n", two).starts_with("line 4: found 4 lines"));
  CHECK(
      read("1F0\n0F0\n", two) ==
      "line 1, cell 1: found '1F0'; expected only stages of this rank; that one is on rank 1");
  CHECK(read("0F0\n,2F0\n", two) == "line 2, cell 2: found '2F0'; expected a stage from 0 to 1");
  CHECK(
      read("0F0\n1F0,1F4\n", two, 4) ==
      "line 2, cell 2: found '1F4'; expected a microbatch from 0 to 3");
  CHECK_THROWS_AS(schedule_from_csv("0F0\n1F0\n", two, 0), error);
}

TEST_CASE("a short file cannot ask for every stage times every microbatch", "[io][csv]") {
  std::string text;
  for (int i = 0; i < 1000; ++i)
    text += std::to_string(i) + "F0,0F" + std::to_string(i) + (i < 999 ? "," : "\n");
  auto const message =
      "line 1: found 2000 passes in all; expected at least 1000000, one for each stage and "
      "microbatch that the cells show";
  CHECK(refusal([&] { return schedule_from_csv(text); }) == message);
  CHECK(refusal([&] { return program_from_csv(text); }) == message);
  auto const placement = placement::custom(std::vector<int>(1000, 0));
  CHECK(refusal([&] { return schedule_from_csv(text, placement); }) == message);
  CHECK(refusal([&] { return schedule_from_csv(text, {}, 1000); }) == message);
  // Who gives both asks for it himself.
  CHECK(is_read(refusal([&] { return schedule_from_csv(text, placement, 1000); })));
  CHECK(
      refusal([&] { return program_from_csv("0F0,0SEND_F1\n1F0,1RECV_F1\n"); }) ==
      "line 2: found 2 passes in all; expected at least 4, one for each stage and microbatch that "
      "the cells show");
}

TEST_CASE("what a cell shows in a message is short and harmless", "[io][csv]") {
  auto const text =
      refusal([] { return schedule_from_csv("0F0\x1b[31m" + std::string(9999, 'x')); });
  CHECK(text.size() < 200);
  CHECK(text.find('\x1b') == std::string::npos);
}

TEST_CASE("an instruction that does not exist is not written", "[io][csv]") {
  zbpp::program const code(
      zbpp::placement::linear(1),
      1,
      zbpp::rows<zbpp::instruction>({{{static_cast<zbpp::instruction_kind>(200), 0, 0}}}),
      {});
  CHECK_THROWS_AS(to_csv(code), zbpp::error);
}

}  // namespace test_io_csv
