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
#include <zbpp/json/json.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/planner/auto_plan.hpp>
#include <zbpp/planner/named_policy.hpp>
#include <zbpp/planner/partition_by_name.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// What another thread says to a search, and reads of it. Each number is for people to look at, so
// none has to fit the others.
struct zbpp_search {
  std::stop_source stop;
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

struct asked_layers {
  zbpp::layered_problem model;
  zbpp::time_unit unit;
};

asked_layers read_layers(zbpp_text text, int most_chunks = 1) {
  auto unit = zbpp::time_unit::milliseconds;
  auto model = zbpp::json::read_layers(view(text), "problem", &unit);
  auto const ranks = model.placement().ranks();
  auto const layers = static_cast<std::int64_t>(model.layers().size());
  auto const stages = std::min(layers, std::int64_t{most_chunks} * ranks);
  check_size(ranks, std::max(model.stages(), static_cast<int>(stages)), model.microbatches());
  return {std::move(model), unit};
}

// ---- policies -----------------------------------------------------------------------------------

zbpp::search_settings settings(double seconds, std::uint64_t seed, zbpp_search* control) {
  if (!(seconds >= 0 && seconds <= zbpp::search_settings::most_seconds))
    throw zbpp::error(errc::bad_argument) + "seconds: found " + zbpp::number_text(seconds) +
        "; expected a number from 0 to 1000000";
  zbpp::search_settings search{.seconds = seconds, .seed = seed};
  if (control == nullptr) return search;
  search.stop = control->stop.get_token();
  search.on_progress = [control](zbpp::search_progress const& now) {
    control->cost.store(now.cost, std::memory_order_relaxed);
    control->lower_bound.store(now.lower_bound, std::memory_order_relaxed);
    control->spent.store(now.spent, std::memory_order_relaxed);
  };
  return search;
}

// A plan of layers that were cut into stages.
zbpp::json::plan_report plan_of(
    std::string_view title, zbpp::found_plan found, std::chrono::steady_clock::time_point start) {
  std::chrono::duration<double> const spent = std::chrono::steady_clock::now() - start;
  auto plan = zbpp::json::make_plan_report(
      std::string(title), std::move(found.schedule), std::move(found.problem), spent.count());
  plan.first_layer = std::move(found.first_layer);
  check_limits(plan);
  return plan;
}

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
  for (auto const& object : objects)
    text.append(text.size() > 1 ? ", {" : "{").append(object) += '}';
  return text + "]";
}

std::string policies_text() {
  std::vector<std::string> objects;
  for (auto const& one : zbpp::json::planners())
    if (one.scope != zbpp::json::planner_scope::layers)
      objects.push_back(
          "\"name\": " + quoted(one.name) + ", \"title\": " + quoted(one.title) +
          ", \"summary\": " + quoted(one.summary));
  return list(objects);
}

// ---- checks -------------------------------------------------------------------------------------

std::string fault_text(
    std::string_view kind, std::string_view line, zbpp::location const& at = {}) {
  return "\"kind\": " + quoted(kind) + ", \"rank\": " + std::to_string(at.rank) +
         ", \"position\": " + std::to_string(at.position) +
         ", \"stage\": " + std::to_string(at.stage) +
         ", \"microbatch\": " + std::to_string(at.microbatch) + ", \"text\": " + quoted(line);
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

void zbpp_search_stop(zbpp_search* search) { search->stop.request_stop(); }

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
    auto const found = zbpp::json::plan_problem(
        std::move(asked.problem), zbpp_c::view(policy), zbpp_c::settings(seconds, seed, search));
    zbpp::json::check_limits(found);
    return zbpp::json::write_plan(found, asked.unit);
  });
}

zbpp_status zbpp_partition(
    zbpp_text layers,
    zbpp_text policy,
    int schedules,
    double seconds,
    uint64_t seed,
    zbpp_search* search,
    char** out) {
  return zbpp_c::answer(out, [&] {
    auto const asked = zbpp_c::read_layers(layers);
    auto const settings = zbpp_c::settings(seconds, seed, search);
    auto const chosen = zbpp::named_policy(zbpp_c::view(policy), settings);
    auto const start = std::chrono::steady_clock::now();
    auto found = zbpp::partition_by_name(asked.model, chosen.name(), settings, schedules);
    return zbpp::json::write_plan(
        zbpp_c::plan_of(chosen.title(), std::move(found), start), asked.unit);
  });
}

zbpp_status zbpp_auto_plan(
    zbpp_text layers,
    int most_chunks,
    double seconds,
    uint64_t seed,
    zbpp_search* search,
    char** out) {
  return zbpp_c::answer(out, [&] {
    auto const asked = zbpp_c::read_layers(layers, most_chunks);
    zbpp::auto_plan const decide{
        .search = zbpp_c::settings(seconds, seed, search), .most_chunks = most_chunks};
    auto const start = std::chrono::steady_clock::now();
    auto found = decide(asked.model);
    return zbpp::json::write_plan(
        zbpp_c::plan_of(zbpp::auto_plan::title, std::move(found), start), asked.unit);
  });
}

zbpp_status zbpp_read_layers(zbpp_text layers, char** out) {
  return zbpp_c::answer(out, [&] {
    auto const asked = zbpp_c::read_layers(layers);
    return zbpp::json::write_layers(asked.model, asked.unit);
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
