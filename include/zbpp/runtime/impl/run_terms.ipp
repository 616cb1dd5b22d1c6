// SPDX-License-Identifier: Apache-2.0
//
// How ranks compare what they run.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/runtime/detail/run_terms.hpp>
#include <zbpp/runtime/training.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace zbpp::detail {

/// Gives `use` the name and the value of each term: state before options, and the causes before
/// what follows from them. The functions of the options are those of each rank, and ranks may
/// differ in what they do while they wait.
template <class Use>
auto with_terms(
    training_options const& options,
    training_state const& state,
    double learning_rate,
    Use const& use) {
  // Names all members, so that a new one does not compile until it is compared here.
  auto const& [clip, rate, on_ready, scaling, accumulate, window, agreement, on_stall, compares_weights] =
      options;
  auto const& [initial, growth_interval, largest, smallest] = scaling;
  auto const& [window_steps, most_amended] = window;
  auto const& [every, share] = agreement;
  auto const& [steps, updates, loss_scale, finite_steps, amended, accumulated, unagreed] = state;
  return use(
      std::pair("training_state::steps", steps),
      std::pair("training_state::updates", updates),
      std::pair("training_options::accumulate", accumulate),
      std::pair("training_options::clip", clip),
      std::pair("training_options::scaling.initial", initial),
      std::pair("training_options::scaling.largest", largest),
      std::pair("training_options::scaling.smallest", smallest),
      std::pair("training_options::scaling.growth_interval", growth_interval),
      std::pair("training_options::window.steps", window_steps),
      std::pair("training_options::window.most_amended", most_amended),
      std::pair("training_options::agreement.every", every),
      std::pair("training_options::agreement.share", share),
      std::pair("training_state::loss_scale", loss_scale),
      std::pair("training_state::finite_steps", finite_steps),
      std::pair("training_state::accumulated", accumulated),
      std::pair("training_state::amended", amended),
      std::pair("training_state::unagreed", unagreed),
      std::pair("training_options::compares_weights", compares_weights),
      std::pair("training_options::learning_rate", learning_rate));
}

/// Calls `see(name, place in step_terms, usual value)` for each term.
template <class See>
void for_each_term(See const& see) {
  with_terms({}, {}, 0, [&](auto const&... terms) {
    std::size_t at = 0;
    (see(std::string_view(terms.first), at++, terms.second), ...);
  });
}

template <class Value>
[[nodiscard]] std::uint64_t bits_of(Value value) noexcept {
  if constexpr (std::is_floating_point_v<Value>)
    return std::bit_cast<std::uint64_t>(value);
  else
    return static_cast<std::uint64_t>(value);
}

template <class Value>
[[nodiscard]] std::string text_of(std::uint64_t bits, Value) {
  if constexpr (std::is_floating_point_v<Value>) return number_text(std::bit_cast<Value>(bits));
  if constexpr (std::is_unsigned_v<Value>) return std::to_string(bits);
  return std::to_string(static_cast<std::int64_t>(bits));
}

ZBPP_INLINE step_terms terms_of(
    training_options const& options, training_state const& state, double learning_rate) noexcept {
  return with_terms(options, state, learning_rate, [](auto const&... terms) {
    static_assert(sizeof...(terms) == step_terms().bits.size(), "step_terms has another size");
    return step_terms{{bits_of(terms.second)...}};
  });
}

ZBPP_INLINE std::string difference(
    step_terms const& one,
    std::string const& place_of_one,
    step_terms const& other,
    std::string const& place_of_other) {
  std::string text;
  for_each_term([&](std::string_view name, std::size_t at, auto usual) {
    auto const a = one.bits[at];
    auto const b = other.bits[at];
    if (text.empty() && a != b)
      text = joined(name) + " is " + text_of(a, usual) + " on " + place_of_one + " and " +
             text_of(b, usual) + " on " + place_of_other;
  });
  return text;
}

ZBPP_INLINE std::string difference(
    step_terms const& one, int rank_of_one, step_terms const& other, int rank_of_other) {
  if (rank_of_one > rank_of_other) return difference(other, rank_of_other, one, rank_of_one);
  return difference(one, joined("rank ", rank_of_one), other, joined("rank ", rank_of_other));
}

ZBPP_INLINE step_terms terms_beside(run_statement const& run, run_statement const& other) {
  if (run.terms) return *run.terms;
  auto terms = *other.terms;
  for_each_term([&](std::string_view name, std::size_t at, auto usual) {
    if (name == "training_options::accumulate" || name == "training_options::scaling.initial")
      terms.bits[at] = bits_of(usual);
  });
  return terms;
}

ZBPP_INLINE run_mismatch compare(run_statement const& one, run_statement const& other) noexcept {
  if (one.is_training != other.is_training) return run_mismatch::calls;
  if (one.step != other.step) return run_mismatch::steps;
  if (one.compares_weights != other.compares_weights) return run_mismatch::loads;
  if (one.at_once != other.at_once || one.step_decides != other.step_decides ||
      one.pause_decides != other.pause_decides)
    return run_mismatch::calls;
  // Where ranks agree on nothing, `run(n)` is as many calls of `step`, so one rank may write one
  // and the other rank the other.
  bool const runs_both = one.count > 1 && other.count > 1 && one.first == other.first;
  if (runs_both && one.count != other.count) return run_mismatch::calls;
  // Ranks that wait for each other between steps do so after the same ones.
  if ((one.step_decides || one.pause_decides) &&
      (one.first != other.first || one.count != other.count ||
       one.pause_every != other.pause_every))
    return run_mismatch::calls;
  if (!one.terms && !other.terms) return run_mismatch::none;
  return terms_beside(one, other) == terms_beside(other, one) ? run_mismatch::none
                                                              : run_mismatch::terms;
}

ZBPP_INLINE std::string name_of(run_statement const& run) {
  if (!run.is_training) return "evaluate()";
  return run.count == 1 ? "step()" : "run(" + std::to_string(run.count) + ")";
}

ZBPP_INLINE std::string text_of(run_statement const& run) {
  auto const name = name_of(run);
  return run.is_training ? name + " for step " + std::to_string(run.step) : name;
}

/// @return how a run goes on, for runs of the same name
[[nodiscard]] ZBPP_INLINE std::string way_text(run_statement const& run) {
  return joined(" (from step ") + run.first + ", pause_every " + run.pause_every + ", on_step " +
         (run.step_decides ? "says" : "does not say") + " what comes next, on_pause " +
         (run.pause_decides ? "says so" : "does not") + ")";
}

ZBPP_INLINE std::string mismatch(
    run_statement const& one,
    std::string const& place_of_one,
    run_statement const& other,
    std::string const& place_of_other) {
  auto const found = compare(one, other);
  if (found == run_mismatch::none) return {};
  if (found == run_mismatch::terms)
    return difference(
               terms_beside(one, other), place_of_one, terms_beside(other, one), place_of_other) +
           "; give all ranks the same";
  auto const tell = [&](std::string const& place, run_statement const& run) {
    auto text = place + " called " + text_of(run);
    if (found == run_mismatch::calls && text_of(one) == text_of(other)) text += way_text(run);
    if (found == run_mismatch::steps && !run.is_training) text += joined(" at step ", run.step);
    if (found == run_mismatch::loads)
      text += run.compares_weights ? " behind resume()" : " without resume()";
    return text;
  };
  return tell(place_of_one, one) + ", " + tell(place_of_other, other) +
         (found == run_mismatch::steps
              ? "; give all ranks the same training_state to resume from"
              : "; all ranks have to make the same calls in the same order");
}

}  // namespace zbpp::detail
