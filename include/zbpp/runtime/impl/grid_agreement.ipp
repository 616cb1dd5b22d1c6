// SPDX-License-Identifier: Apache-2.0
//
// How pipelines of a grid compare what they hold, and what they call.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/checksum.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/agreement.hpp>
#include <zbpp/runtime/detail/grid_agreement.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace zbpp::detail {

/// Does what ranks do together; where it throws, those that wait for this one are told.
template <class Work>
void or_fail(rank_grid const& grid, Work const& work) {
  try {
    work();
  } catch (...) {
    grid.fail(std::current_exception());
    throw;
  }
}

ZBPP_INLINE void compare_plans(plan const& planned, int rank, rank_grid& grid, bool is_training) {
  bool const reduces = reduces_gradients(planned.program());
  if (!grid.has_members() || (is_training && !reduces)) return;
  auto items = fingerprint(planned);
  std::erase_if(
      items, [](agreement_item const& item) { return is_of_costs(item) && item.name != "policy"; });
  std::string row;
  for (auto const& i : planned.program().instructions(rank)) row += to_string(i) + " ";
  items.push_back(zbpp::make_item(joined("instructions of rank ", rank), row));
  constexpr std::string_view cure = "give pipelines that wait for each other the same plan";
  or_fail(grid, [&] {
    if (is_training) return agree(grid.data(), items, cure);
    agree(grid.tensor(), items, cure);
    agree(grid.expert(), items, cure);
  });
}

/// What a rank knows of the weights of a layer.
struct layer_weights {
  std::string name;
  std::uint64_t digest = 0;
  bool is_replicated = false;
  bool may_be_unmarked = false;  ///< it can be marked, is not, and its weights say something
};

// In words and by four sums beside each other, since multiplications wait for each other.
ZBPP_INLINE std::uint64_t digest_of(std::span<float const> weights) noexcept {
  std::array<std::uint64_t, 4> sums{1, 2, 3, weights.size()};
  auto const add = [](std::uint64_t& sum, std::uint64_t bits) {
    sum = (sum ^ bits) * 0x9E3779B97F4A7C15U;
    sum ^= sum >> 32U;
  };
  for (; weights.size() >= sums.size(); weights = weights.subspan(sums.size()))
    for (std::size_t i = 0; i < sums.size(); ++i)
      add(sums[i], std::bit_cast<std::uint32_t>(weights[i]));
  for (float const weight : weights) add(sums[0], std::bit_cast<std::uint32_t>(weight));
  for (std::size_t i = 1; i < sums.size(); ++i) add(sums[0], sums[i]);
  return sums[0];
}

[[nodiscard]] ZBPP_INLINE std::vector<layer_weights> weights_of(
    std::span<int const> numbers, std::span<stage_ref const> stages, pass_context ctx) {
  std::vector<layer_weights> all;
  std::vector<float> copy;
  for (std::size_t chunk = 0; chunk < stages.size(); ++chunk) {
    auto* const optimizer = stages[chunk].optimizer();
    for (int layer = 0; optimizer != nullptr && layer < optimizer->layers(); ++layer) {
      auto const size = optimizer->layer_size(layer);
      if (!size) continue;
      auto const is_replicated = optimizer->is_replicated(layer);
      copy.resize(index(*size));
      optimizer->read_weights(layer, copy, ctx);
      all.push_back(
          {.name = joined("weights of layer ", layer, " of stage ", numbers[chunk]),
           .digest = digest_of(copy),
           .is_replicated = is_replicated.value_or(false),
           .may_be_unmarked =
               is_replicated == false &&
               std::ranges::adjacent_find(copy, std::not_equal_to<>()) != copy.end()});
    }
  }
  return all;
}

/// Refuses layers that all members of a group have whole and that are not marked so.
ZBPP_INLINE void refuse_unmarked(group& members, std::span<layer_weights const> layers) {
  std::vector<std::uint64_t> digests;
  for (auto const& each : layers) digests.push_back(each.may_be_unmarked ? each.digest : 0);
  std::vector<std::vector<std::byte>> all;
  members.compare(std::as_bytes(std::span(digests)), all);
  for (std::size_t at = 0; at < digests.size(); ++at) {
    auto const is_same = [&](std::vector<std::byte> const& other) {
      std::uint64_t digest = 0;
      if (other.size() != digests.size() * sizeof digest) return false;
      std::memcpy(&digest, other.data() + at * sizeof digest, sizeof digest);
      return digest == digests[at];
    };
    if (digests[at] != 0 && std::ranges::all_of(all, is_same))
      throw error(errc::no_agreement) + "the " + layers[at].name +
          " are the same on all members of the " + members.link()->name() +
          ", and the norm would count them once for each; mark the layer is_replicated, or set "
          "training_options::compares_weights to false where they are parts that happen to be "
          "the same";
  }
}

ZBPP_INLINE void compare_weights(
    plan const& planned,
    int rank,
    std::span<stage_ref const> stages,
    rank_grid& grid,
    pass_context ctx) {
  bool const reduces = grid.data().size() > 1 && reduces_gradients(planned.program());
  if (!reduces && grid.tensor().size() == 1) return;
  or_fail(grid, [&] {
    auto const layers = weights_of(planned.problem().placement().stages_of(rank), stages, ctx);
    auto const compare = [&](group& members, auto is_shared) {
      std::vector<agreement_item> items;
      for (auto const& each : layers)
        if (is_shared(each)) items.push_back({each.name, each.digest, hex_text(each.digest)});
      agree(
          members,
          items,
          "begin with the same layers and weights on all of them, or set "
          "training_options::compares_weights to false");
    };
    compare(grid.tensor(), [](layer_weights const& each) { return each.is_replicated; });
    if (grid.tensor().size() > 1 && agrees_on_steps(planned.program()))
      refuse_unmarked(grid.tensor(), layers);
    // Replicas with other experts have other weights.
    auto& replicas = grid.expert().size() > 1 ? grid.expert_data() : grid.data();
    if (reduces) compare(replicas, [](layer_weights const&) { return true; });
  });
}

ZBPP_INLINE void compare_calls(
    plan const& planned,
    run_statement const& own,
    rank_grid& grid,
    std::vector<std::vector<std::byte>>& all) {
  static_assert(std::is_trivially_copyable_v<run_statement>);
  auto const compare = [&](group& members) {
    if (members.size() == 1) return;
    members.compare(std::as_bytes(std::span(&own, 1)), all);
    auto const statement_of = [&](std::size_t member) {
      run_statement stated;
      require(
          all[member].size() == sizeof stated,
          "a member of a group compares something else than its call; let all members make the "
          "same calls in the same order");
      std::memcpy(&stated, all[member].data(), sizeof stated);
      return stated;
    };
    auto const first = statement_of(0);
    for (std::size_t member = 1; member < all.size(); ++member) {
      auto const other = statement_of(member);
      if (detail::compare(first, other) == run_mismatch::none) continue;
      auto const name = members.name_of(static_cast<int>(member));
      throw error(errc::no_agreement, mismatch(first, members.name_of(0), other, name));
    }
  };
  or_fail(grid, [&] {
    compare(grid.tensor());
    compare(grid.expert());
    // In an evaluation replicas do not wait for each other.
    if (own.is_training && reduces_gradients(planned.program())) compare(grid.data());
  });
}

}  // namespace zbpp::detail
