// SPDX-License-Identifier: Apache-2.0
//
// A problem seen from one rank: which passes lie between that rank's first and last pass, and in
// which line of their own rank they stand.
#pragma once

#include <zbpp/analysis/detail/bounds/memory.hpp>
#include <zbpp/analysis/detail/bounds/terms.hpp>
#include <zbpp/analysis/detail/line_times.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/placement.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Names the lines of a stage.
enum class pass_line : std::uint8_t { forward, backward, weight };

/// @return the line of the passes of one kind of one stage of a rank, among all lines of the rank
[[nodiscard]] constexpr int line_of(pass_line line, int chunk) noexcept {
  return 3 * chunk + static_cast<int>(line);
}
[[nodiscard]] constexpr pass_line kind_of_line(int line) noexcept {
  return static_cast<pass_line>(line % 3);
}
[[nodiscard]] constexpr int chunk_of_line(int line) noexcept { return line / 3; }

/// @param from_the_back  whether the passes of the last microbatch are number 0
[[nodiscard]] inline line_times times_of_lines(
    bound_terms const& terms, std::span<int const> stages, bool from_the_back = false) {
  auto const distinct = terms.are_alike() ? 1 : terms.microbatches();
  line_times all(3 * stages.size(), distinct);
  for (int n = 0; n < distinct; ++n)
    for (int s : stages) {
      auto const& t = terms.of(s, from_the_back ? distinct - 1 - n : n);
      for (auto const time : {t.forward, t.backward_input, t.backward_weight}) all.add(time);
    }
  return all;
}

/// Says from which rank a problem is seen. It refers to what it is made of.
struct rank_view {
  rank_view(
      bound_terms const& t, placement const& w, std::vector<memory_terms> const& of_stages, int r)
      : terms(t), placement(w), memory(of_stages), rank(r), from(w.stages_of(r).front()) {}

  [[nodiscard]] int microbatches() const noexcept { return terms.microbatches(); }
  /// @return the place of a line among those of the rank of its stage
  [[nodiscard]] std::size_t line(pass_line pass, int stage) const noexcept {
    return index(line_of(pass, placement.chunk_of(stage)));
  }
  [[nodiscard]] ticks duration(pass_line line, int stage, int microbatch) const noexcept {
    auto const& t = terms.of(stage, microbatch);
    switch (line) {
      case pass_line::forward: return t.forward;
      case pass_line::backward: return t.backward_input;
      case pass_line::weight: return t.backward_weight;
    }
    return 0;
  }
  [[nodiscard]] line_times times(int of_rank, bool from_the_back = false) const {
    return times_of_lines(terms, placement.stages_of(of_rank), from_the_back);
  }

  bound_terms const& terms;
  zbpp::placement const& placement;
  std::vector<memory_terms> const& memory;  ///< of all stages
  int rank;
  int from;  ///< first stage of the rank; F of earlier stages can run before its first pass
};

}  // namespace zbpp::detail
