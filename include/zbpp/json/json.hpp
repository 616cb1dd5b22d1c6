// SPDX-License-Identifier: Apache-2.0
//
// All of component json: problems, plans, traces, explanations, and what is true of a plan.
#pragma once

#include <zbpp/json/chrome_trace.hpp>
#include <zbpp/json/claims.hpp>
#include <zbpp/json/explanation.hpp>
#include <zbpp/json/plan.hpp>
#include <zbpp/json/problem.hpp>
