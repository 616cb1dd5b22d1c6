// SPDX-License-Identifier: Apache-2.0
//
// What io/run_progress.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/io/run_progress.hpp>
#include <zbpp/io/terminal.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

namespace zbpp {

ZBPP_INLINE run_progress::run_progress(std::string name, std::int64_t steps)
    : name_(std::move(name)), steps_(steps), is_terminal_(is_terminal()) {}

ZBPP_INLINE run_progress::~run_progress() {
  if (is_terminal_ && is_shown_) std::printf("\n");
}

ZBPP_INLINE void run_progress::show(std::int64_t done, std::string const& text) {
  if (!is_terminal_ && until_milestone(done - 1, steps_) > 1) return;
  is_shown_ = true;
  std::printf(
      "%s  %-10s step %*lld of %lld   %s%s",
      is_terminal_ ? "\r" : "",
      name_.c_str(),
      static_cast<int>(std::to_string(steps_).size()),
      static_cast<long long>(done),
      static_cast<long long>(steps_),
      text.c_str(),
      is_terminal_ ? "  " : "\n");
  std::fflush(stdout);
}

ZBPP_INLINE void run_progress::note(std::string const& text) const {
  if (is_terminal_ || text.empty()) return;
  std::printf("  %-10s %s\n", name_.c_str(), text.c_str());
  std::fflush(stdout);
}

ZBPP_INLINE std::int64_t run_progress::until_milestone(
    std::int64_t done, std::int64_t steps) noexcept {
  auto const fifth = std::max<std::int64_t>(steps / 5, 1);
  return std::min(steps - done, fifth - done % fifth);
}

}  // namespace zbpp
