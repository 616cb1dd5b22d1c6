// SPDX-License-Identifier: Apache-2.0
#include "training.hpp"

#include "program.hpp"
#include "report.hpp"
#include "searching.hpp"
#include "ways.hpp"
#include <zbpp/io/text.hpp>

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

/// Reads the text to learn.
/// @throws setting_error
text read(options const& o) {
  auto on = doing("reading the text", [&] {
    return o.text.empty() ? read_repository(GPT_SOURCE_DIR) : read_text(o.text);
  });
  check(on, o.how.model);
  return on;
}

/// Finds a placement for every policy.
/// @throws setting_error when the user asked for one that finds none
std::vector<choice> choose_all(options const& o) {
  auto const known = policies(o);
  std::vector<choice> choices;
  for (auto const& name : o.policies) {
    auto const& policy = *std::ranges::find(known, name, &zbpp::any_policy::name);
    choices.push_back(choose(policy, o.ranks, o.how.own_microbatches(), o.how.model));
    auto const& last = choices.back();
    if (!last.where && o.names_policies)
      throw setting_error("--policy " + name + ": " + last.why_not);
  }
  return choices;
}

/// Finds the problem of a placement.
auto find_problem(std::vector<zbpp::problem> const& all, zbpp::placement const& placement) {
  return std::find_if(
      all.begin(), all.end(), [&](zbpp::problem const& p) { return p.placement() == placement; });
}

/// Plans for a policy that found a placement.
/// @throws setting_error when its order cannot be that of single blocks, and has to
zbpp::plan plan_of(
    options const& o,
    choice const& c,
    std::vector<zbpp::problem> const& measured,
    zbpp::step_kind kind) {
  auto const& problem = *find_problem(measured, placement_of_stages(o, *c.where));
  if (!o.adapts) return zbpp::make_plan(c.policy, problem, {.step = kind});
  try {
    auto order = order_of_blocks(c.policy, *c.where, o.how.model, problem);
    return zbpp::make_plan(
        std::string(c.policy.title()), std::move(order), problem, {.step = kind});
  } catch (zbpp::error const& refused) {
    if (refused.code() != zbpp::errc::unsupported_problem) throw;
    throw setting_error("--adaptive with " + std::string(c.policy.title()) + ": " + refused.what());
  }
}

/// Plans for the policies that found a placement, with each kind of steps.
std::vector<contender> plan_all(
    options const& o,
    std::vector<choice> const& choices,
    std::vector<zbpp::problem> const& measured) {
  std::vector<contender> all;
  for (auto const& c : choices) {
    for (auto const kind : o.kinds) {
      contender made{title_of(c.policy.title(), kind, o.kinds), kind, c.why_not, {}, {}};
      if (c.where) made.plan = plan_of(o, c, measured, kind);
      all.push_back(std::move(made));
      if (!c.where) break;  // with no kind
    }
  }
  return all;
}

/// Tells what is trained.
std::string headline(
    options const& o, text const& on, std::optional<sequential_trainer> const& trainer) {
  auto const& m = o.how.model;
  return "model: " + std::to_string(m.layers) + " layers, width " + std::to_string(m.width) +
         ", context " + std::to_string(m.context) + ", vocabulary " + std::to_string(m.words) +
         (m.is_tied ? ", tied" : "") +
         (trainer
              ? ", " + std::to_string(trainer->model().parameters().values().size()) + " parameters"
              : "") +
         "\nsteps: " + describe_steps(o.kinds, o.how.optimizer) +
         "\ntext: " + std::to_string(on.bytes().size()) + " bytes, entropy of single bytes " +
         zbpp::fixed_text(on.unigram_entropy(), 4) + " nats\n";
}

/// Says whether a run gave the bits of the reference: the losses of all its steps, and the
/// parameters where both ended at the same step.
bool is_identical(run_record const& run, run_record const& reference) {
  return same_losses(run, reference) &&
         (run.done() < reference.done() || run.parameters == reference.parameters);
}

/// Tells how training went, and writes the pictures.
/// @param last        the run whose parameters count
/// @param checkpoint  the newest one; empty where there is none
/// @return the exit status, but for an interrupt
/// @throws zbpp::error (io_failed)
int conclude(
    options const& o,
    text const& on,
    std::optional<run_record> const& sequential,
    std::vector<contender> const& all,
    run_record const& last,
    std::filesystem::path const& checkpoint) {
  say("\n" + outcome(sequential, all));
  say("parameters: " + zbpp::hex_text(last.parameters) + " after " + std::to_string(last.done()) +
      " steps");
  if (!checkpoint.empty()) say("checkpoint: " + checkpoint.string());
  auto const* const told = last_with_step(all);
  std::optional<zbpp::explanation> found;
  if (told != nullptr)
    found = zbpp::explain(
        *told->plan,
        told->run->typical_step,
        {.messages = told->run->typical_messages.all(), .clocks = told->run->clocks});
  if (found && o.explains)
    say("\nexplained, a typical step of " + told->title + "\n" +
        to_text(*found, zbpp::time_unit::milliseconds));
  auto const* const drawn = found && o.explains ? &*found : nullptr;
  auto const files = write_files(o.out, sequential, all, on.unigram_entropy(), drawn);
  if (!files.empty()) say("wrote " + files + " to " + o.out.string());
  if (found) say(shortfall(told->title, *found));
  if (std::ranges::all_of(all, [](auto& c) { return !c.run || c.run->is_identical; })) return 0;
  std::fprintf(stderr, "train_gpt: a pipeline gave other bits than the sequential run\n");
  return 1;
}

/// Is what a run begins with: new stages, or those of a checkpoint.
struct beginning {
  std::vector<chunk_stage> stages;
  zbpp::training_state state = {};
};

}  // namespace

std::unique_ptr<zbpp::checkpoint::process_group> ranks_here::processes() {
  return std::make_unique<zbpp::checkpoint::process_group>();
}

std::vector<chunk_stage> ranks_here::make_stages(
    training const& how, text const& on, zbpp::placement const& placement) {
  return gpt::make_stages(how, on, placement);
}

std::vector<zbpp::problem> ranks_here::measure(
    options const& o, text const& on, std::vector<choice> const& choices) {
  std::vector<zbpp::problem> measured;
  for (auto const& c : choices) {
    if (!c.where) continue;
    auto const place = placement_of_stages(o, *c.where);
    if (find_problem(measured, place) != measured.end()) continue;
    measured.push_back(measure_on_threads(o.how, on, place, [&](zbpp::problem const& sizes) {
      return o.adapts ? order_of_blocks(c.policy, *c.where, o.how.model, sizes) : c.policy(sizes);
    }));
  }
  share_messages(measured);
  return measured;
}

run_record ranks_here::run(
    zbpp::plan const& planned,
    options const& o,
    text const& on,
    std::vector<chunk_stage>& stages,
    zbpp::training_state const& state,
    saver* save) {
  auto backend = threads_with(o.slow);
  backend.records_messages = o.explains;
  if (o.adapts) return run_adapting(planned, o.how, backend, stages, state, save);
  if (o.how.replicas > 1 || o.how.model.members > 1)
    return run_grid(planned, o.how, on, backend, stages, state, save);
  return run_pipeline(planned, o.how, backend, stages, state, o.how.optimizer.steps, save);
}

int train(options const& o, ranks_here& ranks) {
  auto const tell = [&](std::string const& text) {
    if (ranks.has_first()) say(text);
  };
  auto const on = read(o);
  auto const choices = choose_all(o);
  auto const settings = settings_of(o.how, on);
  auto const new_stages = [&](zbpp::placement const& placement) {
    return doing("making the stages", [&] { return ranks.make_stages(o.how, on, placement); });
  };

  std::optional<saver> save;
  std::optional<beginning> resumed;
  if (auto const& where = choices.front().where) ranks.agree(o, settings, *where);
  if (!o.checkpoint.empty()) {
    auto const where = placement_of_stages(o, *choices.front().where);
    save.emplace(
        o.checkpoint, o.how, settings, o.every, o.policies.front(), where, ranks.processes());
    resumed.emplace(beginning{new_stages(where)});
    resumed->state =
        doing("reading the checkpoint", [&] { return save->begin(resumed->stages, o.resume); });
  }
  std::optional<sequential_trainer> trainer;
  if (o.reference && ranks.has_first())
    doing("making the reference", [&] { trainer.emplace(o.how, on); });
  tell(headline(o, on, trainer));
  if (o.resume) tell(save->resumed_text() + "\n");

  auto const measured = doing("measuring", [&] { return ranks.measure(o, on, choices); });
  auto all = plan_all(o, choices, measured);
  for (auto const& p : measured) tell(describe(p, o.how.model));
  tell(predictions(all));

  if (o.by == transport::threads) interrupt::listen();
  std::optional<run_record> sequential;
  if (trainer)
    sequential = doing("running the reference", [&] {
      return run_sequential(*trainer, o.how, [&] { ranks.check(); });
    });
  run_record const* last = sequential ? &*sequential : nullptr;
  for (auto& c : all) {
    if (!c.plan || interrupt::was_raised()) continue;
    auto from =
        resumed ? std::move(*resumed) : beginning{new_stages(c.plan->problem().placement())};
    c.run = doing("running the pipeline of " + c.title, [&] {
      return ranks.run(*c.plan, o, on, from.stages, from.state, save ? &*save : nullptr);
    });
    if (c.run->other_plan) c.first_plan = std::exchange(c.plan, c.run->other_plan);
    if (sequential) c.run->is_identical = is_identical(*c.run, *sequential);
    last = &*c.run;
  }

  if (last == nullptr || (sequential && sequential->losses.empty())) return 130;
  auto const newest = save ? save->path() : std::filesystem::path();
  auto const status =
      ranks.share(ranks.has_first() ? conclude(o, on, sequential, all, *last, newest) : 0);
  return status == 0 && interrupt::was_raised() ? 130 : status;
}

int train_on_threads(options const& o) {
  ranks_here ranks;
  return train(o, ranks);
}

}  // namespace gpt
