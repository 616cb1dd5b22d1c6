// SPDX-License-Identifier: Apache-2.0
//
// The arrays of files that were saved together, whichever ranks saved them: found by name, and put
// together of the parts that ranks had of them.
#pragma once

#include <zbpp/checkpoint/metadata.hpp>
#include <zbpp/checkpoint/safetensors.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp::checkpoint {

namespace detail {

/// Says where a part of an array lies in the whole. All lists are by axis.
struct block {
  std::vector<std::int64_t> whole;  ///< shape of the array
  std::vector<std::int64_t> first;  ///< where the part begins
  std::vector<std::int64_t> shape;  ///< of the part

  friend bool operator==(block const&, block const&) = default;
};

[[nodiscard]] bool fits(std::vector<std::int64_t> const& shape, array_part const& part) noexcept;

/// Writes a part as the metadata of a file has it: axis, first, whole.
[[nodiscard]] std::string to_text(array_part const& part);
/// @return nothing where the text is something else
[[nodiscard]] std::optional<array_part> to_part(std::string_view text);

/// The key of the checksum of an array in the metadata of its file.
[[nodiscard]] std::string checksum_key(std::string const& name);
/// The key of the part that an array is, where it is none of its own.
[[nodiscard]] std::string part_key(std::string const& name);

}  // namespace detail

/// Finds arrays in files and reads them.
class stored_model {
 public:
  /// Opens a file, or all files of a folder whose names end in `.safetensors`.
  /// @throws error (io_failed) with the path; (bad_format) naming a file that is damaged or of
  ///         another step, or an array that is there twice or no part of the others of its name
  explicit stored_model(std::filesystem::path const& path);
  /// Takes files that are open.
  /// @param path  to name in errors
  /// @throws error (bad_format) as above
  stored_model(std::filesystem::path path, std::deque<stored_file> files);

  /// @return all arrays by name, as a whole and without bytes
  [[nodiscard]] std::map<std::string, array> const& arrays() const noexcept { return arrays_; }
  /// @return what the files say of the run; `saved_training()` where they say nothing
  [[nodiscard]] saved_training const& training() const noexcept { return training_; }

  /// @param wanted  lies in its whole array
  /// @throws error (bad_format) unless all of an array, or of a part, is there in its type and
  /// shape
  void require(array const& wanted) const;
  /// @return the bytes of an array, or of a part
  /// @throws error as `require` does; (bad_format) when it is damaged; (io_failed)
  [[nodiscard]] std::vector<std::byte> read(array const& wanted) const;

 private:
  struct piece {
    stored_file const* file;
    stored_array const* array;
    detail::block at;
  };

  void add(stored_file const& file);
  [[nodiscard]] static std::vector<std::byte> read_all(std::string const& name, piece const& of);

  std::filesystem::path path_;
  std::deque<stored_file> files_;  // stay where they are when this is moved
  saved_training training_;
  std::map<std::string, array> arrays_;
  std::map<std::string, std::vector<piece>> pieces_;
};

}  // namespace zbpp::checkpoint

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/checkpoint/impl/stored_model.ipp>
#endif
