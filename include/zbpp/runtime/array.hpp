// SPDX-License-Identifier: Apache-2.0
//
// An array of numbers that crosses an edge together with its type and shape, for models in which
// these vary from microbatch to microbatch.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

namespace zbpp {

/// Says what kind of number a type is.
/// @source DLPack 1.0, DLDataTypeCode
enum class type_code : std::uint8_t {
  integer = 0,
  unsigned_integer = 1,
  floating = 2,
  brain_floating = 4,
  complex = 5,
  boolean = 6,
};

/// Names a type of numbers by the fields of DLPack, so that other libraries take it as it is.
/// @source DLPack 1.0, DLDataType
struct data_type {
  type_code code = type_code::floating;
  std::uint8_t bits = 32;   ///< of one lane
  std::uint16_t lanes = 1;  ///< values in one element, as of a vector type

  [[nodiscard]] constexpr std::size_t size() const noexcept {
    return (std::size_t{bits} * lanes + 7) / 8;
  }

  friend constexpr bool operator==(data_type, data_type) = default;
};

/// Writes a type as its kind and bits: `float32`, `int64`, `float16x2`.
[[nodiscard]] std::string to_string(data_type type);

/// Gives the type of a number of C++.
template <class Number>
  requires std::is_arithmetic_v<Number>
[[nodiscard]] constexpr data_type data_type_of() noexcept {
  constexpr auto bits = static_cast<std::uint8_t>(8 * sizeof(Number));
  if constexpr (std::same_as<Number, bool>)
    return {type_code::boolean, bits};
  else if constexpr (std::floating_point<Number>)
    return {type_code::floating, bits};
  else
    return {std::signed_integral<Number> ? type_code::integer : type_code::unsigned_integer, bits};
}

/// Owns, with its copies, a dense array in row-major order that lies in one buffer after its type
/// and shape. Send it like a buffer; make the receiver's array of what arrived. It is used on its
/// rank's thread only, and lies in memory of the host. One that was moved from can only be assigned
/// to or destroyed.
class array {
 public:
  /// Makes an array to be sent, its values not initialised; `make_array` takes a type of C++.
  /// @throws error (bad_argument) when a dimension is negative, an element has no bits, the array
  ///         is larger than 2^62 bytes, or the place is on a device; std::bad_alloc
  array(pass_context ctx, data_type type, std::span<std::int64_t const> shape);
  /// Takes an array that arrived.
  /// @throws error (wrong_size) when the buffer holds none
  explicit array(buffer from);

  [[nodiscard]] data_type type() const noexcept;
  /// @return the sizes of all dimensions, outermost first; empty for a single number
  [[nodiscard]] std::span<std::int64_t const> shape() const noexcept;
  [[nodiscard]] std::int64_t count() const noexcept;
  /// @return the first element, aligned to 64 bytes
  [[nodiscard]] void* data() const noexcept;
  /// @return all elements
  /// @throws error (bad_argument) naming both types when the elements are of another one
  template <class Number>
  [[nodiscard]] std::span<Number> values() const {
    require_type(data_type_of<std::remove_const_t<Number>>());
    return {static_cast<Number*>(data()), static_cast<std::size_t>(count())};
  }
  [[nodiscard]] operator buffer() const noexcept { return held_; }

 private:
  void require_type(data_type wanted) const;

  buffer held_;
};

/// Makes an array to be sent.
/// @throws as the constructor of `array`
template <class Number>
[[nodiscard]] array make_array(pass_context ctx, std::initializer_list<std::int64_t> shape) {
  return {ctx, data_type_of<Number>(), std::span(shape.begin(), shape.size())};
}

/// Says how many bytes an array takes as a message: what `stage_costs::edge` has to be at least.
/// @throws error (bad_argument) when a dimension is negative, an element has no bits, or an array
///         is larger than 2^62 bytes
[[nodiscard]] bytes array_size(data_type type, std::span<std::int64_t const> shape);
/// The same with a type of C++.
template <class Number>
[[nodiscard]] bytes array_size(std::initializer_list<std::int64_t> shape) {
  return array_size(data_type_of<Number>(), std::span(shape.begin(), shape.size()));
}

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/array.ipp>
#endif
