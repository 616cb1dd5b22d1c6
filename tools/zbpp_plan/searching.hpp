// SPDX-License-Identifier: Apache-2.0
//
// What surrounds a search: Ctrl-C ends it with the best so far, and one that takes long tells how
// far it is, where somebody is looking.
#pragma once

#include <zbpp/io/text.hpp>
#include <zbpp/planner/search.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <unistd.h>

namespace planning {

/// Takes the first Ctrl-C during its life for a request to stop; a second one ends the program.
class interruption {
 public:
  interruption() {
    ::sigaction(SIGINT, nullptr, &before_);
    // Who ignores Ctrl-C, such as a job in the background, goes on ignoring it.
    if (before_.sa_handler == SIG_IGN) return;
    struct sigaction mine {};
    mine.sa_handler = [](int) { is_raised_ = true; };
    mine.sa_flags = static_cast<int>(SA_RESETHAND | static_cast<unsigned>(SA_RESTART));
    ::sigaction(SIGINT, &mine, nullptr);
  }
  ~interruption() { ::sigaction(SIGINT, &before_, nullptr); }
  interruption(interruption const&) = delete;
  interruption& operator=(interruption const&) = delete;

  /// @return whether there was a Ctrl-C since the program began
  [[nodiscard]] static bool was_raised() noexcept { return is_raised_; }

 private:
  static inline std::atomic<bool> is_raised_ = false;
  static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");
  struct sigaction before_ {};
};

/// Rewrites one line of standard error, if that is a terminal, once a second has gone by.
class progress_line {
 public:
  explicit progress_line(zbpp::time_unit unit) : unit_(unit) {}
  ~progress_line() {
    if (is_shown_) std::fputs("\r\x1b[K", stderr);
  }
  progress_line(progress_line const&) = delete;
  progress_line& operator=(progress_line const&) = delete;

  void show(zbpp::search_progress const& now) {
    if (!is_terminal_ || clock::now() < next_) return;
    next_ = clock::now() + std::chrono::milliseconds(100);
    is_shown_ = true;
    auto const line = "\rsearching: " + std::to_string(static_cast<int>(100 * now.spent)) +
                      " %, cost " + zbpp::number_text(now.cost, unit_) + ", at least " +
                      zbpp::number_text(now.lower_bound, unit_) + " " +
                      std::string(to_string(unit_)) + "\x1b[K";
    std::fputs(line.c_str(), stderr);
    std::fflush(stderr);
  }

 private:
  using clock = std::chrono::steady_clock;
  zbpp::time_unit unit_;
  bool is_terminal_ = ::isatty(STDERR_FILENO) != 0;
  bool is_shown_ = false;
  clock::time_point next_ = clock::now() + std::chrono::seconds(1);
};

/// Runs searches with one budget and seed for all, until a Ctrl-C.
struct searching {
  std::optional<double> seconds = {};  ///< else each search has its own
  std::uint64_t seed = 1;
  zbpp::time_unit unit = zbpp::time_unit::milliseconds;

  /// @param usual  the budget if none is stated
  /// @return what `run` makes of the settings of a search
  template <class Run>
  [[nodiscard]] auto watch(Run run, double usual = zbpp::search_settings{}.seconds) const {
    interruption const ctrl_c;
    progress_line line(unit);
    return run(zbpp::search_settings{
        .seconds = seconds.value_or(usual),
        .seed = seed,
        .stop = interruption::was_raised,
        .on_progress = [&line](zbpp::search_progress const& now) { line.show(now); }});
  }
};

}  // namespace planning
