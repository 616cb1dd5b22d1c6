// SPDX-License-Identifier: Apache-2.0
//
// The run of the program: plans, trains under one policy after another, compares, tells. Where the
// ranks are, `Ranks` knows: ranks_here.hpp or ranks_apart.hpp.
#pragma once

#include "options.hpp"
#include "runs.hpp"
#include "train_gpt/program.hpp"
#include <zbpp/analysis/explain.hpp>
#include <zbpp/io/chrome_trace.hpp>
#include <zbpp/io/explanation_text.hpp>
#include <zbpp/io/file.hpp>
#include <zbpp/io/text.hpp>

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
  chunk const whole(o.how, on, {0, s.layers});
  return "model: " + std::to_string(s.layers) + " layers, width " + std::to_string(s.width) + ", " +
         std::to_string(s.heads) + " heads, context " + std::to_string(s.context) + ", " +
         std::to_string(whole.parameters().size()) +
         " parameters\ntext: " + std::to_string(on.bytes().size()) +
         " bytes, entropy of single bytes " + zbpp::fixed_text(on.unigram_entropy(), 4) +
         " nats\nranks: " + ranks + "\nstep: " + std::to_string(o.how.microbatches) +
         " microbatches of " + std::to_string(s.sequences) + " sequences, " +
         describe_steps(o.kinds, o.how.optimizer.base) + "\n";
}

/// Does all that the user asked for.
/// @return the exit status: 1 where something is not identical
/// @throws zbpp::error; setting_error
template <class Ranks>
[[nodiscard]] int train(options const& o, text const& on, Ranks const& ranks) {
  auto const say = [&](std::string const& what) {
    if (!ranks.tells()) return;
    std::printf("%s\n", what.c_str());
    std::fflush(stdout);
  };
  std::string measured;
  auto const all = plan_all(o, on, measured, [&](auto const& policy, auto const& stated) {
    return measure_problem(o, on, ranks, policy, stated);
  });
  say(headline(o, on, ranks.description()) + measured);

  std::optional<run_record> reference;
  if (o.check)
    reference = doing("running the reference", [&] {
      return run_sequential(o.how, on, ranks.device(), ranks.tells(), [&] { ranks.check(); });
    });
  bool is_wrong = false;
  std::vector<result> results;
  std::vector<zbpp::named_timeline> lines;
  for (auto const& c : all) {
    auto& [of, run, identical] = results.emplace_back(result{&c, {}, {}});
    if (!c.plan) continue;
    run = doing("running the pipeline of " + c.title, [&] { return run_plan(o, on, ranks, c); });
    if (reference) identical = ranks.is_identical(*run, *reference);
    is_wrong = is_wrong || identical == false;
    run->parameters.clear();
    if (!run->measured) continue;
    lines.push_back({c.title + " planned", c.plan->timeline()});
    lines.push_back({c.title + " measured", *run->measured});
    if (o.explains)
      say("\nexplained, the last step of " + c.title + "\n" +
          to_text(zbpp::explain(*c.plan, *run->measured), zbpp::time_unit::milliseconds));
  }
  say("\n" + outcome(o.how, reference, results));
  if (!o.trace.empty() && !lines.empty() && ranks.tells()) {
    zbpp::write_file(o.trace, zbpp::to_chrome_trace(lines));
    say("wrote " + o.trace.string());
  }
  if (!is_wrong) return 0;
  if (ranks.tells())
    std::fprintf(stderr, "train_gpt_cuda: a pipeline gave other bits than the sequential run\n");
  return 1;
}

#ifdef GPT_HAS_NCCL

/// Trains as the rank that the launcher says this process is; under the model of CUDA, which is one
/// process, all ranks are threads instead. What goes wrong is told on standard error, on every
/// rank.
/// @return the exit status
/// @throws setting_error where no launcher is there, or the options do not fit
[[nodiscard]] int train_in_processes(options o);

#else

/// Refuses: the program was built without NCCL.
/// @throws setting_error
[[noreturn]] inline int train_in_processes(options const&) {
  throw setting_error(
      "--transport nccl: this program was built without zbpp::nccl, which needs NCCL 2.22, Boost "
      "1.81 and OpenSSL 3.0; configure again with them");
}

#endif

}  // namespace gpt::cuda
