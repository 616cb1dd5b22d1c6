// SPDX-License-Identifier: Apache-2.0
//
// Writes timelines in the trace format of Chrome, which Perfetto (ui.perfetto.dev) opens: one
// process per rank, a lane for its passes, lanes for what it sends, arrows from producer to
// consumer, memory as a counter, and lanes for the critical path and for what took longer than
// planned. Several timelines, say planned and measured, are groups of processes in one file.
// @source Trace Event Format, catapult project: events X, M, C and s, t, f
#pragma once

#include <zbpp/io/drawing.hpp>
#include <zbpp/model/problem.hpp>

#include <optional>
#include <string>
#include <vector>

namespace zbpp {

/// Writes timelines as one Chrome trace. Times are microseconds with as many decimals as they need.
///
/// With a problem, each message is a slice on a lane of its sender, from the end of the pass that
/// made it for the transfer time that the problem states, at most until its consumer starts: under
/// a measured timeline that time is the model's, not measured. Without, there are arrows only.
/// @return the text of a JSON file
/// @throws error (bad_argument) when a timeline makes no sense or the problem lacks its stages
[[nodiscard]] std::string to_chrome_trace(
    std::vector<named_timeline> const& lines, std::optional<problem> const& problem = {});

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/chrome_trace.ipp>
#endif
