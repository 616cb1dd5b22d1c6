// SPDX-License-Identifier: Apache-2.0
//
// Answers the questions of docs/questions.md: prints the tables of one of them, and draws its
// picture. The same seed gives the same answer on any machine.
#include "asynchronous.hpp"
#include "halving.hpp"
#include "links.hpp"
#include "memory.hpp"
#include "models.hpp"
#include "noise.hpp"
#include "scaling.hpp"
#include <zbpp/io/file.hpp>

#include <CLI/CLI.hpp>

#include <array>
#include <cstdio>
#include <exception>
#include <string>

namespace {

using namespace questions;

template <class Answer>
[[nodiscard]] answer by(settings const& how) {
  return Answer(how)();
}

struct question {
  char const* name;
  char const* text;
  answer (*ask)(settings const&);
};

constexpr std::array all{
    question{"noise", "How far may costs be wrong?", by<noise_answer>},
    question{"memory", "From which memory on do bubbles vanish?", by<memory_answer>},
    question{"scaling", "What remains at 1024 ranks?", by<scaling_answer>},
    question{"links", "What do slow links cost?", by<links_answer>},
    question{"asynchronous", "What would asynchronous steps gain?", by<asynchronous_answer>},
    question{"halving", "When do two chunks per rank pay?", by<halving_answer>}};

int run(int argc, char** argv) {
  CLI::App app{"Answers the questions of docs/questions.md by simulation"};
  settings how;
  std::string picture;
  app.add_flag("--quick", how.quick, "Ask small pipelines only")->configurable(false);
  app.add_option("--seed", how.seed, "Seed of random times; 1 if left out");
  app.add_option("--svg", picture, "Draw the picture into this file");
  app.require_subcommand(1);
  app.fallthrough();
  for (auto const& each : all) app.add_subcommand(each.name, each.text);
  CLI11_PARSE(app, argc, argv);
  for (auto const& each : all) {
    if (!app.got_subcommand(each.name)) continue;
    auto const found = each.ask(how);
    zbpp::write_stream(stdout, "standard output", found.tables);
    if (!picture.empty()) zbpp::write_file(picture, found.svg);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (std::exception const& wrong) {
    std::fprintf(stderr, "questions: %s\n", wrong.what());
    return 1;
  }
}
