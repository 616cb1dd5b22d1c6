// SPDX-License-Identifier: Apache-2.0
//
// What training on threads and in processes share, compiled once.
#include "phases.hpp"

#include "doing.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpt {
namespace {

/// Finds the problem of a placement.
auto find_problem(std::vector<zbpp::problem> const& all, zbpp::placement const& placement) {
  return std::find_if(
      all.begin(), all.end(), [&](zbpp::problem const& p) { return p.placement() == placement; });
}

}  // namespace

void say(std::string const& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

text read(options const& o) {
  auto on = doing("reading the text", [&] {
    return o.text.empty() ? read_repository(GPT_SOURCE_DIR) : read_text(o.text);
  });
  check(on, o.how.model);
  return on;
}

std::vector<choice> choose_all(options const& o) {
  auto const known = zbpp::builtin_policies();
  std::vector<choice> choices;
  for (auto const& name : o.policies) {
    choices.push_back(
        choose(zbpp::find_policy(known, name), o.ranks, o.how.microbatches, o.how.model.layers));
    auto const& last = choices.back();
    if (!last.where && o.names_policies)
      throw setting_error("--policy " + name + ": " + last.why_not);
  }
  return choices;
}

std::vector<zbpp::problem> measure_all(
    options const& o, text const& on, std::vector<choice> const& choices) {
  std::vector<zbpp::problem> measured;
  for (auto const& c : choices)
    if (c.where && find_problem(measured, *c.where) == measured.end())
      measured.push_back(measure_on_threads(o.how, on, c.policy, *c.where));
  share_messages(measured);
  return measured;
}

std::vector<contender> plan_all(
    options const& o,
    std::vector<choice> const& choices,
    std::vector<zbpp::problem> const& measured) {
  std::vector<contender> all;
  for (auto const& c : choices) {
    for (auto const kind : o.kinds) {
      contender made{title_of(c.policy.title(), kind, o.kinds), kind, c.why_not, {}, {}};
      if (c.where)
        made.plan = zbpp::make_plan(c.policy, *find_problem(measured, *c.where), {.step = kind});
      all.push_back(std::move(made));
      if (!c.where) break;  // with no kind
    }
  }
  return all;
}

void tell_plans(
    options const& o,
    std::vector<zbpp::problem> const& measured,
    std::vector<contender> const& all) {
  for (auto const& p : measured) say(describe(p, o.how.model.layers));
  say(predictions(all));
}

std::string headline(
    options const& o, text const& on, std::optional<sequential_trainer> const& trainer) {
  auto const& m = o.how.model;
  return "model: " + std::to_string(m.layers) + " layers, width " + std::to_string(m.width) +
         ", context " + std::to_string(m.context) + (m.is_tied ? ", tied" : "") +
         (trainer
              ? ", " + std::to_string(trainer->model().parameters().values().size()) + " parameters"
              : "") +
         "\nsteps: " + describe_steps(o.kinds, o.how.optimizer) +
         "\ntext: " + std::to_string(on.bytes().size()) + " bytes, entropy of single bytes " +
         fixed(on.unigram_entropy(), 4) + " nats\n";
}

run_record run_sequential(
    sequential_trainer& trainer, training const& how, interruption const& between) {
  run_record record{"sequential"};
  auto const steps = how.optimizer.steps;
  run_display display(record, how, steps);
  step_clock clock;
  while (record.done() < steps && !interrupt::was_raised()) {
    record.losses.push_back(trainer.step(between));
    record.milliseconds.push_back(clock.lap());
    display.show_step();
  }
  record.parameters = digest(trainer.model().parameters());
  return record;
}

int conclude(
    options const& o,
    text const& on,
    std::optional<run_record> const& sequential,
    std::vector<contender> const& all,
    run_record const& last,
    std::filesystem::path const& checkpoint) {
  say("\n" + outcome(sequential, all));
  say("parameters: " + hex(last.parameters) + " after " + std::to_string(last.done()) + " steps");
  if (!checkpoint.empty()) say("checkpoint: " + checkpoint.string());
  if (auto const files = write_files(o.out, sequential, all, on.unigram_entropy()); !files.empty())
    say("wrote " + files + " to " + o.out.string());
  bool const is_identical =
      std::all_of(all.begin(), all.end(), [](auto& c) { return !c.run || c.run->is_identical; });
  if (is_identical) return 0;
  std::fprintf(stderr, "train_gpt: a pipeline gave other bits than the sequential run\n");
  return 1;
}

}  // namespace gpt
