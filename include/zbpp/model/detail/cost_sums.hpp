// SPDX-License-Identifier: Apache-2.0
//
// Adds up the times and sizes of a step. Whatever the order of passes, no clock and no memory count
// passes these sums; within 62 bits they keep every later addition within 64.
#pragma once

#include <zbpp/model/costs.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace zbpp::detail {

/// Holds sums that may be too large for ticks and bytes.
class cost_sums {
 public:
  /// The most that a sum may come to, just below 2^62.
  static constexpr long double most =
      static_cast<long double>(std::numeric_limits<std::int64_t>::max() / 2);

  void add_time(ticks time) noexcept { time_ += static_cast<long double>(time); }
  void add_memory(bytes size, int times = 1) noexcept {
    memory_ += times * static_cast<long double>(size);
  }
  /// Adds the passes and what they keep, the optimizer step and the static memory of a stage or
  /// layer.
  void add(stage_costs const& c) noexcept {
    for (auto const& field : cost_fields)
      if (auto const value = field.of(c).value_or(0); field.kind == cost_kind::kept)
        add_memory(value);
      else if (field.kind == cost_kind::pass || field.kind == cost_kind::optimizer)
        add_time(value);
  }

  /// @return the greater of both sums
  [[nodiscard]] long double greatest() const noexcept { return std::max(time_, memory_); }

 private:
  long double time_ = 0;
  long double memory_ = 0;
};

}  // namespace zbpp::detail
