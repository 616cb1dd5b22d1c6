// SPDX-License-Identifier: Apache-2.0
//
// Whether two ranks run the same plan, and if not, in what they differ: a plan as a list of named
// digests, small enough to send, and the comparison of two such lists.
#pragma once

#include <zbpp/asio/wire.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp {

class plan;
class problem;
class program;
class schedule;

namespace asio {

/// Names one thing that all ranks have to agree on.
struct agreement_item {
  static constexpr std::size_t longest_text = 256;  ///< of name and value, in bytes, when read

  std::string name;                       ///< as it stands in an error, such as `costs of stage 3`
  std::array<std::byte, 32> digest = {};  ///< SHA-256 of the thing
  std::string value;                      ///< the thing itself where it is short, else empty

  /// Writes the item, its texts cut to `longest_text`.
  void put(wire_writer& to) const;
  /// Reads what `put` wrote.
  /// @throws error (bad_format) when bytes are missing, or a text is too long
  [[nodiscard]] static agreement_item get(wire_reader& from);

  friend bool operator==(agreement_item const&, agreement_item const&) = default;
};

/// Makes an item of what was written about it.
[[nodiscard]] agreement_item make_item(
    std::string name, wire_writer const& content, std::string value = {});

/// Makes an item of something that is its own text.
[[nodiscard]] agreement_item make_item(std::string name, std::string value);

/// Lists what ranks have to agree on before they run a plan: always the same items in the same
/// order, and equal ones for equal plans of the same version. What is predicted is left out; it
/// follows from the rest.
/// @throws error (io_failed) when OpenSSL cannot compute SHA-256
[[nodiscard]] std::vector<agreement_item> fingerprint(
    std::string_view policy,
    problem const& problem,
    schedule const& schedule,
    program const& program);
/// Lists the same for a plan.
[[nodiscard]] std::vector<agreement_item> fingerprint(plan const& planned);

/// Names the item of a `grid_layout`.
inline constexpr char const* grid_item = "grid_layout";

/// @return whether an item of a fingerprint says what something costs or may take, or how its order
///         was found, rather than what runs: the pipelines of a grid may differ in that
[[nodiscard]] bool is_of_costs(agreement_item const& item);

/// Names the items in which two lists differ, with both values where they are known, as in
/// `costs of stage 3, policy (ZB-H1 here, ZB-V there)`; empty when they agree. Items belong
/// together by name, so lists may differ in length and order; the second may be anything. Lists
/// that differ in much are cut to `most` names.
/// @param here   what to call the side of `own`
/// @param there  what to call the side of `others`
[[nodiscard]] std::string differences(
    std::span<agreement_item const> own,
    std::span<agreement_item const> others,
    std::string_view here = "here",
    std::string_view there = "there",
    std::size_t most = 8);

}  // namespace asio
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/agreement.ipp>
#endif
