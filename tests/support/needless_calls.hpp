// SPDX-License-Identifier: Apache-2.0
//
// Mutation of what a step issues: each call left out once, to see whether anybody notices.
#pragma once

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/thinned.hpp>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Leaves out, one at a time, every call of some functions that a step makes; under sanitizers
/// every 29th.
/// @param is_clean  called with a function and the index of the call to be left out, or with none:
///                  runs a step under the model, counted, and gives whether nothing was found
/// @return those that nobody missed, as text; empty when all are needed
template <class Run>
[[nodiscard]] std::string needless_calls(
    std::initializer_list<std::string_view> functions, Run is_clean) {
  if (!is_clean(std::string_view(), std::uint64_t{0})) return "the whole step is wrong";
  std::vector<std::pair<std::string_view, std::uint64_t>> counts;
  for (auto const function : functions) counts.emplace_back(function, cuda_model::count(function));
  std::string needless;
  for (auto const& [function, count] : counts) {
    if (count == 0) needless.append("no ").append(function).append(" at all, ");
    for (std::uint64_t i = 0; i < count; i += thinned(1U, 29U))
      if (is_clean(function, i))
        needless.append(function).append(" ").append(std::to_string(i)).append(", ");
  }
  return needless;
}

}  // namespace zbpp::test
