// SPDX-License-Identifier: Apache-2.0
//
// All that the planner compiles, for the one source file that does.
#pragma once

#include <zbpp/planner/impl/bottleneck.ipp>
#include <zbpp/planner/impl/chunk_policies.ipp>
#include <zbpp/planner/impl/cut_search.ipp>
#include <zbpp/planner/impl/find_plan.ipp>
#include <zbpp/planner/impl/greedy_auto.ipp>
#include <zbpp/planner/impl/memory_needs.ipp>
#include <zbpp/planner/impl/placement_search.ipp>
#include <zbpp/planner/impl/registry.ipp>
#include <zbpp/planner/impl/save_memory.ipp>
#include <zbpp/planner/impl/search_once.ipp>
#include <zbpp/planner/impl/stage_per_layer.ipp>
