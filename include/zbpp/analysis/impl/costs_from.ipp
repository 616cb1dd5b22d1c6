// SPDX-License-Identifier: Apache-2.0
//
// What analysis/costs_from.hpp declares.
#pragma once

#include <zbpp/analysis/costs_from.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/detail/median.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/scaled_costs.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

// What the passes of one stage took, by their kind.
class pass_samples {
 public:
  void add(pass_kind kind, ticks took) { of(kind).push_back(took); }

  [[nodiscard]] std::optional<ticks> median(pass_kind kind) {
    auto& all = of(kind);
    if (all.empty()) return std::nullopt;
    return detail::median(all);
  }

 private:
  std::vector<ticks>& of(pass_kind kind) { return kinds_[static_cast<std::size_t>(kind)]; }

  std::array<std::vector<ticks>, pass_kinds> kinds_;
};

// What the pairs of a rank took: the passes of each, and its time.
struct pair_sample {
  pass forward;
  pass backward;
  ticks took;
};

// @return `part` of what was `whole` and is `now`; half of it where nothing was stated
[[nodiscard]] inline ticks scaled(ticks part, ticks whole, ticks now) {
  auto const share = whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.5;
  return static_cast<ticks>(std::llround(share * static_cast<double>(now)));
}

ZBPP_INLINE ticks at_factor_1(ticks took, double factor) {
  if (factor == 1) return took;
  constexpr double most = 0x1p62;  // which no problem takes
  auto const time = static_cast<double>(took) / factor;
  return static_cast<ticks>(std::llround(std::clamp(time, -most, most)));
}

ZBPP_INLINE void check_measured(timed_pass const& timed, problem const& stated) {
  auto const& p = timed.pass;
  auto const refuse = [&](std::string const& why) {
    throw error(errc::bad_argument, {.stage = p.stage, .microbatch = p.microbatch}) +
        "a measured step holds " + to_string(p) + ", " + why;
  };
  if (p.stage < 0 || p.stage >= stated.stages() || p.microbatch < 0 ||
      p.microbatch >= stated.microbatches())
    refuse(
        joined("which the problem does not have: its stages are 0 to ") + (stated.stages() - 1) +
        ", its microbatches 0 to " + (stated.microbatches() - 1) +
        "; give the problem of the plan that ran");
  if (timed.end < timed.start) refuse("which ends before it starts");
  if (p.kind == pass_kind::recompute && !stated.costs(p.stage).recompute)
    refuse("but the problem's stage has no recompute; give the problem of the plan that ran");
}

ZBPP_INLINE void set_backward(stage_costs& costs, pass_samples& samples) {
  auto const stated = costs;
  auto const fused = samples.median(pass_kind::backward);
  auto const input = samples.median(pass_kind::backward_input);
  auto const weight = samples.median(pass_kind::backward_weight);
  if (fused && !input && !weight) {
    auto const both = stated.backward_input + stated.backward_weight;
    auto const now = both > 0 ? scaled(both, stated.of(pass_kind::backward), *fused) : *fused;
    costs.backward_input = scaled(stated.backward_input, both, now);
    costs.backward_weight = now - costs.backward_input;
  } else {
    costs.backward_input = input.value_or(stated.backward_input);
    costs.backward_weight = weight.value_or(stated.backward_weight);
  }
  if (!fused && !stated.backward_fused) return;
  auto const both = costs.backward_input + costs.backward_weight;
  auto const taken =
      fused ? *fused
            : scaled(*stated.backward_fused, stated.backward_input + stated.backward_weight, both);
  costs.backward_fused =
      std::clamp(taken, std::max(costs.backward_input, costs.backward_weight), both);
}

// A pair tells of both its stages what they can hide. Where a stage states what F and BW take
// together, pairs of these tell of that alone.
ZBPP_INLINE void set_overlapped(
    std::vector<stage_costs>& costs, std::vector<pair_sample> const& pairs, problem const& stated) {
  auto const is_apart = [&](int stage, pass_kind backward) {
    return backward == pass_kind::backward && stated.costs(stage).overlapped_fused;
  };
  std::vector<std::vector<ticks>> saved(costs.size());
  std::vector<std::vector<ticks>> saved_fused(costs.size());
  for (auto const& [f, b, took] : pairs) {
    auto const factor_of_f = stated.microbatch_factor(f.microbatch);
    auto const factor_of_b = stated.microbatch_factor(b.microbatch);
    auto const in_turn = times_factor(costs[index(f.stage)], factor_of_f).forward +
                         times_factor(costs[index(b.stage)], factor_of_b).of(b.kind);
    auto const add = [&, kind = b.kind, saved_time = in_turn - took](int stage, double factor) {
      auto& all = is_apart(stage, kind) ? saved_fused : saved;
      all[index(stage)].push_back(at_factor_1(saved_time, factor));
    };
    if (f.stage == b.stage) {  // the smaller microbatch hides less
      add(f.stage, std::min(factor_of_f, factor_of_b));
    } else {
      add(f.stage, factor_of_f);
      add(b.stage, factor_of_b);
    }
  }
  auto const together = [&](int stage, pass_kind backward, std::vector<ticks>& measured) {
    auto const& now = costs[index(stage)];
    auto const& before = stated.costs(stage);
    auto const in_turn = now.forward + now.of(backward);
    auto const hidden =
        measured.empty()
            ? scaled(
                  before.saved_by_pairing(backward), before.forward + before.of(backward), in_turn)
            : median(measured);
    return in_turn - std::clamp<ticks>(hidden, 0, std::min(now.forward, now.of(backward)));
  };
  for (int s = 0; s < stated.stages(); ++s) {
    auto& c = costs[index(s)];
    if (!saved[index(s)].empty() || stated.costs(s).overlapped)
      c.overlapped = together(s, pass_kind::backward_input, saved[index(s)]);
    if (stated.costs(s).overlapped_fused)
      c.overlapped_fused = together(s, pass_kind::backward, saved_fused[index(s)]);
  }
}

}  // namespace detail

ZBPP_INLINE problem costs_from(std::span<timeline const> steps, problem const& stated) {
  detail::require(!steps.empty(), "costs_from got no measured step");
  std::vector<detail::pass_samples> samples(detail::index(stated.stages()));
  std::vector<detail::pair_sample> pairs;
  for (auto const& step : steps)
    for (int rank = 0; rank < step.ranks(); ++rank) {
      auto const row = step[rank];
      for (auto const& timed : row) detail::check_measured(timed, stated);
      for (std::size_t i = 0; i < row.size(); ++i) {
        auto const& [p, start, end] = row[i];
        if (detail::next_is_paired(row, i)) {
          pairs.push_back({p, row[i + 1].pass, row[i + 1].end - start});
          ++i;
        } else {
          auto const factor = stated.microbatch_factor(p.microbatch);
          samples[detail::index(p.stage)].add(p.kind, detail::at_factor_1(end - start, factor));
        }
      }
    }
  auto const all = stated.all_costs();
  std::vector<stage_costs> costs(all.begin(), all.end());
  for (std::size_t s = 0; s < costs.size(); ++s) {
    auto& of = costs[s];
    of.forward = samples[s].median(pass_kind::forward).value_or(of.forward);
    if (auto const took = samples[s].median(pass_kind::recompute)) of.recompute = took;
    detail::set_backward(of, samples[s]);
  }
  detail::set_overlapped(costs, pairs, stated);
  return with_stages(stated, std::move(costs));
}

}  // namespace zbpp
