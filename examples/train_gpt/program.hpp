// SPDX-License-Identifier: Apache-2.0
//
// What a program that trains tells around its work: which steps it takes and how long they take,
// when numbers are none any more, and what has failed.
#pragma once

#include "settings.hpp"
#include <zbpp/analysis/lower.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace gpt {

/// Writes the shortest decimal that is read back as the same number.
template <std::floating_point Number>
[[nodiscard]] std::string exact(Number value) {
  std::array<char, 32> digits{};
  auto const end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

/// Writes a share of one as a percentage.
[[nodiscard]] inline std::string percent(double share) {
  return zbpp::fixed_text(100.0 * share, 1) + " %";
}

/// @return the median of some values; 0 of none
[[nodiscard]] inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  auto const middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Adds cells at the end of a row of a table.
inline void append(std::vector<std::string>& row, std::vector<std::string> const& cells) {
  row.insert(row.end(), cells.begin(), cells.end());
}

/// Names the kinds of steps on the command line.
inline constexpr std::array<std::pair<char const*, zbpp::step_kind>, 3> step_kinds{
    {{"unchecked", zbpp::step_kind::unchecked},
     {"synchronous", zbpp::step_kind::synchronous},
     {"post-validated", zbpp::step_kind::post_validated}}};

/// @return the name of one of `step_kinds`
[[nodiscard]] inline char const* name_of(zbpp::step_kind kind) {
  return std::find_if(
             step_kinds.begin(), step_kinds.end(), [&](auto& k) { return k.second == kind; })
      ->first;
}

/// @return the names of some kinds, with something between them
[[nodiscard]] inline std::string names_of(
    std::vector<zbpp::step_kind> const& kinds, std::string_view between) {
  std::string names;
  for (auto const kind : kinds) {
    if (!names.empty()) names += between;
    names += name_of(kind);
  }
  return names;
}

/// @return what a policy is called that runs with one of some kinds
[[nodiscard]] inline std::string title_of(
    std::string_view policy, zbpp::step_kind kind, std::vector<zbpp::step_kind> const& all) {
  return std::string(policy) + (all.size() > 1 ? std::string(", ") + name_of(kind) : "");
}

/// Tells when ranks step, and what the norm may be.
[[nodiscard]] inline std::string describe_steps(
    std::vector<zbpp::step_kind> const& kinds, optimizer_settings const& how) {
  return names_of(kinds, " and ") +
         (how.clip > 0.0 ? ", the norm of all gradients at most " + exact(how.clip) : "");
}

/// Counts the steps of a run that did not wait for the norm of all gradients.
struct step_counts {
  std::int64_t early = 0;    ///< taken before the norm was known
  std::int64_t amended = 0;  ///< early ones that did not hold

  /// Takes in a step.
  void add(zbpp::update_report const& update) {
    early += update.is_post_validated ? 1 : 0;
    amended += update.is_amended ? 1 : 0;
  }
  /// @return what the columns of a table are called that has the counts
  [[nodiscard]] static std::vector<std::string> columns() { return {"early", "amended"}; }
  /// @return the counts for these columns
  [[nodiscard]] std::vector<std::string> cells() const {
    return {std::to_string(early), std::to_string(amended)};
  }
};

/// Does some work.
/// @param work_name  such as "reading the text"
/// @throws std::runtime_error that names the work where memory does not suffice; what `work` throws
template <class Work>
decltype(auto) doing(std::string const& work_name, Work const& work) {
  try {
    return work();
  } catch (std::bad_alloc const&) {
    throw std::runtime_error(
        "out of memory while " + work_name +
        "; choose a smaller model or fewer microbatches, or free memory");
  }
}

/// Prints a paragraph now, also into a pipe.
inline void say(std::string const& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

/// Writes out what was printed; the last call before the program ends. A full disk is no success.
/// @throws zbpp::error (io_failed) unless all of it, from the start of the program on, was taken
inline void finish_output() {
  bool const is_flushed = std::fflush(stdout) == 0;
  auto const reason = is_flushed ? std::string() : ": " + std::generic_category().message(errno);
  if (!is_flushed || std::ferror(stdout) != 0)
    throw zbpp::error(
        zbpp::errc::io_failed, "standard output: not all of it could be written" + reason);
}

/// Measures how long steps take that follow one another.
class step_clock {
 public:
  /// Begins a step that follows no other.
  void start() { last_ = std::chrono::steady_clock::now(); }
  /// Ends a step and begins the next.
  /// @return the milliseconds of the one that ended
  [[nodiscard]] double lap() {
    auto const now = std::chrono::steady_clock::now();
    std::chrono::duration<double, std::milli> const took = now - std::exchange(last_, now);
    return took.count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

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

}  // namespace gpt
