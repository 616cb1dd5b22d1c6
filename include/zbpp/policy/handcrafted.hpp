// SPDX-License-Identifier: Apache-2.0
//
// The policies that follow a rule and search nothing: all of them in one list, and what they make
// of a problem.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/policy/dualpipe_v.hpp>
#include <zbpp/policy/interleaved.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/stp.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <vector>

namespace zbpp {

/// Calls a function with each policy that searches nothing.
template <class Call>
void for_each_handcrafted(Call const& call) {
  call(gpipe{});
  call(one_f_one_b{});
  call(interleaved{});
  call(grouped_interleaved{});
  call(zb_h1{});
  call(zb_h2{});
  call(zb_v{});
  call(dualpipe_v{});
  call(stp{});
}

namespace detail {

/// @return the schedule of each handcrafted policy that suits a problem, whatever memory it needs
[[nodiscard]] inline std::vector<schedule> handcrafted_orders(problem const& problem) {
  std::vector<schedule> orders;
  for_each_handcrafted([&](auto const& policy) {
    if (policy.suits(problem.placement(), problem.microbatches()))
      orders.push_back(policy(problem));
  });
  return orders;
}

}  // namespace detail
}  // namespace zbpp
