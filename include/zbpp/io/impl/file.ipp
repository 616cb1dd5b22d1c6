// SPDX-License-Identifier: Apache-2.0
//
// How files are opened, read, and put in place as a whole.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/file.hpp>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#if __has_include(<fcntl.h>) && __has_include(<sys/stat.h>) && __has_include(<unistd.h>)
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace zbpp {

namespace detail {

/// Closes a file whose contents no longer matter.
struct file_closer {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};
using file_handle = std::unique_ptr<std::FILE, file_closer>;

[[noreturn]] ZBPP_INLINE void io_failed(
    std::string const& name, char const* action, std::error_code reason) {
  throw error(errc::io_failed) + name + ": " + action + ": " + reason.message();
}
[[noreturn]] ZBPP_INLINE void io_failed(
    std::filesystem::path const& path, char const* action, std::error_code reason) {
  io_failed(path.string(), action, reason);
}

[[nodiscard]] ZBPP_INLINE std::error_code last_error() { return {errno, std::generic_category()}; }

/// Writes all of a text to an open file and closes it. @return whether that worked
[[nodiscard]] ZBPP_INLINE bool write_and_close(file_handle file, std::string_view text) {
  bool const written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  auto const reason = errno;
  bool const closed = std::fclose(file.release()) == 0;
  if (!written) errno = reason;
  return written && closed;
}

/// Opens a file that did not exist, in the folder of `path`.
[[nodiscard]] ZBPP_INLINE file_handle
open_beside(std::filesystem::path const& path, std::filesystem::path& temporary) {
  auto stamp = std::chrono::steady_clock::now().time_since_epoch().count();
  for (int attempt = 0; attempt < 100; ++attempt, ++stamp) {
    temporary = path.parent_path() / (".zbpp." + std::to_string(stamp) + ".tmp");
    if (file_handle file{std::fopen(temporary.string().c_str(), "wbx")}) return file;
    if (errno != EEXIST) break;
  }
  io_failed(path, "cannot be written", last_error());
}

/// Opens a file to read. A pipe is waited for only while somebody has it open to write.
[[nodiscard]] ZBPP_INLINE file_handle open_to_read(std::filesystem::path const& path) {
#if __has_include(<fcntl.h>) && __has_include(<sys/stat.h>) && __has_include(<unistd.h>)
  auto const opened = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  file_handle file{opened < 0 ? nullptr : ::fdopen(opened, "rb")};
  if (!file) {
    auto const reason = last_error();
    if (opened >= 0) ::close(opened);
    io_failed(path, "cannot be read", reason);
  }
  struct stat kind {};
  if (::fstat(opened, &kind) == 0 && S_ISFIFO(kind.st_mode)) {
    auto const first = std::fgetc(file.get());
    if (first != EOF)
      std::ungetc(first, file.get());
    else if (std::feof(file.get()) != 0)
      throw error(errc::io_failed) + path.string() +
          ": cannot be read: it is a pipe that nobody writes to; start the writer first";
    std::clearerr(file.get());
  }
  ::fcntl(opened, F_SETFL, 0);  // from here on, the writer may be slow
#else
  file_handle file{std::fopen(path.string().c_str(), "rb")};
  if (!file) io_failed(path, "cannot be read", last_error());
#endif
  return file;
}

}  // namespace detail

ZBPP_INLINE std::string read_stream(std::FILE* from, std::string const& name, std::size_t most) {
  std::string text;
  std::array<char, 65536> block;
  while (auto const got = std::fread(block.data(), 1, block.size(), from)) {
    if (got > most - text.size())
      throw error(errc::io_failed) + name + ": found more than " + most +
          " bytes; expected at most that many";
    text.append(block.data(), got);
  }
  if (std::ferror(from) != 0) detail::io_failed(name, "cannot be read", detail::last_error());
  return text;
}

ZBPP_INLINE std::string read_file(std::filesystem::path const& path, std::size_t most) {
  return read_stream(detail::open_to_read(path).get(), path.string(), most);
}

ZBPP_INLINE void write_stream(std::FILE* to, std::string const& name, std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), to) != text.size() || std::fflush(to) != 0)
    detail::io_failed(name, "cannot be written", detail::last_error());
}

ZBPP_INLINE void write_file(std::filesystem::path const& path, std::string_view text) {
  namespace fs = std::filesystem;
  std::error_code reason;
  auto const old = fs::status(path, reason);
  bool const is_there = fs::exists(old);
  if (is_there && !fs::is_regular_file(old)) {
    detail::file_handle file{std::fopen(path.string().c_str(), "wb")};
    if (!file || !detail::write_and_close(std::move(file), text))
      detail::io_failed(path, "cannot be written", detail::last_error());
    return;
  }
  if (old.type() == fs::file_type::none) detail::io_failed(path, "cannot be written", reason);
  auto place = is_there ? fs::canonical(path, reason) : path;
  if (!is_there && fs::is_symlink(fs::symlink_status(path)))
    place = path.parent_path() / fs::read_symlink(path);
  if (is_there && reason) detail::io_failed(path, "cannot be written", reason);
  reason.clear();
  fs::path temporary;
  auto file = detail::open_beside(place, temporary);
  // Before anything is written: what was private never lies open.
  if (is_there) fs::permissions(temporary, old.permissions(), reason);
  if (!reason && !detail::write_and_close(std::move(file), text)) reason = detail::last_error();
  if (!reason) fs::rename(temporary, place, reason);
  if (!reason) return;
  std::error_code ignored;
  fs::remove(temporary, ignored);
  detail::io_failed(path, "cannot be written", reason);
}

}  // namespace zbpp
