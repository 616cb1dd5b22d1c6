// SPDX-License-Identifier: Apache-2.0
//
// What plans without training: policies and searches, what their orders take, lower bounds,
// pictures, and files.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/clock_offsets.hpp>
#include <zbpp/analysis/costs_from.hpp>
#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/analysis/explain.hpp>
#include <zbpp/analysis/hardware_queues.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/message_times.hpp>
#include <zbpp/analysis/period.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/profile.hpp>
#include <zbpp/analysis/reductions.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/steps.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/ascii.hpp>
#include <zbpp/io/chrome_trace.hpp>
#include <zbpp/io/csv.hpp>
#include <zbpp/io/drawing.hpp>
#include <zbpp/io/explanation_drawing.hpp>
#include <zbpp/io/explanation_text.hpp>
#include <zbpp/io/profile_text.hpp>
#include <zbpp/io/svg.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/io/text_table.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/message_record.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/scaled_costs.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/chunk_policies.hpp>
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/planner/save_memory.hpp>
#include <zbpp/planner/search.hpp>
#include <zbpp/policy/handcrafted.hpp>
#include <zbpp/policy/policy.hpp>
