// SPDX-License-Identifier: Apache-2.0
//
// When two chunks per rank pay, whose messages cross each link twice as often.
#pragma once

#include "models.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace questions {

/// Answers for several pipelines, each with ever slower messages.
class halving_answer {
 public:
  explicit halving_answer(settings const& how) : how_(how) {}

  [[nodiscard]] answer operator()() {
    std::vector<chart_panel> panels;
    panels.push_back(by_transfer("F = B = W, p = 8, m = 24", unit_pipeline(8, 24)));
    if (!how_.quick) {
      panels.push_back(by_transfer("6.2B, p = 8, m = 64", paper_pipeline(5)));
      panels.push_back(by_transfer("14.6B, p = 16, m = 48", paper_pipeline(6)));
    }
    return {rows_.text(), draw("bubble rate", "%", std::move(panels))};
  }

 private:
  [[nodiscard]] std::vector<double> shares() const {
    return how_.quick ? std::vector{0.0}
                      : std::vector{0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0};
  }

  [[nodiscard]] chart_panel by_transfer(std::string const& title, pipeline each) {
    auto result = panel_of(
        title,
        "time of a message / F",
        named({"linear, 1p", "V, 1p", "looped, 1p", "linear, 2p", "V, 2p", "looped, 2p"}));
    for (double share : shares()) {
      each.transfer = std::llround(share * static_cast<double>(each.share.forward));
      auto cells = names_of(each);
      cells.push_back(zbpp::number_text(share));
      std::vector<double> rates;
      std::vector<ticks> costs;
      for (int times : {1, 2}) {
        auto const room = times * each.ranks;
        for (auto const& what : {each.linear(room), each.v(room), each.looped(room)}) {
          auto const found = search(what);
          rates.push_back(100 * even_bubble(what, found.cost));
          costs.push_back(found.cost);
          cells.push_back(percent(rates.back() / 100) + (found.is_optimal() ? "*" : ""));
        }
      }
      // How much longer a step takes with one chunk per rank.
      for (std::size_t const linear : std::array<std::size_t, 2>{0, 3}) {
        auto const gain =
            static_cast<double>(costs[linear]) / static_cast<double>(costs[linear + 1]) - 1;
        cells.push_back(percent(gain));
      }
      rows_.add(cells);
      add_values(result, zbpp::number_text(share), rates);
    }
    return result;
  }

  settings how_;
  table rows_{
      {"model",
       "p",
       "m",
       "T/F",
       "linear, 1p",
       "V, 1p",
       "looped, 1p",
       "linear, 2p",
       "V, 2p",
       "looped, 2p",
       "gain of V, 1p",
       "gain of V, 2p"}};
};

}  // namespace questions
