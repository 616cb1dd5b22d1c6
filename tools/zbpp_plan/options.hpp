// SPDX-License-Identifier: Apache-2.0
//
// The command line: its options, their texts, and what they ask for.
#pragma once

#include "asked.hpp"
#include "examples.hpp"
#include "inputs.hpp"
#include "numbers.hpp"
#include "outputs.hpp"
#include <zbpp/config.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/json/json.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace planning {

/// Holds the texts of the options, and makes what they say of them.
class command_line {
 public:
  command_line() {
    app_.get_formatter()->column_width(34);
    app_.set_version_flag(
        "--version",
        std::to_string(ZBPP_VERSION_MAJOR) + "." + std::to_string(ZBPP_VERSION_MINOR) + "." +
            std::to_string(ZBPP_VERSION_PATCH));
    add_flag("--list", "Tell every policy");
    add("--check", "FILE", "Verify a plan (JSON) or a schedule (CSV)");
    add("--compare",
        "[A,B,...]",
        "Compare policies, each on the placement it needs, or A@PLACEMENT; all that apply if none "
        "is named")
        ->expected(0, 1)
        ->default_str("all");
    add("--sweep-memory", "LO:HI:N", "Bubble rate against memory limit");
    add("--explain", "TRACE", "Say where the time of a measured step of --plan went");
    add("--plan", "FILE", "Plan (JSON) that the step ran");
    add("--against", "TRACE", "Explain another step of that plan, too, and compare");
    add("--policy",
        "NAME",
        "Policy that decides the order; if left out, placement, cut and order are searched");
    add("--problem",
        "FILE",
        "Problem in JSON, of stages or of layers, in place of the options from --ranks to "
        "--memory-limit");
    add("--ranks", "P", "Ranks");
    add("--microbatches", "M", "Microbatches of a step");
    add("--layers", "N", "Layers to cut into stages; times and sizes are then those of layers");
    add("--forward", "T", "Time of F in ms; T,T,... for each stage, TxN for N of them, as below");
    add("--backward-input", "T", "Time of B in ms");
    add("--backward-weight", "T", "Time of W in ms");
    add("--overlapped", "T", "Time of F and B together in ms, to plan pairs; F + B if left out");
    add("--transfer", "T", "Time of a message between two ranks in ms; 0 if left out");
    add("--placement",
        "NAME",
        "linear (if left out), looped or v; without --policy the only one tried");
    add("--chunks", "V", "Chunks of a rank, with looped");
    add("--activation", "S", "Size of what F keeps");
    add("--weight-gradient-input", "S", "Size of what W needs, --output-gradient included");
    add("--output-gradient", "S", "Part of it that B adds; 0 if left out");
    add("--memory-limit", "S", "Memory of every rank, in the unit of the sizes");
    add("--json", "FILE", "Write the plan, or what --explain finds");
    add("--csv", "FILE", "Write the schedule, or the table of a comparison or sweep");
    add_flag("--csv-overlap", "In it, write F and BW as pairs that overlap, as DualPipeV does");
    add_flag("--csv-transfers", "In it, write sends and receives, as PyTorch's compute_comms");
    add("--svg", "FILE", "Draw the timeline, the sweep, or the step of --explain and its plan");
    add("--trace", "FILE", "Write a Chrome trace for ui.perfetto.dev");
    add_flag("--ascii", "Draw the timeline on standard output");
    add_flag("--gpus", "With the summary, tell what a plan needs of GPUs");
    add("--seconds", "BUDGET", "Time to search; if left out 2.5 with --policy, else 10");
    add("--seed", "N", "Seed of a search; 3 if left out");
    app_.footer(examples);
  }

  /// @return nothing when help or version was asked for, which is then printed
  /// @throws zbpp::error saying in one line what is wrong
  [[nodiscard]] std::optional<options> read(int argc, char const* const* argv) {
    try {
      app_.parse(argc, argv);
    } catch (CLI::CallForHelp const&) {
      print(app_.help());
      return std::nullopt;
    } catch (CLI::CallForVersion const& version) {
      print(std::string(version.what()) + "\n");
      return std::nullopt;
    } catch (CLI::ArgumentMismatch const& wrong) {
      std::string const what = wrong.what();
      refuse(what.substr(0, what.find(':')) + ": expected one value, given once");
    } catch (CLI::ParseError const& wrong) {
      refuse(zbpp::one_line(wrong.what(), 200) + "; --help lists what there is");
    }
    options o;
    o.task = read_task();
    read_outputs(o.out);
    o.gpus = has("--gpus");
    if (o.gpus && o.out.any())
      refuse(
          "--gpus adds to the summary, which is not printed where the plan is written; leave out "
          "one of them");
    o.policy = text("--policy");
    if (o.policy.empty() && has("--policy")) refuse("--policy", "", "the name of a policy");
    o.check = text("--check");
    if (o.check.empty() && o.task == task::check) refuse("--check", "", "the path of a file");
    o.problem_file = text("--problem");
    if (o.check == "-" && o.problem_file == "-")
      refuse("--check and --problem both read standard input; give one of them a file");
    if (o.task == task::explain) {
      read_explained(o);
      return o;
    }
    if (has("--seconds"))
      o.seconds = decimal("--seconds", text("--seconds"), 1e6, "a number from 0 to 10^6");
    if (has("--seed"))
      o.seed = whole<std::uint64_t>(
          "--seed", text("--seed"), 0, std::numeric_limits<std::uint64_t>::max());
    if (o.task == task::compare) {
      auto const names = text("--compare");
      for (auto name : split(names, ',')) o.policies.emplace_back(name);
    }
    if (o.task == task::sweep) o.limits = limits("--sweep-memory", text("--sweep-memory"));
    if (o.task == task::list || (o.task == task::check && !has("--problem"))) return o;
    if (has("--problem"))
      read_problem(o);
    else
      make_problem(o);
    if (o.task == task::check && !o.problem->layers().empty())
      refuse("--check takes a problem of stages, not of layers; a plan of layers has its stages");
    return o;
  }

 private:
  static constexpr std::array problem_options_{
      "--ranks",
      "--microbatches",
      "--layers",
      "--forward",
      "--backward-input",
      "--backward-weight",
      "--overlapped",
      "--transfer",
      "--placement",
      "--chunks",
      "--activation",
      "--weight-gradient-input",
      "--output-gradient",
      "--memory-limit"};

  CLI::Option* add(char const* name, char const* value, char const* help) {
    return app_.add_option(name)->description(help)->option_text(value)->expected(1);
  }
  void add_flag(char const* name, char const* help) {
    app_.add_flag(name)->description(help)->disable_flag_override();
  }

  [[nodiscard]] bool has(std::string const& name) const { return app_.count(name) > 0; }
  [[nodiscard]] std::string text(std::string const& name) const {
    return has(name) ? app_.get_option(name)->results().front() : std::string{};
  }

  // One task at a time, with the options that mean something to it.
  [[nodiscard]] task read_task() const {
    constexpr std::array<std::pair<char const*, task>, 5> tasks{
        {{"--list", task::list},
         {"--explain", task::explain},
         {"--check", task::check},
         {"--compare", task::compare},
         {"--sweep-memory", task::sweep}}};
    auto found = task::plan;
    std::string asked_by;
    for (auto const& [name, what] : tasks) {
      if (!has(name)) continue;
      if (!asked_by.empty()) refuse(asked_by + " and " + name + " are two tasks; give one of them");
      found = what;
      asked_by = name;
    }
    auto const refuse_other = [&](std::vector<std::string> const& names) {
      for (auto const& name : names)
        if (has(name)) refuse(name + " means nothing with " + asked_by + "; leave it out");
    };
    if (found == task::list || found == task::check || found == task::explain) {
      refuse_other({problem_options_.begin(), problem_options_.end()});
      refuse_other({"--policy", "--csv", "--csv-overlap", "--csv-transfers"});
      refuse_other({"--ascii", "--gpus", "--seconds", "--seed"});
    }
    if (found == task::list || found == task::check) refuse_other({"--json", "--svg", "--trace"});
    if (found == task::list || found == task::explain) refuse_other({"--problem"});
    for (std::string const name : {"--plan", "--against"})
      if (has(name) && found != task::explain)
        refuse(name + " is about a step that ran; give its trace as --explain TRACE");
    if (found == task::compare)
      refuse_other({"--policy", "--json", "--csv-overlap", "--csv-transfers", "--gpus"});
    if (found == task::sweep) {
      refuse_other({"--json", "--csv-overlap", "--csv-transfers", "--trace", "--ascii", "--gpus"});
      refuse_other({"--memory-limit"});
    }
    for (std::string const name : {"--csv-overlap", "--csv-transfers"})
      if (has(name) && !has("--csv"))
        refuse(name + " is about the schedule that --csv writes; give --csv FILE too");
    return found;
  }

  void read_outputs(outputs& out) const {
    for (auto& [name, path] : out.files) {
      if (!has(name)) continue;
      path = text(name);
      if (path.empty()) refuse(name, path, "the path of a file, or - for standard output");
    }
    out.ascii = has("--ascii");
    out.csv.overlap = has("--csv-overlap");
    out.csv_transfers = has("--csv-transfers");
    out.check();
  }

  void read_explained(options& o) const {
    if (!has("--plan")) refuse("--plan is missing; it names the plan that the step ran");
    for (std::string const name : {"--json", "--svg", "--trace"})
      if (has(name) && has("--against"))
        refuse(name + " writes what is found of one step; leave out --against");
    int from_standard_input = 0;
    for (auto const& [name, path] :
         {std::pair{"--explain", &o.explain},
          {"--plan", &o.plan_file},
          {"--against", &o.against}}) {
      *path = text(name);
      if (path->empty() && has(name)) refuse(name, "", "the path of a file");
      from_standard_input += *path == "-" ? 1 : 0;
    }
    if (from_standard_input > 1)
      refuse("two inputs of --explain read standard input; give all but one a file");
  }

  void read_problem(options& o) const {
    for (std::string const name : problem_options_)
      if (has(name)) refuse(name + " stands beside --problem; the file says it all, leave one out");
    auto const path = text("--problem");
    o.problem = zbpp::json::read_problem(planning::read(path), input_name(path), &o.unit);
  }

  void make_problem(options& o) const {
    for (std::string const name :
         {"--ranks", "--microbatches", "--forward", "--backward-input", "--backward-weight"})
      if (!has(name)) refuse(name + " is missing; it or --problem FILE is needed");
    if (has("--output-gradient") && !has("--weight-gradient-input"))
      refuse("--weight-gradient-input is missing; --output-gradient is a part of it");
    for (std::string const name : {"--weight-gradient-input", "--memory-limit", "--sweep-memory"})
      if (has(name) && !has("--activation"))
        refuse("--activation is missing; " + name + " is about what F keeps");
    auto const where = make_placement();
    if (has("--placement")) o.placement = where;
    constexpr int most_layers = 4096;
    bool const has_layers = has("--layers");
    auto const all =
        has_layers ? whole("--layers", text("--layers"), 1, most_layers) : where.stages();
    auto const* const of = has_layers ? "layers" : "stages";
    auto const times = [&](std::string const& name) {
      return list(name, text(name), all, time, of);
    };
    auto const sizes = [&](std::string const& name) {
      return list(name, has(name) ? text(name) : "0", all, size, of);
    };
    auto const forward = times("--forward");
    auto const backward_input = times("--backward-input");
    auto const backward_weight = times("--backward-weight");
    auto const overlapped =
        has("--overlapped") ? times("--overlapped") : std::vector<zbpp::ticks>{};
    auto const activation = sizes("--activation");
    auto const weight_gradient_input = sizes("--weight-gradient-input");
    auto const output_gradient = sizes("--output-gradient");
    std::vector<zbpp::stage_costs> costs(forward.size());
    for (std::size_t s = 0; s < costs.size(); ++s) {
      costs[s].forward = forward[s];
      costs[s].backward_input = backward_input[s];
      costs[s].backward_weight = backward_weight[s];
      if (!overlapped.empty()) costs[s].overlapped = overlapped[s];
      costs[s].activation = activation[s];
      costs[s].weight_gradient_input = weight_gradient_input[s];
      costs[s].output_gradient = output_gradient[s];
    }
    std::vector<zbpp::bytes> memory_limits;
    if (has("--memory-limit"))
      memory_limits.push_back(size("--memory-limit", text("--memory-limit")));
    auto const transfer = has("--transfer") ? time("--transfer", text("--transfer")) : 0;
    auto const microbatches = whole("--microbatches", text("--microbatches"), 1, 1 << 27);
    if (has_layers)
      o.problem = zbpp::with_placement(
          {std::move(costs),
           {.ranks = where.ranks(),
            .microbatches = microbatches,
            .transfer = transfer,
            .memory_limits = std::move(memory_limits)}},
          where);
    else
      o.problem.emplace(where, microbatches, std::move(costs), transfer, std::move(memory_limits));
  }

  [[nodiscard]] zbpp::placement make_placement() const {
    constexpr int most = 1 << 16;  // stages, as in files
    auto const name = has("--placement") ? text("--placement") : "linear";
    if (has("--chunks") && name != "looped")
      refuse("--chunks goes with --placement looped; leave it out");
    auto const ranks = whole("--ranks", text("--ranks"), 1, name == "v" ? most / 2 : most);
    if (name == "linear") return zbpp::placement::linear(ranks);
    if (name == "v") return zbpp::placement::v_shape(ranks);
    if (name != "looped") refuse("--placement", name, "linear, looped or v");
    if (!has("--chunks")) refuse("--chunks is missing; --placement looped needs it");
    return zbpp::placement::looped(
        ranks, whole("--chunks", text("--chunks"), 1, std::max(1, most / ranks)));
  }

  CLI::App app_{
      "Plans zero-bubble pipeline parallelism: decides in which order ranks run their passes.\n"
      "Status: 0 done, 1 the checked plan is wrong, 2 bad input, 3 nothing fits the memory limits.",
      "zbpp-plan"};
};

}  // namespace planning
