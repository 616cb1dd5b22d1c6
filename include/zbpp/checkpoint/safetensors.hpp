// SPDX-License-Identifier: Apache-2.0
//
// Files of named arrays in the format safetensors: a length, a header in JSON, then the numbers. A
// file is written whole or not at all; one that is not whole, or whose header does not fit its
// numbers, is refused when it is opened.
#pragma once

#include <zbpp/checkpoint/detail/files.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace zbpp::checkpoint {

/// Names the types that numbers have in a file; the largest come first.
enum class number_type : std::uint8_t {
  f64,
  i64,
  u64,
  f32,
  i32,
  u32,
  f16,
  bf16,
  i16,
  u16,
  i8,
  u8,
  boolean
};

namespace detail {

/// What the format has of a type.
struct type_entry {
  std::string_view name;
  std::size_t size;  // bytes
};

/// The names and sizes of all types, in the order of their enumerators.
inline constexpr std::array<type_entry, 13> types{
    {{"F64", 8},
     {"I64", 8},
     {"U64", 8},
     {"F32", 4},
     {"I32", 4},
     {"U32", 4},
     {"F16", 2},
     {"BF16", 2},
     {"I16", 2},
     {"U16", 2},
     {"I8", 1},
     {"U8", 1},
     {"BOOL", 1}}};

template <class Number>
[[nodiscard]] consteval number_type type_of() {
  if constexpr (std::is_same_v<Number, double>) return number_type::f64;
  if constexpr (std::is_same_v<Number, float>) return number_type::f32;
  if constexpr (std::is_same_v<Number, bool>) return number_type::boolean;
  static_assert(std::is_arithmetic_v<Number> && sizeof(Number) <= 8, "name the type in an `array`");
  constexpr bool is_signed = std::is_signed_v<Number>;
  switch (sizeof(Number)) {
    case 8: return is_signed ? number_type::i64 : number_type::u64;
    case 4: return is_signed ? number_type::i32 : number_type::u32;
    case 2: return is_signed ? number_type::i16 : number_type::u16;
    default: return is_signed ? number_type::i8 : number_type::u8;
  }
}

/// Refuses names that a file cannot have, but for texts that are not UTF-8.
/// @throws error (bad_argument) that names one that is there twice or reserved
void check_names(std::vector<std::string> names);

}  // namespace detail

/// @return the name of a type in the format, such as `BF16`
[[nodiscard]] constexpr std::string_view to_string(number_type type) noexcept {
  return detail::types[static_cast<std::size_t>(type)].name;
}

[[nodiscard]] constexpr std::size_t size_of(number_type type) noexcept {
  return detail::types[static_cast<std::size_t>(type)].size;
}

/// @return the bytes of an array; nothing where they do not fit 64 bits, or a length is negative
[[nodiscard]] std::optional<std::uint64_t> size_of(
    number_type type, std::span<std::int64_t const> shape);

/// Says which part of an array of the model a rank has, where members of a tensor group divide it
/// along one of its axes.
struct array_part {
  int axis = 0;            ///< of the shape
  std::int64_t first = 0;  ///< where the part begins along the axis
  std::int64_t whole = 0;  ///< size of the whole array along the axis; 0: it is not divided

  friend bool operator==(array_part const&, array_part const&) = default;
};

/// Points at an array that is saved, or loaded into. No other one of the whole model has its name,
/// but for other parts of it.
struct array {
  std::string name;
  number_type type = number_type::f32;
  std::vector<std::int64_t> shape;  ///< of what is here; empty: one number
  std::span<std::byte> bytes;       ///< row by row, little-endian
  array_part part = {};             ///< for a `run_folder`; a file alone does not say it
};

/// Names an array of numbers.
/// @param shape  of these numbers; empty: a list of them
/// @param part   of a larger array that they are
template <class Number>
[[nodiscard]] array array_of(
    std::string name,
    std::span<Number> numbers,
    std::vector<std::int64_t> shape = {},
    array_part part = {}) {
  if (shape.empty()) shape.push_back(static_cast<std::int64_t>(numbers.size()));
  return {
      std::move(name),
      detail::type_of<Number>(),
      std::move(shape),
      std::as_writable_bytes(numbers),
      part};
}

/// Describes an array by its type and shape, as in `F32 of 3 x 4`.
[[nodiscard]] std::string describe(number_type type, std::span<std::int64_t const> shape);

/// Says what a file has under a name.
struct stored_array {
  number_type type = number_type::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< of its numbers, in bytes from the end of the header
  std::uint64_t end = 0;
};

/// What the header of a file says.
struct stored_header {
  std::map<std::string, stored_array> arrays;
  std::map<std::string, std::string> metadata;
};

/// Tells a file from others with the same name.
struct file_record {
  std::uint64_t size = 0;      ///< bytes
  std::uint64_t checksum = 0;  ///< of all before its numbers; FNV-1a

  friend bool operator==(file_record const&, file_record const&) = default;
};

/// A file that is open for reading.
class stored_file {
 public:
  /// Opens a file and reads its header.
  /// @throws error (io_failed) with the path; (bad_format) when it is not such a file, or not whole
  explicit stored_file(std::filesystem::path path);

  [[nodiscard]] std::filesystem::path const& path() const noexcept { return file_.path(); }
  [[nodiscard]] stored_header const& header() const noexcept { return header_; }
  [[nodiscard]] file_record const& record() const noexcept { return record_; }

  /// Reads an array of the header.
  /// @param to  has as many bytes
  /// @throws error (io_failed) with the path; (bad_format) when a boolean is neither 0 nor 1
  void read(stored_array const& from, std::span<std::byte> to) const;

 private:
  detail::regular_file file_;
  stored_header header_;
  file_record record_;
  std::uint64_t data_ = 0;  // where the numbers begin
};

/// Writes a file, whole or not at all, to the disk; its folder still has to be synced.
/// @param metadata  texts that are saved with the arrays
/// @param between   called between pieces; what it throws ends the work
/// @throws error (io_failed) with the path; (bad_argument) naming an array whose bytes do not fit
///         its type and shape, of more than 64 axes, or a name that is taken, reserved or not UTF-8
file_record write_arrays(
    std::filesystem::path const& path,
    std::span<array const> arrays,
    std::map<std::string, std::string> const& metadata = {},
    std::function<void()> const& between = [] {});

}  // namespace zbpp::checkpoint

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/checkpoint/impl/safetensors.ipp>
#endif
