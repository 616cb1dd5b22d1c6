// SPDX-License-Identifier: Apache-2.0
//
// How tensors are made of the bytes that came for them.
#pragma once

#include <zbpp/torch/tensors.hpp>

namespace zbpp::torch::detail {

/// Walks through the bytes of a message, and never past their end.
class byte_reader {
 public:
  explicit byte_reader(buffer const& from) : left_(from.data(), from.size()) {}

  [[nodiscard]] std::byte* take(std::size_t size) {
    if (size > left_.size())
      throw error(errc::wrong_size) +
          "the bytes of tensors end early; sender and receiver need the same version of zbpp";
    auto* const begin = left_.data();
    left_ = left_.subspan(size);
    return begin;
  }
  /// Copies the next bytes to a value.
  template <class Value>
  void get(Value& value) {
    std::memcpy(&value, take(sizeof value), sizeof value);
  }

 private:
  std::span<std::byte> left_;
};

/// @return whether a tensor of such sizes and strides has just so many values, and lies within them
[[nodiscard]] inline bool fits(
    at::IntArrayRef sizes, at::IntArrayRef strides, std::int64_t values) noexcept {
  constexpr std::int64_t most = std::int64_t{1} << 31;
  bool is_empty = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || sizes[i] > most || strides[i] < 0 || strides[i] > most) return false;
    is_empty = is_empty || sizes[i] == 0;
  }
  if (is_empty || values <= 0) return is_empty && values == 0;
  std::int64_t count = 1;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (count > values / sizes[i]) return false;
    count *= sizes[i];
    if (sizes[i] > 1 && strides[i] > (values - 1 - last) / (sizes[i] - 1)) return false;
    last += (sizes[i] - 1) * strides[i];
  }
  return count == values;
}

/// @return whether tensors of a type can cross an edge as bytes
[[nodiscard]] inline bool is_plain(c10::ScalarType type) noexcept {
  return at::isIntegralType(type, true) || at::isFloatingType(type) || at::isComplexType(type);
}

}  // namespace zbpp::torch::detail

inline zbpp::torch::edge_tensors zbpp::serializer<zbpp::torch::edge_tensors>::read(
    buffer const& from) {
  namespace detail = zbpp::torch::detail;
  detail::byte_reader bytes(from);
  std::uint64_t count = 0;
  std::memcpy(&count, bytes.take(detail::data_alignment), sizeof count);
  edge_tensors made;
  for (std::uint64_t i = 0; i < count; ++i) {
    header head;
    std::memcpy(&head, bytes.take(sizeof head), sizeof head);
    zbpp::detail::require(
        (head.type == -1 || detail::is_plain(static_cast<c10::ScalarType>(head.type))) &&
            head.dimensions >= 0 && head.dimensions <= 64 && head.size >= 0,
        "what came for a tensor is none; sender and receiver need the same version of zbpp");
    auto const dimensions = static_cast<std::size_t>(head.dimensions);
    std::vector<std::int64_t> numbers(2 * dimensions);
    auto const extent = numbers.size() * sizeof(std::int64_t);
    auto const* const listed = bytes.take(detail::aligned(sizeof head + extent) - sizeof head);
    if (extent > 0) std::memcpy(numbers.data(), listed, extent);
    auto* const data = bytes.take(detail::aligned(static_cast<std::size_t>(head.size)));
    made.needs_gradient.push_back(head.needs_gradient);
    if (head.type < 0) {
      made.values.emplace_back();
      continue;
    }
    auto const type = static_cast<c10::ScalarType>(head.type);
    auto const sizes = at::IntArrayRef(numbers).slice(0, dimensions);
    auto const strides = at::IntArrayRef(numbers).slice(dimensions);
    zbpp::detail::require(
        detail::fits(sizes, strides, head.size / static_cast<std::int64_t>(c10::elementSize(type))),
        "what came for a tensor does not fit its sizes; sender and receiver need the same version "
        "of zbpp");
    made.values.push_back(at::from_blob(
        data, sizes, strides, [from](void*) {}, at::TensorOptions().dtype(type)));
  }
  return made;
}
