// SPDX-License-Identifier: Apache-2.0
//
// All that the room above planner and runtime compiles, for the one source file that does.
#pragma once

#include <zbpp/adapt/impl/plans_by_count.ipp>
#include <zbpp/adapt/impl/replanner.ipp>
