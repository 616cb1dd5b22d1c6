// SPDX-License-Identifier: Apache-2.0
//
// Whether ranks hold the same, such as one plan, and if not, in what they differ: a list of named
// digests, small enough to send, and the comparison of two such lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp {

class group;
class plan;
class problem;
class program;
class schedule;

/// Names one thing that all ranks have to agree on.
struct agreement_item {
  static constexpr std::size_t longest_text = 256;  ///< of name and value, in bytes, when sent

  std::string name;          ///< as it stands in an error, such as `costs of stage 3`
  std::uint64_t digest = 0;  ///< of the thing
  std::string value;         ///< the thing itself as text, or how that begins; empty: not told

  friend bool operator==(agreement_item const&, agreement_item const&) = default;
};

/// Makes an item of something that is its own text.
[[nodiscard]] agreement_item make_item(std::string name, std::string value);

/// Lists what ranks have to agree on before they run a plan: always the same items in the same
/// order, and equal ones for equal plans of the same version. What is predicted is left out; it
/// follows from the rest.
[[nodiscard]] std::vector<agreement_item> fingerprint(
    std::string_view policy,
    problem const& problem,
    schedule const& schedule,
    program const& program);
/// Lists the same for a plan.
[[nodiscard]] std::vector<agreement_item> fingerprint(plan const& planned);

/// @return whether an item of a fingerprint says what something costs or may take, or how its order
///         was found, rather than what runs: the pipelines of a grid may differ in that
[[nodiscard]] bool is_of_costs(agreement_item const& item);

/// Names the items in which two lists differ, with both values where they are known, as in
/// `costs of stage 3, policy (ZB-H1 here, ZB-V there)`; empty when they agree. Items belong
/// together by name, so lists may differ in length and order; the second may be anything. Lists
/// that differ in much are cut to `most` names, and long values to where they differ.
/// @param here   what to call the side of `own`
/// @param there  what to call the side of `others`
[[nodiscard]] std::string differences(
    std::span<agreement_item const> own,
    std::span<agreement_item const> others,
    std::string_view here = "here",
    std::string_view there = "there",
    std::size_t most = 8);

/// Checks that all members of a group hold the same; a collective call.
/// @param cure  ends the error: what to give to all
/// @throws error (no_agreement), the same on all members, that names what differs and where; the
///         failure of the run
void agree(group& members, std::span<agreement_item const> own, std::string_view cure);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/agreement.ipp>
#endif
