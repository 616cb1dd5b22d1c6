// SPDX-License-Identifier: Apache-2.0
//
// What memory means for the order of the passes of one rank: how many must come before an F, how
// many F cannot come before a pass, and how much work that is.
#pragma once

#include <zbpp/analysis/detail/bounds/memory.hpp>
#include <zbpp/analysis/detail/bounds/rank_windows.hpp>
#include <zbpp/analysis/detail/bounds/terms.hpp>
#include <zbpp/analysis/detail/bounds/view.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Looks at the memory of one rank whose passes have windows.
class memory_windows {
 public:
  memory_windows(bound_terms const& terms, std::span<int const> stages) {
    for (int s : stages) {
      stages_.push_back(terms[s]);
      later_.push_back(later_stages_of(terms, stages, s));
      most_room_ = std::max(most_room_, terms[s].room);
    }
    counts_.resize(stages_.size());
  }

  /// Puts F of later stages before those that would else never leave them room.
  void put_later_stages_first(rank_windows& windows) const {
    for (int c = 0; c < chunks(); ++c)
      for (int later = c + 1; later < chunks(); ++later)
        for (int n = 0; n < windows.microbatches(); ++n) {
          auto const forwards = later_[index(c)][index(later - c - 1)].forwards_before(n + 1);
          windows.put_before(forward(c), forward(later), n, static_cast<int>(forwards));
        }
  }

  /// Puts passes before F that find no room without them, and F after F beside which there is none.
  void put_in_order(rank_windows& windows) {
    for (int c = 0; c < chunks(); ++c)
      for (int n = 0; n < windows.microbatches(); ++n) {
        auto const room = room_for_more(windows, c, n);
        if (room < 0) return windows.exclude();
        for (int other = 0; other < chunks(); ++other) {
          put_frees_first(windows, c, n, other, room);
          if (other != c) put_excess_behind(windows, c, n, other, room);
        }
      }
  }

  /// @return the least work of B and W that must come before an F beside those that are known to;
  ///         seen from the back, of F that must come after a pass
  [[nodiscard]] further_work forced(rank_windows const& windows, pass_side side, int line, int n) {
    items_.clear();
    from_ = std::numeric_limits<ticks>::max();
    auto const need =
        side == pass_side::front ? need_before(windows, line, n) : excess_before(windows, line, n);
    return {least_work(need), from_};
  }

 private:
  struct pass_counts {
    std::int64_t forward = 0;
    std::int64_t backward = 0;
    std::int64_t weight = 0;
  };
  // Passes of one line of which some are to be chosen, and what each of them is worth.
  struct item {
    ticks duration;  // of the shortest of them
    bytes size;
    std::int64_t count;
  };

  [[nodiscard]] int chunks() const noexcept { return static_cast<int>(stages_.size()); }
  [[nodiscard]] static int forward(int chunk) noexcept {
    return line_of(pass_line::forward, chunk);
  }
  [[nodiscard]] static int backward(int chunk) noexcept {
    return line_of(pass_line::backward, chunk);
  }
  [[nodiscard]] static int weight(int chunk) noexcept { return line_of(pass_line::weight, chunk); }
  [[nodiscard]] static bytes freed_by_backward(stage_terms const& t) noexcept {
    return t.activation - t.weight_gradient_input;
  }

  // Counts the passes that leave the most room for an F: no more F than must come before it, and
  // of these all B and W that can. An F more brings what its own B and W can free at best.
  void count_least(rank_windows const& windows, int chunk, int n) {
    auto const line = forward(chunk);
    for (int c = 0; c < chunks(); ++c) {
      std::int64_t const f =
          c == chunk ? n + 1 : windows.before(pass_side::front, line, forward(c), n);
      auto const b = std::min<std::int64_t>(f, windows.most_before(line, backward(c), n));
      auto const w = std::min<std::int64_t>(b, windows.most_before(line, weight(c), n));
      counts_[index(c)] = {f, b, w};
    }
  }
  // @return what is left beside an F then
  [[nodiscard]] bytes room_for_more(rank_windows const& windows, int chunk, int n) {
    count_least(windows, chunk, n);
    auto room = stages_[index(chunk)].room;
    for (int c = 0; c < chunks(); ++c) {
      auto const& t = stages_[index(c)];
      auto const& k = counts_[index(c)];
      room -= k.forward * t.activation - k.backward * freed_by_backward(t) -
              k.weight * t.weight_gradient_input;
    }
    return room;
  }

  // As many B and W of a stage as the room can do without may come after the F; no more.
  void put_frees_first(rank_windows& windows, int chunk, int n, int other, bytes room) const {
    auto const& t = stages_[index(other)];
    auto const& most = counts_[index(other)];
    if (auto const size = t.weight_gradient_input; size > 0)
      if (auto const least = most.weight - room / size; least > 0)
        windows.put_before(forward(chunk), weight(other), n, static_cast<int>(least));
    auto const known = windows.before(pass_side::front, forward(chunk), backward(other), n);
    auto least = most.backward;
    while (least > known) {
      room -= freed_by_backward(t) + (most.weight >= least ? t.weight_gradient_input : 0);
      if (room < 0) break;
      --least;
    }
    windows.put_before(forward(chunk), backward(other), n, static_cast<int>(least));
  }

  // As many more F of a stage as fit may come before the F.
  void put_excess_behind(rank_windows& windows, int chunk, int n, int other, bytes room) const {
    auto const& t = stages_[index(other)];
    auto const line = forward(chunk);
    auto const most = windows.most_before(line, forward(other), n);
    auto const b = windows.most_before(line, backward(other), n);
    auto const w = windows.most_before(line, weight(other), n);
    for (auto f = static_cast<int>(counts_[index(other)].forward); f < most; ++f) {
      room -= t.activation - (f < b ? freed_by_backward(t) : 0) -
              (f < b && f < w ? t.weight_gradient_input : 0);
      if (room >= 0) continue;
      windows.put_before(forward(other), line, f, n + 1);
      return;
    }
  }

  // What B and W beside those known to must have freed before an F; they are the items.
  [[nodiscard]] bytes need_before(rank_windows const& windows, int line, int n) {
    if (kind_of_line(line) != pass_line::forward) return 0;
    constexpr auto side = pass_side::front;
    count_least(windows, chunk_of_line(line), n);
    auto need = -stages_[index(chunk_of_line(line))].room;
    for (int c = 0; c < chunks(); ++c) {
      auto const& t = stages_[index(c)];
      auto const b = windows.before(side, line, backward(c), n);
      auto const w = windows.before(side, line, weight(c), n);
      auto const& most = counts_[index(c)];
      need += most.forward * t.activation - b * freed_by_backward(t) - w * t.weight_gradient_input;
      add_item(windows, side, backward(c), b, most.backward - b, freed_by_backward(t));
      add_item(windows, side, weight(c), w, most.weight - w, t.weight_gradient_input);
    }
    return need;
  }
  // What F that could come before a pass take beyond the room there is when the last of them
  // starts, or when the pass does, if it is an F; those not known to come before it are the items.
  // @param n  counted from the back
  [[nodiscard]] bytes excess_before(rank_windows const& windows, int line, int n) {
    constexpr auto side = pass_side::back;
    auto const number = windows.microbatches() - 1 - n;
    auto const own = kind_of_line(line) == pass_line::forward ? chunk_of_line(line) : -1;
    auto excess = own < 0 ? -most_room_ : -stages_[index(own)].room;
    for (int c = 0; c < chunks(); ++c) {
      auto const& t = stages_[index(c)];
      auto const f = windows.most_before(line, forward(c), number) + (own == c ? 1 : 0);
      auto const b = std::min(f, windows.most_before(line, backward(c), number));
      auto const w = std::min(b, windows.most_before(line, weight(c), number));
      excess += f * t.activation - b * freed_by_backward(t) - w * t.weight_gradient_input;
      if (own == c) continue;
      auto const behind = windows.before(side, line, forward(c), n);
      auto const least = windows.before(pass_side::front, line, forward(c), number);
      add_item(windows, side, forward(c), behind, f - least, t.activation);
    }
    return excess;
  }

  void add_item(
      rank_windows const& windows,
      pass_side side,
      int line,
      int first,
      std::int64_t count,
      bytes size) {
    if (count <= 0 || size <= 0) return;
    auto time = windows.duration(side, line, first);
    for (int n = first + 1; n < first + count; ++n)
      time = std::min(time, windows.duration(side, line, n));
    items_.push_back({time, size, count});
    from_ = std::min(from_, windows.start(side, line, first));
  }

  // The least time of items that are worth at least `need` together; parts of one count.
  [[nodiscard]] ticks least_work(bytes need) {
    if (need <= 0 || items_.empty()) return 0;
    bytes unit = 0;
    for (auto const& i : items_) unit = std::gcd(unit, i.size);
    need = units_for(need, unit) * unit;
    std::sort(items_.begin(), items_.end(), [](item const& a, item const& b) {
      return static_cast<double>(a.duration) / static_cast<double>(a.size) <
             static_cast<double>(b.duration) / static_cast<double>(b.size);
    });
    ticks sum = 0;
    for (auto const& i : items_) {
      auto const whole = std::min(need / i.size, i.count);
      sum += whole * i.duration;
      need -= whole * i.size;
      if (whole == i.count) continue;
      return sum + static_cast<ticks>(
                       static_cast<double>(need) / static_cast<double>(i.size) *
                       static_cast<double>(i.duration));
    }
    return sum;
  }

  std::vector<stage_terms> stages_;
  std::vector<std::vector<later_stage>> later_;  // stages of the rank, by chunk
  bytes most_room_ = 0;
  // Of single calls alone.
  std::vector<pass_counts> counts_;
  std::vector<item> items_;
  ticks from_ = 0;
};

}  // namespace zbpp::detail
