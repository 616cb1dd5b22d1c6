// SPDX-License-Identifier: Apache-2.0
//
// Tries the products of examples/train_gpt_cuda, before it relies on them (contact_lines.hpp): by
// cuBLASLt, whose library may not be there. Unless a line says otherwise, all numbers have sums
// that are exact, so the results are those of the host.
#include "train_gpt_cuda/products.hpp"
#include "train_gpt_cuda/weights.hpp"
#include <zbpp/cuda/detail/capture.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>

#include <algorithm>
#include <array>
#include <bench/cuda/alone.hpp>
#include <bench/cuda/contact_lines.hpp>
#include <bench/cuda/two_parts.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace zbpp::bench {
namespace {

using cuda::device_array;
using gpt::index;
using gpt::cuda::bf16;
using gpt::cuda::download;
using gpt::cuda::epilogue;
using gpt::cuda::product;
using gpt::cuda::products;
using values = std::vector<float>;

std::size_t size(index count) { return static_cast<std::size_t>(count); }

// ---- numbers ----

// Whole numbers from -1 to 1.
values small_numbers(index count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  values all(size(count));
  for (auto& each : all) each = static_cast<float>(random() % 3) - 1.0F;
  return all;
}

// Numbers between -1 and 1, whose sums depend on the order.
values fractions(index count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  values all(size(count));
  for (auto& each : all) each = static_cast<float>(random() >> 40U) / 8388608.0F - 1.0F;
  return all;
}

values transposed(values const& matrix, index rows, index columns) {
  values turned(matrix.size());
  for (index r = 0; r < rows; ++r)
    for (index c = 0; c < columns; ++c) turned[size(c * rows + r)] = matrix[size(r * columns + c)];
  return turned;
}

device_array<bf16> on_device(cuda::stream_ref on, values const& all) {
  std::vector<bf16> narrow;
  for (auto const each : all) narrow.push_back(gpt::cuda::narrow(each));
  device_array<bf16> there(all.size());
  gpt::cuda::upload(on, std::span<bf16 const>(narrow), there.data());
  return there;
}

values on_host(cuda::stream_ref on, device_array<bf16> const& there) {
  values all;
  for (auto const each : download(on, there.data(), there.size()))
    all.push_back(gpt::cuda::wide(each));
  return all;
}
values on_host(cuda::stream_ref on, device_array<float> const& there) {
  return download(on, there.data(), there.size());
}

// Each is to be within `bound`, relative to its size above 1.
void expect(char const* name, values const& found, values const& right, float bound = 0.0F) {
  for (std::size_t i = 0; i < right.size(); ++i)
    if (!(std::abs(found[i] - right[i]) <= bound * std::max(1.0F, std::abs(right[i]))))
      throw std::runtime_error(
          std::string(name) + " " + std::to_string(i) + " is " + std::to_string(found[i]) +
          ", not " + std::to_string(right[i]));
}

// Own choice: two roundings to bf16, of 2^-9 each, and a tanh of hardware.
constexpr float bound_of_gelu = 0.01F;

// GELU in its tanh form, and its slope.
// @source Hendrycks and Gimpel, arXiv 1606.08415, section 2
double gelu(double x) {
  return 0.5 * x * (1.0 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}
double slope_of_gelu(double x) {
  constexpr double step = 1e-5;
  return (gelu(x + step) - gelu(x - step)) / (2.0 * step);
}

// ---- products ----

int multiprocessors() {
  int count = 0;
  cuda::check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
  return count;
}

struct sizes {
  index rows = 128;
  index columns = 192;
  index inner = 64;
  index batch = 1;

  [[nodiscard]] std::size_t results() const { return size(batch * rows * columns); }
};

// Factors a [rows, inner] and b [columns, inner], on the device too, what multiplies them there,
// and where a product goes.
struct factors {
  cuda::stream_ref on;
  sizes of;
  products multiply;
  values a;
  values b;
  device_array<bf16> a_there = on_device(on, a);
  device_array<bf16> b_there = on_device(on, b);
  device_array<bf16> narrow{of.results()};
  device_array<float> wide{of.results()};

  explicit factors(
      cuda::stream_ref stream,
      sizes s = {},
      values (*numbers)(index, std::uint64_t) = small_numbers,
      std::uint64_t seed = 1,
      int sm_count = multiprocessors())
      : on(stream),
        of(s),
        multiply(sm_count),
        a(numbers(s.batch * s.rows * s.inner, seed)),
        b(numbers(s.batch * s.columns * s.inner, seed + 1)) {}

  // Is a b^T, to `narrow`.
  [[nodiscard]] product forward() const {
    return {
        .rows = of.rows,
        .columns = of.columns,
        .inner = of.inner,
        .a = {.data = a_there.data(), .stride = of.inner, .next = of.rows * of.inner},
        .b =
            {.data = b_there.data(),
             .stride = of.inner,
             .next = of.columns * of.inner,
             .transposed = true},
        .to = {narrow.data(), of.columns, of.rows * of.columns},
        .batch = of.batch};
  }
  // Is a b^T, to `wide`.
  [[nodiscard]] product forward_wide() const {
    auto wanted = forward();
    wanted.to = {wide.data(), of.columns};
    return wanted;
  }

  // Is what the host makes of a b^T, each sum changed by a function of it and its place.
  template <class Change>
  [[nodiscard]] values expected(Change const& change) const {
    values all;
    for (index n = 0; n < of.batch; ++n)
      for (index r = 0; r < of.rows; ++r)
        for (index c = 0; c < of.columns; ++c) {
          auto const* const row = a.data() + (n * of.rows + r) * of.inner;
          auto const* const column = b.data() + (n * of.columns + c) * of.inner;
          float sum = 0.0F;
          for (index i = 0; i < of.inner; ++i) sum += row[i] * column[i];
          all.push_back(change(sum, all.size()));
        }
    return all;
  }

  void fill_wide(float value) const {
    gpt::cuda::upload(on, std::span<float const>(values(wide.size(), value)), wide.data());
  }
};

float unchanged(float sum, std::size_t) { return sum; }

// ---- what is tried ----

std::string plain() {
  cuda::stream const on(cuda::stream_priority::usual);
  factors const use(on);
  use.multiply(on.view(), use.forward());
  expect("element", on_host(on, use.narrow), use.expected(unchanged));
  return {};
}

std::string bias() {
  cuda::stream const on(cuda::stream_priority::usual);
  factors const use(on);
  auto const added = small_numbers(use.of.columns, 3);
  auto const residual = small_numbers(static_cast<index>(use.of.results()), 4);
  auto const added_there = on_device(on, added);
  auto const residual_there = on_device(on, residual);
  auto const biased = [&](float sum, std::size_t i) { return sum + added[i % added.size()]; };
  auto wanted = use.forward();
  wanted.then = {.what = epilogue::kind::bias, .bias = added_there.data()};
  use.multiply(on.view(), wanted);
  expect("element", on_host(on, use.narrow), use.expected(biased));
  wanted.residual = residual_there.data();
  use.multiply(on.view(), wanted);
  expect(
      "with a residual, element",
      on_host(on, use.narrow),
      use.expected([&](float sum, std::size_t i) { return biased(sum, i) + residual[i]; }));
  return {};
}

std::string bias_and_gelu() {
  cuda::stream const on(cuda::stream_priority::usual);
  factors const use(on);
  auto const added = small_numbers(use.of.columns, 3);
  auto const added_there = on_device(on, added);
  device_array<bf16> const input(use.of.results());
  auto wanted = use.forward();
  wanted.scale = 0.125F;  // to where GELU bends
  wanted.then = {
      .what = epilogue::kind::bias_gelu, .bias = added_there.data(), .gelu_input = input.data()};
  use.multiply(on.view(), wanted);
  auto right = use.expected(
      [&](float sum, std::size_t i) { return wanted.scale * sum + added[i % added.size()]; });
  expect("input of GELU", on_host(on, input), right);
  for (auto& each : right) each = static_cast<float>(gelu(static_cast<double>(each)));
  expect("element", on_host(on, use.narrow), right, bound_of_gelu);
  return {};
}

std::string slope_of_gelu_times_product() {
  cuda::stream const on(cuda::stream_priority::usual);
  factors const use(on);
  auto input = small_numbers(static_cast<index>(use.of.results()), 3);
  auto const input_there = on_device(on, input);
  auto wanted = use.forward();
  auto const turned = on_device(on, transposed(use.b, use.of.columns, use.of.inner));
  wanted.b = {.data = turned.data(), .stride = use.of.columns};
  wanted.scale = 0.125F;
  wanted.then = {.what = epilogue::kind::gelu_backward, .gelu_input = input_there.data()};
  use.multiply(on.view(), wanted);
  auto const right = use.expected([&](float sum, std::size_t i) {
    return wanted.scale * sum * static_cast<float>(slope_of_gelu(static_cast<double>(input[i])));
  });
  expect("element", on_host(on, use.narrow), right, bound_of_gelu);
  return {};
}

std::string row_sums() {
  cuda::stream const on(cuda::stream_priority::usual);
  factors const use(on);
  auto const turned = on_device(on, transposed(use.a, use.of.rows, use.of.inner));
  device_array<float> const sums(size(use.of.rows));
  auto wanted = use.forward_wide();
  wanted.a = {.data = turned.data(), .stride = use.of.rows, .transposed = true};
  wanted.then = {.what = epilogue::kind::row_sums};
  wanted.adds = true;
  if (!use.multiply.has(wanted))
    throw not_here{"cuBLASLt has none for such a product, and the trainer adds rows up itself"};
  wanted.then.row_sums = sums.data();
  use.fill_wide(2.0F);
  use.multiply(on.view(), wanted);
  expect("element", on_host(on, use.wide), use.expected([](float sum, std::size_t) {
    return sum + 2.0F;
  }));
  values right(size(use.of.rows), 0.0F);
  for (std::size_t i = 0; i < use.a.size(); ++i) right[i / size(use.of.inner)] += use.a[i];
  expect("sum of row", on_host(on, sums), right);
  return {};
}

std::string batch() {
  cuda::stream const on(cuda::stream_priority::usual);
  factors const use(on, {.rows = 64, .columns = 64, .inner = 64, .batch = 6});
  auto wanted = use.forward();
  wanted.scale = 0.125F;
  use.multiply(on.view(), wanted);
  expect("element", on_host(on, use.narrow), use.expected([&](float sum, std::size_t) {
    return wanted.scale * sum;
  }));
  return {};
}

std::string on_part() {
  two_parts const parts;
  auto const on = parts.streams[1];
  factors const use(on, {}, small_numbers, 1, static_cast<int>(parts.multiprocessors[1]));
  use.multiply(on, use.forward());
  expect("element", on_host(on, use.narrow), use.expected(unchanged));
  return {};
}

// Two streams with a workspace each have the bits of one after the other.
std::string at_once() {
  constexpr std::size_t rounds = 4;
  constexpr sizes s{.rows = 64, .columns = 64, .inner = 1024};
  cuda::stream const first(cuda::stream_priority::usual);
  cuda::stream const second(cuda::stream_priority::usual);
  std::array<factors, 2> const use{
      factors(first, s, fractions, 1), factors(second, s, fractions, 3)};
  std::array<values, 2> right;
  for (std::size_t i = 0; i < 2; ++i) {
    use[i].multiply(use[i].on, use[i].forward_wide());
    right[i] = on_host(use[i].on, use[i].wide);
  }
  // Both streams wait until about all is enqueued, so that their products meet.
  cuda::stream const gate(cuda::stream_priority::usual);
  cuda::event const opens(cuda::event_kind::order);
  device_array<std::byte> const room(products::workspace);
  for (int i = 0; i < 8; ++i)
    cuda::check(cudaMemsetAsync(room.data(), i, room.size(), gate.view()));
  gate.view().record(opens);
  std::array<device_array<float>, 2> const results{
      device_array<float>(rounds * s.results()), device_array<float>(rounds * s.results())};
  for (auto const& each : use) each.on.wait(opens);
  for (std::size_t round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < 2; ++i) {
      auto wanted = use[i].forward_wide();
      wanted.to.wide = results[i].data() + round * s.results();
      use[i].multiply(use[i].on, wanted);
    }
  for (std::size_t i = 0; i < 2; ++i) {
    auto const found = on_host(use[i].on, results[i]);
    for (std::size_t k = 0; k < found.size(); ++k)
      if (found[k] != right[i][k % s.results()])
        throw std::runtime_error("the bits are not those of one product after the other");
  }
  return {};
}

std::string in_graph() {
  cuda::stream const on(cuda::stream_priority::usual);
  factors const use(on);
  auto wanted = use.forward_wide();
  wanted.adds = true;
  use.fill_wide(0.0F);
  use.multiply(on.view(), wanted);
  cuda::detail::capture pass(on);
  use.multiply(on.view(), wanted);
  auto const graph = pass.finish();
  for (int i = 0; i < 2; ++i) cuda::check(cudaGraphLaunch(graph.get(), on.view()));
  expect("element", on_host(on, use.wide), use.expected([](float sum, std::size_t) {
    return 3.0F * sum;
  }));
  return {};
}

// ---- all of them ----

constexpr char const* trainer = "train_gpt_cuda";

constexpr line all[] = {
    {"cuBLASLt: a product", plain, 20, "products", trainer},
    {"cuBLASLt: bias", bias, 20, "products", trainer},
    {"cuBLASLt: bias and GELU", bias_and_gelu, 20, "products", trainer},
    {"cuBLASLt: slope of GELU", slope_of_gelu_times_product, 20, "products", trainer},
    {"cuBLASLt: row sums", row_sums, 20, "products", trainer},
    {"cuBLASLt: a batch of products", batch, 20, "products", trainer},
    {"cuBLASLt: products on two streams at once", at_once, 20, "products", trainer},
    {"cuBLASLt: a product in a graph", in_graph, 20, "product_graphs", "train_gpt_cuda --replay"},
    {"cuBLASLt: a product on a part of a GPU", on_part, 20, "parts", no_parts},
};

}  // namespace

std::span<line const> lines() { return all; }

}  // namespace zbpp::bench
