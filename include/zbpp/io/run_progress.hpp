// SPDX-License-Identifier: Apache-2.0
//
// The progress of a run of many steps on standard output.
#pragma once

#include <cstdint>
#include <string>

namespace zbpp {

/// Shows how far a run is: on a terminal one line that is written over, else five lines in all.
class run_progress {
 public:
  /// @param name   of the run
  /// @param steps  when the run ends
  run_progress(std::string name, std::int64_t steps);
  run_progress(run_progress const&) = delete;
  run_progress& operator=(run_progress const&) = delete;
  /// Ends the line.
  ~run_progress();

  /// Takes note of a step.
  /// @param done  steps taken so far
  /// @param text  follows the number of steps, such as `loss 2.5132   81024 tokens/s`
  void show(std::int64_t done, std::string const& text);
  /// Writes a line of its own unless standard output is a terminal, which shows the steps alone.
  void note(std::string const& text) const;

  /// @return how many steps after `done` another fifth of a run is over, or all of it
  [[nodiscard]] static std::int64_t until_milestone(std::int64_t done, std::int64_t steps) noexcept;

 private:
  std::string name_;
  std::int64_t steps_;
  bool is_terminal_;
  bool is_shown_ = false;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/run_progress.ipp>
#endif
