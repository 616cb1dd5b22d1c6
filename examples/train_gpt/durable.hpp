// SPDX-License-Identifier: Apache-2.0
//
// Open files by number, as locks and strict readers need them, and zbpp's files that outlive the
// machine.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/durable.hpp>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <unistd.h>

namespace gpt {

using zbpp::sync_folder;
using zbpp::write_durably;

/// Is called between pieces of long work; what it throws ends the work.
using interruption = std::function<void()>;

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

}  // namespace gpt
