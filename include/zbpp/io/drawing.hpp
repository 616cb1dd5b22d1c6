// SPDX-License-Identifier: Apache-2.0
//
// A timeline with a name, its memory and its optimizer steps: what all drawings of timelines take.
#pragma once

#include <zbpp/model/containers.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/timeline.hpp>

#include <string>

namespace zbpp {

/// Names a timeline, for drawings that show one or several.
struct named_timeline {
  std::string name;
  timeline line;
  rows<bytes> memory = {};  ///< in use while each pass runs, as `activation_profile` says; or empty
  rows<rank_update> updates = {};  ///< in the order of time; or empty
};

}  // namespace zbpp
