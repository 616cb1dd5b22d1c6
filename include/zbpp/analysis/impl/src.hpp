// SPDX-License-Identifier: Apache-2.0
//
// All that stands in analysis/impl.
#pragma once

#include <zbpp/analysis/impl/plan.ipp>
