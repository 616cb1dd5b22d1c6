// SPDX-License-Identifier: Apache-2.0
//
// Trains a byte-level GPT twice over: in one plain loop, and through pipelines that zbpp runs under
// different policies. Every loss and every parameter has to come out the same, bit for bit.
//
// Exit status: 0 all as it should be; 1 something is not identical, or failed; 2 bad input; 130
// interrupted.
#include "command_line.hpp"
#include "doing.hpp"
#include "phases.hpp"
#include "processes.hpp"
#include "standard_output.hpp"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

namespace gpt {
namespace {

/// Is what a run begins with: new stages, or those of a checkpoint.
struct beginning {
  std::vector<chunk_stage> stages;
  zbpp::training_state state = {};
};

/// Runs one plan and compares it with the reference, where there is one.
void run(
    contender& one,
    options const& o,
    beginning from,
    saver* save,
    std::optional<run_record> const& sequential,
    std::optional<sequential_trainer> const& trainer) {
  one.run = doing("running the pipeline of " + one.title, [&] {
    return run_pipeline(*one.plan, o.how, from.stages, from.state, o.how.optimizer.steps, save);
  });
  if (sequential)
    one.run->is_identical = is_identical(*one.run, from.stages, *sequential, *trainer);
}

int train(options const& o) {
  auto const on = read(o);
  auto choices = choose_all(o);
  std::optional<saver> save;
  std::optional<beginning> resumed;
  auto const new_stages = [&](zbpp::placement const& placement) {
    return doing("making the stages", [&] { return make_stages(o.how, on, placement); });
  };
  if (!o.checkpoint.empty()) {
    auto const& where = *choices.front().where;
    save.emplace(o.checkpoint, settings_of(o.how, on), o.every, o.policies.front(), where);
    resumed.emplace(beginning{new_stages(where)});
    resumed->state =
        doing("reading the checkpoint", [&] { return save->begin(resumed->stages, o.resume); });
  }
  std::optional<sequential_trainer> trainer;
  if (o.reference) doing("making the reference", [&] { trainer.emplace(o.how, on); });
  say(headline(o, on, trainer));
  if (o.resume) say(save->told() + "\n");
  auto const measured = doing("measuring", [&] { return measure_all(o, on, choices); });
  auto all = plan_all(o, choices, measured);
  tell_plans(o, measured, all);

  interrupt::listen();
  std::optional<run_record> sequential;
  if (trainer)
    sequential = doing("running the reference", [&] { return run_sequential(*trainer, o.how); });
  run_record const* last = sequential ? &*sequential : nullptr;
  for (auto& c : all) {
    if (!c.plan || interrupt::was_raised()) continue;
    auto from =
        resumed ? std::move(*resumed) : beginning{new_stages(c.plan->problem().placement())};
    run(c, o, std::move(from), save ? &*save : nullptr, sequential, trainer);
    last = &*c.run;
  }
  if (last == nullptr || (sequential && sequential->losses.empty())) return 130;
  auto const newest = save ? save->path() : std::filesystem::path();
  auto const status = conclude(o, on, sequential, all, *last, newest);
  if (status != 0) return status;
  return interrupt::was_raised() ? 130 : 0;
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  try {
    auto const o = gpt::read_options(argc, argv);
    int status = 0;
    if (o) status = o->by == gpt::transport::tcp ? gpt::train_in_processes(*o) : gpt::train(*o);
    gpt::finish_output();
    return status;
  } catch (gpt::setting_error const& wrong) {
    std::fprintf(stderr, "train_gpt: %s\n", wrong.what());
    return 2;
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "train_gpt: %s\n", failed.what());
    return 1;
  }
}
