// SPDX-License-Identifier: Apache-2.0
//
// Trainings by all pipelines of a grid in one process, beside a plain loop.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/runtime/in_process_grid.hpp>

#include <support/backends.hpp>
#include <support/catch.hpp>
#include <support/plain_training.hpp>
#include <support/plan_grid.hpp>

#include <atomic>
#include <cstddef>
#include <string_view>
#include <vector>

namespace zbpp::test {

/// Says what each replica trains: each has data of its own, and the first one the faults.
template <class Settings>
[[nodiscard]] std::vector<Settings> settings_of_replicas(
    int replicas, Settings const& first, int microbatches) {
  std::vector<Settings> all(zbpp::detail::index(replicas), first);
  for (std::size_t n = 1; n < all.size(); ++n) {
    all[n].first_batch = static_cast<int>(n) * microbatches;
    all[n].faults.clear();
  }
  return all;
}

/// Trains the pipelines of a grid, each in two runs.
/// @param make        gives the model of a place, with `stages()` and `bits()`
/// @param options_of  gives the options for a place and its model
/// @return what each gives, by replica and member of a tensor group
template <class Backend, class Make, class OptionsOf>
[[nodiscard]] std::vector<std::vector<checked::history>> train_grid(
    plan const& planned,
    Backend backend,
    grid const& sizes,
    int steps,
    Make make,
    OptionsOf options_of) {
  in_process_grid whole(sizes);
  std::vector<std::vector<checked::history>> all(
      zbpp::detail::index(sizes.data),
      std::vector<checked::history>(zbpp::detail::index(sizes.tensor)));
  whole.run([&](grid_place const& at) {
    auto& result = all[zbpp::detail::index(at.data())][zbpp::detail::index(at.tensor())];
    auto own = make(at);
    auto place = backend;
    place.place = at;
    pipeline each(planned, place, own.stages(), options_of(at, own));
    for (int const count : {3, steps - 3})
      each.run(count, [&](step_result const& step) { result.add(step); });
    result.bits = own.bits();
  });
  return all;
}

/// Counts a failure of this code that says some words, and throws it on.
template <class Act>
void note_failure(std::atomic<int>& count, errc code, std::string_view words, Act act) {
  try {
    act();
  } catch (error const& failed) {
    bool const says = std::string_view(failed.what()).find(words) != std::string_view::npos;
    if (failed.code() == code && says) ++count;
    throw;
  }
}

/// Checks on both backends that the replicas of a network, and the members of its tensor groups,
/// have the bits of a plain loop, for every policy, placement and kind of step.
/// @tparam Network  has `settings`; `make_problem(placement, microbatches, settings, replicas)`,
///                  `make_model(settings, member)`; `fit(settings, placement)`, which gives those
///                  for a placement; and `train(settings of replicas, microbatches, steps,
///                  options)`
template <class Network>
void check_grid(
    int ranks,
    int replicas,
    typename Network::settings const& settings,
    training_options const& options) {
  constexpr int steps = 8;
  auto const check = [&](plan const& planned, typename Network::settings const& own, bool agrees) {
    auto const m = planned.problem().microbatches();
    auto const of_replicas = settings_of_replicas(replicas, own, m);
    auto expected = Network::train(of_replicas, m, steps, options);
    auto const members = static_cast<int>(expected.front().size());
    on_backends([&](auto backend) {
      auto found = train_grid(
          planned,
          backend,
          {.pipeline = ranks, .data = replicas, .tensor = members},
          steps,
          [&](grid_place const& at) {
            return Network::make_model(of_replicas[zbpp::detail::index(at.data())], at.tensor());
          },
          [&](auto const&...) { return options; });
      for (std::size_t n = 0; n < found.size(); ++n)
        for (std::size_t t = 0; t < found[n].size(); ++t) {
          CAPTURE(n, t);
          if (!agrees) found[n][t].forget_updates(), expected[n][t].forget_updates();
          CHECK(difference(found[n][t], expected[n][t]) == "");
          CHECK(found[n][t].bits == found[0][t].bits);
        }
    });
  };
  for (auto const& placement : placements_to_run(ranks))
    for (auto const& policy : grid_policies())
      // Some policies take three microbatches for each rank, others as many as there are.
      for (int const m : {ranks + 1, 3 * ranks}) {
        auto const own = Network::fit(settings, placement);
        auto const problem = Network::make_problem(placement, m, own, replicas);
        if (!is_supported(policy, problem)) continue;
        INFO(name_of(policy, problem) << ", " << replicas << " replicas");
        for (auto const kind :
             {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated}) {
          bool const agrees = kind != step_kind::unchecked;
          // A stage that steps by itself skips what is not finite only where ranks agree.
          if (!agrees && (options.clip > 0 || !settings.faults.empty())) continue;
          CAPTURE(static_cast<int>(kind));
          check(make_plan(policy, problem, {.step = kind}), own, agrees);
        }
        break;
      }
}

}  // namespace zbpp::test
