// SPDX-License-Identifier: Apache-2.0
//
// Which rank runs which stage: linear (one chunk a rank), looped (stage s on rank s mod p), v-shape
// (two chunks: the model goes down the ranks and comes back), or any list.
#pragma once

#include <zbpp/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

  /// Puts stage s on rank s mod `ranks`, `chunks` stages a rank.
  /// @throws error (bad_argument) unless both are at least 1
  [[nodiscard]] static placement looped(int ranks, int chunks) {
    check_shape(ranks, chunks);
    std::vector<int> list(detail::index(ranks) * detail::index(chunks));
    for (std::size_t s = 0; s < list.size(); ++s)
      list[s] = static_cast<int>(s % detail::index(ranks));
    return placement(std::move(list));
  }

  /// Puts stages s and 2*ranks-1-s on rank s, so that first and last stage share rank 0.
  /// @source arXiv 2401.10241v1 sec. 6
  /// @throws error (bad_argument) unless ranks is at least 1
  [[nodiscard]] static placement v_shape(int ranks) {
    check_shape(ranks, 2);
    std::vector<int> list;
    for (int s = 0; s < 2 * ranks; ++s) list.push_back(s < ranks ? s : 2 * ranks - 1 - s);
    return placement(std::move(list));
  }

  /// Puts stage s on rank `rank_of_stage[s]`.
  /// @throws error (bad_argument) unless every rank from 0 to the greatest has a stage
  [[nodiscard]] static placement custom(std::vector<int> rank_of_stage) {
    return placement(std::move(rank_of_stage));
  }

  /// @return how many ranks there are
  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(first_.size()) - 1; }
  /// @return how many stages there are
  [[nodiscard]] int stages() const noexcept { return static_cast<int>(rank_of_.size()); }
  /// @return the rank that runs a stage
  [[nodiscard]] int rank_of(int stage) const noexcept { return rank_of_[detail::index(stage)]; }
  /// @return which of its rank's chunks per stage is, counted along the model
  [[nodiscard]] int chunk_of(int stage) const noexcept { return chunk_of_[detail::index(stage)]; }
  /// @return the stages of a rank, ascending
  [[nodiscard]] std::span<int const> stages_of(int rank) const noexcept {
    auto const begin = first_[detail::index(rank)];
    return std::span<int const>(stages_).subspan(begin, first_[detail::index(rank) + 1] - begin);
  }
  /// @return the rank of every stage
  [[nodiscard]] std::span<int const> rank_of_stages() const noexcept { return rank_of_; }

  /// @return whether each rank has one stage, in order
  [[nodiscard]] bool is_linear() const { return *this == linear(ranks()); }
  /// @return whether the ranks come round and round in order, the same number of times each
  [[nodiscard]] bool is_looped() const {
    return stages() % ranks() == 0 && *this == looped(ranks(), stages() / ranks());
  }
  /// @return whether the model goes down the ranks and comes back
  [[nodiscard]] bool is_v_shape() const { return *this == v_shape(ranks()); }

  /// @return `linear`, `looped`, `v` or `custom`
  [[nodiscard]] std::string name() const {
    if (is_linear()) return "linear";
    if (is_v_shape()) return "v";
    return is_looped() ? "looped" : "custom";
  }

  friend bool operator==(placement const& a, placement const& b) noexcept {
    return a.rank_of_ == b.rank_of_;
  }

 private:
  static constexpr std::int64_t most_stages = std::int64_t{1} << 24;

  static void check_shape(int ranks, int chunks) {
    if (ranks < 1)
      throw error(
          errc::bad_argument,
          "ranks is " + std::to_string(ranks) + "; a pipeline has at least 1 rank");
    if (chunks < 1)
      throw error(
          errc::bad_argument,
          "chunks is " + std::to_string(chunks) + "; a rank has at least 1 chunk");
    check_stages(std::int64_t{ranks} * chunks);
  }

  static void check_stages(std::int64_t stages) {
    if (stages > most_stages)
      throw error(
          errc::bad_argument,
          "the placement has " + std::to_string(stages) + " stages; at most " +
              std::to_string(most_stages));
  }

  explicit placement(std::vector<int> rank_of) : rank_of_(std::move(rank_of)) {
    detail::require(!rank_of_.empty(), "the placement is empty; it needs the rank of every stage");
    check_stages(static_cast<std::int64_t>(rank_of_.size()));
    for (std::size_t s = 0; s < rank_of_.size(); ++s) {
      if (rank_of_[s] < 0 || detail::index(rank_of_[s]) >= rank_of_.size())
        throw error(
            errc::bad_argument,
            "placement: stage " + std::to_string(s) + " is on rank " + std::to_string(rank_of_[s]) +
                "; with " + std::to_string(rank_of_.size()) + " stages ranks go from 0 to " +
                std::to_string(rank_of_.size() - 1));
    }
    auto const ranks = detail::index(*std::max_element(rank_of_.begin(), rank_of_.end())) + 1;
    first_.assign(ranks + 1, 0);
    chunk_of_.reserve(rank_of_.size());
    for (int rank : rank_of_) {
      auto& count = first_[detail::index(rank) + 1];
      chunk_of_.push_back(static_cast<int>(count++));
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      if (first_[r + 1] == 0)
        throw error(
            errc::bad_argument,
            "placement: rank " + std::to_string(r) + " has no stage; every rank from 0 to " +
                std::to_string(ranks - 1) + " needs one");
      first_[r + 1] += first_[r];
    }
    stages_.resize(rank_of_.size());
    for (std::size_t s = 0; s < rank_of_.size(); ++s)
      stages_[first_[detail::index(rank_of_[s])] + detail::index(chunk_of_[s])] =
          static_cast<int>(s);
  }

  std::vector<int> rank_of_;
  std::vector<int> chunk_of_;
  std::vector<int> stages_;         // by rank, ascending
  std::vector<std::size_t> first_;  // of each rank in stages_, and the end
};

namespace detail {

/// Refuses a step that is empty, or so large that positions of instructions do not fit 32 bits.
/// @throws error (bad_argument)
inline void check_microbatches(placement const& placement, int microbatches) {
  if (microbatches < 1)
    throw error(
        errc::bad_argument,
        "microbatches is " + std::to_string(microbatches) + "; a step has at least 1");
  constexpr std::int64_t most = std::int64_t{1} << 27;
  if (std::int64_t{placement.stages()} * microbatches > most)
    throw error(
        errc::bad_argument,
        "microbatches is " + std::to_string(microbatches) + "; with " +
            std::to_string(placement.stages()) + " stages at most " +
            std::to_string(most / placement.stages()));
}

}  // namespace detail
}  // namespace zbpp
