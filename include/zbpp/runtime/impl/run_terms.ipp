// SPDX-License-Identifier: Apache-2.0
//
// How ranks compare what they run.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/runtime/detail/run_terms.hpp>
#include <zbpp/runtime/training.hpp>

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace zbpp::detail {

ZBPP_INLINE step_terms terms_of(
    training_options const& options, training_state const& state, double learning_rate) noexcept {
  // Name all members, so that a new one does not compile until it is compared here. The two
  // functions are those of each rank.
  auto const& [clip, rate, on_ready, scaling, accumulate, window, agreement, on_stall, compares_weights] =
      options;
  auto const& [initial, interval, largest, smallest] = scaling;
  auto const& [window_steps, most_amended] = window;
  auto const& [every, share] = agreement;
  auto const& [steps, updates, loss_scale, finite_steps, amended, accumulated, unagreed] = state;
  static_cast<void>(rate);
  static_cast<void>(on_ready);
  return {
      .learning_rate = learning_rate,
      .loss_scale = loss_scale,
      .clip = clip,
      .initial_scale = initial,
      .largest_scale = largest,
      .smallest_scale = smallest,
      .growth_interval = interval,
      .accumulate = accumulate,
      .window_steps = window_steps,
      .most_amended = most_amended,
      .agreement_every = every,
      .agreement_share = share,
      .steps = steps,
      .updates = updates,
      .finite_steps = finite_steps,
      .accumulated = accumulated,
      .amended = amended,
      .unagreed = unagreed,
      .compares_weights = compares_weights ? 1 : 0};
}

/// Calls `see(name, value of one, value of the other)` for each value, until one gives true.
template <class See>
bool any_pair_of(step_terms const& one, step_terms const& other, See see) {
  // State before options, and the causes before what follows from them.
  return see("training_state::steps", one.steps, other.steps) ||
         see("training_state::updates", one.updates, other.updates) ||
         see("training_options::accumulate", one.accumulate, other.accumulate) ||
         see("training_options::clip", one.clip, other.clip) ||
         see("training_options::scaling.initial", one.initial_scale, other.initial_scale) ||
         see("training_options::scaling.largest", one.largest_scale, other.largest_scale) ||
         see("training_options::scaling.smallest", one.smallest_scale, other.smallest_scale) ||
         see("training_options::scaling.growth_interval",
             one.growth_interval,
             other.growth_interval) ||
         see("training_options::window.steps", one.window_steps, other.window_steps) ||
         see("training_options::window.most_amended", one.most_amended, other.most_amended) ||
         see("training_options::agreement.every", one.agreement_every, other.agreement_every) ||
         see("training_options::agreement.share", one.agreement_share, other.agreement_share) ||
         see("training_state::loss_scale", one.loss_scale, other.loss_scale) ||
         see("training_state::finite_steps", one.finite_steps, other.finite_steps) ||
         see("training_state::accumulated", one.accumulated, other.accumulated) ||
         see("training_state::amended", one.amended, other.amended) ||
         see("training_state::unagreed", one.unagreed, other.unagreed) ||
         see("training_options::compares_weights", one.compares_weights, other.compares_weights) ||
         see("training_options::learning_rate", one.learning_rate, other.learning_rate);
}

template <class Value>
[[nodiscard]] bool has_same_bits(Value a, Value b) noexcept {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

template <class Value>
[[nodiscard]] std::string text_of_term(Value value) {
  if constexpr (std::is_floating_point_v<Value>)
    return number_text(value);
  else
    return std::to_string(value);
}

// Each of its values has eight bytes, so there are none between them.
ZBPP_INLINE bool has_same_bits(step_terms const& one, step_terms const& other) noexcept {
  return std::memcmp(&one, &other, sizeof one) == 0;
}

ZBPP_INLINE std::string difference(
    step_terms const& one,
    std::string const& place_of_one,
    step_terms const& other,
    std::string const& place_of_other) {
  std::string text;
  any_pair_of(one, other, [&](std::string_view name, auto a, auto b) {
    if (has_same_bits(a, b)) return false;
    text = joined(name) + " is " + text_of_term(a) + " on " + place_of_one + " and " +
           text_of_term(b) + " on " + place_of_other;
    return true;
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
  terms.accumulate = 1;
  terms.initial_scale = 1;
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
  bool const differs =
      any_pair_of(terms_beside(one, other), terms_beside(other, one), [](auto, auto a, auto b) {
        return !has_same_bits(a, b);
      });
  return differs ? run_mismatch::terms : run_mismatch::none;
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
