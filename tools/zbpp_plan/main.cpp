// SPDX-License-Identifier: Apache-2.0
//
// zbpp-plan: plans, checks and compares schedules on the command line. docs/zbpp_plan.md tells how.
#include "check.hpp"
#include "compare.hpp"
#include "explain.hpp"
#include "frontier.hpp"
#include "gpus.hpp"
#include "inputs.hpp"
#include "options.hpp"
#include "outputs.hpp"
#include "planners.hpp"
#include "searching.hpp"
#include "sweep.hpp"
#include "tables.hpp"
#include <zbpp/io/text.hpp>
#include <zbpp/planner/registry.hpp>

#include <csignal>
#include <exception>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace planning;

enum status : int { done = 0, wrong_plan = 1, bad_input = 2, does_not_fit = 3 };

void list_policies() {
  std::vector<std::pair<std::string, std::string>> lines;
  for (auto const& one : zbpp::builtin_policies()) lines.emplace_back(one.name(), one.summary());
  print(facts_text(lines));
}

void plan(options const& o, searching const& search) {
  auto const by = planner_of(o);
  auto const [found, cut] = make_plan(by, *o.problem, search);
  write_plans(o.out, {found}, o.unit);
  if (o.out.any()) return;
  print(
      summary_of(found, o.unit) + cut +
      (has_frontier(by, found) ? "\n" + frontier_of(found, search) : "") +
      (o.gpus ? "\n" + gpu_needs_of(found) : ""));
}

[[nodiscard]] status check_file(options const& o) {
  auto const found = check(o);
  std::string text;
  for (auto const& fault : found.faults) text += zbpp::one_line(fault) + "\n";
  print(found.faults.empty() ? input_name(o.check) + " is right\n" + found.summary : text);
  return found.faults.empty() ? done : wrong_plan;
}

[[nodiscard]] status run(int argc, char const* const* argv) {
  auto const o = command_line().read(argc, argv);
  if (!o) return done;
  searching const search{.seconds = o->seconds, .seed = o->seed, .unit = o->unit};
  switch (o->task) {
    case task::list: list_policies(); break;
    case task::check: return check_file(*o);
    case task::plan: plan(*o, search); break;
    case task::compare: run_compare(*o, search); break;
    case task::sweep: run_sweep(*o, search); break;
    case task::explain: run_explain(*o); break;
  }
  if (interruption::was_raised())
    std::cerr << "zbpp-plan: interrupted; this is the best that was found so far\n";
  return done;
}

void complain(std::string const& text) {
  std::cerr << "zbpp-plan: " << zbpp::one_line(text) << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  // A write beyond the largest file allowed then fails like any other, instead of ending the
  // program.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (nothing_fits const& refused) {
    complain(refused.what());
    return does_not_fit;
  } catch (std::bad_alloc const&) {
    complain("out of memory; state a smaller problem");
  } catch (std::exception const& wrong) {
    complain(wrong.what());
  }
  return bad_input;
}
