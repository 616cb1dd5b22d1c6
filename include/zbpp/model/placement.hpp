// SPDX-License-Identifier: Apache-2.0
//
// Which rank runs which stage: linear (one chunk per rank), looped (stage s on rank s mod p),
// v-shape (two chunks: the model goes down the ranks and comes back), or any list.
#pragma once

#include <zbpp/error.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

/// Maps the stages of a model, numbered from the input, to ranks.
class placement {
 public:
  /// Puts stage s on rank s.
  /// @throws error (bad_argument) unless ranks is at least 1
  [[nodiscard]] static placement linear(int ranks) { return looped(ranks, 1); }

  /// Puts stage s on rank s mod `ranks`, `chunks` stages per rank.
  /// @throws error (bad_argument) unless both are at least 1
  [[nodiscard]] static placement looped(int ranks, int chunks);

  /// Puts stages s and 2*ranks-1-s on rank s, so that first and last stage share rank 0.
  /// @source arXiv 2401.10241v1 sec. 6
  /// @throws error (bad_argument) unless ranks is at least 1
  [[nodiscard]] static placement v_shape(int ranks);

  /// Puts stage s on rank `rank_of_stage[s]`.
  /// @throws error (bad_argument) unless every rank from 0 to the greatest has a stage
  [[nodiscard]] static placement custom(std::vector<int> rank_of_stage) {
    return placement(std::move(rank_of_stage));
  }

  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(first_.size()) - 1; }
  [[nodiscard]] int stages() const noexcept { return static_cast<int>(rank_of_.size()); }
  [[nodiscard]] int rank_of(int stage) const noexcept { return rank_of_[detail::index(stage)]; }
  /// @return which of its rank's chunks a stage is, counted along the model
  [[nodiscard]] int chunk_of(int stage) const noexcept { return chunk_of_[detail::index(stage)]; }
  [[nodiscard]] std::span<int const> stages_of(int rank) const noexcept {
    auto const begin = first_[detail::index(rank)];
    return std::span<int const>(stages_).subspan(begin, first_[detail::index(rank) + 1] - begin);
  }
  [[nodiscard]] std::span<int const> rank_of_stages() const noexcept { return rank_of_; }

  /// @return whether each rank has one stage, in order
  [[nodiscard]] bool is_linear() const;
  /// @return whether the ranks come round and round in order, the same number of times each
  [[nodiscard]] bool is_looped() const;
  /// @return whether the model goes down the ranks and comes back
  [[nodiscard]] bool is_v_shape() const;

  /// @return `linear`, `looped`, `v` or `custom`
  [[nodiscard]] std::string name() const;
  /// @return the name, with the chunks of each rank where it does not tell them, as in `looped 2`
  [[nodiscard]] std::string text() const;

  friend bool operator==(placement const& a, placement const& b) noexcept {
    return a.rank_of_ == b.rank_of_;
  }

 private:
  explicit placement(std::vector<int> rank_of);

  std::vector<int> rank_of_;
  std::vector<int> chunk_of_;
  std::vector<int> stages_;         // by rank, ascending
  std::vector<std::size_t> first_;  // of each rank in stages_, and the end
};

namespace detail {

/// Refuses a step that is empty, or so large that positions of instructions do not fit 32 bits.
/// @throws error (bad_argument)
void check_microbatches(placement const& placement, int microbatches);

}  // namespace detail
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/model/impl/placement.ipp>
#endif
