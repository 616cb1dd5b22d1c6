// SPDX-License-Identifier: Apache-2.0
#include <gpu_model/ptx/arrays.hpp>
#include <gpu_model/ptx/compiled.hpp>
#include <gpu_model/ptx/folds.hpp>
#include <gpu_model/ptx/launch.hpp>
#include <support/catch.hpp>
#include <support/seeded.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace test_ptx_lanes {
namespace {

using namespace zbpp::test;
using zbpp::cuda::lanes;

// Runs fold_rows on the host and on the device.
// @return what differs
[[nodiscard]] std::string difference(
    ptx::compiled const& kernels, std::int64_t count, std::int64_t width, seeded_random& random) {
  ptx::arrays memory;
  auto const rows = static_cast<std::size_t>(count);
  auto const next = [&] { return static_cast<float>(random.real(-2, 2)); };
  fold_rows const folds{
      memory.filled<float>("x", rows * static_cast<std::size_t>(width), next),
      count,
      width,
      memory.add<float>("largest", rows),
      memory.add<float>("sums", rows)};
  auto const& runs = kernels.instance<fold_rows>("run_row");
  return memory.difference(
      [&] {
        for (std::int64_t row = 0; row < count; ++row) folds(lanes(), row);
      },
      [&] {
        ptx::launch_size const size{static_cast<int>(count), lanes::count};
        ptx::launch(runs, size, ptx::arguments(runs, folds), memory.of_device(), random);
      });
}

TEST_CASE("as compiled by nvcc, lanes take sums and the largest with the bits of the host") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  ptx::compiled const kernels(ptx::text_of(ZBPP_PTX_FOLDS));
  for (std::int64_t const width : {1, 7, 31, 32, 33, 255, 256, 257, 1000, 5000}) {
    ZBPP_SEEDED(random, width);
    INFO("width " << width);
    auto const found = difference(kernels, 3, width, random);
    CHECK(found == "");
  }
}

TEST_CASE("both barriers of a fold are needed") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  auto const text = ptx::text_of(ZBPP_PTX_FOLDS);
  // The second one is for the next fold in the same memory, which the first fold here does not
  // have.
  for (int const which : {0, 2, 3}) {
    ZBPP_SEEDED(random, which);
    INFO("without barrier " << which);
    ptx::compiled const kernels(ptx::changed(text, "fold_rows", "bar.sync", "//", which));
    CHECK_THROWS_WITH(difference(kernels, 1, 1000, random), Catch::Contains("shared memory"));
  }
}

}  // namespace
}  // namespace test_ptx_lanes
