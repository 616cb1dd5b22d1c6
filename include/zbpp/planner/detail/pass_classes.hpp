// SPDX-License-Identifier: Apache-2.0
//
// What the passes of one stage and kind have in common, for a network of passes: times, memory, and
// where the passes are that they wait for and that wait for them.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace zbpp::detail {

/// Holds what the passes of one stage and kind have in common.
struct pass_class {
  int rank = 0;
  pass_kind kind{};
  ticks time = 0;
  ticks hop = 0;          ///< of its input
  bytes needed = 0;       ///< while it runs, beyond what was held before
  bytes added = 0;        ///< to what is held after it
  int input = 0;          ///< how far away the pass is that makes its input; 0 for none
  int output = 0;         ///< and the one that waits for it
  bool receives = false;  ///< its input, from another rank
  bool sends = false;     ///< its output, to another rank
};

/// Holds the classes of all passes of a schedule, by stage and kind. A pass is numbered by its
/// class times the microbatches, plus its microbatch.
class pass_classes {
 public:
  static constexpr int slots = 4;  ///< kinds of passes of a stage: F, R, B or BW, W

  explicit pass_classes(problem const& problem)
      : problem_(problem), classes_(index(problem.stages() * slots)) {}

  /// @return the number of the class of a pass
  [[nodiscard]] static int of(pass const& p) noexcept { return p.stage * slots + slot_of(p.kind); }
  [[nodiscard]] pass_class const& operator[](int number) const noexcept {
    return classes_[index(number)];
  }

  /// Takes the classes of a schedule. The stages that run BW, or R, do so for all microbatches.
  void read(schedule const& order) {
    std::fill(classes_.begin(), classes_.end(), pass_class{});
    for (int rank = 0; rank < order.ranks(); ++rank)
      for (auto const& p : order.passes(rank))
        classes_[index(of(p))] = {.rank = rank, .kind = p.kind};
    for (int s = 0; s < problem_.stages(); ++s) set(s);
  }

 private:
  [[nodiscard]] static int slot_of(pass_kind kind) noexcept {
    switch (kind) {
      case pass_kind::forward: return 0;
      case pass_kind::recompute: return 1;
      case pass_kind::backward_weight: return 3;
      default: return 2;
    }
  }

  void set(int s) {
    auto const microbatches = problem_.microbatches();
    auto const stage = index(s) * slots;
    auto const& c = problem_.costs(s);
    bool const is_last = s + 1 == problem_.stages();
    bool const recomputes = classes_[stage + 1].kind == pass_kind::recompute;
    bool const fuses = classes_[stage + 2].kind == pass_kind::backward;
    for (std::size_t slot = 0; slot < slots; ++slot)
      classes_[stage + slot].time = c.of(classes_[stage + slot].kind);
    auto const kept = recomputes ? c.recompute_input : c.activation;
    auto& f = classes_[stage];
    f.needed = f.added = kept;
    f.input = s > 0 ? -slots * microbatches : 0;
    f.hop = s > 0 ? problem_.transfer_time(s - 1, s) : 0;
    f.output = is_last ? 2 * microbatches : slots * microbatches;
    auto const& where = problem_.placement();
    auto const is_elsewhere = [&](int other) {
      return other >= 0 && other < problem_.stages() && where.rank_of(other) != where.rank_of(s);
    };
    f.receives = is_elsewhere(s - 1);
    f.sends = is_elsewhere(s + 1);
    auto& r = classes_[stage + 1];
    r.needed = r.added = c.activation - kept;
    auto& b = classes_[stage + 2];
    b.needed = fuses ? 0 : c.output_gradient;
    b.added = (fuses ? 0 : c.weight_gradient_input) - c.activation;
    b.input = is_last ? -2 * microbatches : slots * microbatches;
    b.hop = is_last ? 0 : problem_.transfer_time(s + 1, s);
    b.output = s > 0 ? -slots * microbatches : 0;
    b.receives = is_elsewhere(s + 1);
    b.sends = is_elsewhere(s - 1);
    auto& w = classes_[stage + 3];
    w.added = -c.weight_gradient_input;
    w.input = -microbatches;
  }

  problem const& problem_;
  std::vector<pass_class> classes_;  // by stage and kind
};

}  // namespace zbpp::detail
