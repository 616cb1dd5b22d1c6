// SPDX-License-Identifier: Apache-2.0
//
// A timeline with a name, its memory, its optimizer steps and marks, as all drawings take it.
#pragma once

#include <zbpp/model/containers.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/timeline.hpp>

#include <string>
#include <vector>

namespace zbpp {

/// A part of the time of a rank.
struct rank_span {
  int rank = 0;
  ticks start = 0;
  ticks end = 0;

  friend bool operator==(rank_span const&, rank_span const&) = default;
};

/// Names a timeline, for drawings that show one or several.
struct named_timeline {
  std::string name;
  timeline line;
  rows<bytes> memory = {};  ///< in use while each pass runs, as `activation_profile` says; or empty
  rows<rank_update> updates = {};         ///< in the order of time; or empty
  rows<timed_reduction> reductions = {};  ///< as `reductions_of` says; or empty
  /// Passes of the critical path, in order, to be drawn as a line; or empty.
  std::vector<rank_span> path = {};
  /// Parts of passes beyond their planned time, to be marked; or empty.
  std::vector<rank_span> longer = {};
};

}  // namespace zbpp
