// SPDX-License-Identifier: Apache-2.0
//
// Lets the members of a tensor group take the same optimizer steps: each knows the gradients of its
// own parts of the layers, and all judge those of the whole model.
#pragma once

#include <zbpp/runtime/detail/run_terms.hpp>
#include <zbpp/runtime/group.hpp>
#include <zbpp/runtime/run_options.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace zbpp::detail {

/// Says what a member knows of the gradients of a layer, and then what all know of it.
struct layer_gradients {
  double sum_of_squares = 0;
  std::int32_t stage = 0;
  std::int32_t layer = 0;
  std::int32_t is_finite = 1;
  std::int32_t is_replicated = 0;  ///< each member has all of the layer
};
static_assert(std::is_trivially_copyable_v<layer_gradients> && sizeof(layer_gradients) == 24);

/// Takes the part of one rank in what its tensor group agrees on. All members run one program, so
/// they come here at the same instruction, and their calls fit each other.
class member_agreement {
 public:
  /// Sets memory aside; does nothing where the rank is alone.
  /// @param members  of the rank; outlives this
  /// @param layers   of all stages of the rank
  void join(group& members, std::size_t layers);
  [[nodiscard]] bool is_alone() const noexcept { return members_ == nullptr; }

  /// Compares what all members need alike in a step; only where the rank is not alone.
  /// @param request  what this member asks the run to do next
  /// @return the most that a member asks for
  /// @throws error (no_agreement) that names what differs
  after_step agree(step_terms const& own, after_step request);
  /// Gives each layer what all members know of it: of a layer in parts the sum of the squares of
  /// its parts, in the order of the members; of one that is replicated, that of the first member.
  /// It is finite where it is on all members.
  /// @throws error (no_agreement) when members have other layers, or a replicated one has other
  ///         gradients on one of them
  void combine(std::span<layer_gradients> own);

 private:
  // What a member tells of a step.
  struct statement {
    step_terms terms;
    std::int64_t request = 0;
  };

  // Compares the layers of another member, `other_`, with those of the first.
  void check(int member) const;

  group* members_ = nullptr;
  std::vector<std::vector<std::byte>> all_;  // by member, received last
  std::vector<layer_gradients> first_;       // of member 0, and then of all
  std::vector<layer_gradients> other_;       // of another member, for a moment
};

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/member_agreement.ipp>
#endif
