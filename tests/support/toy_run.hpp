// SPDX-License-Identifier: Apache-2.0
//
// Runs of the toy network that several processes make alike: its plan, and digests of what it gave.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <support/toy_mlp.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

namespace zbpp::test {

/// Sums up values by their bits, in order (FNV-1a).
class digest {
 public:
  /// Adds the bits of values.
  template <class Values>
  void add(Values const& values) {
    for (auto const byte : std::as_bytes(std::span(values)))
      sum_ = (sum_ ^ static_cast<std::uint64_t>(byte)) * 1099511628211U;
  }
  /// @return the digest so far
  [[nodiscard]] unsigned long long value() const { return sum_; }

 private:
  std::uint64_t sum_ = 14695981039346656037U;
};

/// Makes the plan of a run: V placement for policies of two chunks, linear for others.
[[nodiscard]] inline plan toy_plan(
    std::string const& policy, int ranks, int microbatches, lower_options const& options = {}) {
  auto const placement = policy == "zb_v" ? placement::v_shape(ranks) : placement::linear(ranks);
  problem const problem(
      placement,
      microbatches,
      stage_costs{
          .forward = 10,
          .backward_input = 10,
          .backward_weight = 10,
          .activation = 2,
          .weight_gradient_input = 1,
          .edge = toy::edge});
  if (policy == "one_f_one_b") return make_plan(one_f_one_b{}, problem, options);
  if (policy == "zb_h1") return make_plan(zb_h1{}, problem, options);
  if (policy == "zb_h2") return make_plan(zb_h2{}, problem, options);
  if (policy == "zb_v") return make_plan(zb_v{}, problem, options);
  throw std::invalid_argument("toy_plan: there is no policy '" + policy + "' here");
}

}  // namespace zbpp::test
