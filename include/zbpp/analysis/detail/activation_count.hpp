// SPDX-License-Identifier: Apache-2.0
//
// What the passes of one rank keep in memory, pass by pass.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Follows the activations of one rank through its passes.
///
/// F adds what it keeps, B adds gradients for W and then frees all but what W needs, W frees that;
/// BW adds nothing and frees what F kept. With R, F keeps `recompute_input` and R adds the rest.
class activation_count {
 public:
  activation_count(problem const& problem, std::span<pass const> row) : problem_(problem) {
    for (auto const& p : row)
      if (p.kind == pass_kind::recompute) recomputed_.push_back({p.stage, p.microbatch});
    std::sort(recomputed_.begin(), recomputed_.end());
  }

  /// Begins a pass. @return what is in use while it runs
  bytes begin(pass const& p) {
    auto const& c = problem_.costs(p.stage);
    switch (p.kind) {
      case pass_kind::forward:
        in_use_ += is_recomputed(p) ? c.recompute_input : c.activation;
        break;
      case pass_kind::recompute: in_use_ += c.activation - c.recompute_input; break;
      case pass_kind::backward_input: in_use_ += c.output_gradient; break;
      case pass_kind::backward_weight:
      case pass_kind::backward: break;
    }
    return in_use_;
  }

  /// Ends a pass. @return what is in use after it
  bytes end(pass const& p) {
    auto const& c = problem_.costs(p.stage);
    switch (p.kind) {
      case pass_kind::forward:
      case pass_kind::recompute: break;
      case pass_kind::backward_input:
        in_use_ -= c.activation + c.output_gradient - c.weight_gradient_input;
        break;
      case pass_kind::backward_weight: in_use_ -= c.weight_gradient_input; break;
      case pass_kind::backward: in_use_ -= c.activation; break;
    }
    return in_use_;
  }

 private:
  [[nodiscard]] bool is_recomputed(pass const& p) const {
    return !recomputed_.empty() &&
           std::binary_search(
               recomputed_.begin(), recomputed_.end(), std::pair(p.stage, p.microbatch));
  }

  problem const& problem_;
  std::vector<std::pair<std::int32_t, std::int32_t>> recomputed_;
  bytes in_use_ = 0;
};

}  // namespace zbpp::detail
