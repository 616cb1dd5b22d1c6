// SPDX-License-Identifier: Apache-2.0
//
// How files and folders get to the disk.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/io/durable.hpp>
#include <zbpp/io/impl/file.ipp>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <span>
#include <system_error>
#include <utility>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

namespace zbpp {

namespace detail {

/// Puts what was written to a file, or which files a folder has, on the disk.
/// @return whether that worked; errno says why not
[[nodiscard]] ZBPP_INLINE bool sync([[maybe_unused]] std::FILE* opened) {
#if __has_include(<unistd.h>)
  return ::fsync(::fileno(opened)) == 0;
#else
  return true;
#endif
}

/// Removes a file, unless it is kept.
class unfinished_file {
 public:
  explicit unfinished_file(std::filesystem::path path) : path_(std::move(path)) {}
  unfinished_file(unfinished_file const&) = delete;
  unfinished_file& operator=(unfinished_file const&) = delete;
  ~unfinished_file() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }

  /// Leaves it to others.
  void keep() { path_.clear(); }

 private:
  std::filesystem::path path_;
};

}  // namespace detail

ZBPP_INLINE void sync_folder(std::filesystem::path const& folder) {
  auto const name = folder.empty() ? std::string(".") : folder.string();
  detail::file_handle const opened{std::fopen(name.c_str(), "rb")};
  // Some file systems cannot sync folders, and say so by EINVAL: then there is nothing to do.
  if (!opened || (!detail::sync(opened.get()) && errno != EINVAL))
    detail::io_failed(folder, "cannot be written", detail::last_error());
}

ZBPP_INLINE void write_durably(
    std::filesystem::path const& path,
    std::span<std::span<std::byte const> const> pieces,
    std::function<void()> const& between) {
  auto const failed = [&] { detail::io_failed(path, "cannot be written", detail::last_error()); };
  auto aside = path;
  aside += ".tmp";
  detail::file_handle file{std::fopen(aside.string().c_str(), "wb")};
  if (!file) failed();
  detail::unfinished_file half(aside);
  for (auto const piece : pieces) {
    between();
    if (std::fwrite(piece.data(), 1, piece.size(), file.get()) != piece.size()) failed();
  }
  if (std::fflush(file.get()) != 0 || !detail::sync(file.get())) failed();
  if (std::fclose(file.release()) != 0) failed();
  std::error_code reason;
  std::filesystem::rename(aside, path, reason);
  if (reason) detail::io_failed(path, "cannot be written", reason);
  half.keep();
}

}  // namespace zbpp
