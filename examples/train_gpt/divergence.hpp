// SPDX-License-Identifier: Apache-2.0
//
// Losses and parameters that are numbers no more: said at once, and never saved.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <utility>

namespace gpt {

/// Tells on standard error of the first loss of a run that is no finite number.
class divergence_alarm {
 public:
  /// @param who  begins the line: the program, and the rank where it is one of several
  divergence_alarm(std::string who, std::string run) : who_(std::move(who)), run_(std::move(run)) {}

  /// Takes note of a loss.
  /// @param step  from 1
  void note(std::int64_t step, double loss) {
    if (was_told_ || std::isfinite(loss)) return;
    was_told_ = true;
    std::fprintf(
        stderr,
        "%s: %s: the loss of step %lld is %s; a lower --learning-rate may keep it finite\n",
        who_.c_str(),
        run_.c_str(),
        static_cast<long long>(step),
        std::isnan(loss) ? "nan" : "infinite");
  }

 private:
  std::string who_;
  std::string run_;
  bool was_told_ = false;
};

/// Says whether all of some numbers are finite.
[[nodiscard]] inline bool are_finite(std::span<float const> values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

}  // namespace gpt
