// SPDX-License-Identifier: Apache-2.0
//
// The arrays of a checkpoint, whichever ranks saved them: found by name in all files, and put
// together of the parts that ranks had of them.
#pragma once

#include <zbpp/checkpoint/detail/blocks.hpp>
#include <zbpp/checkpoint/safetensors.hpp>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::checkpoint::detail {

/// The key of the checksum of an array in the metadata of its file.
[[nodiscard]] std::string checksum_key(std::string const& name);
/// The key of the part that an array is, where it is none of its own.
[[nodiscard]] std::string part_key(std::string const& name);

/// Reads arrays from the files of a checkpoint.
class stored_model {
 public:
  /// @param path  of the checkpoint
  explicit stored_model(std::filesystem::path path) : path_(std::move(path)) {}

  /// Adds what a file has.
  /// @param file  outlives the object
  /// @throws error (bad_format) naming an array that stands in another file, too, or that is no
  ///         part of the same array as others with its name
  void add(stored_file const& file);
  /// Refuses arrays in parts of which some are missing, as `read` does.
  void require_whole_arrays() const;
  /// Reads an array, or a part of one.
  /// @param wanted  lies in its whole array, and has the bytes of its shape
  /// @return its bytes
  /// @throws error (bad_format) when it is missing, not there as a whole, damaged, or of another
  ///         type or shape; (io_failed)
  [[nodiscard]] std::vector<std::byte> read(array const& wanted) const;

 private:
  struct piece {
    stored_file const* file;
    stored_array const* array;
    block at;
  };

  void require_all(std::string const& name, number_type type, block const& of) const;
  void read_piece(
      std::string const& name, piece const& from, block const& to, std::span<std::byte> all) const;

  std::filesystem::path path_;
  std::map<std::string, std::vector<piece>, std::less<>> pieces_;  // by name
};

}  // namespace zbpp::checkpoint::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/checkpoint/impl/stored_model.ipp>
#endif
