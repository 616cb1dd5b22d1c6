// SPDX-License-Identifier: Apache-2.0
//
// Reading files that somebody else put there: a pipe is not waited for, and no more is read than
// the caller has room for.
#pragma once

#include "config.hpp"
#include "durable.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <filesystem>
#include <span>
#include <string>
#include <sys/stat.h>
#include <sys/types.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace gpt {

/// Is a regular file that is open for reading.
class regular_file {
 public:
  /// @throws setting_error with the path unless it is a regular file that can be read
  explicit regular_file(std::filesystem::path path)
      // Without O_NONBLOCK a pipe would be waited for until somebody writes to it.
      : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    struct stat about {};
    if (file_.number() < 0 || ::fstat(file_.number(), &about) != 0) refuse_to_open();
    if (!S_ISREG(about.st_mode)) refuse("is not a regular file");
    size_ = static_cast<std::uint64_t>(about.st_size);
  }

  /// @return its bytes, as the file system tells
  [[nodiscard]] std::uint64_t size() const { return size_; }

  /// @return where it is
  [[nodiscard]] std::filesystem::path const& path() const { return path_; }

  /// Reads on, at first from its start.
  /// @param most  bytes that are wanted
  /// @throws setting_error with the path and the reason
  [[nodiscard]] std::string read(std::uint64_t most) const {
    constexpr std::uint64_t block = 1U << 20U;
    std::string bytes;
    bytes.reserve(static_cast<std::size_t>(std::min(size_, most)));
    while (bytes.size() < most) {
      auto const before = bytes.size();
      bytes.resize(before + static_cast<std::size_t>(std::min(most - before, block)));
      auto const got = ::read(file_.number(), bytes.data() + before, bytes.size() - before);
      if (got < 0 && errno != EINTR) refuse(reason());
      bytes.resize(before + static_cast<std::size_t>(std::max<::ssize_t>(got, 0)));
      if (got == 0) break;
    }
    return bytes;
  }

  /// Reads a piece.
  /// @param offset  bytes of the file before it
  /// @throws setting_error with the path and the reason
  void read_at(std::uint64_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
      auto const got = ::pread(file_.number(), to.data(), to.size(), static_cast<::off_t>(offset));
      if (got < 0 && errno != EINTR) refuse(reason());
      if (got == 0) refuse("became shorter while it was read");
      if (got <= 0) continue;
      offset += static_cast<std::uint64_t>(got);
      to = to.subspan(static_cast<std::size_t>(got));
    }
  }

 private:
  [[nodiscard]] static std::string reason() {
    return "cannot be read: " + std::generic_category().message(errno);
  }
  [[noreturn]] void refuse(std::string const& why) const {
    throw setting_error(path_.string() + " " + why);
  }
  [[noreturn]] void refuse_to_open() const {
    auto const why = reason();
    std::error_code none;
    if (std::filesystem::exists(path_, none)) refuse(why);
    refuse(
        std::filesystem::is_symlink(std::filesystem::symlink_status(path_, none))
            ? "is a link to nothing"
            : "is missing");
  }

  std::filesystem::path path_;
  descriptor file_;
  std::uint64_t size_ = 0;
};

}  // namespace gpt
