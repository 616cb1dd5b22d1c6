// SPDX-License-Identifier: Apache-2.0
//
// Products under the model of CUDA: three loops, small sizes only.
#include "products.hpp"
#include "touching.hpp"
#include <zbpp/cuda/error.hpp>

#include <utility>

namespace gpt::cuda {
namespace {

float at(factor const& f, index batch, index row, index column) {
  if (f.transposed) std::swap(row, column);
  return wide(f.data[batch * f.next + row * f.stride + column]);
}

void multiply(product const& what) {
  for (index n = 0; n < what.batch; ++n)
    for (index r = 0; r < what.rows; ++r)
      for (index c = 0; c < what.columns; ++c) {
        float sum = 0.0F;
        for (index i = 0; i < what.inner; ++i) sum += at(what.a, n, r, i) * at(what.b, n, i, c);
        auto const place = n * what.to.next + r * what.to.stride + c;
        float const scaled = what.scale * sum;
        if (what.to.wide != nullptr)
          what.to.wide[place] = what.adds ? what.to.wide[place] + scaled : scaled;
        else
          what.to.narrow[place] = narrow(what.adds ? wide(what.to.narrow[place]) + scaled : scaled);
      }
}

/// Calls with each run of values of a matrix, or of each of a batch: what lies between its rows is
/// not touched.
template <class Value, class Do>
void each_run(
    Value* data, index batch, index next, index rows, index columns, index stride, Do run) {
  bool const is_dense = stride == columns;
  for (index n = 0; n < batch; ++n)
    for (index r = 0; r < (is_dense ? 1 : rows); ++r)
      run(data + n * next + r * stride, is_dense ? rows * columns : columns);
}

void touch(touching& t, factor const& f, index batch, index rows, index columns) {
  if (f.transposed) std::swap(rows, columns);
  each_run(f.data, batch, f.next, rows, columns, f.stride, [&](auto* first, index count) {
    t.reads(first, count);
  });
}

template <class Value>
void touch(touching& t, product const& what, Value* to) {
  auto const& in = what.to;
  each_run(
      to, what.batch, in.next, what.rows, what.columns, in.stride, [&](auto* first, index count) {
        if (what.adds) t.reads(first, count);
        t.writes(first, count);
      });
}

}  // namespace

struct products::state {};

products::products(int) {}
products::products(products&&) noexcept = default;
products& products::operator=(products&&) noexcept = default;
products::~products() = default;

void products::operator()(cudaStream_t on, product const& what) {
  touching t;
  touch(t, what.a, what.batch, what.rows, what.inner);
  touch(t, what.b, what.batch, what.inner, what.columns);
  if (what.to.wide != nullptr)
    touch(t, what, what.to.wide);
  else
    touch(t, what, what.to.narrow);
  // Own choice: a multiplication a nanosecond of the model's time.
  auto const ns = what.batch * what.rows * what.columns * what.inner;
  auto const body = [what] { multiply(what); };
  zbpp::cuda::check(zbpp::cuda_model::launch(on, "product", t.read(), t.written(), body, ns));
}

}  // namespace gpt::cuda
