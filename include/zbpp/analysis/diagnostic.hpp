// SPDX-License-Identifier: Apache-2.0
//
// What `verify` says of a fault: which property is broken, where, at which instruction, and in
// words that a reader can check against the program.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace zbpp {

/// Names the property of a program that does not hold.
enum class fault : std::uint8_t {
  bad_id,         ///< a stage, microbatch, rank or message that does not exist
  missing,        ///< something that must happen does not
  repeated,       ///< something happens twice
  dependence,     ///< an instruction stands before what it needs, on its own rank
  pair,           ///< a pass is paired that is no B right after an F of another microbatch
  channel_order,  ///< sender and receiver of a channel disagree on the order of messages
  channel_depth,  ///< a channel needs more room than the program states
  cut,            ///< a message crosses the point at which ranks validate the step before
  deadlock,       ///< ranks wait for one another
  memory,         ///< a rank needs more than its limit
  sum_order,      ///< W of a stage do not ascend in microbatch: it can run, but sums in other bits
};

/// Names a fault in words.
[[nodiscard]] constexpr std::string_view to_string(fault kind) noexcept {
  switch (kind) {
    case fault::bad_id: return "bad id";
    case fault::missing: return "missing";
    case fault::repeated: return "repeated";
    case fault::dependence: return "dependence";
    case fault::pair: return "pair";
    case fault::channel_order: return "channel order";
    case fault::channel_depth: return "channel depth";
    case fault::cut: return "cut";
    case fault::deadlock: return "deadlock";
    case fault::memory: return "memory";
    case fault::sum_order: return "sum order";
  }
  return "unknown";
}

/// @return whether a program with this fault alone computes the right gradients, but other bits
///         than a plain loop. Another runtime may run it; a pipeline refuses it all the same.
[[nodiscard]] constexpr bool is_remark(fault kind) noexcept { return kind == fault::sum_order; }

/// Describes one fault of a program.
struct diagnostic {
  zbpp::fault fault = zbpp::fault::bad_id;
  zbpp::location location;        ///< for `missing`, the last position at which it could stand
  zbpp::instruction instruction;  ///< the one that stands there, or is missing there
  std::string text;               ///< names the instruction and says what is right

  friend bool operator==(diagnostic const&, diagnostic const&) = default;
};

/// Writes a diagnostic as one line: fault, place, text.
[[nodiscard]] inline std::string to_string(diagnostic const& d) {
  auto text = std::string(to_string(d.fault));
  if (d.location != location{}) text.append(" at ").append(to_string(d.location));
  return text.append(": ").append(d.text);
}

namespace detail {

/// Makes a diagnostic of an instruction, which leads the text.
[[nodiscard]] inline diagnostic make_diagnostic(
    fault fault, int rank, std::int64_t position, instruction const& i, std::string const& text) {
  return {fault, {rank, position, i.stage, i.microbatch}, i, to_string(i) + ": " + text};
}

/// Makes a diagnostic of the instruction that stands at a position.
[[nodiscard]] inline diagnostic make_diagnostic(
    program const& program, fault fault, int rank, std::int64_t position, std::string const& text) {
  return make_diagnostic(fault, rank, position, program.instructions(rank)[index(position)], text);
}

}  // namespace detail
}  // namespace zbpp
