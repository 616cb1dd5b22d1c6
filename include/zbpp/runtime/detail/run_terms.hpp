// SPDX-License-Identifier: Apache-2.0
//
// What a rank runs and by which options it steps, as ranks of other processes compare it with what
// they run: plain values, so that an error can name the one that differs.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

namespace zbpp {

struct training_options;
struct training_state;

namespace detail {

/// Holds what all ranks need alike in a step: options, what the step depends on, and its learning
/// rate, each as its bits, so that a value that is not a number equals itself.
struct step_terms {
  std::array<std::uint64_t, 19> bits{};  ///< in the order of `for_each_term`

  /// @return the learning rate of this step; 0 where it only adds gradients up
  [[nodiscard]] double learning_rate() const noexcept { return std::bit_cast<double>(bits.back()); }

  friend bool operator==(step_terms const&, step_terms const&) = default;
};
static_assert(std::is_trivially_copyable_v<step_terms>);

/// @param learning_rate  of the step that comes next
[[nodiscard]] step_terms terms_of(
    training_options const& options, training_state const& state, double learning_rate) noexcept;

/// @param place_of_one  such as "rank 0"
/// @return what differs: "training_options::clip is 1 on rank 0 and 2 on rank 1"; or empty
[[nodiscard]] std::string difference(
    step_terms const& one,
    std::string const& place_of_one,
    step_terms const& other,
    std::string const& place_of_other);
/// @return the same of two ranks, the lower one in front
[[nodiscard]] std::string difference(
    step_terms const& one, int rank_of_one, step_terms const& other, int rank_of_other);

/// Holds what the user has asked a pipeline for, and which part of that a rank runs now.
struct run_statement {
  bool is_training = true;
  std::int64_t first = 0;      ///< step of the call: of `run(n)` the first one
  std::int64_t count = 1;      ///< steps of the call
  std::int64_t step = 0;       ///< that begins now
  std::int64_t at_once = 1;    ///< steps that run without a stop from there
  bool step_decides = false;   ///< ranks wait for each other after a step, to learn what comes next
  bool pause_decides = false;  ///< the same in a pause
  std::int64_t pause_every = 0;   ///< steps between two pauses of the call; 0: none
  bool compares_weights = false;  ///< before the step, since it is the first or `resume` came
  std::optional<step_terms> terms = {};  ///< nothing where no stage of the rank needs any
};

/// @return the terms of a run to be compared with another's: those by default where it has none
[[nodiscard]] step_terms terms_beside(run_statement const& run, run_statement const& other);

/// How the calls of two ranks differ.
enum class run_mismatch : std::uint8_t {
  none,
  calls,  ///< one trains and the other evaluates, or they run different numbers of steps
  steps,  ///< they count steps differently
  loads,  ///< one has begun again from weights, by `resume`, and the other has not
  terms   ///< they step by different options
};
[[nodiscard]] run_mismatch compare(run_statement const& one, run_statement const& other) noexcept;

/// @return the call as the user wrote it: "step()", "run(5)" or "evaluate()"
[[nodiscard]] std::string name_of(run_statement const& run);
/// @return the call, and in training the step that it is at
[[nodiscard]] std::string text_of(run_statement const& run);
/// Says what two ranks or pipelines do that is not the same, in the words of an error.
/// @param place_of_one  such as "rank 0"
/// @return empty where both run the same
[[nodiscard]] std::string mismatch(
    run_statement const& one,
    std::string const& place_of_one,
    run_statement const& other,
    std::string const& place_of_other);

}  // namespace detail
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/run_terms.ipp>
#endif
