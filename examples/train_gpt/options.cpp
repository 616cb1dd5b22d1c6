// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include "option_parts.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <system_error>

namespace gpt {
namespace {

/// Reads which rank is slow.
/// @throws setting_error
slow_rank read_slow_rank(std::string const& given, options const& o) {
  slow_rank slow;
  auto const end = given.data() + given.size();
  auto const rank = std::from_chars(given.data(), end, slow.rank);
  bool const is_right = rank.ec == std::errc{} && rank.ptr != end && *rank.ptr == ':' &&
                        slow.rank >= 0 && slow.rank < o.ranks;
  char* stop = nullptr;
  if (is_right) slow.factor = std::strtod(rank.ptr + 1, &stop);
  if (!is_right || stop != end || !(slow.factor >= 1.0 && slow.factor <= 100.0))
    throw setting_error(
        "--slow-rank '" + given + "' is not a rank below " + std::to_string(o.ranks) +
        " and a factor from 1 to 100, such as 1:1.5");
  if (o.by != transport::threads)
    throw setting_error("--slow-rank is for threads; leave --transport out");
  return slow;
}

/// Refuses what a grid of several pipelines cannot do.
/// @throws setting_error
void check_grid(options const& o) {
  auto const& model = o.how.model;
  auto const* const option = o.how.replicas > 1 ? "--data" : "--tensor";
  if (model.heads() % model.members != 0)
    throw setting_error(
        "--tensor is " + std::to_string(model.members) + " and a --width of " +
        std::to_string(model.width) + " has " + std::to_string(model.heads()) +
        " heads; each member has as many of them, so give a --width of " +
        std::to_string((model.heads() / model.members + 1) * model.members * head_width));
  if (o.how.microbatches % o.how.replicas != 0)
    throw setting_error(
        "--data is " + std::to_string(o.how.replicas) + " and --microbatches is " +
        std::to_string(o.how.microbatches) + "; each replica has as many of them, so give " +
        std::to_string((o.how.microbatches / o.how.replicas + 1) * o.how.replicas));
  if (o.adapts)
    throw setting_error(
        "--adaptive changes the plan of one pipeline, and those of a grid need the same; leave " +
        std::string(option) + " or --adaptive out");
}

}  // namespace

std::optional<options> read_options(int argc, char const* const* argv) {
  options o;
  std::string optimizer = "adam";
  std::string by = "threads";
  float learning_rate = 0.0F;
  CLI::App app(
      "Trains a byte-level GPT on one thread and then through pipelines, one rank a thread, and\n"
      "compares every loss bit for bit. Writes loss.svg, timeline.svg, trace.json and plan.json.\n"
      "With --checkpoint it keeps the last two checkpoints, and one of the end. It can be killed "
      "at\n"
      "any time and go on with --resume, on as many ranks as you like: the bits are those of a "
      "run\n"
      "that never stopped.\n"
      "With --data several replicas of the model train on parts of each step and add their "
      "gradients\n"
      "up, and with --tensor several ranks share each stage; the bits are those of a plain loop "
      "that\n"
      "adds up in the same order.\n"
      "With --transport tcp this is one rank of several processes, which torchrun, mpirun, srun or "
      "a\n"
      "shell loop starts (docs/launch.md), all with the same options; with --transport mpi, one\n"
      "that mpirun or srun starts. Rank 0 tells and writes, of the files only loss.svg, and with\n"
      "--explain trace.json and plan.json; an interrupt ends them all at once, without a last\n"
      "checkpoint.",
      "train_gpt");
  app.option_defaults()->always_capture_default();
  app.add_option("--text", o.text, "Text to learn; without it, the repository's headers and docs")
      ->check(readable_file())
      ->option_text("FILE");
  app.add_option(
         "--transport",
         by,
         "threads, all ranks in this process; or tcp or mpi, this is one rank, of one --policy")
      ->check(is_one_of({"threads", "tcp", "mpi"}));
  auto* const bind =
      app.add_option("--bind", o.bind, "Address of this machine where a rank apart listens");
  auto* const advertise =
      app.add_option(
             "--advertise", o.advertise, "Name or address that others reach it by, if not --bind")
          ->option_text("HOST");
  auto* const join =
      app.add_option("--join", o.join_seconds, "Seconds that ranks apart have to find each other")
          ->check(whole_number(1, 86'400));
  auto* const ranks =
      app.add_option(
             "--ranks", o.ranks, "Ranks of each pipeline; apart, as many as were launched for it")
          ->check(whole_number(1, 64));
  app.add_option("--data", o.how.replicas, "Replicas of the model, each a pipeline")
      ->check(whole_number(1, 64));
  app.add_option(
         "--tensor",
         o.how.model.members,
         "Members of a tensor group, which divide the heads and hidden units of each block")
      ->check(whole_number(1, 32));
  app.add_option(
         "--microbatches", o.how.microbatches, "Microbatches of a step, which replicas divide")
      ->check(whole_number(1, 1024));
  auto* const policies = app.add_option("--policy", o.policies, "Policies to run, by name")
                             ->transform(policy_name())
                             ->delimiter(',')
                             ->option_text("NAME,... [one_f_one_b,zb_h1,zb_h2,zb_v]");
  app.add_option("--steps", o.how.optimizer.steps, "Optimizer steps")
      ->check(whole_number(1, 1'000'000));
  app.add_option("--layers", o.how.model.layers, "Transformer blocks")->check(whole_number(1, 64));
  app.add_option("--width", o.how.model.width, "Elements of a token")
      ->check(whole_number(head_width, 1024));
  app.add_option("--context", o.how.model.context, "Tokens of a sequence")
      ->check(whole_number(16, 1024));
  app.add_option("--sequences", o.how.model.sequences, "Sequences of a microbatch")
      ->check(whole_number(1, 64));
  app.add_option(
         "--vocabulary",
         o.how.model.words,
         "Words of embedding and head: the bytes, and more that no text has")
      ->check(whole_number(vocabulary, 1'000'000));
  app.add_flag(
         "--vocabulary-parallel",
         o.divides_vocabulary,
         "Divide the words of the head among the ranks, each a second stage of its rank; without\n"
         "--policy, by interleaved, zb_v and greedy_auto")
      ->default_str("");
  app.add_flag("--tied", o.how.model.is_tied, "The head has the weights of the embedding")
      ->default_str("");
  app.add_option("--optimizer", optimizer, "adam or sgd")->check(is_one_of({"adam", "sgd"}));
  app.add_option(
         "--learning-rate", learning_rate, "Largest one; without it, what suits the optimizer")
      ->check(positive_decimal())
      ->default_str("");
  add_step_options(app, o.how.optimizer, o.kinds);
  app.add_option("--seed", o.how.seed, "Of everything random")->check(whole_number(0, UINT64_MAX));
  app.add_option("--out", o.out, "Folder for the files it writes, which it makes");
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
  app.add_flag(
         "--explain",
         o.explains,
         "Tell where the time of a typical step of the last policy went. So does, from the files,\n"
         "zbpp-plan --explain trace.json --plan plan.json")
      ->default_str("");
  app.add_flag(
         "--adaptive",
         o.adapts,
         "Plan again while it trains, and let blocks change ranks, where passes take other times\n"
         "than measured before; on threads. Without --policy, by greedy_auto")
      ->default_str("");
  std::string slow;
  app.add_option(
         "--slow-rank", slow, "A rank whose passes take longer than they need, such as 1:1.5")
      ->option_text("RANK:FACTOR");
  bool is_alone = false;
  app.add_flag("--no-reference", is_alone, "Leave the sequential run out: nothing is compared")
      ->default_str("");
  if (!parse(app, argc, argv)) return std::nullopt;
  o.by = by == "mpi" ? transport::mpi : by == "tcp" ? transport::tcp : transport::threads;
  bool const is_apart = o.by != transport::threads;
  o.reference = !is_alone;
  o.names_ranks = ranks->count() > 0;
  o.names_policies = policies->count() > 0;
  bool const names_one = o.names_policies && o.policies.size() == 1;
  if (!o.checkpoint.empty() && !names_one)
    throw setting_error(
        "--checkpoint keeps the run of one policy; name one, such as --policy zb_v");
  if (is_apart && !names_one)
    throw setting_error("--transport " + by + " runs one policy; name one, such as --policy zb_v");
  settle_steps(app, o.how.optimizer, o.kinds);
  if (o.kinds.size() > 1 && (!o.checkpoint.empty() || is_apart))
    throw setting_error("--checkpoint and --transport tcp or mpi are for one kind of --step");
  for (auto const* const only : {bind, advertise, join})
    if (!is_apart && only->count() > 0)
      throw setting_error(only->get_name() + " is for --transport tcp or mpi; threads need it not");
  if (o.divides_vocabulary && o.how.model.is_tied)
    throw setting_error(
        "--vocabulary-parallel divides the weights of the head, and --tied gives all of them to "
        "the embedding, too; leave one of the two out");
  if (o.adapts && is_apart)
    throw setting_error("--adaptive moves stages between threads; leave --transport out");
  if (o.adapts && !o.names_policies) o.policies = {"greedy_auto"};
  if (!slow.empty()) o.slow = read_slow_rank(slow, o);
  if (o.divides_vocabulary && !o.names_policies && !o.adapts)
    o.policies = {"interleaved", "zb_v", "greedy_auto"};
  if (!is_apart) settle_ranks(o);
  auto& step = o.how.optimizer;
  step.kind = optimizer == "adam" ? optimizer_kind::adam : optimizer_kind::sgd;
  step.learning_rate = learning_rate > 0.0F ? learning_rate : default_rate(step.kind);
  check(o.how.model);
  if (o.how.replicas > 1 || o.how.model.members > 1) check_grid(o);
  o.searches = o.adapts || std::ranges::any_of(o.policies, [](std::string const& name) {
                 return find_entry(name).searches;
               });
  make_folder("--out", o.out);
  return o;
}

}  // namespace gpt
