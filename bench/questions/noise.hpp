// SPDX-License-Identifier: Apache-2.0
//
// How far costs may be wrong before a plan loses its gain: plans made with one set of times are run
// with another one.
#pragma once

#include "models.hpp"
#include <zbpp/analysis/detail/pass_inputs.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace questions {

/// @return the costs with F, B and W each multiplied by what `factor` returns
template <class Factor>
[[nodiscard]] zbpp::stage_costs changed(zbpp::stage_costs costs, Factor factor) {
  for (auto* time : {&costs.forward, &costs.backward_input, &costs.backward_weight})
    *time = std::llround(static_cast<double>(*time) * factor());
  return costs;
}

/// Holds what each microbatch takes on each stage.
using pass_costs = zbpp::cells<zbpp::stage_costs>;

/// Draws each pass anew, evenly from (1 - noise) to (1 + noise) times its mean.
[[nodiscard]] inline pass_costs drawn(
    problem const& from, double noise, zbpp::test::plain_random& random) {
  pass_costs result(from.stages(), from.microbatches());
  for (int stage = 0; stage < from.stages(); ++stage)
    for (int microbatch = 0; microbatch < from.microbatches(); ++microbatch)
      result(stage, microbatch) =
          changed(from.costs(stage), [&] { return random.real(1 - noise, 1 + noise); });
  return result;
}

/// Times a schedule as `simulate` does, each pass with a time of its own.
[[nodiscard]] inline zbpp::timeline simulate_passes(
    zbpp::schedule const& order, problem const& what, pass_costs const& costs) {
  zbpp::detail::pass_inputs inputs(what);
  std::vector<std::vector<zbpp::timed_pass>> rows(static_cast<std::size_t>(order.ranks()));
  for (bool again = true; std::exchange(again, false);) {
    for (int rank = 0; rank < order.ranks(); ++rank) {
      auto& row = rows[static_cast<std::size_t>(rank)];
      for (auto const& p : order.passes(rank).subspan(row.size())) {
        auto const arrival = inputs(p);
        if (arrival == zbpp::detail::pass_inputs::never) break;
        auto const start = std::max(arrival, row.empty() ? 0 : row.back().end);
        row.push_back({p, start, start + costs(p.stage, p.microbatch).of(p.kind)});
        inputs.end(row.back());
        again = true;
      }
    }
  }
  return zbpp::timeline(rows);
}

/// @return the share of its time that the busiest rank idles; no order can help its work
[[nodiscard]] inline double idle_of_busiest(zbpp::timeline const& line) {
  ticks most = 0;
  for (int rank = 0; rank < line.ranks(); ++rank) most = std::max(most, zbpp::busy(line, rank));
  return 1 - static_cast<double>(most) / static_cast<double>(zbpp::cost(line));
}

/// A problem whose ranks each are slower or faster throughout.
[[nodiscard]] inline problem with_uneven_ranks(
    problem const& even, std::vector<double> const& factor_of_rank) {
  std::vector<zbpp::stage_costs> stages;
  for (int stage = 0; stage < even.stages(); ++stage) {
    auto const rank = static_cast<std::size_t>(even.placement().rank_of(stage));
    stages.push_back(changed(even.costs(stage), [&] { return factor_of_rank[rank]; }));
  }
  return {
      even.placement(),
      even.microbatches(),
      stages,
      even.transfer(),
      {even.memory_limits().begin(), even.memory_limits().end()}};
}

/// Answers for one pipeline after the other.
class noise_answer {
 public:
  explicit noise_answer(settings const& how) : how_(how) {}

  [[nodiscard]] answer operator()() {
    std::vector<chart_panel> panels;
    for (std::size_t row :
         how_.quick ? std::vector<std::size_t>{3} : std::vector<std::size_t>{3, 9}) {
      auto const each = paper_pipeline(row);
      auto const plans = plans_of(each);
      panels.push_back(ask_passes(each, plans));
      panels.push_back(ask_ranks(each, plans));
    }
    panels.resize(2);
    auto const caption = [&](char const* what, int draws) {
      return std::string(what) + " Seed " + std::to_string(how_.seed) + ", " +
             std::to_string(draws) + " draws.\n\n";
    };
    return {
        caption("Each pass drawn anew.", pass_draws) + by_pass_.text() +
            caption("Each rank slower or faster throughout.", rank_draws) + by_rank_.text(),
        draw("idle time of the busiest rank", "%", std::move(panels))};
  }

 private:
  static constexpr int pass_draws = 50;
  static constexpr int rank_draws = 10;  // each of which is planned for anew

  struct plan {
    std::string name;
    problem planned_for;
    zbpp::schedule order;
    bool searched;
  };

  // Those that search come last; they can plan again.
  [[nodiscard]] static std::vector<plan> plans_of(pipeline const& each) {
    auto const p = each.ranks;
    auto const free = each.linear();
    auto const on_v = each.v();
    std::vector<plan> result{
        {"1F1B", free, zbpp::one_f_one_b{}(free), false},
        {"ZB-H1", free, zbpp::zb_h1{}(free), false},
        {"ZB-H2", free, zbpp::zb_h2{}(free), false},
        {"ZB-V", on_v, zbpp::zb_v{}(on_v), false}};
    auto const add = [&](char const* name, problem const& what) {
      result.push_back({name, what, search(what).schedule, true});
    };
    add("linear, 1p", each.linear(p));
    add("linear, 2p", each.linear(2 * p));
    add("V, 1p", each.v(p));
    return result;
  }

  // Cases have random numbers of their own, so that each is the same beside any others.
  [[nodiscard]] zbpp::test::plain_random random(pipeline const& each, int level, int draw) const {
    auto const number = (each.ranks * 100 + level) * 1000 + draw;
    return zbpp::test::plain_random(how_.seed * 100'000'000 + static_cast<std::uint64_t>(number));
  }

  [[nodiscard]] chart_panel ask_passes(pipeline const& each, std::vector<plan> const& plans) {
    auto result = panel_of(each.name + ", each pass drawn anew", "noise [± %]", curves_of(plans));
    for (int level : how_.quick ? std::vector{0, 10} : std::vector{0, 1, 2, 5, 10, 20, 30}) {
      std::vector<double> sums(plans.size(), 0);
      auto const draws = level == 0 ? 1 : pass_draws;
      for (int draw = 0; draw < draws; ++draw) {
        auto numbers = random(each, level, draw);
        // All plans of a placement meet the same times.
        auto const linear = drawn(each.linear(), level / 100.0, numbers);
        auto const on_v = drawn(each.v(), level / 100.0, numbers);
        for (std::size_t i = 0; i < plans.size(); ++i) {
          auto const& [name, what, order, searched] = plans[i];
          auto const line =
              simulate_passes(order, what, what.placement().is_v_shape() ? on_v : linear);
          if (level == 0)
            expect(line == zbpp::simulate(order, what), "two simulations of a step differ");
          sums[i] += idle_of_busiest(line);
        }
      }
      add_level(by_pass_, result, each, level, sums, draws);
    }
    return result;
  }

  [[nodiscard]] chart_panel ask_ranks(pipeline const& each, std::vector<plan> const& plans) {
    auto result =
        panel_of(each.name + ", each rank slower or faster", "noise [± %]", curves_of(plans));
    for (auto const& one : plans)
      if (one.searched)
        result.curves.push_back(
            {.name = one.name + ", planned again", .is_dashed = true, .colour_like = one.name});
    for (int level : how_.quick ? std::vector{0} : std::vector{0, 1, 2, 5, 10, 20, 30}) {
      std::vector<double> sums(result.curves.size(), 0);
      auto const draws = level == 0 ? 1 : rank_draws;
      for (int draw = 0; draw < draws; ++draw) {
        auto numbers = random(each, level, draw);
        std::vector<double> factors;
        for (int rank = 0; rank < each.ranks; ++rank)
          factors.push_back(numbers.real(1 - level / 100.0, 1 + level / 100.0));
        auto again = plans.size();
        for (std::size_t i = 0; i < plans.size(); ++i) {
          auto const& one = plans[i];
          auto const truth = with_uneven_ranks(one.planned_for, factors);
          sums[i] += idle_of_busiest(zbpp::simulate(one.order, truth));
          if (one.searched)
            sums[again++] += idle_of_busiest(zbpp::simulate(search(truth).schedule, truth));
        }
      }
      add_level(by_rank_, result, each, level, sums, draws);
    }
    return result;
  }

  [[nodiscard]] static std::vector<chart_curve> curves_of(std::vector<plan> const& plans) {
    std::vector<chart_curve> result;
    for (auto const& one : plans) result.push_back({one.name});
    return result;
  }

  static void add_level(
      table& rows,
      chart_panel& picture,
      pipeline const& each,
      int level,
      std::vector<double> sums,
      int draws) {
    auto cells = names_of(each);
    cells.push_back(std::to_string(level));
    for (double& sum : sums) {
      sum *= 100.0 / draws;
      cells.push_back(fixed_text(sum, 2));
    }
    rows.add(cells);
    add_values(picture, std::to_string(level), sums);
  }

  // Of both tables, and what one has besides.
  static std::vector<std::string> columns(std::vector<std::string> const& more) {
    std::vector<std::string> all{
        "model",
        "p",
        "m",
        "noise [± %]",
        "1F1B",
        "ZB-H1",
        "ZB-H2",
        "ZB-V",
        "linear, 1p",
        "linear, 2p",
        "V, 1p"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  settings how_;
  table by_pass_{columns({})};
  table by_rank_{columns({"linear, 1p, again", "linear, 2p, again", "V, 1p, again"})};
};

}  // namespace questions
