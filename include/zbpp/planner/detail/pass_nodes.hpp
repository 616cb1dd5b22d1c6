// SPDX-License-Identifier: Apache-2.0
//
// The passes of a network with what timing them needs: when each starts, how long what follows it
// takes, and which passes stand around it.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/planner/detail/pass_classes.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace zbpp::detail {

/// Holds a pass with all that timing it needs, on one cache line.
struct alignas(64) pass_node {
  ticks head = 0;  ///< its start
  ticks tail = 0;  ///< from its end to the end of what follows
  ticks time = 0;
  ticks hop = 0;            ///< of its input
  std::int32_t before = 0;  ///< on its rank
  std::int32_t behind = 0;  ///< on its rank
  std::int32_t input = 0;   ///< of another rank
  std::int32_t output = 0;  ///< to another rank
  std::int32_t position = 0;
  std::int32_t of_class = 0;
};

/// Holds the nodes of all passes. Behind them there are nodes that stand for what a pass lacks, so
/// that timing does not ask: the start of every rank, an input or output of no other rank, and the
/// end of each rank.
class pass_nodes {
 public:
  pass_nodes(int passes, int ranks) : passes_(passes), nodes_(index(passes + 2 + ranks)) {}

  /// Makes them anew; what stands before and behind each is for the caller to say.
  void make(pass_classes const& classes, int microbatches) {
    for (int x = 0; x < passes_; ++x) {
      auto const of_class = x / microbatches;
      auto const& c = classes[of_class];
      (*this)[x] = {
          .time = c.time,
          .hop = c.hop,
          .input = c.receives ? x + c.input : nowhere(),
          .output = c.sends ? x + c.output : nowhere(),
          .of_class = of_class};
    }
    constexpr ticks never_longest = -(ticks{1} << 60);
    (*this)[nowhere()] = {.head = never_longest, .tail = never_longest};
  }

  [[nodiscard]] pass_node& operator[](int x) noexcept { return nodes_[index(x)]; }
  [[nodiscard]] pass_node const& operator[](int x) const noexcept { return nodes_[index(x)]; }

  /// @return how many passes there are; their nodes are the first
  [[nodiscard]] int passes() const noexcept { return passes_; }
  [[nodiscard]] bool is_pass(int x) const noexcept { return x < passes_; }
  /// @return what stands before the first pass of every rank
  [[nodiscard]] int start() const noexcept { return passes_; }
  /// @return what stands for an input or output of no other rank
  [[nodiscard]] int nowhere() const noexcept { return passes_ + 1; }
  /// @return what stands behind the last pass of a rank
  [[nodiscard]] int end_of(int rank) const noexcept { return passes_ + 2 + rank; }

  /// @return when a pass ends
  [[nodiscard]] ticks done(int x) const noexcept {
    auto const& n = (*this)[x];
    return n.head + n.time;
  }
  /// @return the time from the start of a pass to the end of what follows
  [[nodiscard]] ticks tail_with(int x) const noexcept {
    auto const& n = (*this)[x];
    return n.time + n.tail;
  }
  /// @return when the input of a pass is there that another rank makes
  [[nodiscard]] ticks arrival(pass_node const& n) const noexcept { return done(n.input) + n.hop; }
  /// @return the time from the end of a pass to the end of what follows its output
  [[nodiscard]] ticks behind_output(pass_node const& n) const noexcept {
    auto const& to = (*this)[n.output];
    return to.hop + to.time + to.tail;
  }
  /// @return the head of a pass, given those that it waits for
  [[nodiscard]] ticks earliest(pass_node const& n) const noexcept {
    return std::max(done(n.before), arrival(n));
  }
  /// @return the tail of a pass, given those that wait for it
  [[nodiscard]] ticks longest_tail(pass_node const& n) const noexcept {
    return std::max(tail_with(n.behind), behind_output(n));
  }

 private:
  int passes_;
  std::vector<pass_node> nodes_;
};

}  // namespace zbpp::detail
