// SPDX-License-Identifier: Apache-2.0
//
// What analysis/memory.hpp declares.
#pragma once

#include <zbpp/analysis/detail/activation_count.hpp>
#include <zbpp/analysis/detail/edge_count.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/pass.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zbpp {

ZBPP_INLINE rows<bytes> activation_profile(schedule const& schedule, problem const& problem) {
  detail::require_fit(schedule, problem);
  rows<bytes> profile;
  profile.reserve(detail::index(schedule.ranks()), schedule.passes().size());
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    detail::activation_count count(problem, schedule.passes(rank));
    for (auto const& p : schedule.passes(rank)) {
      profile.push(count.begin(p));
      count.end(p);
    }
    profile.end_row();
  }
  return profile;
}

ZBPP_INLINE std::vector<bytes> peak_activations(schedule const& schedule, problem const& problem) {
  auto const profile = activation_profile(schedule, problem);
  std::vector<bytes> peaks;
  for (int rank = 0; rank < profile.ranks(); ++rank) {
    auto const row = profile[rank];
    peaks.push_back(row.empty() ? 0 : *std::max_element(row.begin(), row.end()));
  }
  return peaks;
}

ZBPP_INLINE std::vector<memory_peak> peak_memory(
    program const& program, problem const& problem, traffic const& messages) {
  detail::require_fit(program, problem);
  std::vector<memory_peak> peaks;
  std::vector<pass> passes;
  detail::edge_count edges(problem, messages);
  for (int rank = 0; rank < program.ranks(); ++rank) {
    auto const row = program.instructions(rank);
    passes.clear();
    for (auto const& i : row)
      if (i.is_pass()) passes.push_back(i.as_pass());
    detail::activation_count activations(problem, passes);
    edges.begin_row();
    memory_peak peak;
    bytes fixed = 0;
    for (int s : program.placement().stages_of(rank)) fixed += problem.costs(s).static_memory;
    bytes held = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto const note = messages.notes(rank)[i];
      auto const moving = edges.begin(row[i], note);
      bytes workspace = 0;
      if (row[i].is_pass()) {
        held = activations.begin(row[i].as_pass());
        workspace = problem.costs(row[i].stage).workspace;
        peak.activations = std::max(peak.activations, held);
      }
      peak.edges = std::max(peak.edges, moving);
      if (auto const total = fixed + held + moving + workspace; total > peak.total) {
        peak.total = total;
        peak.position = static_cast<std::int64_t>(i);
      }
      if (row[i].is_pass()) held = activations.end(row[i].as_pass());
      edges.end(row[i], note);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

ZBPP_INLINE std::vector<memory_peak> peak_memory(program const& program, problem const& problem) {
  return peak_memory(program, problem, traffic(program));
}

}  // namespace zbpp
