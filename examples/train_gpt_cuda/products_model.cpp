// SPDX-License-Identifier: Apache-2.0
//
// Products under the model of CUDA: three loops, and the epilogues of cuBLASLt; small sizes only.
#include "products.hpp"
#include "weights.hpp"

#include <cmath>
#include <cstddef>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gpt::cuda {
namespace {

/// Gives e^x / (1 + e^x).
float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

/// Is GELU in its tanh form, as x * sigmoid(slope * (x + cubic * x^3)).
/// @source Hendrycks and Gimpel, arXiv 1606.08415 sec. 2; slope is 2 * sqrt(2 / pi)
struct gelu {
  static constexpr float slope = 1.5957691216F;
  static constexpr float cubic = 0.044715F;

  /// @return its value
  static float of(float x) { return x * sigmoid(slope * (x + cubic * x * x * x)); }
  /// @return its derivative
  static float derivative(float x) {
    float const open = sigmoid(slope * (x + cubic * x * x * x));
    float const inner = slope * (1.0F + 3.0F * cubic * x * x);
    return open + x * open * (1.0F - open) * inner;
  }
};

/// The values of one matrix of a factor, row by row, as it is meant.
std::vector<float> widened(factor const& f, index batch, index rows, index columns) {
  std::vector<float> all;
  all.reserve(static_cast<std::size_t>(rows * columns));
  bf16 const* const first = f.data + batch * f.next;
  index const down = f.transposed ? 1 : f.stride;
  index const right = f.transposed ? f.stride : 1;
  for (index r = 0; r < rows; ++r)
    for (index c = 0; c < columns; ++c) all.push_back(wide(first[r * down + c * right]));
  return all;
}

/// Says what is stored of a sum, and does what the epilogue does beside it.
float finished(epilogue const& then, float sum, index place, index column) {
  switch (then.what) {
    case epilogue::kind::bias: return sum + wide(then.bias[column]);
    case epilogue::kind::bias_gelu: {
      float const in = sum + wide(then.bias[column]);
      then.gelu_input[place] = narrow(in);
      return gelu::of(in);
    }
    case epilogue::kind::gelu_backward: return sum * gelu::derivative(wide(then.gelu_input[place]));
    case epilogue::kind::none:
    case epilogue::kind::row_sums: break;
  }
  return sum;
}

void multiply(product const& what) {
  for (index n = 0; n < what.batch; ++n) {
    auto const a = widened(what.a, n, what.rows, what.inner);
    auto const b = widened(what.b, n, what.inner, what.columns);
    for (index r = 0; r < what.rows; ++r) {
      auto const* const row = a.data() + r * what.inner;
      for (index c = 0; c < what.columns; ++c) {
        float sum = 0.0F;
        for (index i = 0; i < what.inner; ++i) sum += row[i] * b.data()[i * what.columns + c];
        auto const place = n * what.to.next + r * what.to.stride + c;
        sum *= what.scale;
        if (what.residual != nullptr) sum += wide(what.residual[place]);
        if (what.to.wide != nullptr)
          what.to.wide[place] = what.adds ? what.to.wide[place] + sum : sum;
        else
          what.to.narrow[place] = narrow(
              finished(what.then, what.adds ? sum + wide(what.to.narrow[place]) : sum, place, c));
      }
      if (what.then.what != epilogue::kind::row_sums) continue;
      float sum = 0.0F;
      for (index i = 0; i < what.inner; ++i) sum += row[i];
      what.then.row_sums[r] = sum;
    }
  }
}

void touch(touching& t, product const& what) {
  // What lies between the rows of a matrix, or of each of a batch, is not touched.
  auto const matrices = [&](auto* data, index stride, index next, index rows, index columns) {
    if (data == nullptr) return;
    bool const is_dense = stride == columns;
    for (index n = 0; n < what.batch; ++n)
      for (index r = 0; r < (is_dense ? 1 : rows); ++r)
        t(is_dense ? rows * columns : columns, data + n * next + r * stride);
  };
  auto const factors = [&](factor const& f, index rows, index columns) {
    if (f.transposed) std::swap(rows, columns);
    matrices(f.data, f.stride, f.next, rows, columns);
  };
  auto const results = [&](auto* data) {
    matrices(data, what.to.stride, what.to.next, what.rows, what.columns);
  };
  factors(what.a, what.rows, what.inner);
  factors(what.b, what.inner, what.columns);
  results(what.to.wide);
  results(what.to.narrow);
  if (what.adds) {
    results(static_cast<float const*>(what.to.wide));
    results(static_cast<bf16 const*>(what.to.narrow));
  }
  results(what.residual);
  t(what.columns, what.then.bias);
  t(what.rows, what.then.row_sums);
  if (what.then.what == epilogue::kind::bias_gelu)
    results(what.then.gelu_input);
  else
    results(static_cast<bf16 const*>(what.then.gelu_input));
}

/// @return what the model calls a product: by its sizes, as each may have a kernel of its own on a
///         GPU, which may be loaded when it is first launched
char const* name_of(product const& what) {
  static std::mutex in_use;
  static std::set<std::string> names;  // which live as long as the model may tell them
  auto const text = [](auto number) { return std::to_string(number); };
  auto name = "product " + text(what.rows) + " x " + text(what.inner) + " x " + text(what.columns) +
              ", batch " + text(what.batch) + ", epilogue " +
              text(static_cast<int>(what.then.what));
  std::lock_guard const lock(in_use);
  return names.insert(std::move(name)).first->c_str();
}

}  // namespace

// A byte stands for the workspace, which a product of cuBLASLt writes whenever it likes: so the
// model finds products that work in it at one time.
struct products::state {
  device_array<std::byte> room{1};
};

products::products(int) : state_(new state) {}

// As on a GPU, not every product has row sums: both ways of making them are to run in tests.
bool products::has(product const& what) const {
  return what.then.what != epilogue::kind::row_sums || what.rows % 64 == 0;
}

void products::operator()(cudaStream_t on, product const& what) const {
  touching t;
  touch(t, what);
  t(1, state_->room.data());
  // Own choice: a multiplication a nanosecond of the model's time.
  auto const ns = what.batch * what.rows * what.columns * what.inner;
  auto const body = [what] { multiply(what); };
  zbpp::cuda::check(zbpp::cuda_model::launch(on, name_of(what), t.read, t.written, body, ns));
}

}  // namespace gpt::cuda
