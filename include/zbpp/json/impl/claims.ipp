// SPDX-License-Identifier: Apache-2.0
//
// How a plan is compared with what follows from its problem and order.
#pragma once

#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/json/claims.hpp>
#include <zbpp/json/detail/problem_text.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::json {

namespace detail {

/// Compares what a plan file says with what is true.
class claim_check {
 public:
  explicit claim_check(plan_report const& said) : said_(said) {}

  [[nodiscard]] std::vector<std::string> run() {
    bool may_run = true;
    for (auto const& found : verify(lower(said_.schedule), said_.problem)) {
      faults_.push_back(to_string(found));
      may_run = may_run && (found.fault == fault::memory || is_remark(found.fault));
    }
    if (may_run) compare(make_plan_report(said_.policy, said_.schedule, said_.problem));
    return std::move(faults_);
  }

 private:
  void compare(plan_report const& found) {
    for (int rank = 0; rank < found.problem.ranks(); ++rank) compare_times(found, rank);
    if (said_.cost != found.cost) add("cost", shown(said_.cost), shown(found.cost));
    if (said_.period != found.period) add("period", shown(said_.period), shown(found.period));
    if (std::abs(said_.bubble_rate - found.bubble_rate) > 1e-4)
      add("bubble_rate", number_text(said_.bubble_rate), number_text(found.bubble_rate));
    for (std::size_t rank = 0; rank < found.peak_memory.size(); ++rank)
      if (auto const peak = said_.peak_memory[rank]; peak != found.peak_memory[rank])
        add(zbpp::detail::joined("rank ", rank, ": peak_memory"),
            std::to_string(peak),
            std::to_string(found.peak_memory[rank]));
    if (said_.lower_bound > found.lower_bound)
      add("lower_bound", shown(said_.lower_bound), "at most " + shown(found.lower_bound));
    if (said_.optimal && !found.optimal)
      add("optimal",
          "true",
          "false: the cost is " + shown(found.cost) + ", the proved bound " +
              shown(found.lower_bound));
  }

  // The first wrong time of a rank; those after it mostly follow from it.
  void compare_times(plan_report const& found, int rank) {
    auto const said = said_.timeline[rank];
    auto const right = found.timeline[rank];
    auto const [at, good] = std::mismatch(said.begin(), said.end(), right.begin(), right.end());
    if (at == said.end()) return;
    location const position{.rank = rank, .position = at - said.begin()};
    add(zbpp::to_string(position) + ": " + to_string(at->pass),
        shown(at->start) + " to " + shown(at->end),
        shown(good->start) + " to " + shown(good->end));
  }

  void add(std::string const& name, std::string const& said, std::string const& right) {
    faults_.push_back(name + ": the file says " + said + "; expected " + right);
  }

  [[nodiscard]] static std::string shown(ticks time) {
    return time_text(time, time_unit::milliseconds);
  }

  plan_report const& said_;
  std::vector<std::string> faults_;
};

}  // namespace detail

ZBPP_INLINE std::vector<std::string> check_claims(plan_report const& said) {
  detail::check_writable(said);
  return detail::claim_check(said).run();
}

}  // namespace zbpp::json
