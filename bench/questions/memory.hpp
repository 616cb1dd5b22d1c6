// SPDX-License-Identifier: Apache-2.0
//
// From which memory on bubbles vanish: the least room for activations with which a plan is as cheap
// as without a limit.
#pragma once

#include "models.hpp"
#include <zbpp/analysis/bounds.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace questions {

/// States the least room that lets a step cost no more than a target.
struct least_room {
  int proved = 0;  ///< no plan with less room does, says the lower bound
  int found = 0;   ///< with this room a plan was found that does

  [[nodiscard]] std::string text() const {
    auto const less = proved == found ? "" : std::to_string(proved) + "–";
    return less + std::to_string(found) + (proved == found ? "*" : "");
  }
};

/// Answers for one pipeline after the other.
class memory_answer {
 public:
  explicit memory_answer(settings const& how) : how_(how) {}

  [[nodiscard]] answer operator()() {
    auto by_ranks = panel_of("F = B = W, m = 8p, free messages", "ranks p", names());
    auto by_transfer = panel_of("F = B = W, p = 8, m = 64", "time of a message / F", names());
    for (int ranks : how_.quick ? std::vector{4, 8} : std::vector{4, 8, 16, 32}) {
      add(unit_pipeline(ranks, 3 * ranks));
      auto const each = unit_pipeline(ranks, 8 * ranks);
      auto const values = add(each);
      add_values(by_ranks, std::to_string(ranks), values);
      if (ranks == 8) add_values(by_transfer, "0", values);
    }
    for (double transfer : how_.quick ? std::vector{0.05} : std::vector{0.05, 0.1, 0.2, 0.5, 1.0}) {
      auto each = unit_pipeline(8, 64);
      each.transfer = std::llround(transfer * static_cast<double>(each.share.forward));
      add_values(by_transfer, zbpp::number_text(transfer), add(each));
    }
    if (!how_.quick) {
      for (auto const& [forward, backward, weight] :
           {std::array{10, 10, 5}, {10, 20, 10}, {10, 15, 10}, {20, 10, 10}, {10, 10, 15}})
        add(unit_pipeline(8, 64, forward, backward, weight));
      for (std::size_t const profile : std::array<std::size_t, 8>{0, 2, 3, 5, 6, 8, 9, 11})
        add(paper_pipeline(profile));
    }
    return {rows_.text(), draw("activations of a rank", "p microbatches", {by_ranks, by_transfer})};
  }

 private:
  [[nodiscard]] static std::vector<chart_curve> names() {
    return {
        {"linear, as without limit"},
        {.name = "paper's formula, none", .is_dashed = true},
        {"linear, within 1 %"},
        {.name = "paper's formula", .is_dashed = true},
        {"V, within 1 %"},
        {.name = "2p", .is_dashed = true}};
  }

  // Where more room never makes a bound worse, the least room that it allows is found by halving.
  template <class MakeProblem>
  [[nodiscard]] static least_room least(MakeProblem make, int most, ticks target) {
    int below = 0;
    int proved = most;
    while (proved - below > 1) {
      auto const middle = (below + proved) / 2;
      if (zbpp::lower_bound(make(middle)).cost <= target)
        proved = middle;
      else
        below = middle;
    }
    int found = proved;
    while (search(make(found)).cost > target) {
      expect(found < most, "memory for all microbatches is less than no limit");
      ++found;
    }
    return {proved, found};
  }

  [[nodiscard]] static ticks within_a_percent(ticks cost) { return cost + cost / 100; }

  // @return the values of the curves, in multiples of p
  std::vector<double> add(pipeline const& each) {
    auto const forward = each.share.forward;
    auto const backward = each.share.backward_input;
    auto const transfer = each.transfer(0, 1, 0);
    auto const p = each.ranks;
    auto const linear = [&](int room) { return each.linear(room); };
    auto const on_v = [&](int room) { return each.v(room); };
    auto const best = search(each.linear());
    auto const best_v = search(each.v());
    auto const near = least(linear, each.microbatches, within_a_percent(best.cost));
    auto const same = least(linear, each.microbatches, best.cost);
    auto const near_v = least(on_v, each.microbatches, within_a_percent(best_v.cost));
    // @source arXiv 2401.10241v1 appendix B
    auto const formula = (p - 1) * (backward + 2 * transfer) / forward + p;
    auto const formula_none = (p - 1) * (backward + 2 * transfer) / forward + 2 * p - 1;
    auto const rate = [](problem const& what, zbpp::found_plan const& found) {
      return percent(even_bubble(what, found.cost)) + (found.is_optimal() ? "*" : "");
    };
    auto const share = [&](ticks time) {
      return fixed_text(static_cast<double>(time) / static_cast<double>(forward), 2);
    };
    auto cells = names_of(each);
    for (auto const& cell :
         {share(backward),
          share(each.share.backward_weight),
          share(transfer),
          rate(each.linear(), best),
          near.text(),
          std::to_string(formula),
          std::to_string(2 * p),
          same.text(),
          std::to_string(formula_none),
          rate(each.v(), best_v),
          near_v.text()})
      cells.push_back(cell);
    rows_.add(cells);
    std::vector<double> values;
    for (auto const room :
         {ticks{same.found},
          formula_none,
          ticks{near.found},
          formula,
          ticks{near_v.found},
          ticks{2 * p}})
      values.push_back(static_cast<double>(room) / p);
    return values;
  }

  settings how_;
  table rows_{
      {"model",
       "p",
       "m",
       "B/F",
       "W/F",
       "T/F",
       "bubble without limit [%]",
       "k within 1 %",
       "formula",
       "2p",
       "k as without limit",
       "formula, none",
       "V: bubble without limit [%]",
       "V: k within 1 %"}};
};

}  // namespace questions
