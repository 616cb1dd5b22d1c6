// SPDX-License-Identifier: Apache-2.0
//
// Files that outlive the program and the machine: they appear under their name as a whole, and only
// when the disk has them.
#pragma once

#include <zbpp/error.hpp>

#include <cerrno>
#include <cstddef>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <sys/types.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace gpt {

/// Owns an open file or folder.
class descriptor {
 public:
  explicit descriptor(int number) : number_(number) {}
  descriptor(descriptor const&) = delete;
  descriptor& operator=(descriptor const&) = delete;
  ~descriptor() {
    if (number_ >= 0) ::close(number_);
  }

  /// @return the number that the system calls take; negative where opening failed
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

/// Throws what the last system call reported.
/// @throws zbpp::error (io_failed) with the path and the reason
[[noreturn]] inline void cannot_be_written(std::filesystem::path const& path) {
  throw zbpp::error(
      zbpp::errc::io_failed,
      path.string() + ": cannot be written: " + std::generic_category().message(errno));
}

/// Puts on the disk which files a folder has.
/// @throws zbpp::error (io_failed)
inline void sync_folder(std::filesystem::path const& folder) {
  descriptor const opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync folders, and say so by EINVAL: then there is nothing to do.
  if (opened.number() < 0 || (::fsync(opened.number()) != 0 && errno != EINVAL))
    cannot_be_written(folder);
}

/// Removes a file, unless it is kept.
class unfinished_file {
 public:
  explicit unfinished_file(std::string path) : path_(std::move(path)) {}
  unfinished_file(unfinished_file const&) = delete;
  unfinished_file& operator=(unfinished_file const&) = delete;
  ~unfinished_file() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  /// Leaves it to others.
  void keep() { path_.clear(); }

 private:
  std::string path_;
};

/// Is called between pieces of long work; what it throws ends the work.
using interruption = std::function<void()>;

/// Writes bytes to a file that was just opened.
/// @param between  called before each piece
/// @return whether all of them are on the disk; errno says why not
[[nodiscard]] inline bool write_and_sync(
    descriptor const& file,
    std::span<std::span<std::byte const> const> pieces,
    interruption const& between) {
  for (auto rest : pieces) {
    between();
    while (!rest.empty()) {
      auto const written = ::write(file.number(), rest.data(), rest.size());
      if (written < 0 && errno != EINTR) return false;
      if (written > 0) rest = rest.subspan(static_cast<std::size_t>(written));
    }
  }
  return ::fsync(file.number()) == 0;
}

/// Writes a file from pieces: aside first, to its disk, and then into its place. Its folder still
/// has to be synced.
/// @param between  called between pieces
/// @throws zbpp::error (io_failed), or what `between` does; nothing is then left of it, and an old
///         file is as it was
inline void write_durably(
    std::filesystem::path const& path,
    std::span<std::span<std::byte const> const> pieces,
    interruption const& between = [] {}) {
  auto const aside = path.string() + ".tmp";
  descriptor const file(::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.number() < 0) cannot_be_written(path);
  unfinished_file half(aside);
  if (!write_and_sync(file, pieces, between) || ::rename(aside.c_str(), path.c_str()) != 0)
    cannot_be_written(path);
  half.keep();
}

}  // namespace gpt
