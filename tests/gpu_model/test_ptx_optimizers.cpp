// SPDX-License-Identifier: Apache-2.0
#include <zbpp/cuda/detail/layer_rows.hpp>

#include <gpu_model/ptx/arrays.hpp>
#include <gpu_model/ptx/compiled.hpp>
#include <gpu_model/ptx/launch.hpp>
#include <support/catch.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace test_ptx_optimizers {
namespace {

using namespace zbpp::cuda::detail;
using namespace zbpp::test;
using zbpp::cuda::lanes;

// Structures are compared without the bytes between their members, which nobody writes.
bool same_tile(tile const& a, tile const& b, std::int64_t) {
  return a.weights == b.weights && a.gradients == b.gradients && a.first == b.first &&
         a.size == b.size && a.decays == b.decays && a.layer == b.layer;
}
bool same_state(zbpp::gradient_state const& a, zbpp::gradient_state const& b, std::int64_t) {
  return ptx::is_near(a.sum_of_squares, b.sum_of_squares, 0) && a.is_finite == b.is_finite;
}
bool same_schedule(schedule const& a, schedule const& b, std::int64_t) {
  return a.updates == b.updates && a.rates == b.rates && a.count == b.count;
}
bool same_rule(adamw_rule const& a, adamw_rule const& b, std::int64_t) {
  return std::memcmp(&a.n, &b.n, sizeof a.n) == 0 && a.step.updates == b.step.updates &&
         a.step.learning_rate == b.step.learning_rate;
}

// Some layers, and what an optimizer has of them.
struct layers {
  layers(std::vector<std::int64_t> of_sizes, seeded_random& random)
      : sizes(std::move(of_sizes)), random_(&random) {
    for (auto const size : sizes) {
      weights += size;
      tile_count += tile_rows::rows_of(size);
    }
    auto const count = static_cast<std::size_t>(weights);
    auto const number = [&] { return static_cast<float>(random.real(-2, 2)); };
    weight = memory.filled<float>("weights", count, number);
    gradient = memory.filled<float>("gradients", count, number);
    kept.moments = memory.filled<float>("moments", 2 * count, [&] { return std::fabs(number()); });
    kept.before = memory.add<float>("before", 3 * count);
    kept.count = weights;
    // The first has taken all steps, the second none, the third some.
    kept.missed = memory.filled<std::int64_t>(
        "missed", sizes.size(), [number = 0]() mutable { return number++ % 3 * 50; });
    kept.layers = static_cast<std::int64_t>(sizes.size());
    tiles = memory.add<tile>("tiles", static_cast<std::size_t>(tile_count), same_tile);
    ends = memory.add<std::int64_t>("ends", sizes.size());
    sums = memory.add<double>("sums", static_cast<std::size_t>(tile_count));
    states = memory.add<zbpp::gradient_state>("states", sizes.size(), same_state);
  }

  // Runs a row function on the host and, as nvcc compiled it, on the device.
  template <class Rows>
  void check(ptx::compiled const& kernels, Rows const& rows) {
    auto const& runs = kernels.instance<Rows>("run_row");
    INFO(runs.name << " for " << sizes.size() << " layers, the first of " << sizes[0]);
    auto const found = difference(runs, rows);
    CHECK(found == "");
  }
  template <class Rows>
  [[nodiscard]] std::string difference(ptx::kernel const& runs, Rows const& rows) {
    return memory.difference(
        [&] {
          for (std::int64_t row = 0; row < rows.rows(); ++row) rows(lanes(), row);
        },
        [&] {
          ptx::launch(
              runs,
              {static_cast<int>(rows.rows()), lanes::count},
              ptx::arguments(runs, rows),
              memory.of_device(),
              *random_);
        });
  }
  void make_tiles(ptx::compiled const& kernels) {
    std::int64_t first = 0;
    std::int64_t first_tile = 0;
    for (std::size_t l = 0; l < sizes.size(); ++l) {
      auto const end = first_tile + tile_rows::rows_of(sizes[l]);
      auto const number = static_cast<std::int64_t>(l);
      tile const whole{weight + first, gradient + first, first, sizes[l], l % 2 == 0, number};
      check(kernels, tile_rows{tiles + first_tile, whole, ends + l, end});
      first += sizes[l];
      first_tile = end;
    }
  }

  ptx::arrays memory;
  std::vector<std::int64_t> sizes;
  std::int64_t weights = 0;
  std::int64_t tile_count = 0;
  float* weight;
  float* gradient;
  kept_numbers kept{};
  tile* tiles;
  std::int64_t* ends;
  double* sums;
  zbpp::gradient_state* states;

 private:
  seeded_random* random_;
};

std::vector<std::vector<std::int64_t>> const all_sizes{
    {1}, {0, 3, 0}, {31, 33, 257}, {4096}, {4097, 1, 5000}, {255, 256, 4095, 12289}, {100003}};

// Calls `check(layers)` for layers whose tiles were made.
template <class Check>
void for_all_sizes(ptx::compiled const& kernels, Check check) {
  std::uint64_t stream = 0;
  for (auto const& sizes : all_sizes) {
    ZBPP_SEEDED(random, ++stream);
    layers of(sizes, random);
    of.make_tiles(kernels);
    check(of);
  }
}

[[nodiscard]] zbpp::step_settings settings_of(int step) {
  zbpp::step_settings by;
  by.updates = 37 * step;
  by.learning_rate = 1e-3 * (step + 1);
  by.coefficient = step == 3 ? 0.7 : 1;
  by.gradient_scale = step == 4 ? 1024 : 1;
  return by;
}

template <class Rule>
void check_steps(ptx::compiled const& kernels, layers& of) {
  typename Rule::settings const settings{};
  for (int step = 0; step < 5; ++step) {
    auto const kind = step == 2 ? change::weights : step == 3 ? change::moments : change::both;
    of.check(
        kernels,
        step_rows<rule_given<Rule>>{
            of.tiles,
            of.tile_count,
            of.kept,
            {Rule(settings, settings_of(step))},
            kind,
            step != 3,
            step < 2,
            step == 4});
  }
  of.check(kernels, restore_rows{of.tiles, of.tile_count, of.kept, Rule::moments});
  of.check(kernels, restore_rows{of.tiles, of.tile_count, of.kept, 0});
  of.check(kernels, clear_rows{of.tiles, of.tile_count});
}

TEST_CASE("as compiled by nvcc, the kernels of both optimizers step with the bits of the host") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  ptx::compiled const kernels(ptx::text_of(ZBPP_PTX_OPTIMIZERS));
  for_all_sizes(kernels, [&](layers& of) {
    check_steps<adamw_rule>(kernels, of);
    check_steps<sgd_rule>(kernels, of);
  });
}

TEST_CASE("as compiled by nvcc, gradients are judged with the bits of the host") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  ptx::compiled const kernels(ptx::text_of(ZBPP_PTX_OPTIMIZERS));
  for (float const special :
       {1.0F,
        std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN(),
        std::numeric_limits<float>::max()})
    for_all_sizes(kernels, [&](layers& of) {
      of.gradient[of.weights - 1] = special;
      of.check(kernels, square_rows{of.tiles, of.tile_count, of.sums});
      auto const count = static_cast<std::int64_t>(of.sizes.size());
      of.check(kernels, state_rows{of.sums, of.ends, count, of.states, of.tile_count});
      INFO("the last gradient is " << special);
      bool finite = true;
      for (std::size_t l = 0; l < of.sizes.size(); ++l) finite = finite && of.states[l].is_finite;
      CHECK(finite == std::isfinite(special));
    });
}

TEST_CASE("as compiled by nvcc, schedules give the rules of the host") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  ptx::compiled const kernels(ptx::text_of(ZBPP_PTX_OPTIMIZERS));
  ZBPP_SEEDED(random, 0);
  layers of({300, 5000}, random);
  of.make_tiles(kernels);
  constexpr std::int64_t count = 300;
  constexpr auto most = static_cast<std::int64_t>(rate_rows::most);
  auto* const rates = of.memory.add<double>("rates", count);
  auto* const next = of.memory.add<schedule>("schedule", 1, same_schedule);
  auto* const rule = of.memory.add<adamw_rule>("rule", 1, same_rule);
  for (std::int64_t first = 0; first < count; first += most) {
    rate_rows rows{};
    rows.next = first + most < count ? nullptr : next;
    rows.value = {5, rates, count};
    rows.to = rates + first;
    rows.count = std::min(most, count - first);
    for (auto& rate : rows.rates) rate = random.real(1e-5, 1);
    of.check(kernels, rows);
  }
  zbpp::optim::adamw_settings const settings{};
  for (std::int64_t const updates : {5, 6, 298, 299, 300, 100000}) {
    next->updates = updates;
    of.check(kernels, schedule_rows<adamw_rule>{settings, next, rule});
    of.check(
        kernels,
        step_rows<rule_scheduled<adamw_rule>>{
            of.tiles, of.tile_count, of.kept, {rule}, change::both, true, true, true});
  }
}

TEST_CASE("what is wrong in a sum over a tile is found") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  auto const text = ptx::text_of(ZBPP_PTX_OPTIMIZERS);
  ZBPP_SEEDED(random, 0);
  layers of({5000}, random);
  // What is wrong with the kernel if one place of its text is changed.
  auto const wrong = [&](std::string const& from, std::string const& to) -> std::string {
    ptx::compiled const kernels(ptx::changed(text, "square_rows", from, to));
    try {
      return of.difference(
          kernels.instance<square_rows>("run_row"), square_rows{of.tiles, of.tile_count, of.sums});
    } catch (ptx::fault const& found) {
      return found.what();
    }
  };
  using Catch::Contains;
  of.make_tiles(ptx::compiled(text));
  CHECK(wrong("ret;", "ret;") == "");
  CHECK(wrong(", 16", ", 17") == "sums[0]");  // lanes, in the first shuffle
  CHECK_THAT(wrong(", -1;", ", 65535;"), Contains("mask"));
  CHECK_THAT(wrong("bar.sync", "//"), Contains("shared memory"));
  layers without_sums({5000}, random);
  without_sums.make_tiles(ptx::compiled(text));
  CHECK_THROWS_WITH(
      without_sums.check(
          ptx::compiled(text),
          state_rows{without_sums.sums, without_sums.ends, 1, without_sums.states, 2}),
      Contains("reads what nobody wrote in sums"));
}

}  // namespace
}  // namespace test_ptx_optimizers
