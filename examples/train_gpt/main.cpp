// SPDX-License-Identifier: Apache-2.0
//
// Trains a byte-level GPT twice over: in one plain loop, and through pipelines that zbpp runs under
// different policies. Every loss and every parameter has to come out the same, bit for bit.
//
// Exit status: 0 all as it should be; 1 something is not identical, or failed; 2 bad input; 130
// interrupted.
#include "options.hpp"
#include "report.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace gpt {
namespace {

/// Prints a paragraph now, also into a pipe.
void say(std::string const& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

text read(options const& o) {
  auto on = o.text.empty() ? read_repository(GPT_SOURCE_DIR) : read_text(o.text);
  check(on, o.how.model);
  return on;
}

/// Finds a placement for every policy.
/// @throws setting_error when the user asked for one that finds none
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

/// Measures every placement once, tells it, and plans.
std::vector<contender> plan_all(options const& o, text const& on, std::vector<choice> choices) {
  std::vector<zbpp::problem> measured;
  auto const find = [&](zbpp::placement const& where) {
    return std::find_if(measured.begin(), measured.end(), [&](zbpp::problem const& p) {
      return p.where() == where;
    });
  };
  for (auto const& c : choices)
    if (c.where && find(*c.where) == measured.end())
      measured.push_back(measure(o.how, on, c.policy, *c.where));
  share_messages(measured);
  for (auto const& p : measured) say(describe(p, o.how.model.layers));

  std::vector<contender> all;
  for (auto& c : choices) {
    contender made{std::string(c.policy.title()), std::move(c.why_not), {}, {}};
    if (c.where) made.plan = zbpp::make_plan(c.policy, *find(*c.where));
    all.push_back(std::move(made));
  }
  say(predictions(all));
  return all;
}

std::string headline(options const& o, text const& on, sequential_trainer const& trainer) {
  auto const& m = o.how.model;
  return "model: " + std::to_string(m.layers) + " layers, width " + std::to_string(m.width) +
         ", context " + std::to_string(m.context) + ", " +
         std::to_string(trainer.model().parameters().values().size()) +
         " parameters\ntext: " + std::to_string(on.bytes().size()) +
         " bytes, entropy of single bytes " + fixed(on.unigram_entropy(), 4) + " nats\n";
}

int train(options const& o) {
  auto const on = read(o);
  auto choices = choose_all(o);
  sequential_trainer trainer(o.how, on);
  say(headline(o, on, trainer));
  auto all = plan_all(o, on, std::move(choices));

  interrupt::listen();
  auto const sequential = run_sequential(trainer, o.how);
  bool is_identical = true;
  for (auto& c : all) {
    if (!c.plan || interrupt::was_raised()) continue;
    c.run = run_pipeline(*c.plan, o.how, on, sequential, trainer);
    if (c.run->losses.empty()) c.run.reset();
    if (c.run && !c.run->is_identical) is_identical = false;
  }
  if (sequential.losses.empty()) return 130;
  say("\n" + outcome(sequential, all));
  say("wrote " + write_files(o.out, sequential, all, on.unigram_entropy()) + " to " +
      o.out.string());
  if (!is_identical) {
    std::fprintf(stderr, "train_gpt: a pipeline gave other bits than the sequential run\n");
    return 1;
  }
  return interrupt::was_raised() ? 130 : 0;
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  try {
    auto const o = gpt::read_options(argc, argv);
    return o ? gpt::train(*o) : 0;
  } catch (gpt::setting_error const& wrong) {
    std::fprintf(stderr, "train_gpt: %s\n", wrong.what());
    return 2;
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "train_gpt: %s\n", failed.what());
    return 1;
  }
}
