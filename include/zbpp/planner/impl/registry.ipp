// SPDX-License-Identifier: Apache-2.0
//
// The list of built-in policies, and looking a policy up.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/planner/chunk_policies.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/dualpipe_v.hpp>
#include <zbpp/policy/interleaved.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/stp.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <string>

namespace zbpp {

ZBPP_INLINE std::vector<any_policy> builtin_policies(search_settings const& search) {
  return {
      gpipe{},
      one_f_one_b{},
      interleaved{},
      grouped_interleaved{},
      interleaved_zb{.search = search},
      zb_h1{},
      zb_h2{},
      zb_v{},
      v_half{.search = search},
      v_min{.search = search},
      dualpipe_v{},
      stp{},
      greedy_auto{.search = search}};
}

ZBPP_INLINE any_policy find_policy(std::vector<any_policy> const& policies, std::string_view name) {
  return detail::find_named(policies, name, name);
}

ZBPP_INLINE error
detail::unknown_policy(std::string_view shown, std::vector<std::string_view> const& names) {
  std::string text = "no policy is called '" + std::string(shown) + "'; there are";
  for (auto const name : names) text.append(" ").append(name);
  return error(errc::bad_argument, text);
}

}  // namespace zbpp
