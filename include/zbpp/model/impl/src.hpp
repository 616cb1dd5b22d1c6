// SPDX-License-Identifier: Apache-2.0
//
// All that stands in model/impl, and what error.hpp declares.
#pragma once

#include <zbpp/impl/error.ipp>
#include <zbpp/model/impl/costs.ipp>
#include <zbpp/model/impl/grid.ipp>
#include <zbpp/model/impl/layers.ipp>
#include <zbpp/model/impl/placement.ipp>
#include <zbpp/model/impl/problem.ipp>
#include <zbpp/model/impl/program.ipp>
#include <zbpp/model/impl/scaled_costs.ipp>
#include <zbpp/model/impl/schedule.ipp>
#include <zbpp/model/impl/timeline.ipp>
