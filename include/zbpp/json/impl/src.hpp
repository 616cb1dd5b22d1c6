// SPDX-License-Identifier: Apache-2.0
//
// All definitions of component json; the compiled form has a source for each paragraph.
#pragma once

#include <zbpp/json/impl/chrome_trace.ipp>
#include <zbpp/json/impl/claims.ipp>
#include <zbpp/json/impl/document.ipp>
#include <zbpp/json/impl/explanation.ipp>
#include <zbpp/json/impl/layers.ipp>
#include <zbpp/json/impl/plan.ipp>
#include <zbpp/json/impl/problem.ipp>
#include <zbpp/json/impl/writable.ipp>

// What takes the planner, apart from what programs without it link.
#include <zbpp/json/impl/planners.ipp>
