// SPDX-License-Identifier: Apache-2.0
//
// The model of CUDA for a part of a test, which leaves nothing wrong and nothing behind.
#pragma once

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>

#include <string>
#include <vector>

namespace zbpp::test {

/// @return the first fault, or nothing
[[nodiscard]] inline std::string first_of(std::vector<std::string> const& faults) {
  return faults.empty() ? "" : faults.front();
}

/// Starts the model anew, and checks at the end of its scope that there were no faults, and that
/// all is given back. Objects of the test come after it.
class checked_gpus {
 public:
  explicit checked_gpus(cuda_model::options const& machine = {}) { cuda_model::reset(machine); }
  checked_gpus(checked_gpus const&) = delete;
  checked_gpus& operator=(checked_gpus const&) = delete;
  ~checked_gpus() {
    CHECK(first_of(cuda_model::faults()) == "");
    CHECK(first_of(cuda_model::leaks()) == "");
  }
};

}  // namespace zbpp::test
