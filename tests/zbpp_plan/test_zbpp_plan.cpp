// SPDX-License-Identifier: Apache-2.0
#include "started_program.hpp"
#include <zbpp/analysis/explain.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/cuda/device_needs.hpp>
#include <zbpp/io/chrome_trace.hpp>
#include <zbpp/io/csv.hpp>
#include <zbpp/io/explanation_text.hpp>
#include <zbpp/json/json.hpp>
#include <zbpp/nccl/device_needs.hpp>
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/catch.hpp>
#include <support/random_problem.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <tuple>
#include <utility>
#include <vector>

namespace test_zbpp_plan {

using namespace zbpp;
using test::run;
using test::scratch_folder;
using test::thinned;

namespace {

using words = std::vector<std::string>;

words lines_of(std::string const& text) {
  words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

words join(words first, words const& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

words const times{"--forward", "10", "--backward-input", "10", "--backward-weight", "10"};
words const small = join({"--ranks", "4", "--microbatches", "8"}, times);
words const with_sizes = join(small, {"--activation", "1000", "--weight-gradient-input", "500"});
words const sized = join(with_sizes, {"--seconds", "0.01"});

words policy_names() {
  words names;
  for (auto const& policy : builtin_policies()) names.emplace_back(policy.name());
  return names;
}

// Status 2, nothing on standard output, and one line on standard error that has `culprit`.
void check_refused(words const& arguments, std::string const& culprit) {
  scratch_folder const folder;
  auto const found = run(folder, arguments);
  INFO("errors: " << found.err);
  std::string asked;
  for (auto const& argument : arguments) asked += argument + " ";
  INFO("arguments: " << asked);
  CHECK(found.status == 2);
  CHECK(found.out.empty());
  CHECK(std::count(found.err.begin(), found.err.end(), '\n') == 1);
  CHECK(found.err.starts_with("zbpp-plan: "));
  CHECK(contains(found.err, culprit));
  CHECK(folder.files() == 0);
}

// Runs a line of shell, in which $0 is zbpp-plan.
test::ended_program shell(
    scratch_folder const& folder, std::string const& line, char const* program = "/bin/sh") {
  return run(
      folder, {"-c", "cd '" + folder / "" + "' && " + line, ZBPP_PLAN}, {.program = program});
}

// The options that --help lists.
words options_told() {
  scratch_folder const folder;
  words found;
  for (auto const& line : lines_of(run(folder, {"--help"}).out)) {
    if (line.starts_with("Examples")) break;
    auto const at = line.find("--");
    if (line.starts_with(" ") && at < 6) found.push_back(line.substr(at, line.find(' ', at) - at));
  }
  return found;
}

// The schedule of two ranks in PyTorch's form, one F and BW of it as a pair.
auto const* const paired_schedule =
    "0F0,3F0,0F1,3B0,(0F2;0B0)OVERLAP_F_B,3F1,3B1,0B1,3F2,3B2,0B2\n"
    "1F0,2F0,2B0,1B0,1F1,2F1,2B1,1F2,(2F2;1B1)OVERLAP_F_B,2B2,1B2\n";

}  // namespace

TEST_CASE("the option list tells every policy on a line", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const found = run(folder, {"--list"});
  CHECK(found.status == 0);
  CHECK(found.err.empty());
  std::set<std::string> names;
  for (auto const& line : lines_of(found.out)) names.insert(line.substr(0, line.find(' ')));
  auto const expected = policy_names();
  CHECK(names == std::set<std::string>(expected.begin(), expected.end()));
  CHECK(lines_of(found.out).size() == expected.size());
}

TEST_CASE("help and version answer on standard output", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const help = run(folder, {"--help"});
  CHECK(help.status == 0);
  for (auto const* option : {"--sweep-memory LO:HI:N", "--check FILE", "--backward-weight T"})
    CHECK(contains(help.out, option));
  auto const version = run(folder, {"--version"});
  CHECK(version.status == 0);
  CHECK(lines_of(version.out).size() == 1);
}

TEST_CASE("a plan is summed up in a few lines", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const found = run(folder, join({"--policy", "one_f_one_b"}, sized));
  CHECK(found.status == 0);
  CHECK(found.err.empty());
  // (microbatches + ranks - 1) * (F + B + W), each rank busy for microbatches * (F + B + W)
  CHECK(contains(found.out, "\ncost         330 ms\n"));
  CHECK(contains(found.out, "\nbubble rate  27.27 %\n"));
  CHECK(contains(found.out, "\npeak memory  4000 on rank 0\n"));
  CHECK(contains(found.out, "pipeline     4 ranks, 4 stages (linear), 8 microbatches\n"));
  auto const best = run(folder, join({"--policy", "zb_h2"}, small));
  CHECK(contains(best.out, "\ncost         240 ms\n"));
  CHECK(contains(best.out, "\noptimal      proved\n"));
  CHECK(folder.files() == 0);
}

TEST_CASE("what is written is true, and what was asked for", "[zbpp-plan]") {
  scratch_folder const folder;
  int planned = 0;
  for (int trial = 0; trial < 4; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const ranks = static_cast<int>(values.integer(2, 3));
    auto const placement = trial == 0   ? placement::linear(ranks)
                           : trial == 1 ? placement::v_shape(ranks)
                           : trial == 2 ? placement::looped(ranks, 2)
                                        : placement::custom({0, 1, 1, 0, 2});
    std::vector<stage_costs> costs;
    for (int s = 0; s < placement.stages(); ++s) costs.push_back(test::random_costs(values));
    problem const problem{
        placement, 2 * placement.ranks(), costs, test::random_transfer(values, placement.ranks())};
    auto const file = folder.write("problem.json", json::write_problem(problem));
    for (auto const& name : join(policy_names(), {"none"})) {
      INFO(name << " on " << placement.name());
      auto const found =
          run(folder,
              join(
                  name == "none" ? words{} : words{"--policy", name},
                  {"--problem",
                   file,
                   "--seconds",
                   "0.005",
                   "--json",
                   "-",
                   "--csv",
                   folder / "order.csv",
                   "--svg",
                   folder / "order.svg",
                   "--trace",
                   folder / "trace.json"}));
      if (found.status != 0) {
        CHECK(found.status == 2);  // the wrong placement
        CHECK(lines_of(found.err).size() == 1);
        continue;
      }
      ++planned;
      CHECK(found.err.empty());
      auto const said = json::read_plan(found.out);
      CHECK(json::check_claims(said).empty());
      if (name != "none") {
        CHECK(said.problem == problem);
        CHECK(said.schedule == find_policy(name)(problem, {.seconds = 0.005}));
      }
      auto const order = schedule_from_csv(
          read_file(folder / "order.csv"),
          said.problem.placement(),
          said.problem.microbatches(),
          csv_pairs::together);
      CHECK(order == said.schedule);
      CHECK(contains(read_file(folder / "order.svg"), "</svg>"));
      CHECK(contains(read_file(folder / "trace.json"), "\"traceEvents\""));
    }
  }
  CHECK(planned > 12);
}

TEST_CASE("the option ascii draws what --policy decides", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const found = run(folder, join({"--policy", "gpipe", "--ascii"}, small));
  CHECK(found.status == 0);
  CHECK(found.out.starts_with("GPipe: cost 330 ms, bubble rate 27.3 %\n0|F0F1"));
}

TEST_CASE("the option gpus tells what a plan needs of GPUs", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const policy = words{"--policy", "zb_h1"};
  auto const found = run(folder, join(join(policy, {"--gpus"}), small));
  CHECK(found.status == 0);
  auto const summary = run(folder, join(policy, small)).out;
  auto const until = [](std::string const& text) { return text.substr(0, text.find("planned")); };
  CHECK(until(found.out) == until(summary));
  auto const plan = json::read_plan(run(folder, join(join(policy, {"--json", "-"}), small)).out);
  auto const code = lower(plan.schedule);
  std::vector<int> own(static_cast<std::size_t>(code.ranks()));
  std::iota(own.begin(), own.end(), 0);
  auto rows = cuda::device_needs_of(code, plan.problem);
  for (auto const& more :
       {cuda::device_needs_of(code, plan.problem, own), nccl::device_needs_of(code, plan.problem)})
    rows.insert(rows.end(), more.begin(), more.end());
  std::istringstream lines(found.out.substr(found.out.find("\n\n") + 2));
  std::string line;
  REQUIRE(std::getline(lines, line));
  CHECK(line.starts_with("backend"));
  for (auto const& row : rows) {
    REQUIRE(std::getline(lines, line));
    std::istringstream numbers(line.substr(line.rfind("  ", line.find_first_of("0123456789"))));
    std::string ranks;
    int streams = 0;
    int queues = 0;
    int events = 0;
    int ctas = 0;
    bytes slots = 0;
    CHECK(numbers >> ranks >> streams >> queues >> events >> ctas >> slots);
    CHECK(ranks.starts_with(std::to_string(row.ranks.front())));
    CHECK(ranks.ends_with(std::to_string(row.ranks.back())));
    CHECK(streams == row.streams);
    CHECK(queues == row.hardware_queues);
    CHECK(events == row.events);
    CHECK(ctas == row.waiting_ctas);
    CHECK(slots == row.slots);
  }
  CHECK(rows.back().waiting_ctas > 0);
  CHECK_FALSE(std::getline(lines, line));
  check_refused(join(join(policy, {"--gpus", "--json", "-"}), small), "--gpus adds to the summary");
  check_refused(join({"--compare", "gpipe", "--gpus"}, small), "--gpus means nothing");
}

TEST_CASE("options state the same problem as a file", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const planned = [&](words const& arguments) {
    auto const found = run(folder, join(arguments, {"--json", "-"}));
    INFO(found.err);
    REQUIRE(found.status == 0);
    return json::read_plan(found.out);
  };
  auto const given = planned(
      {"--policy",
       "zb_v",
       "--ranks",
       "2",
       "--microbatches",
       "5",
       "--placement",
       "v",
       "--forward",
       "1,2.5,3,4",
       "--backward-input",
       "1.000001",
       "--backward-weight",
       "2e0",
       "--overlapped",
       "1.75,3,3.5,5",
       "--transfer",
       "0.25",
       "--activation",
       "10,20,30,40",
       "--weight-gradient-input",
       "5,5,45,5",
       "--output-gradient",
       "0,0,35,2",
       "--memory-limit",
       "1000"});
  std::vector<stage_costs> costs;
  for (int s = 0; s < 4; ++s)
    costs.push_back(
        {.forward =
             std::vector<ticks>{1'000'000, 2'500'000, 3'000'000, 4'000'000}[detail::index(s)],
         .backward_input = 1'000'001,
         .backward_weight = 2'000'000,
         .overlapped =
             std::vector<ticks>{1'750'000, 3'000'000, 3'500'000, 5'000'000}[detail::index(s)],
         .activation = 10 * (s + 1),
         .weight_gradient_input = s == 2 ? 45 : 5,
         .output_gradient = std::vector<bytes>{0, 0, 35, 2}[detail::index(s)]});
  problem const expected{placement::v_shape(2), 5, costs, 250'000, {1000}};
  CHECK(given.problem == expected);
  auto const file = folder.write("p.json", json::write_problem(expected));
  CHECK(planned({"--policy", "zb_v", "--problem", file}).schedule == given.schedule);
  auto const looped = planned(
      join({"--policy", "interleaved"}, join(small, {"--placement", "looped", "--chunks", "3"})));
  CHECK(looped.problem.placement() == placement::looped(4, 3));
}

TEST_CASE("a plan answers in the unit of its problem", "[zbpp-plan]") {
  scratch_folder const folder;
  problem const problem{placement::linear(2), 3, stage_costs{7000, 7000, 7000}};
  auto const file = folder.write("us.json", json::write_problem(problem, time_unit::microseconds));
  CHECK(contains(run(folder, {"--policy", "gpipe", "--problem", file}).out, "84 us\n"));
  auto const plan = run(folder, {"--policy", "gpipe", "--problem", file, "--json", "-"});
  auto unit = time_unit::seconds;
  CHECK(json::read_plan(plan.out, "plan", &unit).problem == problem);
  CHECK(unit == time_unit::microseconds);
}

TEST_CASE("bad input is refused in one line", "[zbpp-plan]") {
  auto const plan = join({"--policy", "zb_h1"}, small);
  auto const with = [&](words const& more) { return join(plan, more); };
  check_refused({}, "--ranks is missing; it or --problem FILE is needed");
  check_refused({"--policy"}, "--policy: expected one value");
  check_refused(join({"--policy", ""}, small), "--policy");
  check_refused(join({"--policy", "fastest"}, small), "no policy is called 'fastest'; there are");
  check_refused({"--policy", "zb_h1"}, "--ranks is missing");
  check_refused({"--bogus"}, "--bogus");
  check_refused({"bogus"}, "bogus");
  check_refused(with({"--ranks", "4"}), "--ranks: expected one value, given once");
  for (auto const* bad : {"0", "-1", "4x", " 4", "", "4.0", "1e3", "nan", "99999999999999999999"})
    check_refused(
        join({"--policy", "zb_h1", "--microbatches", "8", "--ranks", bad}, times),
        "--ranks: found '");
  for (auto const* bad :
       {"-1", "nan", "inf", "1e400", "1ms", "", "0x1p3", "5e12", "1,2,3,", "1,,3,4"})
    check_refused(with({"--transfer", bad}), "--transfer: found '");
  for (auto const* bad : {"1,2", "1,2,3,4,5"})
    check_refused(with({"--activation", bad}), "expected 1 for all stages, or 4, one for each");
  for (auto const* bad : {"-1", "1.5", "9223372036854775808", "1e3"})
    check_refused(with({"--activation", bad}), "--activation: found '");
  check_refused(
      with({"--activation", "1", "--weight-gradient-input", "2"}), "more than activation");
  check_refused(with({"--weight-gradient-input", "2"}), "--activation is missing");
  check_refused(
      with({"--activation", "2", "--output-gradient", "2"}), "--weight-gradient-input is missing");
  check_refused(with({"--memory-limit", "2"}), "--activation is missing");
  check_refused(with({"--placement", "ring"}), "expected linear, looped or v");
  check_refused(with({"--placement", "looped"}), "--chunks is missing");
  check_refused(with({"--chunks", "2"}), "--chunks goes with --placement looped");
  check_refused(with({"--seconds", "-1"}), "--seconds: found '-1'");
  check_refused(with({"--seconds", "nan"}), "--seconds: found 'nan'");
  check_refused(with({"--seed", "1x"}), "--seed: found '1x'");
  check_refused(with({"--forward", "9e11"}), "--forward");
  check_refused(
      join({"--policy", "zb_h1", "--ranks", "16384", "--microbatches", "16385"}, times),
      "at most 8192");
  check_refused(
      join({"--policy", "zb_h1", "--ranks", "65536", "--microbatches", "2147483647"}, times),
      "--microbatches: found");
  check_refused(join({"--policy", "zb_v"}, small), "needs a v placement");
  // On whatever placement: another one would not help.
  for (auto const* where : {"linear", "v"}) {
    words const few{"--ranks", "4", "--microbatches", "7", "--placement", where};
    check_refused(
        join({"--policy", "dualpipe_v"}, join(few, times)),
        "needs a step of at least 8 microbatches, two for each rank; there are 7");
    check_refused(
        join({"--policy", "stp"}, join(few, times)),
        "needs a step of at least 11 microbatches, 3p - 1 for p ranks; there are 7");
  }
  check_refused(with({"--ascii=3"}), "ascii");
}

TEST_CASE("tasks and options that contradict are refused", "[zbpp-plan]") {
  check_refused({"--list", "--check", "x"}, "two tasks");
  check_refused(
      join({"--policy", "gpipe", "--csv-transfers"}, small),
      "--csv-transfers is about the schedule");
  check_refused({"--check", "x", "--csv-transfers"}, "--csv-transfers means nothing with --check");
  check_refused({"--explain", "x", "--check", "y"}, "two tasks");
  check_refused({"--explain", "x"}, "--plan is missing");
  check_refused({"--explain", "", "--plan", "x"}, "--explain: found ''");
  check_refused({"--explain", "x", "--plan", ""}, "--plan: found ''");
  check_refused({"--explain", "-", "--plan", "-"}, "two inputs of --explain read standard input");
  check_refused(
      {"--explain", "x", "--plan", "y", "--against", "z", "--json", "-"}, "leave out --against");
  check_refused(
      {"--explain", "x", "--plan", "y", "--problem", "z"},
      "--problem means nothing with --explain");
  check_refused(
      {"--explain", "x", "--plan", "y", "--against", "z", "--svg", "s"}, "leave out --against");
  check_refused({"--explain", "x", "--plan", "y", "--ascii"}, "--ascii means nothing");
  check_refused({"--check", "x", "--plan", "y"}, "--plan is about a step that ran");
  check_refused(join({"--policy", "zb_h1", "--against", "x"}, small), "--against is about a step");
  check_refused({"--check", "x", "--json", "y"}, "--json means nothing with --check");
  check_refused({"--list", "--policy", "zb_h1"}, "--policy means nothing with --list");
  check_refused({"--list", "--problem", "x"}, "--problem means nothing with --list");
  check_refused({"--check", "x", "--svg", "y"}, "--svg means nothing with --check");
  check_refused({"--check", "x", "--ranks", "3"}, "--ranks means nothing with --check");
  check_refused(join({"--compare", "gpipe", "--json", "-"}, small), "--json means nothing");
  check_refused(join({"--sweep-memory", "1:2:2", "--ascii"}, sized), "--ascii means nothing");
  check_refused(
      join({"--sweep-memory", "1:2:2", "--memory-limit", "3"}, sized),
      "--memory-limit means nothing");
  check_refused(join({"--policy", "gpipe", "--problem", "x"}, small), "beside --problem");
  check_refused(join({"--compare", ""}, small), "no policy is called ''");
  check_refused(join({"--compare", "gpipe,,zb_h1"}, small), "no policy is called ''");
}

TEST_CASE("sweeps without sense are refused", "[zbpp-plan]") {
  for (auto const* bad :
       {"",
        "1",
        "1:2",
        "1:2:3:4",
        "2:1:2",
        "1:2:3",
        "1:9:1",
        "3:3:2",
        "a:2:2",
        "1:2:0",
        "-1:2:2",
        "1:2:1001",
        "1:9223372036854775807:3"})
    check_refused(join({"--sweep-memory", bad}, sized), "--sweep-memory: found '");
  check_refused(
      join({"--sweep-memory", "1:2:2", "--policy", "zb_h1"}, sized),
      "expected greedy_auto, which keeps memory limits, or no policy");
  check_refused(join({"--sweep-memory", "1:2:2"}, small), "--activation is missing");
}

TEST_CASE("the examples of the help run in their order, one for each task", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const help = run(folder, {"--help"}).out;
  words commands;
  bool goes_on = false;
  for (auto const& line : lines_of(help)) {
    if (line.starts_with("    zbpp-plan "))
      commands.push_back("");
    else if (!goes_on)
      continue;
    goes_on = line.ends_with('\\');
    auto const begin = line.find_first_not_of(' ');
    commands.back() += line.substr(begin, line.size() - begin - (goes_on ? 1 : 0));
  }
  for (std::string const task :
       {"--policy", "--layers", "--compare", "--check", "--explain", "--sweep-memory", "--list"})
    CHECK(std::count_if(commands.begin(), commands.end(), [&](std::string const& command) {
            return contains(command, " " + task);
          }) == (task == "--compare" ? 3 : 1));
  for (auto const& command : commands) {
    INFO(command);
    REQUIRE(command.starts_with("zbpp-plan "));
    auto const found = shell(folder, "\"$0\" " + command.substr(10));
    INFO(found.err);
    CHECK(found.status == 0);
    CHECK(found.err.empty());
  }
  CHECK(json::check_claims(json::read_plan(read_file(folder / "plan.json"))).empty());
  CHECK(folder.files() == 4);  // with plan.svg, trace.json and sweep.svg
}

TEST_CASE("the man page tells of every option and example of the help", "[zbpp-plan]") {
  auto const page = read_file(std::string(ZBPP_PLAN_SOURCES) + "/zbpp-plan.1");
  auto const reports = options_told();
  REQUIRE(reports.size() > 20);
  for (auto const& option : reports) {
    INFO(option);
    CHECK(contains(page, "\n.It Fl -" + option.substr(2)));
  }
  CHECK(
      static_cast<std::size_t>(std::count(page.begin(), page.end(), '\n')) ==
      lines_of(page).size());
  scratch_folder const folder;
  auto help = run(folder, {"--help"}).out;
  help.erase(0, help.find("Examples:"));
  for (auto const& line : lines_of(help)) {
    if (!line.starts_with("    ")) continue;
    auto in_page = line.substr(4);
    if (in_page.ends_with('\\')) in_page += 'e';
    INFO(in_page);
    CHECK(contains(page, "\n" + in_page + "\n"));
  }
}

TEST_CASE("bash completes options, policies, placements and files", "[zbpp-plan]") {
  if (!std::filesystem::exists("/bin/bash") || !std::filesystem::exists("/dev/fd"))
    return test::skip("bash and /dev/fd");
  scratch_folder const folder;
  static_cast<void>(folder.write("a problem.json", ""));
  static_cast<void>(folder.write("plan.csv", ""));
  // What is offered for the last of some words, as bash hands them over.
  auto const offered = [&](std::string const& typed) {
    auto const found = shell(
        folder,
        ". '" ZBPP_PLAN_SOURCES "/zbpp-plan.bash'; COMP_WORDS=(zbpp-plan " + typed +
            "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
            "_zbpp_plan \"$0\" \"${COMP_WORDS[COMP_CWORD]}\" "
            "\"${COMP_WORDS[COMP_CWORD - 1]}\"; printf '%s\\n' \"${COMPREPLY[@]}\"",
        "/bin/bash");
    INFO(found.err);
    CHECK(found.status == 0);
    auto lines = lines_of(found.out);
    std::sort(lines.begin(), lines.end());
    return lines;
  };
  auto options = options_told();
  std::sort(options.begin(), options.end());
  CHECK(offered("--") == options);
  CHECK(offered("--ranks 4 --back") == words{"--backward-input", "--backward-weight"});
  auto policies = policy_names();
  std::sort(policies.begin(), policies.end());
  CHECK(offered("--policy ''") == policies);
  CHECK(offered("--policy = zb_h") == words{"zb_h1", "zb_h2"});
  CHECK(offered("--compare gpipe,zb_h") == words{"gpipe,zb_h1", "gpipe,zb_h2"});
  CHECK(offered("--compare all,f") == words{"all,find_plan"});
  CHECK(offered("--placement l") == words{"linear", "looped"});
  for (std::string const option :
       {"--check",
        "--explain",
        "--plan",
        "--against",
        "--problem",
        "--json",
        "--csv",
        "--svg",
        "--trace"}) {
    CHECK(offered(option + " a") == words{"a problem.json"});
    CHECK(offered(option + " pl") == words{"plan.csv"});
  }
  CHECK(offered("--ranks ''") == words{""});
}

TEST_CASE("files that cannot be read are refused with their name", "[zbpp-plan]") {
  scratch_folder const files;
  auto const empty = files.write("empty.json", "");
  auto const packed = files.write("trace.json.gz", "\x1F\x8B\x08");
  check_refused(
      {"--check", packed},
      "line 1: found a text compressed by gzip; expected the text itself; decompress the file "
      "first");
  check_refused(
      {"--explain", packed, "--plan", packed},
      "line 1: found a text compressed by gzip; expected the text itself; decompress the file "
      "first");
  auto const broken = files.write("broken.json", "{\"ranks\": 2,\n}");
  auto const unknown = files.write("unknown.json", "{\"ranks\": 2, \"speed\": 3}");
  auto const letters = files.write("letters.csv", "0F0,0X0\n");
  auto const huge = files.write("huge.csv", "2147483647F2147483647\n");
  for (auto const& file : {empty, broken, unknown}) {
    check_refused({"--policy", "gpipe", "--problem", file}, file + ": ");
    check_refused({"--check", file}, file + ": ");
    check_refused({"--check", letters, "--problem", file}, file + ": ");
  }
  check_refused({"--check", letters}, letters + ": line 1, cell 2: found '0X0'");
  check_refused({"--check", huge}, huge + ": ");
  check_refused({"--check", files / ""}, "Is a directory");
  check_refused({"--check", files / "none"}, "No such file");
  check_refused({"--check", ""}, "--check: found ''");
  check_refused({"--policy", "gpipe", "--problem", files / "none"}, "No such file");
}

TEST_CASE("files of other programs are read with their byte order marks", "[zbpp-plan]") {
  scratch_folder const folder;
  std::string const mark = "\xEF\xBB\xBF";
  auto const plan = read_file(std::string(ZBPP_TEST_DATA_DIR) + "/plan.json");
  auto const problem_text = read_file(std::string(ZBPP_TEST_DATA_DIR) + "/problem.json");
  // Without a name in .json it is the first character that tells a plan from a schedule.
  for (std::string const name : {"plan.json", "plan"})
    CHECK(run(folder, {"--check", folder.write(name, mark + "\r\n" + plan)}).status == 0);
  CHECK(
      run(folder, {"--policy", "greedy_auto", "--problem", folder.write("p", mark + problem_text)})
          .status == 0);
  auto const order =
      folder.write("order.csv", mark + "sep=;\r\n\"0F0\";0I0;0W0;\r\n1F0;1I0;1W0\r\n;;\r\n");
  auto const right = run(folder, {"--check", order});
  CHECK(right.status == 0);
  CHECK(contains(right.out, "2 ranks, 2 stages (linear), 1 microbatches"));
  check_refused(
      {"--check",
       folder.write(
           "wide.csv",
           std::string(
               "\xFF\xFE"
               "0\0F\0"
               "0\0",
               8))},
      "wide.csv: line 1: found UTF-16; expected UTF-8");
}

TEST_CASE("text behind the end is refused, whatever byte comes first", "[zbpp-plan]") {
  scratch_folder const files;
  auto const plan = read_file(std::string(ZBPP_TEST_DATA_DIR) + "/plan.json");
  auto const problem_text = read_file(std::string(ZBPP_TEST_DATA_DIR) + "/problem.json");
  auto const behind = std::string("\0{]", 3);
  auto const place = ": found a NUL byte; expected JSON, which has none";
  check_refused({"--check", files.write("plan.json", plan + behind)}, place);
  check_refused(
      {"--policy", "gpipe", "--problem", files.write("p.json", problem_text + behind)}, place);
}

TEST_CASE("an input is bounded, and the bound named", "[zbpp-plan]") {
  scratch_folder const files;
  auto const huge = files.write("huge", "{");
  std::filesystem::resize_file(huge, std::uintmax_t{1} << 40);  // holes, which take no space
  auto const bound = ": found more than 268435456 bytes; expected at most that many";
  check_refused({"--check", huge}, huge + bound);
  check_refused({"--policy", "gpipe", "--problem", huge}, huge + bound);
  check_refused({"--check", "/dev/zero"}, "/dev/zero" + std::string(bound));
  auto const number = files.write("number", "{\"ranks\": " + std::string(1'000'000, '7') + "}");
  check_refused(
      {"--policy", "gpipe", "--problem", number},
      number + ": line 1, column 11: found a number of more than 1000 characters");
}

TEST_CASE("a pipe that nobody writes to is refused, not waited for", "[zbpp-plan]") {
  scratch_folder const files;
  auto const pipe = files / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  check_refused({"--check", pipe}, pipe + ": cannot be read: it is a pipe that nobody writes to");
  check_refused({"--policy", "gpipe", "--problem", pipe}, "a pipe that nobody writes to");
}

TEST_CASE("standard input and pipes with a writer are read like files", "[zbpp-plan]") {
  if (!std::filesystem::exists("/dev/stdin")) return test::skip("/dev/stdin");
  auto const plan = std::string(ZBPP_TEST_DATA_DIR) + "/plan.json";
  auto const asked = std::string(ZBPP_TEST_DATA_DIR) + "/problem.json";
  scratch_folder const folder;
  auto const from_stdin = run(folder, {"--check", "-"}, {.in = plan});
  CHECK(from_stdin.status == 0);
  CHECK(from_stdin.out.starts_with("standard input is right\n"));
  CHECK(
      from_stdin.out.substr(from_stdin.out.find('\n')) ==
      run(folder, {"--check", plan}).out.substr(plan.size() + 9));
  for (auto const* line :
       {"cat '%' | \"$0\" --check -",
        "cat '%' | \"$0\" --check /dev/stdin",
        "\"$0\" --check /dev/stdin < '%'",
        "cat '%' | { exec 3<&0 < /dev/null; \"$0\" --check /dev/fd/3; }",
        "mkfifo p && exec 3<>p 4<p && cat '%' >&3 && exec 3>&- && \"$0\" --check p"}) {
    std::string script = line;
    script.replace(script.find('%'), 1, plan);
    INFO(script);
    auto const found = shell(folder, script);
    INFO(found.err);
    CHECK(found.status == 0);
    CHECK(contains(found.out, " is right\n"));
  }
  auto const to_plan = join({"--policy", "greedy_auto", "--seconds", "0.01", "--json", "-"}, {});
  auto const piped = run(folder, join(to_plan, {"--problem", "-"}), {.in = asked});
  CHECK(piped.status == 0);
  CHECK(json::read_plan(piped.out).problem == json::read_problem(read_file(asked)));
  auto const empty = run(folder, {"--check", "-"});
  CHECK(empty.status == 2);
  CHECK(
      empty.err ==
      "zbpp-plan: standard input: line 1: found nothing; expected one line for each rank\n");
  check_refused({"--check", "-", "--problem", "-"}, "both read standard input");
}

TEST_CASE("outputs that cannot be written are refused", "[zbpp-plan]") {
  if (!std::filesystem::is_character_file("/dev/full")) return test::skip("/dev/full");
  scratch_folder const files;
  auto const with = [&](words const& more) {
    return join(join({"--policy", "zb_h1"}, small), more);
  };
  for (auto const* option : {"--json", "--csv", "--svg", "--trace"}) {
    check_refused(with({option, files / ""}), std::string(option) + ": found");
    check_refused(with({option, files / "none/x"}), "a folder that exists");
    check_refused(with({option, ""}), std::string(option) + ": found ''");
    check_refused(with({option, "-", "--ascii"}), "both write standard output");
    check_refused(with({option, "/dev/full"}), "/dev/full: cannot be written: No space left");
  }
  check_refused(with({"--json", "-", "--csv", "-"}), "both write -");
  check_refused(with({"--svg", "x", "--trace", "x"}), "both write x");
  scratch_folder const folder;
  for (auto const& arguments :
       {with({}),
        with({"--json", "-"}),
        with({"--csv", "-"}),
        with({"--ascii"}),
        words{"--list"},
        words{"--help"},
        words{"--version"},
        words{"--check", std::string(ZBPP_TEST_DATA_DIR) + "/plan.json"},
        join({"--compare", "gpipe"}, small),
        join({"--sweep-memory", "5000:8000:2"}, sized)}) {
    auto const full = run(folder, arguments, {.out = "/dev/full"});
    CHECK(full.status == 2);
    CHECK(full.err == "zbpp-plan: standard output: cannot be written: No space left on device\n");
  }
}

TEST_CASE("a file that cannot be finished stays as it was", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const file = folder.write("plan.json", "old");
  auto const found =
      run(folder, join({"--policy", "zb_h1", "--json", file}, small), {.largest_file = 2000});
  CHECK(found.status == 2);
  CHECK(found.err == "zbpp-plan: " + file + ": cannot be written: File too large\n");
  CHECK(read_file(file) == "old");
  CHECK(folder.files() == 1);
}

TEST_CASE("where nothing fits, the least that would is told", "[zbpp-plan]") {
  scratch_folder const folder;
  struct limit_case {
    char const* policy;
    char const* too_little;
    char const* least;
  };
  for (auto const& [policy, too_little, least] :
       {limit_case{"greedy_auto", "999", "1000"},
        limit_case{"zb_h2", "6999", "7000"},
        limit_case{"one_f_one_b", "3999", "4000"}}) {
    auto const with = [&](char const* limit) {
      return run(folder, join({"--policy", policy, "--memory-limit", limit}, sized));
    };
    auto const refused = with(too_little);
    CHECK(refused.status == 3);
    CHECK(refused.out.empty());
    CHECK(lines_of(refused.err).size() == 1);
    CHECK(refused.err.ends_with(" " + std::string(least) + "\n"));
    CHECK(with(least).status == 0);
  }
  // Whatever policy refuses: that memory is short is told apart from a problem that it cannot take.
  for (auto const& policy : builtin_policies())
    for (std::string const name : {"linear", "v", "looped"}) {
      CAPTURE(policy.name(), name);
      words asked = join({"--policy", std::string(policy.name()), "--placement", name}, sized);
      if (name == "looped") asked = join({"--chunks", "2"}, asked);
      bool const takes = run(folder, asked).status == 0;
      CHECK(run(folder, join({"--memory-limit", "3"}, asked)).status == (takes ? 3 : 2));
    }
  for (auto const& [more, least] :
       {std::pair{words{}, "it fits when every limit is higher by "},
        {words{"--placement", "v"}, "the least limit that works"}}) {
    auto const nowhere = run(folder, join(join({"--memory-limit", "3"}, more), sized));
    CHECK(nowhere.status == 3);
    CHECK(nowhere.out.empty());
    CHECK(contains(nowhere.err, least));
    auto const sweep = run(folder, join(join({"--sweep-memory", "1:9:2"}, more), sized));
    CHECK(sweep.status == 3);
    CHECK(contains(sweep.err, least));
  }
}

TEST_CASE("a comparison gives every policy a row", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const found =
      run(folder,
          join(
              {"--compare",
               "gpipe,zb_h2,zb_v,greedy_auto",
               "--memory-limit",
               "7000",
               "--svg",
               folder / "all.svg",
               "--trace",
               folder / "all.json"},
              sized));
  CHECK(found.status == 0);
  CHECK(found.err.empty());
  auto const lines = lines_of(found.out);
  REQUIRE(lines.size() == 8);
  CHECK(lines[0].starts_with("policy "));
  CHECK(contains(lines[1], "GPipe needs 8000, its limit is 7000"));
  CHECK(contains(lines[2], "240 ms"));
  CHECK(contains(lines[2], "proved optimal"));
  CHECK(contains(lines[2], "7000"));
  CHECK(contains(lines[3], "zb_v                 v  240 ms"));
  CHECK(lines[4].starts_with("greedy_auto     linear  240 ms"));
  CHECK(lines[5].starts_with("greedy_auto          v  240 ms"));
  CHECK(lines[6] == "On v each stage of the problem is divided into 2 equal parts.");
  CHECK(lines[7] == "Times and sizes keep their sums; a message keeps its size.");
  auto const drawn = read_file(folder / "all.svg");
  CHECK(contains(drawn, ">ZB-H2, linear<"));
  CHECK(contains(drawn, ">greedy-auto, v<"));
  CHECK_FALSE(contains(drawn, ">GPipe, linear<"));
  CHECK(contains(read_file(folder / "all.json"), "ZB-H2, linear rank 0"));
}

TEST_CASE("each policy of a comparison is on the placement it needs", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const rows_of = [&](words const& arguments) {
    auto const found = run(folder, join({"--csv", "-"}, arguments));
    INFO(found.err);
    CHECK(found.status == 0);
    std::vector<words> rows;
    for (auto const& line : lines_of(found.out)) {
      auto& cells = rows.emplace_back();
      std::istringstream stream(line);
      for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    }
    REQUIRE(!rows.empty());
    CHECK(rows[0].size() == 9);
    rows.erase(rows.begin());
    return rows;
  };
  // Whatever the problem's own placement is, the same policies stand on the same placements, but
  // for looped ones, whose own number of chunks stays.
  auto const all = words{"--compare", "gpipe,interleaved,zb_v,greedy_auto"};
  for (auto const& [own, looped, divided] :
       {std::tuple{words{}, "looped 2", 2},
        {words{"--placement", "v"}, "looped 2", 1},
        {words{"--placement", "looped", "--chunks", "3"}, "looped 3", 1}}) {
    auto const rows = rows_of(join(join(all, own), sized));
    REQUIRE(rows.size() == 6);
    auto const name = words{"linear", looped, "v", "linear", looped, "v"};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      CHECK(rows[i][0] == (i < 3 ? words{"gpipe", "interleaved", "zb_v"}[i] : "greedy_auto"));
      CHECK(rows[i][1] == name[i]);
      CHECK(std::stod(rows[i][3]) >= std::stod(rows[i][4]));
    }
    // A rank has the same work wherever stages are merged or divided: its share of 8 microbatches.
    if (divided == 2) CHECK(rows[2][3] == "240");
  }
  // A plan of a row is that of the policy on the problem as it is placed by hand.
  auto const by_hand =
      run(folder,
          join(
              {"--policy", "interleaved", "--placement", "looped", "--chunks", "2", "--json", "-"},
              {"--ranks",
               "4",
               "--microbatches",
               "8",
               "--forward",
               "5",
               "--backward-input",
               "5",
               "--backward-weight",
               "5"}));
  CHECK(
      rows_of(join({"--compare", "interleaved"}, small))[0][3] ==
      number_text(json::read_plan(by_hand.out).cost, time_unit::milliseconds));

  // With microbatches enough no policy is on a placement that it does not take.
  std::string every;
  for (auto const& policy : builtin_policies())
    every += (every.empty() ? "" : ",") + std::string(policy.name());
  words const enough{"--seconds", "0.01", "--ranks", "3", "--microbatches", "8"};
  for (auto const& row : rows_of(join({"--compare", every}, join(enough, times)))) {
    INFO(row[0] << " on " << row[1]);
    CHECK(!row[3].empty());
  }

  auto const named = rows_of(join(
      {"--compare",
       "zb_h1@linear,interleaved@looped:4,interleaved@linear,greedy_auto@v,zb_v@linear,"
       "greedy_auto@problem,find_plan,find_plan@v"},
      small));
  REQUIRE(named.size() == 8);
  for (auto const& [row, place] :
       {std::pair{0, "linear"}, {1, "looped 4"}, {2, "linear"}, {3, "v"}, {5, "linear"}, {7, "v"}})
    CHECK(named[static_cast<std::size_t>(row)][1] == place);
  CHECK(named[1][2] == "16");
  CHECK(contains(named[4][8], "ZB-V needs a v placement"));

  check_refused(join({"--compare", "zb_v@ring"}, small), "expected behind @ linear, v, looped");
  check_refused(join({"--compare", "zb_v@"}, small), "expected behind @ linear");
  check_refused(
      join({"--compare", "zb_v@looped:0"}, small), "--compare: found '0'; expected a whole");
  check_refused(
      join({"--compare", "zb_v@looped:99999"}, small), "expected a whole number from 1 to");
  check_refused(join({"--compare", "@v"}, small), "no policy is called ''");
  check_refused(join({"--compare", "all@v"}, small), "no policy is called 'all'");

  // Without names all policies are compared that take so few microbatches.
  auto const few = rows_of(join({"--compare"}, small));
  CHECK(few == rows_of(join({"--compare", "all"}, small)));
  std::set<std::string> compared;
  for (auto const& row : few) {
    compared.insert(row[0]);
    CHECK(!row[3].empty());
  }
  auto applying = policy_names();
  std::erase(applying, "stp");
  CHECK(compared == std::set<std::string>(applying.begin(), applying.end()));
  // One that lacks memory has a row that says so.
  CHECK(rows_of(join({"--compare", "--memory-limit", "7000"}, sized)).size() == few.size());
}

TEST_CASE("without a policy all is searched that the options do not fix", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const planned = [&](words const& more) {
    auto const found =
        run(folder, join(join({"--json", "-", "--seconds", "0.1"}, more), with_sizes));
    INFO(found.err);
    REQUIRE(found.status == 0);
    auto const plan = json::read_plan(found.out);
    CHECK(json::check_claims(plan).empty());
    return plan;
  };
  problem const stated{
      placement::linear(4),
      8,
      stage_costs{
          .forward = 10'000'000,
          .backward_input = 10'000'000,
          .backward_weight = 10'000'000,
          .activation = 1000,
          .weight_gradient_input = 500}};
  auto const free = planned({});
  auto const found = find_plan(stated, {.seconds = 0.1});
  CHECK(free.schedule == found.schedule);
  CHECK(std::ranges::equal(free.first_layer, found.problem.first_layer()));
  CHECK(free.problem.placement() == placement::v_shape(4));  // takes the least memory
  auto const fixed = planned({"--placement", "linear"});
  CHECK(fixed.problem == stated);
  CHECK(fixed.first_layer.empty());
  CHECK(fixed.schedule == planned({"--policy", "greedy_auto"}).schedule);
  auto const summary = run(folder, sized).out;
  CHECK(contains(
      summary, "\nhalves       1 1 1 1 1 1 1 1, of stages of the problem in each stage\n"));
  CHECK(contains(summary, "\nbest cut     proved: no placement and no cut costs less\n"));
  CHECK_FALSE(contains(run(folder, join({"--placement", "v"}, sized)).out, "best cut"));
  check_refused(
      join({"--policy", "auto_plan"}, small), "no policy is called 'auto_plan'; there are");
}

TEST_CASE("a comparison without a plan writes its outputs all the same", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const found =
      run(folder,
          join(
              {"--compare",
               "gpipe,zb_v",
               "--memory-limit",
               "1",
               "--svg",
               folder / "none.svg",
               "--trace",
               folder / "none.json"},
              sized));
  CHECK(found.status == 0);
  CHECK(lines_of(found.out).size() == 3);
  CHECK(folder.files() == 2);
}

TEST_CASE("layers of a file and of options make the same plan", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const layers = words{
      "--ranks",
      "4",
      "--microbatches",
      "8",
      "--layers",
      "18",
      "--forward",
      "1,2x16,9",
      "--backward-input",
      "0x1,2x16,9",
      "--backward-weight",
      "1x17,9",
      "--activation",
      "10x18",
      "--weight-gradient-input",
      "5",
      "--transfer",
      "0.5",
      "--memory-limit",
      "400"};
  std::vector<layer_costs> costs(
      18,
      {.forward = 2'000'000,
       .backward_input = 2'000'000,
       .backward_weight = 1'000'000,
       .activation = 10,
       .weight_gradient_input = 5});
  costs.front().forward = 1'000'000;
  costs.front().backward_input = 0;
  costs.back().forward = costs.back().backward_input = costs.back().backward_weight = 9'000'000;
  problem const model(
      costs, {.ranks = 4, .microbatches = 8, .transfer = 500'000, .memory_limits = {400}});
  auto const file = folder.write("model.json", json::write_problem(model, time_unit::microseconds));
  for (auto const& policy :
       {words{"--policy", "zb_h1"}, words{"--policy", "greedy_auto"}, words{}}) {
    INFO(policy.size());
    auto const searched = join(policy, {"--seconds", "0.02"});
    auto const chosen = join(searched, {"--json", "-"});
    auto const given = run(folder, join(chosen, layers));
    INFO(given.err);
    REQUIRE(given.status == 0);
    auto const plan = json::read_plan(given.out);
    CHECK(json::check_claims(plan).empty());
    auto const placed = with_cut(with_placement(model, plan.problem.placement()), plan.first_layer);
    auto const stages = placed.all_costs();
    CHECK(plan.problem == with_stages(placed, {stages.begin(), stages.end()}));
    auto unit = time_unit::seconds;
    auto const read =
        json::read_plan(run(folder, join(chosen, {"--problem", file})).out, "plan", &unit);
    CHECK(unit == time_unit::microseconds);
    CHECK(read.schedule == plan.schedule);
    CHECK(read.first_layer == plan.first_layer);
    auto const summary = run(folder, join(searched, {"--problem", file}));
    std::string counts;
    for (std::size_t s = 0; s < plan.first_layer.size(); ++s)
      counts += " " + std::to_string(
                          (s + 1 < plan.first_layer.size() ? plan.first_layer[s + 1] : 18) -
                          plan.first_layer[s]);
    CHECK(contains(summary.out, "\nlayers      " + counts + ", of each stage\n"));
    CHECK(contains(summary.out, "\nrecompute    no stage\nbest cut     "));
    CHECK(run(folder, {"--check", folder.write("plan.json", given.out)}).status == 0);
  }
  // A row of a comparison is the plan of its policy.
  auto const table =
      run(folder,
          {"--compare",
           "zb_h1,zb_v,interleaved@looped:5,find_plan",
           "--seconds",
           "0.02",
           "--problem",
           file});
  CHECK(table.status == 0);
  auto const lines = lines_of(table.out);
  REQUIRE(lines.size() == 6);
  CHECK(contains(lines[1], "linear"));
  CHECK(contains(lines[2], " v "));
  CHECK(contains(
      lines[3], "looped 5  there are 18 layers for 20 stages; each stage needs at least 1"));
  CHECK(lines[5] == "The layers are cut into stages for each row.");
}

TEST_CASE("layers that cannot be planned are refused", "[zbpp-plan]") {
  scratch_folder const files;
  layer_costs const layer{
      .forward = 1000, .backward_input = 1000, .backward_weight = 1000, .activation = 10};
  problem const model(
      std::vector<layer_costs>(6, layer), {.ranks = 2, .microbatches = 4, .memory_limits = {20}});
  auto const file = files.write("model.json", json::write_problem(model));
  auto const refused = run(files, {"--policy", "zb_h1", "--problem", file});
  CHECK(refused.status == 3);
  CHECK(contains(refused.err, "partitions tried fits"));
  CHECK(contains(refused.err, "it fits when every limit is higher by"));
  CHECK(run(files, {"--problem", file}).status == 3);
  CHECK(run(files, {"--sweep-memory", "1:2:2", "--problem", file}).status == 3);
  check_refused({"--policy", "zb_v", "--problem", file}, "ZB-V needs a v placement");
  auto const plan = std::string(ZBPP_TEST_DATA_DIR) + "/plan.json";
  check_refused({"--check", plan, "--problem", file}, "--check takes a problem of stages");
  auto const with = [&](words const& more) { return join(small, more); };
  check_refused(with({"--layers", "3"}), "there are 3 layers for 4 stages");
  check_refused(
      with({"--layers", "0"}), "--layers: found '0'; expected a whole number from 1 to 4096");
  check_refused(with({"--layers", "x"}), "--layers: found 'x'");
  check_refused(
      with({"--layers", "8", "--activation", "1x7"}),
      "found 7 values; expected 1 for all layers, or 8");
  check_refused(
      with({"--activation", "1x"}), "--activation: found ''; expected a whole number from 1");
  check_refused(
      with({"--activation", "1x5"}),
      "--activation: found '5'; expected a whole number from 1 to 4");
  check_refused(with({"--activation", "x4"}), "--activation: found ''");
  check_refused(with({"--activation", "1x2x2"}), "--activation: found '2x2'");
  check_refused(
      {"--policy", "gpipe", "--problem", file, "--layers", "3"},
      "--layers stands beside --problem");
}

TEST_CASE("a sweep tells the same as a table, as CSV and as a picture", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const swept = [&](words const& more, char const* seconds = "0.03") {
    return run(
        folder,
        join(join({"--sweep-memory", "500:8000:4", "--seconds", seconds}, with_sizes), more));
  };
  auto const table = swept({"--csv", folder / "a.csv", "--svg", folder / "a.svg"});
  CHECK(table.status == 0);
  CHECK(table.err.empty());
  auto const rows = lines_of(read_file(folder / "a.csv"));
  REQUIRE(rows.size() > 4);
  CHECK(
      rows[0] ==
      "placement,memory_limit,cost_ms,lower_bound_ms,bubble_rate,lower_bound_bubble_rate,optimal");
  CHECK(lines_of(table.out).size() == rows.size());
  std::set<std::string> placements;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    words cells;
    std::istringstream stream(rows[i]);
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    REQUIRE(cells.size() == 7);
    placements.insert(cells[0]);
    CHECK((cells[1] == "500" || cells[1] == "3000" || cells[1] == "5500" || cells[1] == "8000"));
    CHECK(std::stod(cells[2]) >= std::stod(cells[3]));
    CHECK(std::stod(cells[4]) >= std::stod(cells[5]));
    CHECK((cells[6] == "true") == (cells[2] == cells[3]));
    CHECK(contains(lines_of(table.out)[i], cells[0]));
    CHECK(contains(lines_of(table.out)[i], cells[2] + " ms"));
    CHECK(contains(read_file(folder / "a.svg"), cells[0] + ", limit " + cells[1] + ": "));
  }
  CHECK(placements.contains("linear"));
  CHECK(placements.contains("v"));
  CHECK(placements.size() == 3);
  CHECK(contains(rows[1], "linear,3000,"));  // 500 is too little there
  CHECK(swept({"--csv", "-"}).out == read_file(folder / "a.csv"));
  CHECK(swept({"--svg", "-"}).out == read_file(folder / "a.svg"));
  // The placements share a budget.
  for (auto const& fixed : {words{"--policy", "greedy_auto"}, words{"--placement", "linear"}}) {
    auto const linear = lines_of(swept(join(fixed, {"--csv", "-"}), "0.01").out);
    CHECK(linear.size() == 4);
    for (std::size_t i = 0; i < linear.size(); ++i) CHECK(linear[i] == rows[i]);
  }
}

TEST_CASE("a sweep of layers cuts them on each placement, for each limit", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const layers = join(
      {"--layers", "9", "--seconds", "0.03", "--sweep-memory", "6000:18000:3", "--csv", "-"},
      with_sizes);
  auto const all = run(folder, layers);
  INFO(all.err);
  REQUIRE(all.status == 0);
  auto const rows = lines_of(all.out);
  for (std::string const name : {"linear", "v", "looped 2"})
    CHECK(std::ranges::count_if(rows, [&](std::string const& row) {
            return row.starts_with(name + ",");
          }) > 0);
  CHECK_FALSE(contains(all.out, "looped 3"));
  // A point is the plan within its limit, with the same budget.
  problem const model(
      std::vector<layer_costs>(
          9,
          {.forward = 10'000'000,
           .backward_input = 10'000'000,
           .backward_weight = 10'000'000,
           .activation = 1000,
           .weight_gradient_input = 500}),
      {.ranks = 4, .microbatches = 8});
  std::vector<bytes> const limits{6000, 12000, 18000};
  auto const found =
      find_plans(model, limits, {.placement = placement::linear(4), .seconds = 0.01});
  REQUIRE(!found.empty());
  for (std::size_t i = 0; i < found.size(); ++i) {
    auto const limit = std::to_string(found[i].problem.memory_limits().front());
    auto const cost = number_text(found[i].cost, time_unit::milliseconds);
    CHECK(rows[i + 1].starts_with("linear," + limit + "," + cost + ","));
  }
}

TEST_CASE("a true plan is right, a false one is told line by line", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const file = std::string(ZBPP_TEST_DATA_DIR) + "/plan.json";
  auto const right = run(folder, {"--check", file});
  CHECK(right.status == 0);
  CHECK(right.out.starts_with(file + " is right\n"));
  CHECK(right.err.empty());
  auto said = json::read_plan(read_file(file));
  auto const problem_file = folder.write("p.json", json::write_problem(said.problem));
  CHECK(run(folder, {"--check", file, "--problem", problem_file}).status == 0);
  said.cost += 1;
  said.lower_bound += 1'000'000;
  said.peak_memory[0] += 1;
  auto const wrong = run(folder, {"--check", folder.write("wrong.json", json::write_plan(said))});
  CHECK(wrong.status == 1);
  CHECK(wrong.err.empty());
  auto const faults = lines_of(wrong.out);
  CHECK(faults == json::check_claims(said));
  CHECK(faults.size() >= 3);
  problem const other{said.problem.placement(), said.problem.microbatches(), stage_costs{1, 1, 1}};
  auto const other_file = folder.write("other.json", json::write_problem(other));
  auto const elsewhere = run(folder, {"--check", file, "--problem", other_file});
  CHECK(elsewhere.status == 1);
  CHECK(elsewhere.out == "problem: stages differs from that in " + other_file + "\n");
}

TEST_CASE("schedules of PyTorch's form are verified, with transfers or without", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const checked = [&](std::string const& text, words const& more = {}) {
    return run(folder, join({"--check", folder.write("order.csv", text)}, more));
  };
  std::string const split = "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1W0,1F1,1B1\n";
  std::string const sent = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0I0,0W0,0RECV_B1,0B1\n"
                           "1RECV_F0,1F0,1RECV_F1,1I0,1SEND_B0,1W0,1F1,1B1,1SEND_B1\n";
  for (auto const& text : {split, sent}) {
    auto const right = checked(text);
    INFO(right.out << right.err);
    CHECK(right.status == 0);
    CHECK(contains(right.out, "2 ranks, 2 stages (linear), 2 microbatches"));
  }
  problem const problem{
      placement::linear(2),
      2,
      stage_costs{
          .forward = 1'000'000,
          .backward_input = 1'000'000,
          .backward_weight = 1'000'000,
          .activation = 10,
          .weight_gradient_input = 5},
      {},
      {20}};
  auto const file = folder.write("p.json", json::write_problem(problem));
  auto const order = schedule_from_csv(split);
  auto const reports = checked(split, {"--problem", file});
  CHECK(reports.status == 0);
  CHECK(contains(
      reports.out,
      "\ncost         " + std::to_string(cost(simulate(order, problem)) / 1'000'000) + " ms\n"));
  CHECK(contains(reports.out, "\npeak memory  20 on rank 0\n"));
  CHECK_FALSE(contains(reports.out, "policy"));

  auto const faulty =
      [&](std::string const& text, std::string const& fault, words const& more = {}) {
        auto const found = checked(text, more);
        INFO(found.out << found.err);
        CHECK(found.status == 1);
        CHECK(found.err.empty());
        CHECK(contains(found.out, fault));
      };
  faulty("0F0,0I0,0W0,0I0\n", "repeated at rank 0, position 3, stage 0, microbatch 0: 0B0: ");
  faulty("0I0,0F0,0W0\n", "dependence");
  faulty("0F0,0W0,0I0\n", "dependence");
  faulty("0F0,0F1,0B0,0B1,0R1\n", "dependence");
  faulty("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "deadlock");
  faulty("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1W0\n", "missing");
  zbpp::problem const tight{
      problem.placement(), 2, {problem.all_costs().begin(), problem.all_costs().end()}, {}, {19}};
  faulty(
      split,
      "its limit is 19",
      {"--problem", folder.write("tight.json", json::write_problem(tight))});
  auto const many = checked("0F0,0F1,0I0\n1F0,1F1,1I0\n");
  CHECK(many.status == 1);
  for (auto const* absent : {"0B1", "0W0", "0W1", "1B1", "1W0", "1W1"})
    CHECK(contains(many.out, " " + std::string(absent) + ": "));
}

TEST_CASE("pairs that overlap are read one after the other, and told", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const file = folder.write("order.csv", paired_schedule);
  auto const reports =
      "pairs that overlap (OVERLAP_F_B): 2; the two passes of each are taken one after "
      "the other, as written\n";
  auto const plain = run(folder, {"--check", file});
  INFO(plain.out << plain.err);
  CHECK(plain.status == 0);
  CHECK(contains(plain.out, "2 ranks, 4 stages (v), 3 microbatches"));
  CHECK(plain.out.ends_with(reports));
  problem const problem{placement::v_shape(2), 3, stage_costs{1'000'000, 1'000'000, 1'000'000}};
  auto const costed = run(
      folder, {"--check", file, "--problem", folder.write("p.json", json::write_problem(problem))});
  CHECK(costed.status == 0);
  CHECK(costed.out.ends_with(reports));
  auto const order = schedule_from_csv(paired_schedule);
  CHECK(contains(
      costed.out,
      "\ncost         " + std::to_string(cost(simulate(order, problem)) / 1'000'000) + " ms\n"));
  auto const unpaired = run(folder, {"--check", folder.write("order.csv", to_csv(order))});
  CHECK(plain.out == unpaired.out + reports);
}

TEST_CASE("what only PyTorch's runtime does is left out of its files, and told", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const reports =
      "actions of PyTorch's runtime left out: 2 UNSHARD, 2 RESHARD, 2 REDUCE_GRAD, "
      "2 WAIT_REDUCE_GRAD, 1 WAIT_SEND_F, 1 WAIT_SEND_B\n";
  auto const file = folder.write(
      "dumped.csv",
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\r\n"
      "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1RESHARD,"
      "1WAIT_SEND_B0\r\n");
  auto const found = run(folder, {"--check", file});
  INFO(found.out << found.err);
  CHECK(found.status == 0);
  CHECK(contains(found.out, "2 ranks, 2 stages (linear), 1 microbatches"));
  CHECK(found.out.ends_with(reports));
  // One rank sends nothing, so only what is left out tells this file from a schedule.
  auto const alone = run(
      folder, {"--check", folder.write("one.csv", "0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\r\n")});
  CHECK(alone.status == 0);
  CHECK(alone.out.ends_with("1 UNSHARD, 1 RESHARD, 1 REDUCE_GRAD\n"));
  check_refused(
      {"--check", folder.write("bad.csv", "0F0,0UNSHARD1,0B0\n")}, "nothing after 0UNSHARD");
}

TEST_CASE("an order of W that descends is right with a remark", "[zbpp-plan]") {
  scratch_folder const folder;
  // As LoopedBFS of PyTorch has it: backward passes from the last microbatch to the first.
  auto const* const text = "0F0,0F1,0F2,2F0,2F1,2F2,2B2,2B1,2B0,0B2,0B1,0B0\n"
                           ",1F0,1F1,1F2,3F0,3F1,3F2,3B2,3B1,3B0,1B2,1B1,1B0\n";
  auto const file = folder.write("looped_bfs.csv", text);
  problem const problem{placement::looped(2, 2), 3, stage_costs{1'000'000, 1'000'000, 1'000'000}};
  auto const problem_file = folder.write("p.json", json::write_problem(problem));
  for (auto const& more : {words{}, words{"--problem", problem_file}}) {
    auto const found = run(folder, join({"--check", file}, more));
    INFO(found.out << found.err);
    CHECK(found.status == 0);
    CHECK(contains(found.out, "looped_bfs.csv is right\n"));
    CHECK(contains(found.out, "\ncost ") == !more.empty());
    CHECK(contains(
        found.out,
        "\nremark: sum order at rank 0, position 19, stage 2, microbatch 1: 2BW1: W of stage 2 "
        "runs "
        "microbatch 2 before 1: the sums of gradients differ in their last bits from a plain "
        "loop; 8 W in all stand behind a later one\n"));
  }
  // Wrong by its dependences, it is wrong.
  std::string wrong = text;
  wrong.replace(wrong.find("3F2,3B2"), 7, "3B2,3F2");
  auto const refused = run(folder, {"--check", folder.write("wrong.csv", wrong)});
  CHECK(refused.status == 1);
  CHECK(contains(refused.out, "dependence at rank 1"));
  CHECK(!contains(refused.out, "sum order"));
}

TEST_CASE("a schedule is written with its transfers where asked for", "[zbpp-plan]") {
  scratch_folder const folder;
  for (words const& arguments :
       {words{"--policy", "zb_h1"},
        words{"--policy", "zb_v", "--placement", "v"},
        words{"--policy", "interleaved", "--placement", "looped", "--chunks", "2"}}) {
    auto const plain = run(folder, join(join(arguments, {"--csv", "-"}), small));
    auto const whole = run(folder, join(join(arguments, {"--csv", "-", "--csv-transfers"}), small));
    INFO(whole.out << whole.err);
    CHECK(whole.status == 0);
    auto const code = program_from_csv(whole.out);
    CHECK(
        code == lower(
                    schedule_from_csv(plain.out),
                    {.step = step_kind::none, .layout = channel_layout::one_per_rank}));
    CHECK(to_csv(code, {.for_pytorch = true}) == whole.out);
    auto const checked = run(folder, {"--check", folder.write("order.csv", whole.out)});
    CHECK(checked.status == 0);
    CHECK(contains(checked.out, "8 microbatches; "));
    CHECK(contains(checked.out, "\nactions of PyTorch's runtime left out: "));
  }
}

TEST_CASE("pairs run together where the problem says what that takes", "[zbpp-plan]") {
  scratch_folder const folder;
  problem const problem{
      placement::v_shape(2),
      3,
      stage_costs{
          .forward = 1'000'000,
          .backward_input = 1'000'000,
          .backward_weight = 1'000'000,
          .overlapped = 1'500'000}};
  auto const file = folder.write("order.csv", paired_schedule);
  auto const found = run(
      folder, {"--check", file, "--problem", folder.write("p.json", json::write_problem(problem))});
  INFO(found.out << found.err);
  CHECK(found.status == 0);
  CHECK(found.out.ends_with(
      "pairs that overlap (OVERLAP_F_B): 2; the two passes of each run together\n"));
  auto const order =
      schedule_from_csv(paired_schedule, problem.placement(), 3, csv_pairs::together);
  CHECK(contains(
      found.out,
      "\ncost         " + time_text(cost(simulate(order, problem)), time_unit::milliseconds) +
          "\n"));
}

TEST_CASE("pairs that overlap are written where asked for", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const written = [&](words const& more) {
    return run(
        folder,
        join(join({"--policy", "dualpipe_v", "--placement", "v", "--csv", "-"}, small), more));
  };
  auto const plain = written({});
  auto const paired = written({"--csv-overlap"});
  CHECK(paired.status == 0);
  CHECK(overlapped_pairs_in_csv(plain.out) == 0);
  CHECK(contains(paired.out, "(0F7;7B3)OVERLAP_F_B,(7F4;0B0)OVERLAP_F_B"));
  CHECK(schedule_from_csv(paired.out) == schedule_from_csv(plain.out));
  auto const checked = run(folder, {"--check", folder.write("order.csv", paired.out)});
  CHECK(checked.status == 0);
  CHECK(contains(
      checked.out, "(OVERLAP_F_B): " + std::to_string(overlapped_pairs_in_csv(paired.out)) + "; "));
  check_refused(join({"--policy", "zb_h1", "--csv-overlap"}, small), "give --csv FILE too");
  check_refused({"--check", "x", "--csv-overlap"}, "--csv-overlap means nothing with --check");
  check_refused(
      join({"--sweep-memory", "1:2:2", "--csv", "-", "--csv-overlap"}, sized),
      "--csv-overlap means nothing with --sweep-memory");
}

// Uneven stages on a V or looped, with so little memory that no bound is met.
words hard_problem(std::string const& placement) {
  words const given{
      "--ranks",
      "6",
      "--placement",
      placement,
      "--microbatches",
      "24",
      "--forward",
      "3,4,5,7,6,5,4,3,5,6,7,5",
      "--backward-input",
      "7,3,5,6,4,5,3,4,5,7,6,4",
      "--backward-weight",
      "2,3,5,1,4,2,3,6,2,5,3,4",
      "--transfer",
      "0.7",
      "--activation",
      "1000",
      "--memory-limit",
      "5000"};
  return placement == "v" ? given : join(given, {"--chunks", "2"});
}

namespace {

// ZB-H1 on two ranks, with times in us.
json::plan_report plan_to_explain() {
  stage_costs const costs{.forward = 100, .backward_input = 100, .backward_weight = 90};
  problem const asked(placement::linear(2), 5, costs, 5);
  return json::make_plan_report("ZB-H1", zb_h1{}(asked), asked);
}

// A step of that plan with rank 1 half as slow again, as a trace.
std::string slow_trace(std::string const& name) {
  auto const said = plan_to_explain();
  std::vector<stage_costs> all(2, said.problem.costs(0));
  all[1] = {.forward = 150, .backward_input = 150, .backward_weight = 135};
  problem const slow(said.problem.placement(), said.problem.microbatches(), all, 5);
  return to_chrome_trace({{"planned", said.timeline}, {name, simulate(said.schedule, slow)}});
}

}  // namespace

TEST_CASE("a step is explained by its plan, as the library does", "[zbpp-plan]") {
  scratch_folder const folder;
  auto const said = plan_to_explain();
  auto const unit = time_unit::microseconds;
  auto const planned = make_plan(said.policy, said.schedule, said.problem);
  auto const plan_file = folder.write("plan.json", json::write_plan(said, unit));
  auto const slow_file = folder.write("slow.json", slow_trace("measured"));
  auto const fast_file = folder.write("fast.json", to_chrome_trace({{"any", said.timeline}}));
  auto const slow = explain(planned, json::read_chrome_trace(slow_trace("measured")).at(1).line);
  auto const fast = explain(planned, said.timeline);
  CHECK(slow.measured > fast.measured);
  words const asked{"--explain", slow_file, "--plan", plan_file};

  auto const found = run(folder, asked);
  CHECK(found.err.empty());
  CHECK(found.status == 0);
  CHECK(found.out == to_text(slow, unit));

  auto const compared = run(folder, join(asked, {"--against", fast_file}));
  CHECK(compared.status == 0);
  CHECK(
      compared.out == slow_file + "\n" + to_text(slow, unit) + "\n" + fast_file + "\n" +
                          to_text(fast, unit) + "\nfrom " + slow_file + " to " + fast_file + "\n" +
                          changes_text(slow, fast, unit));

  auto const piped = run(folder, join(asked, {"--json", "-"}));
  CHECK(piped.status == 0);
  CHECK(piped.out == json::write_explanation(slow, unit));
  CHECK(run(folder, join(asked, {"--json", folder / "found.json"})).out.empty());
  CHECK(read_file(folder / "found.json") == piped.out);

  CHECK(shell(folder, "\"$0\" --explain - --plan plan.json < slow.json").out == found.out);
  CHECK(shell(folder, "\"$0\" --explain slow.json --plan - < plan.json").out == found.out);
}

TEST_CASE("steps that cannot be explained are refused with the file at fault", "[zbpp-plan]") {
  scratch_folder const files;
  auto const said = plan_to_explain();
  auto const plan_file = files.write("plan.json", json::write_plan(said));
  auto const slow_file = files.write("slow.json", slow_trace("measured"));
  auto const refused = [&](std::string const& trace, std::string const& culprit) {
    check_refused({"--explain", trace, "--plan", plan_file}, culprit);
    check_refused({"--explain", slow_file, "--plan", plan_file, "--against", trace}, culprit);
  };
  refused(files / "none.json", "none.json");
  refused(plan_file, "plan.json: found no key 'traceEvents'");
  refused(
      files.write("several.json", slow_trace("ZB-H1")),
      "several.json: found the timelines 'planned', 'ZB-H1'; expected one, or one that is called "
      "'measured'");
  auto const cut = slow_trace("measured");
  refused(files.write("cut.json", cut.substr(0, cut.size() / 2)), "cut.json: line ");
  refused(
      files.write("other.json", to_chrome_trace({{"", timeline({{{{}, 0, 1}}, {}, {}})}})),
      "other.json: the measured step has 3 ranks and the plan 2; give the plan that ran");
  check_refused(
      {"--explain", slow_file, "--plan", slow_file}, "slow.json: displayTimeUnit: found a key");
  auto wrong = said;
  auto passes = said.schedule.passes().nested();
  auto line = said.timeline.nested();
  std::swap(passes[0].front(), passes[0].back());
  std::swap(line[0].front().pass, line[0].back().pass);
  wrong.schedule = {said.problem.placement(), said.problem.microbatches(), passes};
  wrong.timeline = timeline(line);
  check_refused(
      {"--explain", slow_file, "--plan", files.write("stuck.json", json::write_plan(wrong))},
      "stuck.json: ");
}

TEST_CASE("a search that takes long tells how far it is, and Ctrl-C ends it", "[zbpp-plan]") {
  for (std::string const policy : thinned<std::vector<char const*>>(
           {"greedy_auto", "v_half", "interleaved_zb"}, {"interleaved_zb"})) {
    CAPTURE(policy);
    scratch_folder const folder;
    test::pseudo_terminal terminal;
    if (terminal.name().empty()) return test::skip("a pseudo terminal");
    auto const program = test::start(
        folder,
        join(
            {"--policy", policy, "--seconds", "200", "--json", folder / "plan.json"},
            hard_problem(policy == "interleaved_zb" ? "looped" : "v")),
        {.terminal = terminal.name()});
    terminal.read_until("searching: ");
    ::kill(program, SIGINT);
    auto const& shown = terminal.read_until("so far");
    CHECK(test::wait_for(program) == 0);
    CHECK(contains(shown, " %, cost "));
    CHECK(contains(shown, "\r\x1b[Kzbpp-plan: interrupted; "));
    CHECK(json::check_claims(json::read_plan(read_file(folder / "plan.json"))).empty());
  }
}

TEST_CASE("budget and seed reach every policy that searches", "[zbpp-plan]") {
  scratch_folder const folder;
  for (std::string const policy : thinned<std::vector<char const*>>(
           {"greedy_auto", "v_half", "v_min", "interleaved_zb"}, {"v_half"})) {
    auto const asked = hard_problem(policy == "interleaved_zb" ? "looped" : "v");
    auto const with = [&](char const* seconds, char const* seed) {
      words const given{"--policy", policy, "--seconds", seconds, "--seed", seed, "--csv", "-"};
      return run(folder, join(given, asked)).out;
    };
    CAPTURE(policy);
    auto const brief = with("0.002", "3");
    CHECK(brief == with("0.002", "3"));
    CHECK(brief != with("0.05", "3"));
    CHECK(with("0.2", "3") != with("0.2", "4"));
  }
}

TEST_CASE("without a limit, three lines say what memory more time would save", "[zbpp-plan]") {
  scratch_folder const folder;
  for (auto const& how : {words{"--policy", "greedy_auto"}, words{}, words{"--layers", "9"}}) {
    auto const found = run(folder, join(how, sized));
    CHECK(found.status == 0);
    auto const lines = lines_of(found.out);
    REQUIRE(lines.size() > 4);
    CHECK(lines[lines.size() - 4].empty());
    bytes last = std::numeric_limits<bytes>::max();
    for (std::size_t i = 0; i < 3; ++i) {
      auto const& line = lines[lines.size() - 3 + i];
      auto const* const head = i == 0   ? "least memory at this cost  "
                               : i == 1 ? "least memory at +1 %       "
                                        : "least memory at +5 %       ";
      CHECK(line.starts_with(head));
      auto const most = std::stoll(line.substr(std::string(head).size()));
      CHECK(most <= last);
      CHECK(most >= 1000);
      last = most;
    }
    auto const limited = run(folder, join(join(how, {"--memory-limit", "90000"}), sized));
    CHECK_FALSE(contains(limited.out, "least memory"));
  }
  CHECK_FALSE(contains(run(folder, join({"--policy", "zb_h2"}, sized)).out, "least memory"));
  CHECK_FALSE(contains(run(folder, join({"--policy", "greedy_auto"}, small)).out, "least memory"));
}

}  // namespace test_zbpp_plan
