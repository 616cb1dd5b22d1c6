// SPDX-License-Identifier: Apache-2.0
//
// All definitions of component json.
#pragma once

#include <zbpp/json/impl/chrome_trace.ipp>
#include <zbpp/json/impl/claims.ipp>
#include <zbpp/json/impl/document.ipp>
#include <zbpp/json/impl/explanation.ipp>
#include <zbpp/json/impl/plan.ipp>
#include <zbpp/json/impl/problem.ipp>
#include <zbpp/json/impl/writable.ipp>
