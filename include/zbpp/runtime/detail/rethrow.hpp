// SPDX-License-Identifier: Apache-2.0
//
// How a failure leaves a pipeline: as an error that says where it happened.
#pragma once

#include <zbpp/runtime/failure.hpp>

namespace zbpp::detail {

/// Throws what failed, with its place.
///
/// An `error` keeps its type, its code and what it says; it gets the place if it has none. Anything
/// else is nested in an `error` (pass_failed) with the place that says the same without backtrace.
[[noreturn]] void rethrow_located(failure const& failed);

/// Gives a failure the place of its error where that names a rank and no position, as those of
/// callbacks do: then no instruction was running.
void take_place_of_error(failure& failed) noexcept;

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/rethrow.ipp>
#endif
