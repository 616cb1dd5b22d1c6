// SPDX-License-Identifier: Apache-2.0
//
// What tests of the runtime have in common: pipelines in one process and their backends, plans to
// run, refusals, and what of the standard library nearly all of them use.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/plan_grid.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Calls `check(backend)` for virtual time, and for one thread of each rank.
template <class Check>
void on_backends(Check check) {
  check(virtual_time{});
  check(threads{});
}

/// The same, and with ranks that share threads.
template <class Check>
void on_all_backends(Check check) {
  on_backends(check);
  check(threads{.count = 2});
}

/// The kinds of steps in which a pipeline steps its stages.
inline constexpr step_kind kinds_of_steps[]{
    step_kind::unchecked, step_kind::synchronous, step_kind::post_validated};

/// Calls `visit(plan)` as `for_each_plan_of` does, with its name in the messages of failed checks.
template <class Visit>
void on_plans(problem const& problem, plan_variants const& variants, Visit visit) {
  for_each_plan_of(problem, variants, [&](std::string const& name, plan const& planned) {
    INFO(name);
    visit(planned);
  });
}

/// @return whether no rank of a pipeline has memory in use
template <class Backend>
[[nodiscard]] bool uses_no_memory(pipeline<Backend> const& pipe) {
  for (int rank = 0; rank < pipe.planned().problem().ranks(); ++rank)
    if (pipe.memory(rank).in_use != std::array<bytes, purposes>{}) return false;
  return true;
}

/// @return whether a text has a part
[[nodiscard]] inline bool has(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace zbpp::test
