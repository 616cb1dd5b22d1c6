// SPDX-License-Identifier: Apache-2.0
//
// A folder of its own for each test, removed with all that is in it.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>

namespace zbpp::test {

class scratch_folder {
 public:
  /// @param parent  of the new folder
  explicit scratch_folder(
      std::filesystem::path const& parent = std::filesystem::temp_directory_path())
      : path_(
            parent /
            ("zbpp_test_" +
             std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()))) {
    std::filesystem::create_directory(path_);
  }
  scratch_folder(scratch_folder const&) = delete;
  scratch_folder& operator=(scratch_folder const&) = delete;
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::filesystem::path const& path() const { return path_; }
  [[nodiscard]] std::filesystem::path operator/(std::string const& name) const {
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace zbpp::test
