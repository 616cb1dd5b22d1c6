// SPDX-License-Identifier: Apache-2.0
//
// What the environment says of hardware queues.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace zbpp::test {

/// Leaves the environment as it was, once a test is done with it.
class queues_in_environment {
 public:
  queues_in_environment() {
    if (char const* const was = std::getenv(name)) was_ = was;
  }
  queues_in_environment(queues_in_environment const&) = delete;
  queues_in_environment& operator=(queues_in_environment const&) = delete;
  ~queues_in_environment() { set(was_ ? was_->c_str() : nullptr); }

  /// States a number, or that none is stated.
  static void set(char const* value) {
    if (value == nullptr)
      ::unsetenv(name);
    else
      ::setenv(name, value, 1);
  }

 private:
  static constexpr char const* name = "CUDA_DEVICE_MAX_CONNECTIONS";
  std::optional<std::string> was_;
};

}  // namespace zbpp::test
