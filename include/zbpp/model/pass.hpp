// SPDX-License-Identifier: Apache-2.0
//
// A pass: one piece of compute of one microbatch on one stage. The backward pass is split into B
// (gradient of the input, somebody waits for it) and W (gradient of the weights, nobody does).
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace zbpp {

/// Says what a pass computes. @source arXiv 2401.10241 sec. 2.
enum class pass_kind : std::uint8_t {
  forward,          ///< F
  backward_input,   ///< B: gradient of the input
  backward_weight,  ///< W: gradient of the weights
  backward,         ///< BW: both at once
  recompute,        ///< R: makes again what F did not keep
};

/// Describes a kind of pass. A new kind is a row of `pass_table`, an enumerator of `pass_kind` and
/// `instruction_kind`, and the switches that the compiler then finds incomplete.
struct pass_traits {
  pass_kind kind;
  std::string_view letters;      ///< in texts, pictures and JSON
  std::string_view csv_letters;  ///< in CSV, as PyTorch writes them
};

/// Holds the traits of all kinds of passes, in the order of `pass_kind`.
inline constexpr std::array pass_table{
    pass_traits{pass_kind::forward, "F", "F"},
    pass_traits{pass_kind::backward_input, "B", "I"},
    pass_traits{pass_kind::backward_weight, "W", "W"},
    pass_traits{pass_kind::backward, "BW", "B"},
    pass_traits{pass_kind::recompute, "R", "R"},
};

/// Counts the kinds of passes.
inline constexpr std::size_t pass_kinds = pass_table.size();

/// Tells a kind from a number that was cast to one.
[[nodiscard]] constexpr bool is_known(pass_kind kind) noexcept {
  return static_cast<std::size_t>(kind) < pass_kinds;
}

/// @return the short form of a kind: F, B, W, BW or R
[[nodiscard]] constexpr std::string_view to_string(pass_kind kind) noexcept {
  return is_known(kind) ? pass_table[static_cast<std::size_t>(kind)].letters : "?";
}

/// Names one pass of a schedule. Paired passes start together, when both inputs are there, and end
/// together; what both make leaves then.
struct pass {
  pass_kind kind = pass_kind::forward;
  std::int32_t stage = 0;
  std::int32_t microbatch = 0;
  /// Of B or BW: it runs together with the F right in front of it in the row of its rank.
  bool is_paired = false;

  [[nodiscard]] constexpr bool makes_input_gradient() const noexcept {
    return kind == pass_kind::backward_input || kind == pass_kind::backward;
  }
  [[nodiscard]] constexpr bool makes_weight_gradient() const noexcept {
    return kind == pass_kind::backward_weight || kind == pass_kind::backward;
  }

  friend constexpr bool operator==(pass const&, pass const&) = default;
  friend constexpr auto operator<=>(pass const&, pass const&) = default;
};

namespace detail {

/// Says what `may_pair` asks for.
inline constexpr std::string_view pair_rule =
    "it is paired; pair a B or BW with an F of another microbatch, right in front of it in its row";

/// @return whether the second pass may run together with the first, right in front of it
[[nodiscard]] constexpr bool may_pair(pass const& first, pass const& second) noexcept {
  return first.kind == pass_kind::forward && second.makes_input_gradient() &&
         first.microbatch != second.microbatch;
}

}  // namespace detail

/// Writes a pass as stage, letter, microbatch: `2F0`, `2B0`, `2W0`, `2BW0`, `2R0`.
[[nodiscard]] inline std::string to_string(pass const& p) {
  return std::to_string(p.stage).append(to_string(p.kind)).append(std::to_string(p.microbatch));
}

}  // namespace zbpp
