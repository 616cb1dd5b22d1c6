// SPDX-License-Identifier: Apache-2.0
//
// Keeps a folder for one run: two that wrote checkpoints there would remove each other's.
#pragma once

#include "config.hpp"
#include "durable.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <system_error>
#include <unistd.h>

namespace gpt {

/// Holds the lock of a folder. The system gives it up when the process ends, however it does; the
/// file stays.
class folder_lock {
 public:
  static constexpr char const* file_name = "train_gpt.lock";

  /// @throws setting_error that names the folder and who holds it; zbpp::error (io_failed)
  explicit folder_lock(std::filesystem::path const& folder)
      : file_(::open(
            (folder / file_name).c_str(),
            O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
            0666)) {
    auto const path = folder / file_name;
    struct stat about {};
    if (file_.number() < 0 && errno == ELOOP) refuse(path, "is a link");
    if (file_.number() < 0 || ::fstat(file_.number(), &about) != 0) cannot_be_written(path);
    if (!S_ISREG(about.st_mode)) refuse(path, "is not a regular file");
    if (::flock(file_.number(), LOCK_EX | LOCK_NB) == 0) {
      tell();
      return;
    }
    if (errno == EWOULDBLOCK)
      throw setting_error(
          "--checkpoint " + folder.string() + " is in use by another run" + holder() +
          "; wait until that has ended, or give another folder");
    // Some network file systems have no locks: there a second run goes unnoticed.
    if (errno != ENOTSUP && errno != ENOSYS && errno != ENOLCK) cannot_be_written(path);
  }

 private:
  [[noreturn]] static void refuse(std::filesystem::path const& path, char const* what) {
    throw setting_error(path.string() + " " + what + "; a lock belongs there: move it away");
  }

  // Who holds it, for people; a run is as well locked without.
  void tell() const {
    std::array<char, 256> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
    auto const line =
        "process " + std::to_string(::getpid()) + " on " + std::string(host.data()) + "\n";
    if (::ftruncate(file_.number(), 0) != 0) return;
    static_cast<void>(!::write(file_.number(), line.data(), line.size()));
  }
  [[nodiscard]] std::string holder() const {
    std::array<char, 300> line{};
    auto const got = ::pread(file_.number(), line.data(), line.size(), 0);
    std::string_view const said(line.data(), static_cast<std::size_t>(got > 0 ? got : 0));
    if (!said.starts_with("process ") || !said.ends_with('\n')) return {};
    for (char const c : said.substr(0, said.size() - 1))
      if (c < ' ' || c > '~') return {};
    return ", " + std::string(said.substr(0, said.size() - 1));
  }

  descriptor file_;
};

}  // namespace gpt
