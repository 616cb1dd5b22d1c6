// SPDX-License-Identifier: Apache-2.0
//
// Files of named tensors in the format safetensors: a length, a header in JSON, then the data. A
// file that is not whole, or whose header does not fit its data, is refused when it is opened.
#pragma once

#include <zbpp/torch/detail/libtorch.hpp>
#include <zbpp/torch/named_tensor.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp::torch {

namespace detail {

/// Says what a file has under a name.
struct stored_tensor {
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> sizes;
  std::uint64_t begin = 0;  ///< of the data, in bytes from the end of the header
  std::uint64_t end = 0;
};

/// @return `F32 of 3 x 4`; the name of a type in the format, or in LibTorch where it has none there
[[nodiscard]] std::string describe(at::ScalarType type, at::IntArrayRef sizes);

/// Is what the header of a file says.
struct stored_header {
  std::map<std::string, stored_tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads the JSON of a header.
/// @param data  bytes that follow it, which the tensors have to cover without gaps
/// @throws error (bad_format) whose message begins with `name`
[[nodiscard]] stored_header read_header(
    std::string_view text, std::uint64_t data, std::string const& name);

/// Is an open file.
class stored_file {
 public:
  /// Opens a file and reads its header.
  /// @throws error (io_failed) with the path; (bad_format) when it is not such a file, or not whole
  explicit stored_file(std::filesystem::path path);

  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }
  [[nodiscard]] stored_header const& header() const noexcept { return header_; }
  /// Reads a tensor into memory of the host.
  /// @throws error (io_failed) with the path; (bad_format) when a byte of a bool is neither 0 nor 1
  [[nodiscard]] at::Tensor read(stored_tensor const& which);

 private:
  std::filesystem::path path_;
  std::ifstream file_;
  stored_header header_;
  std::uint64_t data_ = 0;  // where it begins
};

/// Writes a file, whole or not at all, and syncs it and its folder.
/// @throws error (io_failed) with the path; (bad_argument) naming a tensor of a type that the
///         format does not have
void write_tensors(
    std::filesystem::path const& path,
    std::vector<named_tensor> tensors,
    std::map<std::string, std::string> const& metadata);

}  // namespace detail
}  // namespace zbpp::torch

#include <zbpp/torch/impl/safetensors.ipp>
