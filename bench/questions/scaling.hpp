// SPDX-License-Identifier: Apache-2.0
//
// Weak scaling: ever more ranks, each with as much of the model as before.
#pragma once

#include "models.hpp"
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <string>
#include <utility>
#include <vector>

namespace questions {

/// Answers for microbatches that grow with the ranks, and for a number of them that does not.
class scaling_answer {
 public:
  explicit scaling_answer(settings const& how) : how_(how) {}

  [[nodiscard]] answer operator()() {
    std::vector<chart_panel> panels{growing("unit", 0), growing("28.3B", 9), constant()};
    return {rows_.text(), draw("bubble rate", "%", std::move(panels))};
  }

 private:
  [[nodiscard]] std::vector<int> sizes() const {
    return how_.quick ? std::vector{8, 16} : std::vector{8, 16, 32, 64, 128, 256, 512, 1024};
  }

  [[nodiscard]] chart_panel growing(std::string const& model, std::size_t row) {
    auto result = panel_of(model + ", m = 3p", "ranks p", names());
    for (int ranks : sizes()) {
      auto each = row == 0 ? unit_pipeline(ranks, 3 * ranks) : paper_pipeline(row);
      each.ranks = ranks;
      each.microbatches = 3 * ranks;
      add(result, each);
    }
    return result;
  }

  [[nodiscard]] chart_panel constant() {
    constexpr int microbatches = 512;
    auto result = panel_of("28.3B, m = " + std::to_string(microbatches), "ranks p", names());
    for (int ranks : sizes()) {
      auto each = paper_pipeline(9);
      each.ranks = ranks;
      each.microbatches = microbatches;
      add(result, each);
    }
    return result;
  }

  [[nodiscard]] static std::vector<chart_curve> names() {
    return named({"1F1B", "ZB-H1", "ZB-H2", "ZB-V", "linear, 1p", "linear, 2p"});
  }

  void add(chart_panel& to, pipeline const& each) {
    auto const p = each.ranks;
    auto const tight = search(each.linear(p));
    auto const wide = search(each.linear(2 * p));
    auto const rate = [&](problem const& what, ticks cost) {
      return 100 * even_bubble(what, cost);
    };
    auto const linear = each.linear();
    auto const on_v = each.v();
    std::vector<double> const rates{
        rate(linear, cost_of(zbpp::one_f_one_b{}, linear)),
        rate(linear, cost_of(zbpp::zb_h1{}, linear)),
        rate(linear, cost_of(zbpp::zb_h2{}, linear)),
        rate(on_v, cost_of(zbpp::zb_v{}, on_v)),
        rate(linear, tight.cost),
        rate(linear, wide.cost)};
    to.horizontal.is_logarithmic = true;
    add_values(to, p, std::to_string(p), rates);
    auto cells = names_of(each);
    for (double value : rates) cells.push_back(percent(value / 100));
    if (tight.is_optimal()) cells[cells.size() - 2] += "*";
    if (wide.is_optimal()) cells.back() += "*";
    rows_.add(cells);
  }

  settings how_;
  table rows_{{"model", "p", "m", "1F1B", "ZB-H1", "ZB-H2", "ZB-V", "linear, 1p", "linear, 2p"}};
};

}  // namespace questions
