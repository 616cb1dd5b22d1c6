// SPDX-License-Identifier: Apache-2.0
//
// How files are opened without waiting for anybody, and how a folder is locked.
#pragma once

#include <zbpp/checkpoint/detail/files.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

namespace zbpp::checkpoint::detail {

ZBPP_INLINE void fail(
    std::filesystem::path const& path, char const* doing, std::error_code const& reason) {
  throw error(errc::io_failed) + path.string() + ": " + doing + ": " + reason.message();
}

ZBPP_INLINE std::vector<std::filesystem::directory_entry> entries_of(
    std::filesystem::path const& folder) {
  std::error_code fault;
  std::vector<std::filesystem::directory_entry> all;
  for (std::filesystem::directory_iterator at(folder, fault), end; !fault && at != end;
       at.increment(fault))
    all.push_back(*at);
  if (fault) fail(folder, "cannot be read", fault);
  return all;
}

ZBPP_INLINE descriptor::~descriptor() {
  if (number_ >= 0) ::close(number_);
}

ZBPP_INLINE regular_file::regular_file(std::filesystem::path path)
    // Without O_NONBLOCK a pipe would be waited for until somebody writes to it.
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  struct stat about {};
  if (file_.number() < 0 || ::fstat(file_.number(), &about) != 0) {
    auto const reason = std::generic_category().message(errno);
    std::error_code none;
    bool const is_link = std::filesystem::is_symlink(std::filesystem::symlink_status(path_, none));
    refuse(is_link && !std::filesystem::exists(path_, none) ? "it is a link to nothing" : reason);
  }
  if (!S_ISREG(about.st_mode)) refuse("it is not a regular file");
  size_ = static_cast<std::uint64_t>(about.st_size);
}

ZBPP_INLINE void regular_file::read(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    auto const got = ::pread(file_.number(), to.data(), to.size(), static_cast<::off_t>(offset));
    if (got < 0 && errno != EINTR) refuse(std::generic_category().message(errno));
    if (got == 0) refuse("it became shorter meanwhile");
    if (got <= 0) continue;
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
}

ZBPP_INLINE std::string regular_file::text(std::uint64_t offset, std::uint64_t size) const {
  std::string text(static_cast<std::size_t>(size), ' ');
  read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

ZBPP_INLINE void regular_file::refuse(std::string const& reason) const {
  throw error(errc::io_failed) + path_.string() + ": cannot be read: " + reason;
}

ZBPP_INLINE folder_lock::folder_lock(std::filesystem::path const& folder)
    : file_(::open(
          (folder / file_name).c_str(),
          O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
          0666)) {
  auto const path = folder / file_name;
  auto const refuse = [&](char const* kind) {
    throw error(errc::bad_argument) + path.string() + ": is " + kind +
        ", and a lock belongs there; move it away";
  };
  auto const fail_to_write = [&] {
    fail(path, "cannot be written", {errno, std::generic_category()});
  };
  struct stat about {};
  if (file_.number() < 0 && errno == ELOOP) refuse("a link");
  if (file_.number() < 0 || ::fstat(file_.number(), &about) != 0) fail_to_write();
  if (!S_ISREG(about.st_mode)) refuse("not a regular file");
  if (::flock(file_.number(), LOCK_EX | LOCK_NB) == 0) {
    write_holder();
    return;
  }
  if (errno == EWOULDBLOCK)
    throw error(errc::bad_argument) + folder.string() + ": is in use by another run" + holder() +
        "; wait until that has ended, or choose another folder";
  // Some network file systems have no locks: there a second run goes unnoticed.
  if (errno != ENOTSUP && errno != ENOSYS && errno != ENOLCK) fail_to_write();
}

// For people; a run is as well locked without.
ZBPP_INLINE void folder_lock::write_holder() const {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  std::string const line = zbpp::detail::joined("process ", ::getpid(), " on ", host.data(), "\n");
  if (::ftruncate(file_.number(), 0) != 0) return;
  static_cast<void>(!::write(file_.number(), line.data(), line.size()));
}

ZBPP_INLINE std::string folder_lock::holder() const {
  std::array<char, 300> line{};
  auto const got = ::pread(file_.number(), line.data(), line.size(), 0);
  std::string_view text(line.data(), static_cast<std::size_t>(got > 0 ? got : 0));
  if (!text.starts_with("process ") || !text.ends_with('\n')) return {};
  text.remove_suffix(1);
  for (char const c : text)
    if (c < ' ' || c > '~') return {};
  return zbpp::detail::joined(", ", text);
}

}  // namespace zbpp::checkpoint::detail
