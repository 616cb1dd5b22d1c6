// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/kernel_values.hpp"

#include <gpu_model/ptx/arrays.hpp>
#include <gpu_model/ptx/compiled.hpp>
#include <gpu_model/ptx/launch.hpp>
#include <support/catch.hpp>
#include <support/seeded.hpp>

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace test_ptx_bench {
namespace {

using namespace zbpp::bench;
using namespace zbpp::test;

constexpr int threads = 256;

// The kernels, and memory of a device.
struct device {
  ptx::compiled kernels{ptx::text_of(ZBPP_PTX_BENCH)};
  ptx::arrays memory;

  [[nodiscard]] float* floats(std::string name, int count, seeded_random& random) {
    return memory.filled<float>(std::move(name), static_cast<std::size_t>(count), [&] {
      return static_cast<float>(random.real(-2, 2));
    });
  }
  template <class... Values>
  void launch(
      std::string const& name, ptx::launch_size size, seeded_random& random, Values... values) {
    auto const& runs = kernels[name];
    ptx::launch(runs, size, ptx::arguments(runs, values...), memory.of_device(), random);
  }
};

TEST_CASE("as compiled by nvcc, kernels of benchmarks scale, multiply and fold with the bits of "
          "the host") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  for (int const count : {1, 3, 31, 255, 256, 257, 1000}) {
    ZBPP_SEEDED(random, count);
    INFO(count << " elements");
    device on;
    auto* const to = on.memory.add<float>("to", static_cast<std::size_t>(count));
    auto* const x = on.floats("x", count, random);
    auto* const g = on.floats("g", count, random);
    auto* const sum = on.floats("sum", 1, random);
    for (float const* const from :
         {static_cast<float const*>(nullptr), static_cast<float const*>(x)}) {
      auto const scaling = on.memory.difference(
          [&] {
            for (int i = 0; i < count; ++i) to[i] = scaled(from, 1.7F, 0.3F, i);
          },
          [&] {
            ptx::launch_size const size{(count + threads - 1) / threads, threads};
            on.launch("scale_kernel", size, random, to, from, 1.7F, 0.3F, count);
          });
      CHECK(scaling == "");
    }
    for (bool const adds : {false, true}) {
      auto const multiplying = on.memory.difference(
          [&] {
            for (int i = 0; i < count; ++i) to[i] = multiplied(to, x, g, adds, i);
          },
          [&] {
            ptx::launch_size const size{(count + threads - 1) / threads, threads};
            float const* const a = x;
            float const* const b = g;
            on.launch("multiply_kernel", size, random, to, a, b, adds, count);
          });
      CHECK(multiplying == "");
    }
    auto const folding = on.memory.difference(
        [&] { *sum = folded(*sum, x, g, count); },
        [&] {
          on.launch("fold_kernel", {1, 1}, random, sum, x, g, count);
        });
    CHECK(folding == "");
  }
}

TEST_CASE("as compiled by nvcc, memory is filled with bf16 as on the host") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  for (std::size_t const count : {1U, 255U, 5000U, 2 * threads * 3U + 77U}) {
    ZBPP_SEEDED(random, count);
    device on;
    auto* const values = on.memory.add<__nv_bfloat16>("values", count);
    std::uint32_t const seed = 7;
    auto const filling = on.memory.difference(
        [&] {
          for (std::size_t i = 0; i < count; ++i) values[i] = __float2bfloat16(filled(i, seed));
        },
        [&] {
          on.launch("fill_bf16_kernel", {3, threads}, random, values, count, seed);
        });
    CHECK(filling == "");
  }
}

TEST_CASE("as compiled by nvcc, what only takes time writes nothing else") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  ZBPP_SEEDED(random, 0);
  device on;
  constexpr int blocks = 5;
  auto* const sink = on.memory.add<float>("sink", 1);
  auto* const noted = on.memory.add<unsigned>("multiprocessors", blocks);
  auto const found = on.memory.difference(
      [&] {
        for (unsigned b = 0; b < blocks; ++b) noted[b] = b;  // each block has one of its own
      },
      [&] {
        on.launch("burn_kernel", {blocks, threads}, random, 50, sink);
        on.launch("burn_and_note_kernel", {blocks, threads}, random, 50, noted);
      });
  CHECK(found == "");
}

TEST_CASE("the kernel that is to fail does, and so does one that writes too much or askew") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  ZBPP_SEEDED(random, 0);
  device on;
  using Catch::Contains;
  int* const nowhere = nullptr;
  CHECK_THROWS_WITH(
      on.launch("fault_kernel", {1, 1}, random, nowhere),
      Contains("an address is below all arrays"));
  auto* const to = on.memory.add<float>("to", threads - 1);
  auto const scale_to = [&](float* first) {
    float const* const from = nullptr;
    on.launch("scale_kernel", {1, threads}, random, first, from, 1.0F, 0.0F, threads);
  };
  CHECK_THROWS_WITH(scale_to(to), Contains("4 bytes are not within to"));
  auto* const askew = reinterpret_cast<float*>(reinterpret_cast<std::uintptr_t>(to) + 2);
  CHECK_THROWS_WITH(scale_to(askew), Contains("4 bytes of to are not aligned"));
}

}  // namespace
}  // namespace test_ptx_bench
