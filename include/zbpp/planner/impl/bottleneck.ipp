// SPDX-License-Identifier: Apache-2.0
//
// The search of bottleneck_partition.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/planner/detail/bottleneck.hpp>
#include <zbpp/planner/detail/stage_work.hpp>

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

namespace zbpp::detail {

/// Holds the two sizes that cuts are judged by.
struct rank_load {
  ticks work = 0;
  bytes memory = 0;

  [[nodiscard]] bool fits(rank_load const& cap) const noexcept {
    return work <= cap.work && memory <= cap.memory;
  }
  friend rank_load operator+(rank_load a, rank_load const& b) noexcept {
    return {a.work + b.work, a.memory + b.memory};
  }
  friend rank_load operator-(rank_load a, rank_load const& b) noexcept {
    return {a.work - b.work, a.memory - b.memory};
  }
};

/// Looks for cuts that give no rank more than a cap, and lowers the cap while there are any.
///
/// Stages are taken off the model one after another, from its end where the rank of the last stage
/// has begun and that of the first has not, else from its start. What is still to come then depends
/// on the layers left and on the loads of ranks that have begun but not ended: none where each rank
/// has one stage, and one on a V. A state that failed with some loads fails with any greater ones.
class bottleneck_search {
 public:
  bottleneck_search(
      std::span<layer_costs const> layers, placement const& placement, bottleneck_settings settings)
      : placement_(placement), settings_(settings), layers_(static_cast<int>(layers.size())) {
    sums_.push_back({});
    for (auto const& c : layers) {
      sums_.push_back(sums_.back() + rank_load{work_of(c), c.static_memory + c.activation});
      greatest_layer_.work = std::max(greatest_layer_.work, work_of(c));
      greatest_layer_.memory = std::max(greatest_layer_.memory, c.static_memory + c.activation);
    }
    std::vector<ticks> inner;
    for (std::size_t i = 1; i + 1 < layers.size(); ++i) inner.push_back(work_of(layers[i]));
    std::sort(inner.begin(), inner.end());
    lightest_.push_back(0);
    for (auto work : inner) lightest_.push_back(lightest_.back() + work);
    plan_steps();
  }

  [[nodiscard]] bottleneck run() {
    for (int s = 0; s < placement_.stages(); ++s)  // any cut is a start
      counts_[index(s)] =
          layers_ / placement_.stages() + (s < layers_ % placement_.stages() ? 1 : 0);
    keep();
    bool const optimal = lower(&rank_load::work);
    lower(&rank_load::memory);
    return {std::move(first_layer_), best_.work, best_.memory, optimal};
  }

 private:
  // How one stage is taken off the model.
  struct step {
    int first = 0;  // stages that are left before it
    int last = 0;
    int stage = 0;
    int rank = 0;
    bool at_end = false;     // the last stage that is left, not the first
    int chunks_left = 0;     // of its rank, this one included
    std::vector<int> begun;  // ranks that have begun but not ended before this step
  };

  // The load of the layers [from, to).
  [[nodiscard]] rank_load between(int from, int to) const {
    return sums_[index(to)] - sums_[index(from)];
  }

  void plan_steps() {
    std::vector<int> left(index(placement_.ranks()));
    for (int rank = 0; rank < placement_.ranks(); ++rank)
      left[index(rank)] = static_cast<int>(placement_.stages_of(rank).size());
    auto const all = left;
    auto has_begun = [&](int stage) {
      auto const rank = index(placement_.rank_of(stage));
      return left[rank] < all[rank];
    };
    for (int first = 0, last = placement_.stages() - 1; first <= last;) {
      step next;
      next.first = first;
      next.last = last;
      next.at_end = !has_begun(first) && has_begun(last);
      next.stage = next.at_end ? last-- : first++;
      next.rank = placement_.rank_of(next.stage);
      for (int rank = 0; rank < placement_.ranks(); ++rank)
        if (left[index(rank)] > 0 && left[index(rank)] < all[index(rank)])
          next.begun.push_back(rank);
      next.chunks_left = left[index(next.rank)]--;
      steps_.push_back(std::move(next));
    }
    counts_.assign(steps_.size(), 0);
    chunks_left_.assign(all.size(), 0);
  }

  // Halves the interval in which the least bound of one size lies, that of work before memory.
  // @return whether it is proved that there is none below
  bool lower(std::int64_t rank_load::*size) {
    auto const share = (sums_.back().*size + placement_.ranks() - 1) / placement_.ranks();
    auto low = std::max(greatest_layer_.*size, share);
    bool proved = true;
    while (low < best_.*size) {
      rank_load cap{best_.work, sums_.back().memory};
      cap.*size = low + (best_.*size - low) / 2;
      if (find(cap)) {
        keep();
      } else {
        proved = proved && !gave_up();
        low = cap.*size + 1;
      }
    }
    return proved;
  }

  // Takes the cut that stands in `counts_`.
  void keep() {
    std::vector<rank_load> loads(index(placement_.ranks()));
    first_layer_.clear();
    int from = 0;
    for (int s = 0; s < placement_.stages(); ++s) {
      first_layer_.push_back(from);
      auto const to = from + counts_[index(s)];
      auto& load = loads[index(placement_.rank_of(s))];
      load = load + between(from, to);
      from = to;
    }
    best_ = {};
    for (auto const& load : loads) {
      best_.work = std::max(best_.work, load.work);
      best_.memory = std::max(best_.memory, load.memory);
    }
  }

  [[nodiscard]] bool find(rank_load const& cap) {
    cap_ = cap;
    rank_load const all{cap.work * placement_.ranks(), cap.memory * placement_.ranks()};
    slack_ = all - sums_.back();
    if (!rank_load{}.fits(slack_)) return false;
    loads_.assign(index(placement_.ranks()), {});
    for (int rank = 0; rank < placement_.ranks(); ++rank)
      chunks_left_[index(rank)] = static_cast<int>(placement_.stages_of(rank).size());
    failed_.clear();
    effort_ = 0;
    return place(0, 0, layers_);
  }

  // Gives the stages from step k on the layers [from, to).
  bool place(std::size_t k, int from, int to) {
    if (k == steps_.size()) return true;
    if (lacks_room(k, from, to) || has_failed(k, from, to)) return false;
    auto const& at = steps_[k];
    auto const most = to - from - static_cast<int>(steps_.size() - k - 1);
    auto const least = k + 1 == steps_.size() ? most : 1;
    auto const room = cap_ - loads_[index(at.rank)];
    auto layers_of = [&](int count) {
      return at.at_end ? between(to - count, to) : between(from, from + count);
    };
    int middle = 0;  // the most layers that leave as much room for each chunk to come
    while (middle < most && layers_of(middle + 1).fits(room) &&
           layers_of(middle + 1).work <= room.work / at.chunks_left)
      ++middle;
    auto give = [&](int count) {
      counts_[index(at.stage)] = count;
      return at.at_end ? place(k + 1, from, to - count) : place(k + 1, from + count, to);
    };
    // Where each rank has one stage, whoever took fewer layers could have taken the most.
    auto const fewest = has_one_stage_each() ? std::max(least, middle) : least;
    for (int count = middle; count >= fewest && !gave_up(); --count) {
      auto const rest = room - layers_of(count);
      if (at.chunks_left == 1 && !rest.fits(slack_)) break;
      if (with(at, layers_of(count), [&] { return give(count); })) return true;
    }
    if (at.chunks_left > 1)
      for (int count = std::max(middle + 1, least);
           count <= most && layers_of(count).fits(room) && !gave_up();
           ++count)
        if (with(at, layers_of(count), [&] { return give(count); })) return true;
    if (!gave_up()) failed_[key(k, from, to)].push_back(loads_before(at));
    return false;
  }

  // Runs `then` with a load added; what a rank leaves unused when it ends is lost for all.
  template <class Then>
  bool with(step const& at, rank_load const& added, Then then) {
    auto& load = loads_[index(at.rank)];
    auto const load_before = load;
    auto const slack_before = slack_;
    load = load + added;
    --chunks_left_[index(at.rank)];
    if (at.chunks_left == 1) slack_ = slack_ - (cap_ - load);
    ++effort_;
    if (then()) return true;
    load = load_before;
    ++chunks_left_[index(at.rank)];
    slack_ = slack_before;
    return false;
  }

  // Says whether the ranks have room for fewer layers than are left, were they the lightest of all.
  // The first and the last that are left need not be guessed: it is known where they go.
  [[nodiscard]] bool lacks_room(std::size_t k, int from, int to) const {
    if (has_one_stage_each() || k + 1 == steps_.size()) return false;
    auto const first = placement_.rank_of(steps_[k].first);
    auto const last = placement_.rank_of(steps_[k].last);
    std::ptrdiff_t places = 2;
    for (int rank = 0; rank < placement_.ranks(); ++rank) {
      std::ptrdiff_t chunks = chunks_left_[index(rank)];
      if (chunks == 0) continue;
      auto room = cap_.work - loads_[index(rank)].work;
      if (rank == first) room -= between(from, from + 1).work;
      if (rank == last) room -= between(to - 1, to).work;
      chunks -= (rank == first ? 1 : 0) + (rank == last ? 1 : 0);
      auto const layers =
          std::upper_bound(lightest_.begin(), lightest_.end(), room) - lightest_.begin() - 1;
      if (layers < chunks) return true;
      places += layers;
    }
    return places < to - from;
  }

  [[nodiscard]] bool has_one_stage_each() const {
    return placement_.stages() == placement_.ranks();
  }

  [[nodiscard]] bool gave_up() const noexcept { return effort_ > settings_.steps; }

  [[nodiscard]] std::uint64_t key(std::size_t k, int from, int to) const {
    auto const base = static_cast<std::uint64_t>(layers_) + 1;
    return (static_cast<std::uint64_t>(k) * base + static_cast<std::uint64_t>(from)) * base +
           static_cast<std::uint64_t>(to);
  }

  [[nodiscard]] std::vector<rank_load> loads_before(step const& at) const {
    std::vector<rank_load> loads;
    for (int rank : at.begun) loads.push_back(loads_[index(rank)]);
    return loads;
  }

  [[nodiscard]] bool has_failed(std::size_t k, int from, int to) {
    auto const found = failed_.find(key(k, from, to));
    if (found == failed_.end()) return false;
    auto const& ranks = steps_[k].begun;
    for (auto const& loads : found->second) {
      ++effort_;
      bool covers = true;
      for (std::size_t i = 0; i < ranks.size() && covers; ++i)
        covers = loads[i].fits(loads_[index(ranks[i])]);
      if (covers) return true;
    }
    return false;
  }

  placement const& placement_;
  bottleneck_settings settings_;
  int layers_;
  std::vector<rank_load> sums_;  // of the layers before each
  std::vector<ticks> lightest_;  // work of the lightest layers but for the model's first and last
  rank_load greatest_layer_;
  std::vector<step> steps_;
  std::vector<int> counts_;       // layers of each stage
  std::vector<int> first_layer_;  // of the best cut
  rank_load best_;                // what it gives the ranks with the most

  rank_load cap_;  // what follows belongs to the search for one cap
  rank_load slack_;
  std::vector<rank_load> loads_;
  std::vector<int> chunks_left_;
  std::unordered_map<std::uint64_t, std::vector<std::vector<rank_load>>> failed_;
  std::int64_t effort_ = 0;
};

ZBPP_INLINE bottleneck bottleneck_partition(
    std::span<layer_costs const> layers, placement const& placement, bottleneck_settings settings) {
  require(
      settings.steps >= 0, "bottleneck_settings::steps is below 0; give a number of steps from 0");
  check_layers(layers, placement);
  return bottleneck_search(layers, placement, settings).run();
}

}  // namespace zbpp::detail
