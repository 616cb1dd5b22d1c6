// SPDX-License-Identifier: Apache-2.0
//
// The C interface of zbpp_c.h: reads texts, calls the library, and turns what it throws into a
// status and a line.
#include "zbpp_c.h"

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/csv.hpp>
#include <zbpp/io/svg.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/json/detail/document.hpp>
#include <zbpp/json/detail/fields.hpp>
#include <zbpp/json/detail/problem_text.hpp>
#include <zbpp/json/json.hpp>
#include <zbpp/planner/detail/after_passes.hpp>
#include <zbpp/planner/detail/placement_search.hpp>
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/planner/registry.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

// What another thread says to a search, and reads of it. Each number is for people to look at, so
// none has to fit the others.
struct zbpp_search {
  std::atomic<bool> is_stopped = false;
  std::atomic<std::int64_t> cost = 0;
  std::atomic<std::int64_t> lower_bound = 0;
  std::atomic<double> spent = 0;
};

namespace zbpp_c {
namespace {

using zbpp::errc;

char* copy(std::string_view text) noexcept {
  auto* const made = static_cast<char*>(std::malloc(text.size() + 1));
  if (made == nullptr) return nullptr;
  if (!text.empty()) std::memcpy(made, text.data(), text.size());
  made[text.size()] = '\0';
  return made;
}

zbpp_status status_of(errc code) noexcept {
  switch (code) {
    case errc::bad_argument: return ZBPP_BAD_ARGUMENT;
    case errc::bad_format: return ZBPP_BAD_FORMAT;
    case errc::unsupported_problem: return ZBPP_UNSUPPORTED_PROBLEM;
    case errc::refused_program: return ZBPP_REFUSED_PROGRAM;
    default: return ZBPP_UNEXPECTED;
  }
}

zbpp_status refuse(zbpp_status status, char const* what, char** out) noexcept {
  try {
    *out = copy(zbpp::one_line(what));
  } catch (...) {  // there is no memory for the line
    *out = nullptr;
  }
  return status;
}

// Writes what `make` returns, or the line of what it throws.
template <class Make>
zbpp_status answer(char** out, Make make) noexcept {
  *out = nullptr;
  try {
    *out = copy(make());
    return *out != nullptr ? ZBPP_OK : ZBPP_OUT_OF_MEMORY;
  } catch (zbpp::error const& refused) {
    return refuse(status_of(refused.code()), refused.what(), out);
  } catch (std::bad_alloc const&) {
    return refuse(ZBPP_OUT_OF_MEMORY, "out of memory; state a smaller problem", out);
  } catch (std::exception const& wrong) {
    return refuse(ZBPP_UNEXPECTED, wrong.what(), out);
  } catch (...) {
    return refuse(ZBPP_UNEXPECTED, "unknown fault", out);
  }
}

std::string_view view(zbpp_text text) noexcept { return {text.data, text.size}; }

struct asked_problem {
  zbpp::problem problem;
  zbpp::time_unit unit;
};

// Every rank is followed through all passes, so what is larger would take minutes.
void check_size(int ranks, int stages, int microbatches) {
  constexpr std::int64_t most = std::int64_t{1} << 31;
  constexpr int most_ranks = 4096;
  auto const cells = std::int64_t{stages} * microbatches;
  if (ranks <= most_ranks && cells <= most / ranks) return;
  throw zbpp::error(errc::bad_argument) + "the problem has " + ranks + " ranks, " + stages +
      " stages and " + microbatches +
      " microbatches; expected up to 4096 ranks, and up to 2^31 for the product of the three";
}

void check_size(zbpp::problem const& problem) {
  check_size(problem.ranks(), problem.stages(), problem.microbatches());
}

asked_problem read_problem(zbpp_text text) {
  auto unit = zbpp::time_unit::milliseconds;
  auto problem = zbpp::json::read_problem(view(text), "problem", &unit);
  check_size(problem);
  return {std::move(problem), unit};
}

zbpp::json::plan_report read_plan(zbpp_text text, zbpp::time_unit* unit = nullptr) {
  auto plan = zbpp::json::read_plan(view(text), "plan", unit);
  check_size(plan.problem);
  return plan;
}

// ---- policies -----------------------------------------------------------------------------------

zbpp::search_settings settings(double seconds, std::uint64_t seed, zbpp_search* control) {
  if (!(seconds >= 0 && seconds <= zbpp::search_settings::most_seconds))
    throw zbpp::error(errc::bad_argument) + "seconds: found " + zbpp::number_text(seconds) +
        "; expected a number from 0 to 1000000";
  zbpp::search_settings search{.seconds = seconds, .seed = seed};
  if (control == nullptr) return search;
  search.stop = [control] { return control->is_stopped.load(std::memory_order_relaxed); };
  search.on_progress = [control](zbpp::search_progress const& now) {
    control->cost.store(now.cost, std::memory_order_relaxed);
    control->lower_bound.store(now.lower_bound, std::memory_order_relaxed);
    control->spent.store(now.spent, std::memory_order_relaxed);
  };
  return search;
}

std::uint64_t read_seed(zbpp::json::detail::value const& from) {
  std::uint64_t seed = 0;
  auto const text = from.text();
  auto const parsed = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (!from.is(zbpp::json::detail::value_kind::number) || parsed.ec != std::errc{} ||
      parsed.ptr != text.data() + text.size())
    from.refuse("a whole number from 0 to 2^64 - 1");
  return seed;
}

zbpp::plan_choices read_choices(
    zbpp_text text, zbpp::problem const& problem, zbpp_search* control) {
  namespace json = zbpp::json::detail;
  json::document const all(text.size == 0 ? "{}" : view(text), "choices");
  constexpr std::array<std::string_view, 10> names{
      "placement",
      "chunks",
      "first_layer",
      "recompute",
      "policy",
      "most_chunks",
      "most_cuts",
      "most_memory_for",
      "seconds",
      "seed"};
  auto const [form, chunks, first, again, policy, most_chunks, most_cuts, memory, seconds, seed] =
      json::value(all).members(names, 0);
  auto const count = [](json::value const& from, int low) {
    return static_cast<int>(json::whole(from, low, std::numeric_limits<int>::max()));
  };
  zbpp::plan_choices read;
  if (chunks && !form) chunks.refuse("'placement' beside 'chunks'");
  if (first && !form) first.refuse("'placement' beside 'first_layer'");
  if (again && !first) again.refuse("'first_layer' beside 'recompute'");
  if (form) read.placement = json::problem_reader::read_placement(problem.ranks(), form, chunks);
  if (first) read.first_layer = json::read_first_layers(first, read.placement->stages());
  if (again) read.recompute = json::problem_reader::read_recompute(again, read.placement->stages());
  if (policy) {
    if (!policy.is(json::value_kind::string)) policy.refuse("the name or title of a policy");
    read.policy = zbpp::find_policy(policy.text());
  }
  if (most_chunks) read.most_chunks = count(most_chunks, 2);
  if (most_cuts) read.most_cuts = count(most_cuts, 0);
  if (memory) read.most_memory_for = json::real(memory, 0, "a share from 0 to 1");
  auto search = settings(
      seconds ? json::real(seconds, 0, "seconds") : read.seconds,
      seed ? read_seed(seed) : read.seed,
      control);
  read.seconds = search.seconds;
  read.seed = search.seed;
  read.stop = std::move(search.stop);
  read.on_progress = std::move(search.on_progress);
  // Of the placements that are tried the one with the most stages.
  auto const most = std::min<std::int64_t>(
      zbpp::detail::pieces_of(problem), std::int64_t{read.most_chunks} * problem.ranks());
  check_size(
      problem.ranks(),
      read.placement ? read.placement->stages()
                     : std::max(problem.stages(), static_cast<int>(most)),
      problem.microbatches());
  return read;
}

// Asks `find(problem, choices)` for plans, and writes each.
template <class Find>
std::vector<std::string> plans_text(
    zbpp_text problem, zbpp_text choices, zbpp_search* control, Find find) {
  auto const asked = read_problem(problem);
  auto const chosen = read_choices(choices, asked.problem, control);
  auto const start = std::chrono::steady_clock::now();
  std::vector<zbpp::found_plan> found = find(asked.problem, chosen);
  std::chrono::duration<double> const spent = std::chrono::steady_clock::now() - start;
  std::vector<std::string> texts;
  for (auto& one : found)
    texts.push_back(zbpp::json::write_plan(
        zbpp::json::make_plan_report(
            std::move(one.policy), std::move(one.schedule), std::move(one.problem), spent.count()),
        asked.unit));
  return texts;
}

// ---- lists --------------------------------------------------------------------------------------

// A line as JSON writes it; without control characters there is little to escape.
std::string quoted(std::string_view line) {
  std::string text = "\"";
  for (char const c : zbpp::one_line(line)) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

std::string list(std::vector<std::string> const& objects) {
  std::string text = "[";
  for (auto const& object : objects) text.append(text.size() > 1 ? ", " : "").append(object);
  return text + "]";
}

std::string policies_text() {
  std::vector<std::string> objects;
  for (auto const& one : zbpp::builtin_policies())
    objects.push_back(
        "{\"name\": " + quoted(one.name()) + ", \"title\": " + quoted(one.title()) +
        ", \"summary\": " + quoted(one.summary()) + "}");
  return list(objects);
}

// ---- checks -------------------------------------------------------------------------------------

std::string fault_text(
    std::string_view kind, std::string_view line, zbpp::location const& at = {}) {
  return "{\"kind\": " + quoted(kind) + ", \"rank\": " + std::to_string(at.rank) +
         ", \"position\": " + std::to_string(at.position) +
         ", \"stage\": " + std::to_string(at.stage) +
         ", \"microbatch\": " + std::to_string(at.microbatch) + ", \"text\": " + quoted(line) + "}";
}

std::vector<std::string> texts_of(std::vector<zbpp::diagnostic> const& faults) {
  std::vector<std::string> objects;
  for (auto const& found : faults)
    objects.push_back(fault_text(to_string(found.fault), to_string(found), found.location));
  return objects;
}

std::string faults_of(zbpp_text csv, zbpp_text problem) {
  std::optional<asked_problem> asked;
  if (problem.size != 0) asked = read_problem(problem);
  auto const code = zbpp::complete_program_from_csv(view(csv), asked ? &asked->problem : nullptr);
  return list(texts_of(asked ? verify(code, asked->problem) : verify(code)));
}

std::string faults_of(zbpp::json::plan_report const& said) {
  auto objects = texts_of(verify(lower(said.schedule), said.problem));
  auto const lines = zbpp::json::check_claims(said);  // the same faults stand before the claims
  for (auto i = objects.size(); i < lines.size(); ++i)
    objects.push_back(fault_text("claim", lines[i]));
  return list(objects);
}

zbpp::json::plan_report simulate(zbpp_text csv, zbpp::problem problem, std::string_view title) {
  auto order = zbpp::schedule_from_csv(
      view(csv), problem.placement(), problem.microbatches(), zbpp::pairs_for(problem));
  if (auto const faults = verify(lower(order)); !faults.empty())
    throw zbpp::error(errc::refused_program, "the order cannot run: " + to_string(faults.front()));
  return zbpp::json::make_plan_report(std::string(title), std::move(order), std::move(problem));
}

}  // namespace
}  // namespace zbpp_c

// ---- the interface ------------------------------------------------------------------------------

zbpp_search* zbpp_search_new(void) {
  try {
    return new zbpp_search;
  } catch (...) {
    return nullptr;
  }
}

void zbpp_search_stop(zbpp_search* search) { search->is_stopped = true; }

void zbpp_search_progress(zbpp_search* search, zbpp_progress* out) {
  out->cost = search->cost.load(std::memory_order_relaxed);
  out->lower_bound = search->lower_bound.load(std::memory_order_relaxed);
  out->spent = search->spent.load(std::memory_order_relaxed);
}

void zbpp_search_free(zbpp_search* search) { delete search; }

zbpp_status zbpp_plan(
    zbpp_text problem,
    zbpp_text policy,
    double seconds,
    uint64_t seed,
    zbpp_search* search,
    char** out) {
  return zbpp_c::answer(out, [&] {
    auto asked = zbpp_c::read_problem(problem);
    auto const chosen = zbpp::find_policy(zbpp_c::view(policy));
    auto const settings = zbpp_c::settings(seconds, seed, search);
    auto const start = std::chrono::steady_clock::now();
    auto order = chosen(asked.problem, settings);
    // A stage that is stated with a time for R may do without; one that is cut to recompute does
    // it.
    if (!asked.problem.layers().empty())
      order = zbpp::detail::insert_recompute(std::move(order), asked.problem);
    std::chrono::duration<double> const spent = std::chrono::steady_clock::now() - start;
    auto const found = zbpp::json::make_plan_report(
        std::string(chosen.title()), std::move(order), std::move(asked.problem), spent.count());
    zbpp::json::check_limits(found);
    return zbpp::json::write_plan(found, asked.unit);
  });
}

zbpp_status zbpp_find_plan(zbpp_text problem, zbpp_text choices, zbpp_search* search, char** out) {
  return zbpp_c::answer(out, [&] {
    auto const find = [](zbpp::problem const& model, zbpp::plan_choices const& chosen) {
      return std::vector{zbpp::find_plan(model, chosen)};
    };
    return zbpp_c::plans_text(problem, choices, search, find).front();
  });
}

zbpp_status zbpp_find_plans(
    zbpp_text problem,
    int64_t const* limits,
    size_t count,
    zbpp_text choices,
    zbpp_search* search,
    char** out) {
  return zbpp_c::answer(out, [&] {
    auto const find = [&](zbpp::problem const& model, zbpp::plan_choices const& chosen) {
      return zbpp::find_plans(model, std::span(limits, count), chosen);
    };
    return zbpp_c::list(zbpp_c::plans_text(problem, choices, search, find));
  });
}

zbpp_status zbpp_policies(char** out) { return zbpp_c::answer(out, zbpp_c::policies_text); }

zbpp_status zbpp_simulate(zbpp_text schedule, zbpp_text problem, zbpp_text title, char** out) {
  return zbpp_c::answer(out, [&] {
    auto asked = zbpp_c::read_problem(problem);
    auto const found = zbpp_c::simulate(schedule, std::move(asked.problem), zbpp_c::view(title));
    return zbpp::json::write_plan(found, asked.unit);
  });
}

zbpp_status zbpp_lower_bound(zbpp_text problem, char** out) {
  return zbpp_c::answer(out, [&] {
    auto const asked = zbpp_c::read_problem(problem);
    return zbpp::number_text(zbpp::lower_bound(asked.problem).cost, asked.unit);
  });
}

zbpp_status zbpp_verify(zbpp_text csv, zbpp_text problem, char** out) {
  return zbpp_c::answer(out, [&] { return zbpp_c::faults_of(csv, problem); });
}

zbpp_status zbpp_verify_plan(zbpp_text plan, char** out) {
  return zbpp_c::answer(out, [&] { return zbpp_c::faults_of(zbpp_c::read_plan(plan)); });
}

zbpp_status zbpp_read_problem(zbpp_text problem, char** out) {
  return zbpp_c::answer(out, [&] {
    auto const asked = zbpp_c::read_problem(problem);
    return zbpp::json::write_problem(asked.problem, asked.unit);
  });
}

zbpp_status zbpp_read_plan(zbpp_text plan, char** out) {
  return zbpp_c::answer(out, [&] {
    auto unit = zbpp::time_unit::milliseconds;
    auto const said = zbpp_c::read_plan(plan, &unit);
    return zbpp::json::write_plan(said, unit);
  });
}

zbpp_status zbpp_csv(zbpp_text plan, int overlap, char** out) {
  return zbpp_c::answer(out, [&] {
    return zbpp::to_csv(zbpp_c::read_plan(plan).schedule, {.overlap = overlap != 0});
  });
}

zbpp_status zbpp_svg(zbpp_text const* plans, size_t count, int width, char** out) {
  return zbpp_c::answer(out, [&] {
    std::vector<zbpp::named_timeline> lines;
    for (size_t i = 0; i < count; ++i) {
      auto const said = zbpp_c::read_plan(plans[i]);
      lines.push_back(
          {said.policy, said.timeline, zbpp::activation_profile(said.schedule, said.problem)});
    }
    return zbpp::to_svg(lines, {.width = width});
  });
}

void zbpp_free(char* text) { std::free(text); }

char const* zbpp_version(void) {
#define ZBPP_C_WORD(number) #number
#define ZBPP_C_DOTTED(a, b, c) ZBPP_C_WORD(a) "." ZBPP_C_WORD(b) "." ZBPP_C_WORD(c)
  return ZBPP_C_DOTTED(ZBPP_VERSION_MAJOR, ZBPP_VERSION_MINOR, ZBPP_VERSION_PATCH);
}
