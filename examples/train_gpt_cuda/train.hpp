// SPDX-License-Identifier: Apache-2.0
//
// The run of the program: plans, trains under one policy after another, compares, tells. Where the
// ranks are, `Ranks` knows: ranks_here.hpp or ranks_apart.hpp.
#pragma once

#include "options.hpp"
#include "runs.hpp"
#include "train_gpt/doing.hpp"
#include <zbpp/io/chrome_trace.hpp>
#include <zbpp/io/file.hpp>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpt::cuda {

/// Reads the text that the user chose.
/// @throws setting_error
[[nodiscard]] inline text read(options const& o) {
  auto on = doing("reading the text", [&] {
    return o.text.empty() ? read_repository(GPT_SOURCE_DIR) : read_text(o.text);
  });
  check(on, o.how.model.of_text());
  return on;
}

/// Says what is trained.
/// @param ranks  how many there are, and where
[[nodiscard]] inline std::string headline(
    options const& o, text const& on, std::string const& ranks) {
  auto const& s = o.how.model;
  chunk const whole(s, on, {0, s.layers}, o.how.microbatches, o.how.seed);
  return "model: " + std::to_string(s.layers) + " layers, width " + std::to_string(s.width) + ", " +
         std::to_string(s.heads) + " heads, context " + std::to_string(s.context) + ", " +
         std::to_string(whole.parameters().size()) +
         " parameters\ntext: " + std::to_string(on.bytes().size()) +
         " bytes, entropy of single bytes " + fixed(on.unigram_entropy(), 4) +
         " nats\nranks: " + ranks + "\nstep: " + std::to_string(o.how.microbatches) +
         " microbatches of " + std::to_string(s.sequences) + " sequences, " +
         describe_steps(o.kinds, o.how.optimizer.base) + "\n";
}

/// Does all that the user asked for.
/// @return the exit status: 1 where something is not identical
/// @throws zbpp::error; setting_error
template <class Ranks>
[[nodiscard]] int train(options const& o, text const& on, Ranks& ranks) {
  auto const say = [&](std::string const& what) {
    if (!ranks.tells()) return;
    std::printf("%s\n", what.c_str());
    std::fflush(stdout);
  };
  planner plans(o, on, [&](zbpp::any_policy const& policy, zbpp::problem const& stated) {
    return ranks.measure(policy, stated);
  });
  std::vector<contender> all;
  for (auto const& name : o.policies)
    for (auto& one : doing("planning " + name, [&] { return plans.plan(name); }))
      all.push_back(std::move(one));
  say(headline(o, on, ranks.description()) + plans.told());

  outcome told(o.how);
  std::optional<run_record> reference;
  if (o.check) {
    reference = doing("running the reference", [&] {
      return run_sequential(o.how, on, ranks.device(), ranks.tells(), [&] { ranks.check(); });
    });
    told.add(*reference);
  }
  bool is_wrong = false;
  std::vector<zbpp::named_timeline> lines;
  for (auto const& c : all) {
    if (!c.plan) {
      told.add(c);
      continue;
    }
    auto const run = doing("running the pipeline of " + c.title, [&] { return ranks.run(c); });
    std::optional<bool> identical;
    if (reference) identical = ranks.is_identical(run, *reference, c.plan->problem().placement());
    is_wrong = is_wrong || identical == false;
    told.add(run, c, identical);
    if (!run.measured) continue;
    lines.push_back({c.title + " planned", c.plan->timeline()});
    lines.push_back({c.title + " measured", *run.measured});
  }
  say("\n" + told.text());
  if (!lines.empty()) {
    zbpp::write_file(o.trace, zbpp::to_chrome_trace(lines));
    say("wrote " + o.trace.string());
  }
  if (!is_wrong) return 0;
  if (ranks.tells())
    std::fprintf(stderr, "train_gpt_cuda: a pipeline gave other bits than the sequential run\n");
  return 1;
}

}  // namespace gpt::cuda
