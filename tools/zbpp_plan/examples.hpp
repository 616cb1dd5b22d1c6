// SPDX-License-Identifier: Apache-2.0
//
// The examples that --help ends with.
#pragma once

namespace planning {

/// Shows each task; `tests/zbpp_plan` runs them in this order.
inline constexpr auto const* examples = R"(Examples:
  Plan, and write the plan and its pictures:
    zbpp-plan --policy zb_h1 --ranks 4 --microbatches 8 --forward 10 \
      --backward-input 10 --backward-weight 10 --json plan.json --svg plan.svg \
      --trace trace.json
  Compare all policies, and some of them:
    zbpp-plan --compare --ranks 4 --microbatches 16 --forward 10 \
      --backward-input 10 --backward-weight 10
    zbpp-plan --compare one_f_one_b,zb_h1,zb_h2 --ranks 4 --microbatches 8 \
      --forward 10 --backward-input 10 --backward-weight 10
  Compare policies of several placements, and greedy_auto on each of these:
    zbpp-plan --compare zb_h1,interleaved,zb_v,greedy_auto --ranks 4 \
      --microbatches 8 --forward 10 --backward-input 10 --backward-weight 10
  Search for the best plan of 34 layers, of which the last is heavy:
    zbpp-plan --ranks 4 --microbatches 16 --layers 34 --forward 1x33,12 \
      --backward-input 1x33,12 --backward-weight 1x33,12
  Check what somebody else made:
    zbpp-plan --check plan.json
  Explain a step that ran, by its trace and its plan:
    zbpp-plan --explain trace.json --plan plan.json
  Sweep the memory limit:
    zbpp-plan --sweep-memory 1000:8000:4 --svg sweep.svg --ranks 4 \
      --microbatches 8 --forward 10 --backward-input 10 --backward-weight 10 \
      --activation 1000 --weight-gradient-input 500
  List the policies:
    zbpp-plan --list

As FILE, - is standard input, or standard output. The manual page zbpp-plan(1)
has the details.)";

}  // namespace planning
