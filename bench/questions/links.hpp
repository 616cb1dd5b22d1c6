// SPDX-License-Identifier: Apache-2.0
//
// Bubble against the latency and the bandwidth of links: where all are slow, where one is, and
// where those between racks are.
#pragma once

#include "models.hpp"
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace questions {

/// Answers for one pipeline, whose links differ.
class links_answer {
 public:
  explicit links_answer(settings const& how) : how_(how) {}

  [[nodiscard]] answer operator()() {
    std::string text = base_.name + ", p = " + std::to_string(base_.ranks) +
                       ", m = " + std::to_string(base_.microbatches) +
                       ". Cells are bubble rates in percent.\n\n";
    auto all = panel_of("all links", "time of a message / F", names());
    auto rows = begin("all links: T/F");
    for (double share : pick<double>({0, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2}, 1))
      add_values(
          all,
          zbpp::number_text(share),
          add(rows, zbpp::number_text(share), with_links([&](int, int) {
                return share * forward();
              })));
    text += rows.text();

    auto const middle = base_.ranks / 2;
    auto one = panel_of("one slow link in the middle", "time of its messages / F", names());
    rows = begin("middle link: T/F");
    for (double share : pick<double>({0.04, 0.2, 0.5, 1, 2, 5, 10}, 1))
      add_values(
          one,
          zbpp::number_text(share),
          add(rows, zbpp::number_text(share), slow_between(middle, share)));
    text += rows.text();

    rows = begin("slow link (T/F = 2): ranks");
    for (int behind :
         pick<int>({1, base_.ranks / 4, middle, 3 * base_.ranks / 4, base_.ranks - 1}, 0))
      add(rows,
          std::to_string(behind - 1) + " and " + std::to_string(behind),
          slow_between(behind, 2));
    text += rows.text();

    auto racks = panel_of("links between racks", "their bandwidth [Gbit/s]", names());
    rows = begin("between racks [Gbit/s]: message [ms]");
    for (double gigabits : pick<double>({400, 200, 100, 50, 25, 10}, 1)) {
      auto const time = message_bits / gigabits;  // ns
      auto const words = zbpp::number_text(gigabits);
      auto const each =
          with_links([&](int from, int to) { return from / rack == to / rack ? usual() : time; });
      add_values(racks, words, add(rows, words + ": " + fixed_text(time / 1e6, 2), each));
    }
    text += rows.text();
    return {text, draw("bubble rate", "%", {all, one, racks})};
  }

 private:
  static constexpr int rack = 8;  // ranks
  // An activation of 28.3B in half precision: 1 * 1024 * 6144 numbers. @source arXiv 2401.10241v1
  // table 3
  static constexpr double message_bits = 1024.0 * 6144 * 16;

  [[nodiscard]] double forward() const { return static_cast<double>(base_.share.forward); }
  [[nodiscard]] double usual() const { return static_cast<double>(base_.transfer(0, 1, 0)); }

  template <class Value>
  [[nodiscard]] std::vector<Value> pick(std::vector<Value> all, std::size_t if_quick) const {
    if (how_.quick) all.resize(if_quick);
    return all;
  }

  template <class Time>
  [[nodiscard]] pipeline with_links(Time time) const {
    std::vector<ticks> latency;
    for (int from = 0; from < base_.ranks; ++from)
      for (int to = 0; to < base_.ranks; ++to)
        latency.push_back(from == to ? 0 : std::llround(time(from, to)));
    auto result = base_;
    result.transfer = {base_.ranks, latency};
    return result;
  }

  [[nodiscard]] pipeline slow_between(int behind, double share) const {
    return with_links([&](int from, int to) {
      bool const is_slow = (from < behind) != (to < behind);
      return is_slow ? share * forward() : usual();
    });
  }

  [[nodiscard]] static std::vector<chart_curve> names() {
    return named({"1F1B", "ZB-H1", "ZB-H2", "ZB-V", "linear, 1p", "linear, 2p", "V, 1p"});
  }

  [[nodiscard]] static table begin(std::string const& first) {
    std::vector<std::string> header{first};
    for (auto const& each : names()) header.push_back(each.name);
    return table(header);
  }

  // Appends a line.
  // @return the values of the curves
  static std::vector<double> add(table& rows, std::string const& words, pipeline const& each) {
    auto const p = each.ranks;
    std::vector<std::string> cells{words};
    std::vector<double> rates;
    auto const put = [&](problem const& what, ticks cost, bool is_optimal) {
      rates.push_back(100 * even_bubble(what, cost));
      cells.push_back(percent(even_bubble(what, cost)) + (is_optimal ? "*" : ""));
    };
    auto const linear = each.linear();
    put(linear, cost_of(zbpp::one_f_one_b{}, linear), false);
    put(linear, cost_of(zbpp::zb_h1{}, linear), false);
    put(linear, cost_of(zbpp::zb_h2{}, linear), false);
    put(each.v(), cost_of(zbpp::zb_v{}, each.v()), false);
    for (auto const& what : {each.linear(p), each.linear(2 * p), each.v(p)}) {
      auto const found = search(what);
      put(what, found.cost, found.is_optimal());
    }
    rows.add(cells);
    return rates;
  }

  settings how_;
  pipeline base_ = paper_pipeline(9);
};

}  // namespace questions
