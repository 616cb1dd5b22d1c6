// SPDX-License-Identifier: Apache-2.0
//
// The command line. Whatever is wrong with it is one line that says what, where, and what would be
// right.
#pragma once

#include "options.hpp"
#include "train_gpt/step_options.hpp"
#include "train_gpt/validators.hpp"

#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <unistd.h>

namespace gpt::cuda {
namespace detail {

/// Accepts decimals from 0, or above it, up to 1.
[[nodiscard]] inline CLI::Validator share(bool or_zero) {
  return {
      [or_zero](std::string& given) -> std::string {
        char* stop = nullptr;
        auto const value = std::strtod(given.c_str(), &stop);
        bool const is_low = or_zero ? value >= 0.0 : value > 0.0;
        if (!given.empty() && *stop == '\0' && is_low && value <= 1.0) return {};
        return "'" + given + "' is not a decimal " + (or_zero ? "from" : "above") +
               " 0 and up to 1";
      },
      ""};
}

/// Accepts whole numbers that are not negative; the parser would wrap those that are.
[[nodiscard]] inline CLI::Validator seed() {
  return {
      [](std::string& given) -> std::string {
        std::uint64_t value = 0;
        auto const end = given.data() + given.size();
        auto const [stop, fault] = std::from_chars(given.data(), end, value);
        if (fault == std::errc{} && stop == end) return {};
        return "'" + given + "' is not a whole number from 0 to " + std::to_string(UINT64_MAX);
      },
      ""};
}

/// Accepts the path of a file that can be written.
[[nodiscard]] inline CLI::Validator writable_file() {
  return {
      [](std::string& given) -> std::string {
        std::error_code none;
        std::filesystem::path const file(given);
        auto const folder = file.has_parent_path() ? file.parent_path() : ".";
        if (!given.empty() && !std::filesystem::is_directory(file, none) &&
            std::filesystem::is_directory(folder, none) && ::access(folder.c_str(), W_OK) == 0)
          return {};
        return "'" + given + "' cannot be written; name a file in a folder that can be written to";
      },
      ""};
}

/// Describes all options to the parser.
inline void add_options(CLI::App& app, options& o) {
  auto& s = o.how.model;
  auto& adam = o.how.optimizer;
  app.option_defaults()->always_capture_default();
  app.add_option("--text", o.text, "Text to learn; without it, the repository's headers and docs")
      ->check(readable_file())
      ->option_text("FILE");
  app.add_option_function<std::string>(
         "--transport",
         [&o](std::string const& by) { o.by = by == "nccl" ? transport::nccl : transport::peer; },
         "peer, all ranks in this process; or nccl, this is one rank [peer]")
      ->check(is_one_of({"peer", "nccl"}))
      ->option_text("NAME");
  app.add_option("--bind", o.bind, "With nccl, where this machine listens [127.0.0.1]")
      ->option_text("ADDRESS");
  app.add_option(
         "--advertise",
         o.advertise,
         "With nccl, the name or address that others reach this machine by [--bind]")
      ->option_text("HOST");
  app.add_option("--device", o.device, "With nccl, the GPU of this rank [the local rank]")
      ->check(CLI::NonNegativeNumber)
      ->option_text("NUMBER");
  app.add_option("--ranks", o.ranks, "Ranks of the pipeline; with nccl as many as were launched")
      ->check(CLI::Range(1, 64));
  auto* const devices =
      app.add_flag("--devices", o.one_device_each, "Give each rank a GPU of its own");
  app.add_flag(
         "--partition",
         o.partitions,
         "Give each rank a part of one GPU, a green context; the default")
      ->excludes(devices);
  app.add_option("--microbatches", o.how.microbatches, "Microbatches of a step")
      ->check(CLI::Range(1, 1024));
  app.add_option("--policy", o.policies, "Policies to run, by name")
      ->transform(policy_name())
      ->delimiter(',')
      ->option_text("NAME,... [one_f_one_b,zb_h1,zb_v,greedy_auto]");
  app.add_option(
         "--receive-ahead",
         o.receive_ahead,
         "Passes before its consumer that a message's memory is set aside [1; with nccl 0]")
      ->check(CLI::Range(0, 1024))
      ->option_text("PASSES");
  app.add_option("--layers", s.layers, "Transformer blocks")->check(CLI::Range(1, 256));
  app.add_option("--heads", s.heads, "Heads of attention")->check(CLI::Range(1, 256));
  app.add_option("--width", s.width, "Elements of a token, a multiple of 8 * heads")
      ->check(CLI::Range(8, 16384));
  app.add_option("--context", s.context, "Tokens of a sequence, a multiple of 8")
      ->check(CLI::Range(8, 8192));
  app.add_option("--batch", s.sequences, "Sequences of a microbatch")->check(CLI::Range(1, 1024));
  app.add_option("--steps", adam.base.steps, "Optimizer steps")->check(CLI::Range(1, 1'000'000));
  app.add_option("--learning-rate", adam.base.learning_rate, "Largest one, of AdamW")
      ->check(share(false));
  app.add_option(
         "--weight-decay", adam.weight_decay, "Share of the rate that weights shrink by in a step")
      ->check(share(true));
  add_step_options(app, adam.base, o.kinds);
  app.add_option_function<std::string>(
         "--replay",
         [&o](std::string const& what) {
           o.how.replay = what == "none"   ? replay_kind::none
                          : what == "pass" ? replay_kind::pass
                                           : replay_kind::step;
         },
         "none; or what is captured once and then launched as one: the kernels of a pass, or of a "
         "step\nof all ranks, in which the host has no part [none]")
      ->check(is_one_of({"none", "pass", "step"}))
      ->option_text("NAME");
  app.add_option(
         "--steps-at-once",
         o.how.steps_at_once,
         "Steps that may be under way: each but the first begins while others run. With --replay "
         "step")
      ->check(CLI::Range(1, 16));
  app.add_option("--seed", o.how.seed, "Of everything random")->check(seed());
  app.add_flag("--check", o.check, "Run sequentially, too, and compare every loss and parameter");
  app.add_flag("--measure", o.measure, "Measure the passes first, and plan by that");
  app.add_option("--trace", o.trace, "Chrome trace to write: planned beside measured")
      ->check(writable_file())
      ->option_text("FILE");
#ifdef ZBPP_CUDA_MODEL
  app.add_option("--interleaving", o.interleaving, "Seed of the model of CUDA")->check(seed());
#endif
}

/// Refuses options that mean nothing with the transport.
/// @throws setting_error
inline void check_transport(CLI::App const& app, transport by) {
  auto const refuse = [&](char const* option, char const* why) {
    if (app.count(option) > 0) throw setting_error(option + std::string(why));
  };
  if (by == transport::peer) {
    for (auto const* const option : {"--bind", "--advertise", "--device"})
      refuse(option, " is for --transport nccl, where each rank is a process");
  } else {
    refuse("--devices", ": with --transport nccl each rank has a GPU anyway; leave it out");
    refuse("--partition", ": with --transport nccl each rank has a whole GPU; leave it out");
    refuse("--trace", ": with --transport nccl a rank knows its own times alone; leave it out");
  }
}

/// Refuses options with which the host has a part in each step, where steps are replayed.
/// @throws setting_error
inline void check_replay(CLI::App const& app, options const& o) {
  if (o.how.replay != replay_kind::step) {
    if (o.how.steps_at_once == 1) return;
    throw setting_error(
        "--steps-at-once above 1 needs steps in which the host has no part; add --replay step");
  }
  auto const refuse_with = [](bool is_given, std::string const& option) {
    if (is_given)
      throw setting_error(
          "--replay step leaves the host no part in a step, and " + option +
          " needs one; leave one of them out");
  };
  refuse_with(app.count("--clip") > 0, "--clip");
  refuse_with(o.how.optimizer.base.needs_norm, "--step " + names_of(o.kinds, ","));
  refuse_with(app.count("--trace") > 0, "--trace");
  if (o.by == transport::nccl && receive_ahead_of(o) > 0)
    throw setting_error(
        "--replay step with --transport nccl puts all messages into one order, in which none is "
        "received ahead; leave out --receive-ahead");
}

}  // namespace detail

/// Reads the command line.
/// @return nothing when it asks for help, which is then printed
/// @throws setting_error
[[nodiscard]] inline std::optional<options> read_options(int argc, char const* const* argv) {
  options o;
  // The largest rate of GPT-3's smallest model, and its decay.
  // @source Brown et al., arXiv 2005.14165, table 2.1 and appendix B
  o.how.optimizer.base.learning_rate = 6e-4F;
  o.how.optimizer.weight_decay = 0.1F;
  o.how.optimizer.base.steps = 100;
  CLI::App app(
      "Trains a byte-level GPT of the shape of GPT-2 124M through pipelines on GPUs, in bf16 with\n"
      "fp32 master weights. Tokens are bytes: the vocabulary is 256.\n"
      "With --transport nccl this is one rank of several processes, which torchrun, mpirun, srun "
      "or "
      "a\n"
      "shell loop starts (docs/launch.md), all with the same options; rank 0 tells.",
      "train_gpt_cuda");
  detail::add_options(app, o);
  try {
    check_values(app, argc, argv);
    app.parse(argc, argv);
  } catch (CLI::CallForHelp const&) {
    std::fputs(app.help().c_str(), stdout);
    return std::nullopt;
  } catch (CLI::ParseError const& wrong) {
    std::string line = wrong.what();
    for (auto& c : line)
      if (c == '\n') c = ' ';
    throw setting_error(line + "; --help lists what there is");
  }
  o.names_ranks = app.count("--ranks") > 0;
  o.names_policies = app.count("--policy") > 0;
  detail::check_transport(app, o.by);
  settle_steps(app, o.how.optimizer.base, o.kinds);
  detail::check_replay(app, o);
  check(o.how.model);
  if (o.by == transport::peer) check_ranks(o);
  return o;
}

}  // namespace gpt::cuda
