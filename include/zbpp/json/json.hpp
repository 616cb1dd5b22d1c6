// SPDX-License-Identifier: Apache-2.0
//
// All of component json: problems and plans as JSON, and what is true of a plan.
#pragma once

#include <zbpp/json/claims.hpp>
#include <zbpp/json/layers.hpp>
#include <zbpp/json/plan.hpp>
#include <zbpp/json/problem.hpp>
