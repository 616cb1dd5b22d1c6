// SPDX-License-Identifier: Apache-2.0
#include "toy_chain.hpp"

#include <gpu_model/ptx/arrays.hpp>
#include <gpu_model/ptx/compiled.hpp>
#include <gpu_model/ptx/launch.hpp>
#include <support/catch.hpp>
#include <support/seeded.hpp>

#include <cstddef>
#include <cstdint>

namespace test_ptx_toy_chain {
namespace {

using namespace zbpp::test;

bool same_parameters(toy::parameters const& a, toy::parameters const& b, std::int64_t) {
  return a == b;
}

TEST_CASE("as compiled by nvcc, the kernels of examples 10 to 12 have the bits of the host") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  ptx::compiled const kernels(ptx::text_of(ZBPP_PTX_TOY_CHAIN));
  ZBPP_SEEDED(random, 0);
  ptx::arrays memory;
  auto const check = [&]<class Work>(Work const& work, int count = toy::width) {
    auto const& runs = kernels.instance<Work>("kernel");
    INFO(runs.name);
    auto const found = memory.difference(
        [&] {
          for (int i = 0; i < count; ++i) work(i);
        },
        [&] {
          ptx::launch_size const size{(count + 31) / 32, 32};
          ptx::launch(runs, size, ptx::arguments(runs, work, count), memory.of_device(), random);
        });
    CHECK(found == "");
  };
  auto* const p = memory.add<toy::parameters>("parameters", 1, same_parameters);
  auto const floats = [&](char const* name) { return memory.add<float>(name, toy::width); };
  auto* const x = floats("x");
  auto* const y = floats("y");
  auto* const dy = floats("dy");
  auto* const dx = floats("dx");
  auto* const value = memory.add<float>("loss", 1);
  check(toy::initial{p, 2});
  for (int step = 0; step < 3; ++step) {
    check(toy::batch{x, step});
    check(toy::forward{p, x, y});
    check(toy::loss{y, value}, 1);
    check(toy::loss_gradient{y, dy});
    check(toy::backward_input{p, dy, dx});
    check(toy::backward_weight{p, x, dy});
    check(toy::update{p});
  }
  // The rest of the last block does nothing.
  check(toy::batch{dx, 4}, toy::width - 31);
}

}  // namespace
}  // namespace test_ptx_toy_chain
