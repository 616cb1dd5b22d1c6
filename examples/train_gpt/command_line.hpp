// SPDX-License-Identifier: Apache-2.0
//
// The command line. Whatever is wrong with it is one line that says what, where, and what would be
// right.
#pragma once

#include "durable.hpp"
#include "options.hpp"
#include "step_options.hpp"
#include "validators.hpp"

#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace gpt {

/// Begins the names of files that are made to see whether a folder can be written to.
inline constexpr char const* probe_prefix = ".train_gpt-";

/// Accepts whole numbers of a range, and of a multiple of something.
[[nodiscard]] inline CLI::Validator whole_number(
    std::uint64_t least, std::uint64_t most, std::uint64_t multiple_of = 1) {
  auto const right = "a whole number from " + std::to_string(least) + " to " +
                     std::to_string(most) +
                     (multiple_of == 1 ? "" : ", a multiple of " + std::to_string(multiple_of));
  return {
      [=](std::string& given) -> std::string {
        std::uint64_t value = 0;
        auto const end = given.data() + given.size();
        auto const [stop, fault] = std::from_chars(given.data(), end, value);
        if (fault == std::errc{} && stop == end && least <= value && value <= most &&
            value % multiple_of == 0)
          return {};
        return "'" + given + "' is not " + right;
      },
      ""};
}

/// Removes the probes that `writable_folder` left in a folder when it was killed: empty files, each
/// called after a process.
inline void remove_probes(std::filesystem::path const& folder) {
  std::error_code none;
  for (auto const& entry : std::filesystem::directory_iterator(folder, none)) {
    auto const name = entry.path().filename().string();
    auto const prefix = std::string_view(probe_prefix);
    bool const is_probe =
        name.size() > prefix.size() && name.starts_with(prefix) &&
        name.find_first_not_of("0123456789", prefix.size()) == name.npos &&
        entry.symlink_status(none).type() == std::filesystem::file_type::regular &&
        entry.file_size(none) == 0;
    if (is_probe) ::unlink(entry.path().c_str());
  }
}

/// Accepts the path of a folder that files can be written to.
[[nodiscard]] inline CLI::Validator writable_folder() {
  return {
      [](std::string& given) -> std::string {
        std::error_code none;
        if (!std::filesystem::is_directory(given, none))
          return "'" + given + "' is not a folder; name one that exists";
        remove_probes(given);
        // A new file, before hours of training; another process may have removed it already.
        auto const probe =
            std::filesystem::path(given) / (probe_prefix + std::to_string(::getpid()));
        descriptor const made(
            ::open(probe.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
        ::unlink(probe.c_str());
        if (made.number() >= 0) return {};
        return "'" + given + "' cannot be written to; name a folder that can";
      },
      ""};
}

/// Reads the command line.
/// @return nothing when it asks for help, which is then printed
/// @throws setting_error
[[nodiscard]] inline std::optional<options> read_options(int argc, char const* const* argv) {
  options o;
  std::string optimizer = "adam";
  std::string by = "threads";
  float learning_rate = 0.0F;
  CLI::App app(
      "Trains a byte-level GPT on one thread and then through pipelines, one rank a thread, and\n"
      "compares every loss bit for bit. Writes loss.svg, timeline.svg and trace.json.\n"
      "With --checkpoint it keeps the last two checkpoints, and one of the end. It can be killed "
      "at\n"
      "any time and go on with --resume, on as many ranks as you like: the bits are those of a "
      "run\n"
      "that never stopped.\n"
      "With --transport tcp this is one rank of several processes, which torchrun, mpirun, srun or "
      "a\n"
      "shell loop starts (docs/launch.md), all with the same options. Rank 0 tells and writes, of "
      "the\n"
      "pictures only loss.svg; an interrupt ends them all at once, without a last checkpoint.",
      "train_gpt");
  app.option_defaults()->always_capture_default();
  app.add_option("--text", o.text, "Text to learn; without it, the repository's headers and docs")
      ->check(readable_file())
      ->option_text("FILE");
  app.add_option(
         "--transport",
         by,
         "threads, all ranks in this process; or tcp, this is one rank, of one --policy")
      ->check(is_one_of({"threads", "tcp"}));
  auto* const bind =
      app.add_option("--bind", o.bind, "Address of this machine where a rank of tcp listens");
  auto* const advertise =
      app.add_option(
             "--advertise", o.advertise, "Name or address that others reach it by, if not --bind")
          ->option_text("HOST");
  auto* const join =
      app.add_option("--join", o.join_seconds, "Seconds that ranks of tcp have to find each other")
          ->check(whole_number(1, 86'400));
  auto* const ranks =
      app.add_option("--ranks", o.ranks, "Ranks of the pipeline; with tcp as many as were launched")
          ->check(whole_number(1, 64));
  app.add_option("--microbatches", o.how.microbatches, "Microbatches of a step")
      ->check(whole_number(1, 1024));
  auto* const policies = app.add_option("--policy", o.policies, "Policies to run, by name")
                             ->transform(policy_name())
                             ->delimiter(',')
                             ->option_text("NAME,... [one_f_one_b,zb_h1,zb_h2,zb_v]");
  app.add_option("--steps", o.how.optimizer.steps, "Optimizer steps")
      ->check(whole_number(1, 1'000'000));
  app.add_option("--layers", o.how.model.layers, "Transformer blocks")->check(whole_number(1, 64));
  app.add_option("--width", o.how.model.width, "Elements of a token")
      ->check(whole_number(head_width, 1024, head_width));
  app.add_option("--context", o.how.model.context, "Tokens of a sequence")
      ->check(whole_number(16, 1024));
  app.add_option("--sequences", o.how.model.sequences, "Sequences of a microbatch")
      ->check(whole_number(1, 64));
  app.add_flag("--tied", o.how.model.is_tied, "The head has the weights of the embedding")
      ->default_str("");
  app.add_option("--optimizer", optimizer, "adam or sgd")->check(is_one_of({"adam", "sgd"}));
  app.add_option(
         "--learning-rate", learning_rate, "Largest one; without it, what suits the optimizer")
      ->check(positive_decimal())
      ->default_str("");
  add_step_options(app, o.how.optimizer, o.kinds);
  app.add_option("--seed", o.how.seed, "Of everything random")->check(whole_number(0, UINT64_MAX));
  app.add_option("--out", o.out, "Folder for the files it writes")->check(writable_folder());
  auto* const checkpoint =
      app.add_option("--checkpoint", o.checkpoint, "Folder for checkpoints, of one --policy")
          ->check(writable_folder())
          ->option_text("DIR");
  app.add_option("--every", o.every, "Steps from one checkpoint to the next")
      ->check(whole_number(1, 1'000'000))
      ->needs(checkpoint);
  app.add_flag(
         "--resume",
         o.resume,
         "Go on from the newest checkpoint, with the same settings; but --ranks, --policy and\n"
         "--transport may be others, and so may --step, unless it is unchecked")
      ->needs(checkpoint)
      ->default_str("");
  bool is_alone = false;
  app.add_flag("--no-reference", is_alone, "Leave the sequential run out: nothing is compared")
      ->default_str("");
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
  o.by = by == "tcp" ? transport::tcp : transport::threads;
  o.reference = !is_alone;
  o.names_ranks = ranks->count() > 0;
  o.names_policies = policies->count() > 0;
  bool const names_one = o.names_policies && o.policies.size() == 1;
  if (!o.checkpoint.empty() && !names_one)
    throw setting_error(
        "--checkpoint keeps the run of one policy; name one, such as --policy zb_v");
  if (o.by == transport::tcp && !names_one)
    throw setting_error("--transport tcp runs one policy; name one, such as --policy zb_v");
  settle_steps(app, o.how.optimizer, o.kinds);
  if (o.kinds.size() > 1 && (!o.checkpoint.empty() || o.by == transport::tcp))
    throw setting_error("--checkpoint and --transport tcp are for one kind of --step");
  for (auto const* const only : {bind, advertise, join})
    if (o.by != transport::tcp && only->count() > 0)
      throw setting_error(only->get_name() + " is for --transport tcp; threads need it not");
  if (o.by == transport::threads) check_ranks(o);
  auto& step = o.how.optimizer;
  step.kind = optimizer == "adam" ? optimizer_kind::adam : optimizer_kind::sgd;
  step.learning_rate = learning_rate > 0.0F ? learning_rate : default_rate(step.kind);
  check(o.how.model);
  return o;
}

}  // namespace gpt
