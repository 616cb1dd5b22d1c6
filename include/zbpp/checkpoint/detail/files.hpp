// SPDX-License-Identifier: Apache-2.0
//
// Files of checkpoints below their format: reading what somebody else put there, checksums that
// find torn and altered files, and the lock of a folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace zbpp::checkpoint::detail {

/// @throws error (io_failed) with the path, what was done with it, and the reason
[[noreturn]] void fail(
    std::filesystem::path const& path, char const* doing, std::error_code const& reason);

/// @throws error (io_failed) with the path
[[nodiscard]] std::vector<std::filesystem::directory_entry> entries_of(
    std::filesystem::path const& folder);

/// Owns an open file or folder of the system.
class descriptor {
 public:
  explicit descriptor(int number) noexcept : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  descriptor& operator=(descriptor&&) = delete;
  ~descriptor();

  /// @return the number that system calls take; negative where opening failed
  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  int number_;
};

/// A regular file that is open for reading. A pipe is not waited for, and no more is read than
/// the caller has room for.
class regular_file {
 public:
  /// @throws error (io_failed) with the path unless it is a regular file that can be read
  explicit regular_file(std::filesystem::path path);

  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

  /// Reads a piece, `offset` bytes from its start.
  /// @throws error (io_failed) with the path and the reason
  void read(std::uint64_t offset, std::span<std::byte> to) const;
  /// Reads a text of as many bytes.
  /// @throws error (io_failed) with the path and the reason
  [[nodiscard]] std::string text(std::uint64_t offset, std::uint64_t size) const;

 private:
  [[noreturn]] void refuse(std::string const& reason) const;

  std::filesystem::path path_;
  descriptor file_;
  std::uint64_t size_ = 0;
};

/// Keeps a folder for one run: two that wrote checkpoints there would remove each other's. The
/// system gives the lock up when the process ends, however it does; its file stays.
class folder_lock {
 public:
  static constexpr char const* file_name = "checkpoint.lock";

  /// @throws error (bad_argument) that names the folder and who holds it, or when something else
  ///         lies in the place of the file; (io_failed)
  explicit folder_lock(std::filesystem::path const& folder);

 private:
  void write_holder() const;
  [[nodiscard]] std::string holder() const;

  descriptor file_;
};

}  // namespace zbpp::checkpoint::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/checkpoint/impl/files.ipp>
#endif
