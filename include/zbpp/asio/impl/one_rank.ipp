// SPDX-License-Identifier: Apache-2.0
//
// Compares plans and settings when an executor is made.
#pragma once

#include <zbpp/asio/one_rank.hpp>
#include <zbpp/config.hpp>

#include <utility>
#include <vector>

namespace zbpp::asio {

namespace detail {

[[nodiscard]] ZBPP_INLINE std::vector<agreement_item> with_losses(
    std::vector<agreement_item> items, bool shares_losses) {
  items.push_back(make_item("share_losses", shares_losses ? "true" : "false"));
  return items;
}

}  // namespace detail

ZBPP_INLINE one_rank::one_rank(
    rendezvous& run,
    plan const& planned,
    failure_calls calls,
    bool shares_losses,
    std::vector<agreement_item> more,
    pipeline_ranks ranks)
    : supervisor_(
          run.control_channel(),
          planned,
          std::move(calls),
          detail::with_losses(std::move(more), shares_losses),
          std::move(ranks)),
      shares_losses_(shares_losses) {}

}  // namespace zbpp::asio
