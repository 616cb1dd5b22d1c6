// SPDX-License-Identifier: Apache-2.0
//
// Parts of a command line that more than one trainer has: reading it, checks of values, and the
// options --clip and --step.
#pragma once

#include "program.hpp"
#include "settings.hpp"
#include <zbpp/planner/registry.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

namespace gpt {

/// Refuses an option without its value, which the parser would take from the option after it.
/// @throws setting_error that names the option
inline void check_values(CLI::App const& app, int argc, char const* const* argv) {
  for (int i = 1; i < argc; ++i) {
    auto const* const option = app.get_option_no_throw(argv[i]);
    if (option == nullptr || option->get_items_expected_min() == 0) continue;
    if (i + 1 == argc || std::string_view(argv[i + 1]).starts_with("--"))
      throw setting_error(std::string(argv[i]) + " needs a value; --help lists what there is");
    ++i;
  }
}

/// Reads a command line.
/// @return whether it asks for something to do; not for help, which is then printed
/// @throws setting_error in one line
[[nodiscard]] inline bool parse(CLI::App& app, int argc, char const* const* argv) {
  try {
    check_values(app, argc, argv);
    app.parse(argc, argv);
    return true;
  } catch (CLI::CallForHelp const&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (CLI::ParseError const& wrong) {
    std::string line = wrong.what();
    std::ranges::replace(line, '\n', ' ');
    throw setting_error(line + "; --help lists what there is");
  }
}

/// Accepts what a test does.
/// @param refusal  what it is not, or what would be right, behind what was given
[[nodiscard]] inline CLI::Validator accepts(
    std::function<bool(std::string const&)> test, std::string const& refusal) {
  return {
      [=](std::string& given) {
        return test(given) ? std::string() : "'" + given + "' " + refusal;
      },
      ""};
}

/// Accepts whole numbers of a range as people write them: to CLI11 010 is 8, and 0x10 is 16.
[[nodiscard]] inline CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  auto const test = [=](std::string const& given) {
    std::uint64_t value = 0;
    auto const end = given.data() + given.size();
    auto const [stop, fault] = std::from_chars(given.data(), end, value);
    return fault == std::errc{} && stop == end && least <= value && value <= most &&
           given == std::to_string(value);
  };
  return accepts(
      test, "is not a whole number from " + std::to_string(least) + " to " + std::to_string(most));
}

/// Accepts the path of a regular file that can be read: a pipe might never end.
[[nodiscard]] inline CLI::Validator readable_file() {
  auto const test = [](std::string const& given) {
    std::error_code none;
    return std::filesystem::is_regular_file(given, none) && ::access(given.c_str(), R_OK) == 0;
  };
  return accepts(test, "cannot be read; name a regular file that can");
}

/// Accepts the path of a folder that files can be written to.
[[nodiscard]] inline CLI::Validator writable_folder() {
  auto const test = [](std::string const& given) {
    std::error_code none;
    return std::filesystem::is_directory(given, none) && ::access(given.c_str(), W_OK | X_OK) == 0;
  };
  return accepts(test, "is no folder that can be written to; name one that exists");
}

/// Makes a folder that files can be written to, with those above it, where there is none.
/// @param option  that names it
/// @throws setting_error
inline void make_folder(std::string const& option, std::filesystem::path const& folder) {
  std::error_code fault;
  std::filesystem::create_directories(folder, fault);
  auto const refusal = writable_folder()(folder.string());
  if (!refusal.empty())
    throw setting_error(option + ": " + refusal + (fault ? ": " + fault.message() : std::string()));
}

/// Accepts positive decimals. A range of CLI11 takes nan for one of its numbers.
[[nodiscard]] inline CLI::Validator positive_decimal() {
  auto const test = [](std::string const& given) {
    char* stop = nullptr;
    auto const value = std::strtod(given.c_str(), &stop);
    return !given.empty() && *stop == '\0' && value > 0.0 && value <= 100.0;
  };
  return accepts(test, "is not a decimal above 0 and up to 100");
}

/// Accepts some words.
/// @param words  two or more
[[nodiscard]] inline CLI::Validator is_one_of(std::vector<std::string> words) {
  return {
      [words = std::move(words)](std::string& given) -> std::string {
        if (std::find(words.begin(), words.end(), given) != words.end()) return {};
        auto text = "'" + given + "' is neither " + words.front();
        for (std::size_t i = 1; i < words.size(); ++i)
          text += (i + 1 == words.size() ? " nor " : ", ") + words[i];
        return text;
      },
      ""};
}

/// Stands for a policy that comes with zbpp, where only its name is needed.
struct policy_entry {
  std::string_view name;
  std::string_view title;
  bool searches;
};

/// @return an entry for each policy that comes with zbpp
[[nodiscard]] inline std::vector<policy_entry> policy_entries() {
  std::vector<policy_entry> all;
  zbpp::for_each_policy([&]<class Policy>(Policy const& policy) {
    constexpr bool searches = requires(Policy one) { one.search; };
    all.push_back({policy.name, policy.title, searches});
  });
  return all;
}

/// Finds a policy by its name or title.
/// @throws setting_error listing the names there are
[[nodiscard]] inline policy_entry find_entry(std::string_view name) {
  std::string known;
  for (auto const& one : policy_entries()) {
    if (one.name == name || one.title == name) return one;
    known.append(" ").append(one.name);
  }
  throw setting_error("no policy is called '" + std::string(name) + "'; there are" + known);
}

/// Accepts the names and titles of policies.
[[nodiscard]] inline CLI::Validator policy_name() {
  return {
      [](std::string& given) -> std::string {
        try {
          given = find_entry(given).name;
          return {};
        } catch (setting_error const& unknown) {
          return unknown.what();
        }
      },
      ""};
}

/// Describes --clip and --step to the parser.
/// @param how    gets what gradients are clipped to; it outlives the parser, as do the kinds
/// @param kinds  get those that the user names
inline void add_step_options(
    CLI::App& app, optimizer_settings& how, std::vector<zbpp::step_kind>& kinds) {
  app.add_option("--clip", how.clip, "Most that the norm of all gradients may be")
      ->check(positive_decimal())
      ->default_str("");
  app.add_option_function<std::vector<std::string>>(
         "--step",
         [&kinds](std::vector<std::string> const& names) {
           kinds.clear();
           for (auto const& name : names)
             for (auto const& [known, kind] : step_kinds)
               if (name == known) kinds.push_back(kind);
         },
         "When ranks step: unchecked, without the norm; synchronous, when it is known; or\n"
         "post-validated, before; several to compare. With --clip, post-validated; else unchecked")
      ->check(is_one_of({"unchecked", "synchronous", "post-validated"}))
      ->delimiter(',')
      ->option_text("KIND,...");
}

/// Settles what both mean, once they are parsed.
/// @throws setting_error when they do not go together
inline void settle_steps(
    CLI::App const& app, optimizer_settings& how, std::vector<zbpp::step_kind>& kinds) {
  using zbpp::step_kind;
  bool const clips = app.count("--clip") > 0;
  if (clips && app.count("--step") == 0) kinds = {step_kind::post_validated};
  how.needs_norm = std::ranges::find(kinds, step_kind::unchecked) == kinds.end();
  if (!how.needs_norm && clips)
    throw setting_error(
        "--clip needs the norm of all gradients, which --step unchecked does without; give "
        "synchronous or post-validated");
  if (!how.needs_norm && kinds.size() > 1)
    throw setting_error(
        "--step unchecked gives other bits than the other kinds where gradients are not finite; "
        "run it on its own");
}

}  // namespace gpt
