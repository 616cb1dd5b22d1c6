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
#include <zbpp/model/schedule.hpp>

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
    auto const row = schedule.passes(rank);
    detail::activation_count count(problem, row);
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto in_use = count.begin(row[i]);
      bool const is_pair = detail::next_is_paired(row, i);
      if (is_pair) profile.push(in_use = count.begin(row[i + 1]));
      profile.push(in_use);
      count.end(row[i]);
      if (is_pair) count.end(row[++i]);
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
    auto const notes = messages.notes(rank);
    for (std::size_t i = 0, end = 0; i < row.size(); i = end) {
      end = i + (detail::next_is_paired(row, i) ? 2 : 1);  // a pair begins and ends as one
      bytes moving = 0;
      bytes workspace = 0;
      for (auto k = i; k < end; ++k) {
        moving = edges.begin(row[k], notes[k]);
        if (!row[k].is_pass()) continue;
        held = activations.begin(row[k].as_pass());
        workspace += problem.costs(row[k].stage).workspace;
      }
      peak.activations = std::max(peak.activations, held);
      peak.edges = std::max(peak.edges, moving);
      if (auto const total = fixed + held + moving + workspace; total > peak.total) {
        peak.total = total;
        peak.position = static_cast<std::int64_t>(i);
      }
      for (auto k = i; k < end; ++k) {
        if (row[k].is_pass()) held = activations.end(row[k].as_pass());
        edges.end(row[k], notes[k]);
      }
    }
    peaks.push_back(peak);
  }
  return peaks;
}

ZBPP_INLINE std::vector<memory_peak> peak_memory(program const& program, problem const& problem) {
  return peak_memory(program, problem, traffic(program));
}

}  // namespace zbpp
