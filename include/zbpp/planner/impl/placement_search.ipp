// SPDX-License-Identifier: Apache-2.0
//
// Rounds over the placements, each with twice the work of the one before
// and with half as many placements.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/planner/detail/cut_search.hpp>
#include <zbpp/planner/detail/cuts.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/detail/placement_search.hpp>
#include <zbpp/planner/detail/search_budget.hpp>
#include <zbpp/planner/detail/search_once.hpp>
#include <zbpp/planner/save_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Searches some placements of one model.
class placement_search {
 public:
  placement_search(
      problem const& model,
      std::vector<placement> const& placements,
      search_budget const& budget,
      bool begins_with_own_cut)
      : model_(model),
        begins_with_own_cut_(begins_with_own_cut),
        budget_(budget.share(1 - saving)),
        for_memory_(budget.share(saving)) {
    for (auto const& placement : placements)
      candidates_.push_back(
          std::make_unique<placement_candidate>(with_placement(model, placement)));
    for (auto const& one : candidates_) {
      alive_.push_back(one.get());
      budget_.spend(one->spent);
    }
    bound_ = (*std::min_element(
                  candidates_.begin(),
                  candidates_.end(),
                  [](auto const& a, auto const& b) { return a->bound < b->bound; }))
                 ->bound;
  }

  [[nodiscard]] found_plan run(double most_memory_for) {
    for (auto* candidate : alive_) {
      if (best_ && (best_->cost <= bound_ || budget_.is_stopped())) break;
      look_first(*candidate);
    }
    if (!best_) find_room();
    for (double share = first_share; !is_over(); share *= 2) {
      drop_hopeless();
      if (alive_.empty()) break;
      for (auto* candidate : alive_) {
        if (!is_over()) try_cuts(*candidate, share);
        if (!is_over()) search_order(*candidate, share);
      }
      keep_better_half();
      ++round_;
    }
    save_memory(most_memory_for);
    best_->bound = zbpp::lower_bound(best_->problem);
    best_->lower_bound = bound_;
    best_->work = budget_.spent();
    return std::move(*best_);
  }

 private:
  // What goes into less memory at the cost that was found.
  static constexpr double saving = 0.05;
  // What a look at one cut takes beside the tries of its search, in tries, as rounds are planned.
  static constexpr double overhead = 40;
  // What it takes beside those and its bound, in tries: the handcrafted orders, simulating and
  // counting memory, about 3 us a pass.
  static constexpr double fixed = 60;
  // What the search of an order takes for each of its tries: changes of orders come on top.
  static constexpr double with_orders = 2;
  // What a placement gets in the first round for its cuts, and again for the order of the best, in
  // tries: that is 8 cuts.
  static constexpr double first_share = 16 * overhead;

  // Keeps a plan if it is the best. What no pass makes again does not recompute.
  void take(placement_candidate& candidate, cut chosen, schedule order, ticks cost) {
    if (candidate.best && cost >= candidate.best->cost) return;
    chosen.recompute.assign(chosen.recompute.size(), false);
    for (auto const& p : order.passes().all())
      if (p.kind == pass_kind::recompute) chosen.recompute[index(p.stage)] = true;
    candidate.best = found_plan{
        .problem = with_cut(candidate.model, std::move(chosen.first_layer), chosen.recompute),
        .schedule = std::move(order),
        .cost = cost};
    if (!best_ || is_better(*candidate.best, *best_)) best_ = candidate.best;
  }

  // Of the best plans of all placements that cost no more than allowed, chooses the one that takes
  // the least memory, also where stages recompute in time that is left.
  void save_memory(double most_memory_for) {
    // Where the optimum was proved at once, others were not looked at that may cost the same.
    for (auto const& candidate : candidates_)
      if (!candidate->best && !budget_.is_stopped() &&
          candidate->bound <= cost_with_share(best_->cost, most_memory_for))
        look_first(*candidate);
    if (budget_.is_stopped()) return;
    auto const most = cost_with_share(best_->cost, most_memory_for);
    std::vector<placement_candidate*> able;
    for (auto const& candidate : candidates_)
      if (candidate->best && candidate->best->cost <= most) able.push_back(candidate.get());
    auto const part = for_memory_.share(1.0 / static_cast<double>(able.size()));
    std::optional<std::pair<memory_use, ticks>> least;
    for (auto* candidate : able) {
      auto plan = std::move(*candidate->best);
      candidate->best.reset();
      auto const any = candidate->space.with_choice(
          cut_of(plan.problem).first_layer, candidate->space.may_recompute());
      plan.problem = with_cut(candidate->model, any.first_layer, any.recompute);
      plan.work = 0;
      plan = detail::save_memory(std::move(plan), most, part);
      budget_.spend(plan.work);
      std::pair const use(
          memory_use_of(memory_of(plan.schedule, plan.problem), plan.problem), plan.cost);
      if (least && use >= *least) continue;  // the first of equal ones has the fewest stages
      least = use;
      best_.reset();
      take(*candidate, cut_of(plan.problem), std::move(plan.schedule), plan.cost);
    }
  }

  // Searches the order of one cut. `tries` is how many whole schedules that may take.
  found_order order_of(placement_candidate const& candidate, problem const& cut, double tries) {
    auto const most = with_orders * tries * candidate.passes;
    auto const all = std::max(budget_.passes(), 1.0);
    auto const begin = budget_.spent();
    budget_.spend(fixed * candidate.passes + work_of_bound(cut));  // whether it is refused or not
    auto found = search_once(
        cut,
        budget_.of(most)
            .part_from(std::min(begin / all, 1.0), most / all)
            .below(best_ ? best_->cost : std::numeric_limits<ticks>::max(), bound_));
    budget_.spend(found.work);
    return found;
  }

  void try_cut(placement_candidate& candidate, cut const& c, double tries) {
    auto const placed = with_cut(candidate.model, c.first_layer, c.recompute);
    if (!fits_memory(placed)) return;
    auto found = order_of(candidate, placed, tries);
    take(candidate, c, std::move(found.schedule), found.cost);
  }

  void look_first(placement_candidate& candidate) {
    if (begins_with_own_cut_ && candidate.model.placement() == model_.placement())
      try_cut(candidate, cut_of(model_), 0);
    try_cut(candidate, candidate.space.with_choice(candidate.balanced.first_layer, false), 0);
    if (!candidate.space.may_recompute()) return;
    auto const all = candidate.space.all_recomputing();
    auto const ranks = candidate.model.placement().ranks();
    for (int first = ranks; first < candidate.model.stages(); first += ranks)
      try_cut(candidate, candidate.space.with_first_recomputing(all.first_layer, first), 0);
    try_cut(candidate, all, 0);
  }

  void try_cuts(placement_candidate& candidate, double share) {
    // Half of it looks at cuts; where that is enough for all of them, more goes into each.
    constexpr double most_schedules = 1 << 20;
    auto count = static_cast<int>(std::min(share / (2 * overhead), most_schedules));
    while (count > 1 && candidate.space.has_at_most(count / 2)) count /= 2;
    auto const tries = share / count - overhead;
    bool is_last_cut = false;
    auto const decide = [&](problem const& cut) {
      is_last_cut = is_last_cut || is_over();  // whether it is refused or not
      return order_of(candidate, cut, tries).schedule;
    };
    try {
      auto found = search_cuts(
          candidate.model,
          decide,
          {.schedules = count,
           .seed = budget_.seed() + static_cast<std::uint64_t>(round_),
           .stop = [&] { return is_last_cut; }},
          &candidate.balanced);
      take(candidate, cut_of(found.problem), std::move(found.schedule), found.cost);
    } catch (error const& nothing_fits) {
      if (nothing_fits.code() != errc::unsupported_problem) throw;
    }
  }

  // Searches the order of the best cut, with stages that recompute as they do and as they could.
  void search_order(placement_candidate& candidate, double share) {
    if (!candidate.best) return;
    auto const chosen = cut_of(candidate.best->problem);
    auto const any =
        candidate.space.with_choice(chosen.first_layer, candidate.space.may_recompute());
    auto const left = [&](double most) {
      auto const rest = budget_.left() / (with_orders * candidate.passes);
      is_last_ = is_last_ || rest < most;
      return std::clamp(rest, 0.0, most);
    };
    bool const both = any.recompute != chosen.recompute;
    try_cut(candidate, chosen, left(both ? share / 2 : share));
    if (both && !is_over()) try_cut(candidate, any, left(share / 2));
  }

  // Nothing fits that was looked at first: looks for a cut that fits one microbatch at a time, and
  // says how close the closest is.
  void find_room() {
    bytes least = 0;
    std::optional<error> refusal;
    for (auto* candidate : alive_) {
      auto const few = with_few_microbatches(candidate->model);
      auto const decide = [&](problem const& cut) {
        auto order = one_by_one(cut);
        auto const used = memory_of(order, cut);
        auto const excess = [&](int rank) { return used[index(rank)] - *cut.memory_limit(rank); };
        int worst = 0;
        for (int rank = 1; rank < cut.ranks(); ++rank)
          if (excess(rank) > excess(worst)) worst = rank;
        if (!refusal || excess(worst) < least) {
          least = excess(worst);
          refusal = error(errc::unsupported_problem, {.rank = worst}) +
                    "no partition that was tried fits, on any placement: the closest, " +
                    cut.placement().text() + ", needs " + used[index(worst)] +
                    " bytes, the limit is " + *cut.memory_limit(worst) +
                    "; it fits when every limit is higher by " + least;
        }
        return order;
      };
      try {
        auto const found = search_cuts(
            few, decide, {.schedules = 300, .seed = budget_.seed()}, &candidate->balanced);
        try_cut(*candidate, cut_of(found.problem), 0);
      } catch (error const& nothing_fits) {
        if (nothing_fits.code() != errc::unsupported_problem) throw;
      }
    }
    if (!best_) throw *refusal;
  }

  void drop_hopeless() {
    std::erase_if(alive_, [&](placement_candidate const* candidate) {
      return candidate->bound > best_->cost ||
             (candidate->bound == best_->cost &&
              candidate->model.stages() >= best_->problem.stages());
    });
  }

  void keep_better_half() {
    std::stable_sort(
        alive_.begin(),
        alive_.end(),
        [](placement_candidate const* a, placement_candidate const* b) {
          return a->best && (!b->best || is_better(*a->best, *b->best));
        });
    constexpr std::size_t fewest = 4;
    alive_.resize(std::min(alive_.size(), std::max(fewest, (alive_.size() + 1) / 2)));
  }

  [[nodiscard]] bool is_over() const {
    return best_ && (best_->cost <= bound_ || is_last_ || budget_.is_over());
  }

  problem const& model_;
  bool begins_with_own_cut_;
  search_budget budget_;
  search_budget for_memory_;
  std::vector<std::unique_ptr<placement_candidate>> candidates_;
  std::vector<placement_candidate*> alive_;  // those that are searched on, the fewest stages first
  ticks bound_ = 0;                          // no placement costs less
  std::optional<found_plan> best_;
  int round_ = 0;
  bool is_last_ = false;  // a search had less than its share: with more budget others follow it
};

ZBPP_INLINE int pieces_of(problem const& model) {
  if (!model.layers().empty()) return static_cast<int>(model.layers().size());
  return model.stages() < 2 * model.ranks() ? 2 * model.stages() : model.stages();
}

ZBPP_INLINE std::vector<placement> placements_for(problem const& model, int most_chunks) {
  auto const p = model.ranks();
  auto const pieces = pieces_of(model);
  std::vector<placement> list{model.placement()};
  auto const add = [&](placement const& one) {
    if (one.stages() <= pieces && std::ranges::find(list, one) == list.end()) list.push_back(one);
  };
  add(placement::linear(p));
  add(placement::v_shape(p));
  for (int chunks = 2; chunks <= most_chunks && chunks <= pieces / p; ++chunks)
    add(placement::looped(p, chunks));
  std::ranges::stable_sort(list, {}, &placement::stages);
  return list;
}

ZBPP_INLINE found_plan search_placements(
    problem const& model,
    std::vector<placement> const& placements,
    search_budget const& budget,
    double most_memory_for,
    bool begins_with_own_cut) {
  return placement_search(model, placements, budget, begins_with_own_cut).run(most_memory_for);
}

}  // namespace zbpp::detail
