// SPDX-License-Identifier: Apache-2.0
//
// Runs row functions on the model of CUDA: on the host, with what they read and write.
#pragma once

#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/lanes.hpp>
#include <zbpp/optim/layer.hpp>

#include <gpu_model/cuda/cuda_model.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::test {

/// Launches the kernels of optimizers on the model.
struct model_rows {
  template <class Rows>
  static void run(cudaStream_t on, Rows const& rows, std::span<optim::layer const> changed) {
    touched all;
    rows.touches(all);
    for (auto const& l : changed) {
      all.changes(l.weights.data(), l.weights.size());
      all.changes(l.gradients.data(), l.gradients.size());
    }
    cuda::check(cuda_model::launch(on, Rows::name, all.read, all.written, [rows] {
      for (std::int64_t row = 0; row < rows.rows(); ++row) rows(cuda::lanes(), row);
    }));
  }

 private:
  struct touched {
    template <class Value, class Count>
    void reads(Value const* first, Count count) {
      if (count > 0) read.push_back({first, static_cast<std::size_t>(count) * sizeof(Value)});
    }
    template <class Value, class Count>
    void writes(Value* first, Count count) {
      if (count > 0) written.push_back({first, static_cast<std::size_t>(count) * sizeof(Value)});
    }
    template <class Value, class Count>
    void changes(Value* first, Count count) {
      reads(first, count);
      writes(first, count);
    }

    std::vector<cuda_model::range> read;
    std::vector<cuda_model::range> written;
  };
};

}  // namespace zbpp::test
