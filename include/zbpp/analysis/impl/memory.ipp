// SPDX-License-Identifier: Apache-2.0
//
// What analysis/memory.hpp declares.
#pragma once

#include <zbpp/analysis/detail/activation_count.hpp>
#include <zbpp/analysis/detail/edge_count.hpp>
#include <zbpp/analysis/detail/lent_count.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
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

namespace detail {

ZBPP_INLINE void require_devices(program const& program, std::span<int const> devices) {
  if (!devices.empty() && devices.size() != index(program.ranks()))
    throw error(errc::bad_argument) + "there are " + devices.size() + " devices for " +
        program.ranks() + " ranks; give one for each rank, or none";
}

/// Calls `visit(instructions, notes, activations, edges)` for each instruction of a rank, and for
/// both of a pair together, with what is in use while they run.
/// @param edges  a count whose row has begun
template <class Visit>
void walk_memory(
    std::span<instruction const> row,
    std::span<message_note const> notes,
    problem const& problem,
    edge_count& edges,
    Visit visit) {
  std::vector<pass> passes;
  for (auto const& i : row)
    if (i.is_pass()) passes.push_back(i.as_pass());
  activation_count activations(problem, passes);
  bytes held = 0;
  for (std::size_t i = 0, end = 0; i < row.size(); i = end) {
    end = i + (next_is_paired(row, i) ? 2 : 1);  // a pair begins and ends as one
    bytes moving = 0;
    for (auto k = i; k < end; ++k) {
      moving = edges.begin(row[k], notes[k]);
      if (row[k].is_pass()) held = activations.begin(row[k].as_pass());
    }
    visit(row.subspan(i, end - i), notes.subspan(i, end - i), held, moving);
    for (auto k = i; k < end; ++k) {
      if (row[k].is_pass()) held = activations.end(row[k].as_pass());
      edges.end(row[k], notes[k]);
    }
  }
}

}  // namespace detail

ZBPP_INLINE std::vector<memory_peak> peak_memory(
    program const& program,
    problem const& problem,
    traffic const& messages,
    std::span<int const> devices) {
  detail::require_fit(program, problem);
  detail::require_devices(program, devices);
  std::vector<memory_peak> peaks;
  detail::edge_count edges(problem, messages, devices);
  for (int rank = 0; rank < program.ranks(); ++rank) {
    auto const row = program.instructions(rank);
    memory_peak peak;
    bytes fixed = 0;
    for (int s : program.placement().stages_of(rank)) fixed += problem.fixed_memory(s);
    edges.begin_row();
    detail::walk_memory(
        row,
        messages.notes(rank),
        problem,
        edges,
        [&](std::span<instruction const> now, auto, bytes held, bytes moving) {
          bytes workspace = 0;
          for (auto const& i : now)
            if (i.is_pass()) workspace += problem.costs(i.stage).workspace;
          if (now.front().is_pass()) peak.activations = std::max(peak.activations, held);
          peak.edges = std::max(peak.edges, moving);
          if (auto const total = fixed + held + moving + workspace; total > peak.total) {
            peak.total = total;
            peak.position = &now.front() - row.data();
          }
        });
    peaks.push_back(peak);
  }
  return peaks;
}

ZBPP_INLINE std::vector<memory_peak> peak_memory(
    program const& program, problem const& problem, std::span<int const> devices) {
  return peak_memory(program, problem, traffic(program), devices);
}

ZBPP_INLINE std::vector<bytes> arena_sizes(
    program const& code, problem const& problem, std::span<int const> devices) {
  traffic const messages(code);
  std::vector<bytes> sizes;
  for (auto const& peak : peak_memory(code, problem, messages, devices))
    sizes.push_back(peak.activations + peak.edges);
  if (devices.empty()) return sizes;
  detail::lent_count lent(code, problem, messages, devices);
  for (int rank = 0; rank < code.ranks(); ++rank) {
    auto const row = code.instructions(rank);
    auto const notes = messages.notes(rank);
    auto& most = sizes[detail::index(rank)];
    auto const walk = [&](std::span<instruction const> part) {
      detail::edge_count edges(problem, messages, devices);
      detail::walk_memory(
          part,
          notes,
          problem,
          edges,
          [&](std::span<instruction const> now,
              std::span<message_note const> peer_notes,
              bytes held,
              bytes moving) {
            bytes kept = 0;
            for (std::size_t k = 0; k < now.size(); ++k)
              kept = std::max(kept, lent.begin(now[k], peer_notes[k]));
            most = std::max(most, held + moving + kept);
            for (std::size_t k = 0; k < now.size(); ++k) lent.end(now[k], peer_notes[k]);
          });
    };
    lent.begin_row();
    walk(row);
    auto const validates = std::find_if(row.begin(), row.end(), [](instruction const& each) {
      return each.kind == instruction_kind::validate;
    });
    if (validates == row.end()) continue;
    // Steps follow one another, and one may begin again where it validates the one before.
    lent.begin_again();
    walk({row.begin(), validates});
    lent.begin_again();
    walk(row);
  }
  return sizes;
}

}  // namespace zbpp
