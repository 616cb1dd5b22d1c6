// SPDX-License-Identifier: Apache-2.0
//
// What a kernel reads and writes, for the race detector of the model of CUDA.
#pragma once

#include "train_gpt/config.hpp"

#ifdef ZBPP_CUDA_MODEL
#include <support/cuda_model/cuda_model.hpp>
#endif

#include <cstddef>
#include <vector>

namespace gpt::cuda {

/// Collects what a launch touches; only the model of CUDA wants to know.
class touching {
 public:
  /// Notes `count` values that are read; none where `first` is null.
  template <class Value>
  void reads(Value const* first, index count) {
    note(read_, first, count);
  }
  /// Notes `count` values that are written.
  template <class Value>
  void writes(Value* first, index count) {
    note(written_, first, count);
  }
  /// Notes `count` values that are read and written.
  template <class Value>
  void changes(Value* first, index count) {
    reads(first, count);
    writes(first, count);
  }

#ifdef ZBPP_CUDA_MODEL
  using range = zbpp::cuda_model::range;
#else
  struct range {
    void const* data;
    std::size_t bytes;
  };
#endif

  /// @return what is read
  [[nodiscard]] std::vector<range> const& read() const { return read_; }
  /// @return what is written
  [[nodiscard]] std::vector<range> const& written() const { return written_; }

 private:
  template <class Value>
  static void note(std::vector<range>& to, Value const* first, index count) {
    if (first != nullptr) to.push_back({first, static_cast<std::size_t>(count) * sizeof(Value)});
  }

  std::vector<range> read_;
  std::vector<range> written_;
};

}  // namespace gpt::cuda
