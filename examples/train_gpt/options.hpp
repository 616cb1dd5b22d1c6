// SPDX-License-Identifier: Apache-2.0
//
// The command line. Whatever is wrong with it is one line that says what, where, and what would be
// right.
#pragma once

#include "sequential.hpp"
#include <zbpp/io/file.hpp>
#include <zbpp/planner/registry.hpp>

#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace gpt {

/// Holds what the command line says.
struct options {
  training how;
  int ranks = 2;
  std::vector<std::string> policies = {"one_f_one_b", "zb_h1", "zb_h2", "zb_v"};
  bool names_policies = false;  ///< whether the user chose them: then each has to work
  std::filesystem::path text;   ///< empty: the repository's own
  std::filesystem::path out = ".";
};

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

/// Accepts positive decimals.
[[nodiscard]] inline CLI::Validator positive_decimal() {
  return {
      [](std::string& given) -> std::string {
        char* stop = nullptr;
        auto const value = std::strtod(given.c_str(), &stop);
        if (!given.empty() && *stop == '\0' && value > 0.0 && value <= 100.0) return {};
        return "'" + given + "' is not a decimal above 0 and up to 100";
      },
      ""};
}

/// Accepts the path of a file that can be read.
[[nodiscard]] inline CLI::Validator readable_file() {
  return {
      [](std::string& given) -> std::string {
        std::error_code none;
        if (std::filesystem::is_regular_file(given, none) && ::access(given.c_str(), R_OK) == 0)
          return {};
        return "'" + given + "' cannot be read; name a file that can";
      },
      ""};
}

/// Accepts the path of a folder that files can be written to.
[[nodiscard]] inline CLI::Validator writable_folder() {
  return {
      [](std::string& given) -> std::string {
        std::error_code none;
        if (!std::filesystem::is_directory(given, none))
          return "'" + given + "' is not a folder; name one that exists";
        try {  // the way the files will be written, before hours of training
          auto const probe = std::filesystem::path(given) / ".train_gpt";
          zbpp::write_file(probe, "");
          std::filesystem::remove(probe);
        } catch (std::exception const&) {
          return "'" + given + "' cannot be written to; name a folder that can";
        }
        return {};
      },
      ""};
}

/// Accepts the names and titles of policies.
[[nodiscard]] inline CLI::Validator policy_name() {
  return {
      [](std::string& given) -> std::string {
        try {
          given = zbpp::find_policy(zbpp::builtin_policies(), given).name();
          return {};
        } catch (zbpp::error const& unknown) {
          return unknown.what();
        }
      },
      ""};
}

/// Reads the command line.
/// @return nothing when it asks for help, which is then printed
/// @throws setting_error
[[nodiscard]] inline std::optional<options> read_options(int argc, char const* const* argv) {
  options o;
  std::string optimizer = "adam";
  float learning_rate = 0.0F;
  CLI::App app(
      "Trains a byte-level GPT on one thread and then through pipelines, one rank a thread, and\n"
      "compares every loss bit for bit. Writes loss.svg, timeline.svg and trace.json.",
      "train_gpt");
  app.option_defaults()->always_capture_default();
  app.add_option("--text", o.text, "Text to learn; without it, the repository's headers and docs")
      ->check(readable_file())
      ->option_text("FILE");
  app.add_option("--ranks", o.ranks, "Ranks of the pipeline, a thread each")
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
  app.add_option("--optimizer", optimizer, "adam or sgd")->check([](std::string const& given) {
    return given == "adam" || given == "sgd" ? std::string{}
                                             : "'" + given + "' is neither adam nor sgd";
  });
  app.add_option(
         "--learning-rate", learning_rate, "Largest one; without it, what suits the optimizer")
      ->check(positive_decimal())
      ->default_str("");
  app.add_option("--seed", o.how.seed, "Of everything random")->check(whole_number(0, UINT64_MAX));
  app.add_option("--out", o.out, "Folder for the files it writes")->check(writable_folder());
  try {
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
  if (o.ranks > o.how.model.layers)
    throw setting_error(
        "--ranks is " + std::to_string(o.ranks) + " and --layers is " +
        std::to_string(o.how.model.layers) + "; each rank needs a layer at least");
  o.names_policies = policies->count() > 0;
  auto& step = o.how.optimizer;
  step.kind = optimizer == "adam" ? optimizer_kind::adam : optimizer_kind::sgd;
  step.learning_rate = learning_rate > 0.0F ? learning_rate : default_rate(step.kind);
  check(o.how.model);
  return o;
}

}  // namespace gpt
