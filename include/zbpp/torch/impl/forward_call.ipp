// SPDX-License-Identifier: Apache-2.0
//
// What is said when a module gets another number of tensors than it takes.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/torch/detail/forward_call.hpp>

#include <string>

namespace zbpp::torch {

[[noreturn]] inline void detail::refuse_count(
    std::array<bool, most_arguments + 1> const& takes, std::size_t got) {
  std::string counts;
  for (std::size_t count = 1; count <= most_arguments; ++count)
    if (takes[count]) counts += zbpp::detail::joined(counts.empty() ? "" : " or ", count);
  throw error(errc::bad_argument) + "a module that takes " +
      (counts == "1" ? "one tensor" : counts + " tensors") + " got " + got +
      "; let its forward take zbpp::torch::tensors";
}

}  // namespace zbpp::torch
