// SPDX-License-Identifier: Apache-2.0
//
// The two shapes in which everything about a pipeline is kept: a row per rank, and a cell for every
// (stage, microbatch). Both are one flat block, so millions of passes stay cheap.
#pragma once

#include <zbpp/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zbpp {

/// Holds one row of values for each rank.
template <class Value>
class rows {
 public:
  rows() = default;

  /// Copies a vector of rows.
  explicit rows(std::vector<std::vector<Value>> const& nested) {
    std::size_t total = 0;
    for (auto const& row : nested) total += row.size();
    reserve(nested.size(), total);
    for (auto const& row : nested) {
      for (auto const& value : row) push(value);
      end_row();
    }
  }

  /// Makes room for `ranks` rows with `values` values in all.
  void reserve(std::size_t ranks, std::size_t values) {
    ends_.reserve(ranks);
    values_.reserve(values);
  }
  /// Adds a value to the row being written.
  void push(Value const& value) { values_.push_back(value); }
  /// Ends the row being written.
  void end_row() { ends_.push_back(values_.size()); }

  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(ends_.size()); }
  [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }
  /// @return where the row of `rank` begins in `all()`
  [[nodiscard]] std::size_t begin_of(int rank) const noexcept {
    return rank == 0 ? 0 : ends_[detail::index(rank) - 1];
  }
  [[nodiscard]] std::span<Value const> operator[](int rank) const noexcept {
    return {values_.data() + begin_of(rank), length(rank)};
  }
  [[nodiscard]] std::span<Value> operator[](int rank) noexcept {
    return {values_.data() + begin_of(rank), length(rank)};
  }
  [[nodiscard]] std::span<Value const> all() const noexcept {
    return {values_.data(), values_.size()};
  }

  /// @return a copy as a vector of rows, easy to edit
  [[nodiscard]] std::vector<std::vector<Value>> nested() const {
    std::vector<std::vector<Value>> result;
    result.reserve(ends_.size());
    for (int rank = 0; rank < ranks(); ++rank) {
      auto const row = (*this)[rank];
      result.emplace_back(row.begin(), row.end());
    }
    return result;
  }

  friend bool operator==(rows const&, rows const&) = default;

 private:
  [[nodiscard]] std::size_t length(int rank) const noexcept {
    return ends_[detail::index(rank)] - begin_of(rank);
  }

  std::vector<Value> values_;
  std::vector<std::size_t> ends_;
};

/// Holds one value for every (stage, microbatch).
template <class Value>
class cells {
 public:
  /// Makes `stages * microbatches` cells, each a copy of `value`.
  cells(int stages, int microbatches, Value value = {})
      : microbatches_(microbatches),
        cells_(detail::index(stages) * detail::index(microbatches), value) {}

  [[nodiscard]] Value& operator()(int stage, int microbatch) noexcept {
    return cells_[detail::index(std::int64_t{stage} * microbatches_ + microbatch)];
  }
  [[nodiscard]] Value const& operator()(int stage, int microbatch) const noexcept {
    return cells_[detail::index(std::int64_t{stage} * microbatches_ + microbatch)];
  }

 private:
  std::int64_t microbatches_;
  std::vector<Value> cells_;
};

}  // namespace zbpp
