// SPDX-License-Identifier: Apache-2.0
//
// What crosses an edge between two stages of a LibTorch model: tensors, as they are inside a
// process, and as bytes to another one.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/object.hpp>
#include <zbpp/torch/detail/libtorch.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::torch {

/// Holds tensors of any type, sizes and strides, which may be undefined.
using tensors = std::vector<at::Tensor>;

/// Holds the tensors of an edge. Each crosses it detached from its graph.
struct edge_tensors {
  tensors values;
  std::vector<bool> needs_gradient;  ///< of each: whether its sender waits for one
};

namespace detail {

/// Stands before each tensor as bytes; sizes and strides follow it.
struct tensor_header {
  std::int8_t type = -1;  // c10::ScalarType; -1: undefined
  bool needs_gradient = false;
  std::int32_t dimensions = 0;
  std::int64_t size = 0;  // of the data, in bytes
};

inline constexpr std::size_t data_alignment = 64;

[[nodiscard]] constexpr std::size_t aligned(std::size_t size) noexcept {
  return (size + data_alignment - 1) / data_alignment * data_alignment;
}

/// @return bytes of a header with its sizes and strides, up to the data
[[nodiscard]] inline std::size_t head_size(at::Tensor const& t) {
  auto const dimensions = t.defined() ? static_cast<std::size_t>(t.dim()) : 0;
  return aligned(sizeof(tensor_header) + 2 * dimensions * sizeof(std::int64_t));
}

/// @return the tensor in one piece of memory without gaps, in the order in which it has it
[[nodiscard]] inline at::Tensor in_one_piece(at::Tensor const& t) {
  return t.is_non_overlapping_and_dense() ? t : t.contiguous();
}

}  // namespace detail

/// Says how many bytes tensors take as the message of an edge: at most `stage_costs::edge`.
[[nodiscard]] inline bytes edge_size(tensors const& all) {
  auto sum = detail::data_alignment;
  for (auto const& t : all)
    sum += detail::head_size(t) + (t.defined() ? detail::aligned(t.nbytes()) : 0);
  return static_cast<bytes>(sum);
}

}  // namespace zbpp::torch

/// Writes tensors of the host as their types, sizes, strides and data. What is read refers to the
/// buffer that came, without a copy.
template <>
struct zbpp::serializer<zbpp::torch::edge_tensors> {
  using edge_tensors = zbpp::torch::edge_tensors;
  using header = zbpp::torch::detail::tensor_header;

  static std::size_t size(edge_tensors const& from) {
    return static_cast<std::size_t>(zbpp::torch::edge_size(from.values));
  }

  /// Writes the tensors.
  /// @throws error (bad_argument) when one is not in memory of the host, or is sparse
  static void write(edge_tensors const& from, std::span<std::byte> to) {
    auto const count = static_cast<std::uint64_t>(from.values.size());
    std::memcpy(to.data(), &count, sizeof count);
    auto* at = to.data() + zbpp::torch::detail::data_alignment;
    for (std::size_t i = 0; i < from.values.size(); ++i) {
      auto const& each = from.values[i];
      auto* const data = at + zbpp::torch::detail::head_size(each);
      header head;
      at::Tensor piece;
      if (each.defined()) {
        zbpp::detail::require(
            each.device().is_cpu() && each.layout() == at::kStrided && !each.is_quantized(),
            "only dense tensors of plain numbers in memory of the host can go to another process");
        piece = zbpp::torch::detail::in_one_piece(each);
        head = {
            .type = static_cast<std::int8_t>(piece.scalar_type()),
            .needs_gradient = from.needs_gradient[i],
            .dimensions = static_cast<std::int32_t>(piece.dim()),
            .size = static_cast<std::int64_t>(piece.nbytes())};
        auto* numbers = at + sizeof head;
        for (auto const list : {piece.sizes(), piece.strides()}) {
          if (!list.empty()) std::memcpy(numbers, list.data(), list.size() * sizeof(std::int64_t));
          numbers += list.size() * sizeof(std::int64_t);
        }
        if (head.size > 0) std::memcpy(data, piece.data_ptr(), piece.nbytes());
      }
      std::memcpy(at, &head, sizeof head);
      at = data + zbpp::torch::detail::aligned(static_cast<std::size_t>(head.size));
    }
  }

  /// Makes the tensors of what `write` wrote, on the same kind of machine.
  /// @throws error (wrong_size) when the bytes are not what `write` writes
  static edge_tensors read(buffer const& from);
};

#include <zbpp/torch/impl/tensors.ipp>
