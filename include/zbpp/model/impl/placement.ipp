// SPDX-License-Identifier: Apache-2.0
//
// What model/placement.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/placement.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

inline constexpr std::int64_t most_stages = std::int64_t{1} << 24;

ZBPP_INLINE void check_stages(std::int64_t stages) {
  if (stages > most_stages)
    throw error(errc::bad_argument) + "the placement has " + stages + " stages; at most " +
        most_stages;
}

ZBPP_INLINE void check_shape(int ranks, int chunks) {
  if (ranks < 1)
    throw error(errc::bad_argument) + "ranks is " + ranks + "; a pipeline has at least 1 rank";
  if (chunks < 1)
    throw error(errc::bad_argument) + "chunks is " + chunks + "; a rank has at least 1 chunk";
  check_stages(std::int64_t{ranks} * chunks);
}

ZBPP_INLINE void check_microbatches(placement const& placement, int microbatches) {
  if (microbatches < 1)
    throw error(errc::bad_argument) + "microbatches is " + microbatches + "; a step has at least 1";
  constexpr std::int64_t most = std::int64_t{1} << 27;
  if (std::int64_t{placement.stages()} * microbatches > most)
    throw error(errc::bad_argument) + "microbatches is " + microbatches + "; with " +
        placement.stages() + " stages at most " + (most / placement.stages());
}

}  // namespace detail

ZBPP_INLINE placement::placement(std::vector<int> rank_of) : rank_of_(std::move(rank_of)) {
  detail::require(!rank_of_.empty(), "the placement is empty; it needs the rank of every stage");
  detail::check_stages(static_cast<std::int64_t>(rank_of_.size()));
  for (std::size_t s = 0; s < rank_of_.size(); ++s) {
    if (rank_of_[s] < 0 || detail::index(rank_of_[s]) >= rank_of_.size())
      throw error(errc::bad_argument) + "placement: stage " + s + " is on rank " + rank_of_[s] +
          "; with " + rank_of_.size() + " stages ranks go from 0 to " + (rank_of_.size() - 1);
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
      throw error(errc::bad_argument) + "placement: rank " + r +
          " has no stage; every rank from 0 to " + (ranks - 1) + " needs one";
    first_[r + 1] += first_[r];
  }
  stages_.resize(rank_of_.size());
  for (std::size_t s = 0; s < rank_of_.size(); ++s)
    stages_[first_[detail::index(rank_of_[s])] + detail::index(chunk_of_[s])] = static_cast<int>(s);
}

ZBPP_INLINE placement placement::looped(int ranks, int chunks) {
  detail::check_shape(ranks, chunks);
  std::vector<int> list(detail::index(ranks) * detail::index(chunks));
  for (std::size_t s = 0; s < list.size(); ++s)
    list[s] = static_cast<int>(s % detail::index(ranks));
  return placement(std::move(list));
}

ZBPP_INLINE placement placement::v_shape(int ranks) {
  detail::check_shape(ranks, 2);
  std::vector<int> list;
  for (int s = 0; s < 2 * ranks; ++s) list.push_back(s < ranks ? s : 2 * ranks - 1 - s);
  return placement(std::move(list));
}

ZBPP_INLINE bool placement::is_linear() const { return *this == linear(ranks()); }

ZBPP_INLINE bool placement::is_looped() const {
  return stages() % ranks() == 0 && *this == looped(ranks(), stages() / ranks());
}

ZBPP_INLINE bool placement::is_v_shape() const { return *this == v_shape(ranks()); }

ZBPP_INLINE std::string placement::name() const {
  if (is_linear()) return "linear";
  if (is_v_shape()) return "v";
  return is_looped() ? "looped" : "custom";
}

ZBPP_INLINE std::string placement::text() const {
  auto known = name();
  if (known == "looped") return detail::joined("looped ", stages() / ranks());
  return known;
}

}  // namespace zbpp
