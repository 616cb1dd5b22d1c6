// SPDX-License-Identifier: Apache-2.0
//
// A variable of the environment, as a test wants it.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace zbpp::test {

/// Sets a variable, or takes it out where its value is null, and afterwards leaves the environment
/// as it was.
class environment_variable {
 public:
  environment_variable(char const* name, char const* value) : name_(name) {
    if (char const* const was = std::getenv(name)) was_ = was;
    set(value);
  }
  environment_variable(environment_variable const&) = delete;
  environment_variable& operator=(environment_variable const&) = delete;
  ~environment_variable() { set(was_ ? was_->c_str() : nullptr); }

  /// Gives it another value; none where the value is null.
  void set(char const* value) const {
    if (value == nullptr)
      ::unsetenv(name_);
    else
      ::setenv(name_, value, 1);
  }

 private:
  char const* name_;
  std::optional<std::string> was_;
};

}  // namespace zbpp::test
