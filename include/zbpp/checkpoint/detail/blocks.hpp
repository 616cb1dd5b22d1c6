// SPDX-License-Identifier: Apache-2.0
//
// Arrays as blocks of larger ones: where a part of an array lies in the whole, and what two parts
// have in common.
#pragma once

#include <zbpp/checkpoint/safetensors.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp::checkpoint::detail {

/// Says where a block lies in an array. All lists are by axis.
struct block {
  std::vector<std::int64_t> whole;  ///< shape of the array
  std::vector<std::int64_t> first;  ///< where the block begins
  std::vector<std::int64_t> shape;  ///< of the block
};

/// @return the part as a block; the whole array if it is not divided
[[nodiscard]] block block_of(std::vector<std::int64_t> const& shape, array_part const& part);

[[nodiscard]] bool fits(std::vector<std::int64_t> const& shape, array_part const& part) noexcept;

[[nodiscard]] std::uint64_t common_count(block const& one, block const& other) noexcept;

/// Copies the elements that two blocks of one array have in common, of which there are some.
/// @param axis  from which on; the spans have one index of those before
void copy_common(
    block const& from,
    std::span<std::byte const> source,
    block const& to,
    std::span<std::byte> target,
    std::size_t axis = 0);

/// Writes a part as the metadata of a file has it: axis, first, whole.
[[nodiscard]] std::string to_text(array_part const& part);
/// @return nothing where the text is something else
[[nodiscard]] std::optional<array_part> to_part(std::string_view text);

}  // namespace zbpp::checkpoint::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/checkpoint/impl/blocks.ipp>
#endif
