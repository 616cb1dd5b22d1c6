// SPDX-License-Identifier: Apache-2.0
//
// What the user chose, and the command line that says it. Whatever is wrong
// with that is one line that says what, where, and what would be right.
#pragma once

#include "sequential.hpp"
#include "train_gpt/option_parts.hpp"
#include "train_gpt/program.hpp"
#include <zbpp/analysis/deadlock.hpp>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace gpt::cuda {

/// Says what carries the messages: copies between the ranks of one process, or NCCL between
/// processes, one per rank.
enum class transport { peer, nccl };

/// Holds what the command line says.
struct options {
  training how;
  transport by = transport::peer;
  std::string bind = "127.0.0.1";  ///< where a process listens
  std::string advertise;           ///< where others reach it; empty: what `bind` says
  std::optional<int> device;       ///< of the rank of a process; none: by its local rank
  int ranks = 2;
  bool names_ranks = false;      ///< whether the user chose their number
  bool one_device_each = false;  ///< else all ranks are on one device, each on its part
  bool partitions = false;       ///< whether the user said so
  bool whole_gpu = false;        ///< whether those on one device share all of it
  std::vector<zbpp::step_kind> kinds = {
      zbpp::step_kind::unchecked};  ///< each policy runs with each
  std::vector<std::string> policies = {"one_f_one_b", "zb_h1", "zb_v", "greedy_auto"};
  bool names_policies = false;       ///< whether the user chose them: then each has to work
  std::optional<int> receive_ahead;  ///< passes; none: what suits the transport
  std::filesystem::path text;        ///< empty: the repository's own
  bool check = false;                ///< run sequentially too, and compare
  bool measure = false;              ///< plan by measured times
  std::filesystem::path trace;       ///< empty: none is written
  bool explains = false;             ///< tell where the time of the last step of each policy went
  std::filesystem::path checkpoint;  ///< folder for checkpoints; empty: none are kept
  std::int64_t every = 50;           ///< steps from one checkpoint to the next
  bool resume = false;               ///< go on from the newest checkpoint
  std::uint64_t interleaving = 1;    ///< under the model of CUDA: its seed
};

/// @return whether the passes of steps are timed
[[nodiscard]] inline bool times_passes(options const& o) { return !o.trace.empty() || o.explains; }

/// @return how many passes before its consumer a message's slot is opened: copies between GPUs wait
/// without a multiprocessor, NCCL with one; within a GPU nothing is opened
[[nodiscard]] inline int receive_ahead_of(options const& o) {
  return o.receive_ahead.value_or(o.by == transport::peer ? 1 : 0);
}

/// @return which orders of messages a plan is made for: over NCCL a replayed step has one for all
[[nodiscard]] inline zbpp::channel_layout layout_of(options const& o) {
  bool const replays = o.by == transport::nccl && o.how.replays;
  return replays ? zbpp::channel_layout::one_per_rank : zbpp::channel_layout::one_per_directed_pair;
}

/// Refuses more ranks than layers.
/// @throws setting_error
inline void check_ranks(options const& o) {
  if (o.ranks > o.how.model.layers)
    throw setting_error(
        "--ranks is " + std::to_string(o.ranks) + " and --layers is " +
        std::to_string(o.how.model.layers) + "; each rank needs a layer at least");
}

namespace detail {

/// Accepts decimals from 0, or above it, up to 1.
[[nodiscard]] inline CLI::Validator share(bool or_zero) {
  auto const test = [=](std::string const& given) {
    char* stop = nullptr;
    auto const value = std::strtod(given.c_str(), &stop);
    bool const is_low = or_zero ? value >= 0.0 : value > 0.0;
    return !given.empty() && *stop == '\0' && is_low && value <= 1.0;
  };
  return accepts(
      test, "is not a decimal " + std::string(or_zero ? "from" : "above") + " 0 and up to 1");
}

/// Accepts the path of a file that can be written.
[[nodiscard]] inline CLI::Validator writable_file() {
  auto const test = [](std::string const& given) {
    std::error_code none;
    std::filesystem::path const file(given);
    auto const folder = file.has_parent_path() ? file.parent_path() : ".";
    return !given.empty() && !std::filesystem::is_directory(file, none) &&
           std::filesystem::is_directory(folder, none) && ::access(folder.c_str(), W_OK) == 0;
  };
  return accepts(test, "cannot be written; name a file in a folder that can be written to");
}

/// Describes all options to the parser.
inline void add_options(CLI::App& app, options& o) {
  auto& s = o.how.model;
  auto& adam = o.how.optimizer;
  app.option_defaults()->always_capture_default();
  auto const add_number = [&](char const* name, auto& to, int least, int most, char const* help) {
    return app.add_option(name, to, help)->check(CLI::Range(least, most));
  };
  auto const add_name = [&](char const* name, std::vector<std::string> words, auto set, auto help) {
    app.add_option_function<std::string>(name, set, help)
        ->check(is_one_of(std::move(words)))
        ->option_text("NAME");
  };
  app.add_option("--text", o.text, "Text to learn; without it, the repository's headers and docs")
      ->check(readable_file())
      ->option_text("FILE");
  add_name(
      "--transport",
      {"peer", "nccl"},
      [&o](std::string const& by) { o.by = by == "nccl" ? transport::nccl : transport::peer; },
      "peer, all ranks in this process; or nccl, this is one rank [peer]");
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
  add_number(
      "--ranks", o.ranks, 1, 64, "Ranks of the pipeline; with nccl as many as were launched");
  auto* const devices =
      app.add_flag("--devices", o.one_device_each, "Give each rank a GPU of its own");
  app.add_flag(
         "--partition",
         o.partitions,
         "Give each rank a part of one GPU, a green context; the default")
      ->excludes(devices);
  app.add_flag(
         "--whole-gpu",
         o.whole_gpu,
         "Let the ranks share one GPU as a whole, each on a stream, where it cannot be cut into "
         "parts")
      ->excludes("--devices")
      ->excludes("--partition");
  add_number("--microbatches", o.how.microbatches, 1, 1024, "Microbatches of a step");
  app.add_option("--policy", o.policies, "Policies to run, by name")
      ->transform(policy_name())
      ->delimiter(',')
      ->option_text("NAME,... [one_f_one_b,zb_h1,zb_v,greedy_auto]");
  add_number(
      "--receive-ahead",
      o.receive_ahead,
      0,
      1024,
      "Passes before its consumer that a message's memory is set aside [1; with nccl 0]")
      ->option_text("PASSES");
  add_number("--layers", s.layers, 1, 256, "Transformer blocks");
  add_number("--heads", s.heads, 1, 256, "Heads of attention");
  add_number("--width", s.width, 8, 16384, "Elements of a token, a multiple of 8 * heads");
  add_number("--context", s.context, 8, 8192, "Tokens of a sequence, a multiple of 8");
  add_number("--batch", s.sequences, 1, 1024, "Sequences of a microbatch");
  add_number("--steps", adam.base.steps, 1, 1'000'000, "Optimizer steps");
  app.add_option("--learning-rate", adam.base.learning_rate, "Largest one, of AdamW")
      ->check(share(false));
  app.add_option(
         "--weight-decay", adam.weight_decay, "Share of the rate that weights shrink by in a step")
      ->check(share(true));
  add_step_options(app, adam.base, o.kinds);
  add_name(
      "--replay",
      {"none", "step"},
      [&o](std::string const& unit) { o.how.replays = unit == "step"; },
      "none; or what is captured once and then launched as one: the kernels of a step of all "
      "ranks,\nin which the host has no part [none]");
  add_number(
      "--steps-at-once",
      o.how.steps_at_once,
      1,
      16,
      "Steps that may be under way: each but the first begins while others run. With --replay "
      "step");
  app.add_option("--seed", o.how.seed, "Of everything random")->check(whole_number(0, UINT64_MAX));
  app.add_flag("--check", o.check, "Run sequentially, too, and compare every loss and parameter");
  auto* const measure =
      app.add_flag("--measure", o.measure, "Measure the passes first, and plan by that");
  app.add_option("--trace", o.trace, "Chrome trace to write: planned beside measured")
      ->check(writable_file())
      ->option_text("FILE");
  app.add_flag(
         "--explain",
         o.explains,
         "Tell where the time of the last step of each policy went, beside its plan")
      ->needs(measure);
  auto* const checkpoint =
      app.add_option("--checkpoint", o.checkpoint, "Folder for checkpoints, of one --policy")
          ->check(writable_folder())
          ->option_text("DIR");
  add_number("--every", o.every, 1, 1'000'000, "Steps from one checkpoint to the next")
      ->needs(checkpoint);
  app.add_flag(
         "--resume",
         o.resume,
         "Go on from the newest checkpoint, with the same settings; but --ranks, --policy,\n"
         "--transport and --replay may be others, and so may --step, unless it is unchecked")
      ->needs(checkpoint)
      ->default_str("");
#ifdef ZBPP_CUDA_MODEL
  app.add_option("--interleaving", o.interleaving, "Seed of the model of CUDA")
      ->check(whole_number(0, UINT64_MAX));
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
    for (auto const* const option : {"--partition", "--whole-gpu"})
      refuse(option, ": with --transport nccl each rank has a whole GPU; leave it out");
  }
}

/// Refuses options with which the host has a part in each step, where steps are replayed.
/// @throws setting_error
inline void check_replay(CLI::App const& app, options const& o) {
  if (!o.how.replays) {
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
  refuse_with(o.explains, "--explain");
  if (o.by == transport::nccl && receive_ahead_of(o) > 0)
    throw setting_error("--replay step with --transport nccl puts all messages into one order, in "
                        "which none is received ahead; leave out --receive-ahead");
}

/// Refuses to keep checkpoints of several runs in one folder.
/// @throws setting_error
inline void check_checkpoint(options const& o) {
  if (o.checkpoint.empty()) return;
#ifndef GPT_HAS_CHECKPOINT
  throw setting_error("--checkpoint: this program was built without zbpp::checkpoint, which needs "
                      "nlohmann-json 3.9; configure again with it");
#endif
  if (!o.names_policies || o.policies.size() > 1 || o.kinds.size() > 1)
    throw setting_error("--checkpoint keeps one run; name one policy and one kind of --step, such "
                        "as --policy zb_v");
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
      "or\n"
      "a shell loop starts (docs/launch.md), all with the same options; rank 0 tells.",
      "train_gpt_cuda");
  detail::add_options(app, o);
  if (!parse(app, argc, argv)) return std::nullopt;
  o.names_ranks = app.count("--ranks") > 0;
  o.names_policies = app.count("--policy") > 0;
  detail::check_transport(app, o.by);
  settle_steps(app, o.how.optimizer.base, o.kinds);
  detail::check_replay(app, o);
  detail::check_checkpoint(o);
  check(o.how.model);
  if (o.by == transport::peer) check_ranks(o);
  return o;
}

}  // namespace gpt::cuda
