// SPDX-License-Identifier: Apache-2.0
//
// All definitions of this folder; the compiled form has a source for each paragraph.
#pragma once

// What a plan is, whether it can run, and what it costs.
#include <zbpp/analysis/impl/deadlock.ipp>
#include <zbpp/analysis/impl/evaluation.ipp>
#include <zbpp/analysis/impl/largest_messages.ipp>
#include <zbpp/analysis/impl/lower.ipp>
#include <zbpp/analysis/impl/memory.ipp>
#include <zbpp/analysis/impl/message_times.ipp>
#include <zbpp/analysis/impl/plan.ipp>
#include <zbpp/analysis/impl/record_places.ipp>
#include <zbpp/analysis/impl/reductions.ipp>
#include <zbpp/analysis/impl/simulate.ipp>
#include <zbpp/analysis/impl/step_replay.ipp>
#include <zbpp/analysis/impl/steps.ipp>
#include <zbpp/analysis/impl/traffic.ipp>
#include <zbpp/analysis/impl/verify.ipp>

// How good it can be, and what was measured of it.
#include <zbpp/analysis/impl/bounds.ipp>
#include <zbpp/analysis/impl/clock_offsets.ipp>
#include <zbpp/analysis/impl/costs_from.ipp>
#include <zbpp/analysis/impl/exhaustive_search.ipp>
#include <zbpp/analysis/impl/explain.ipp>
#include <zbpp/analysis/impl/hardware_queues.ipp>
#include <zbpp/analysis/impl/order_so_far.ipp>
#include <zbpp/analysis/impl/period.ipp>
#include <zbpp/analysis/impl/profile.ipp>
