// SPDX-License-Identifier: Apache-2.0
//
// How an engine refuses a flow that does not do what the program says, or that sends too much.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>

#include <string_view>

namespace zbpp::detail {

/// Refuses a flow; `does` and `point`, followed by `after`, say what it does instead.
/// @throws error (wrong_flow) always
[[noreturn]] void refuse_flow(
    instruction const& running,
    location const& at,
    std::string_view does,
    std::string_view point,
    std::string_view after);

/// Refuses a flow of the last stage without a loss in an evaluation whose outputs nobody takes.
/// @throws error (wrong_flow) always
[[noreturn]] void refuse_missing_loss(location const& at);

/// Refuses a message that carries more than the costs declare.
/// @throws error (wrong_size) always
[[noreturn]] void refuse_size(
    location const& at, int from_stage, bool forward, bytes carried, bytes declared);

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/refuse_flow.ipp>
#endif
