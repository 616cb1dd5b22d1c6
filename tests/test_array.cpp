// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/array.hpp>
// What the checks need besides.
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/plan_grid.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace test_array {

using namespace zbpp;
using zbpp::test::refusal;
using zbpp::test::run_seed;
using zbpp::test::seeded_random;

namespace {

constexpr std::int64_t width = 5;

// As many rows as tell stage and microbatch apart, up to `most_rows`.
std::int64_t rows_of(int stage, int microbatch) { return (3 * microbatch + stage) % 7; }
constexpr std::int64_t most_rows = 6;

// Sends arrays whose shapes vary, and notes what arrives and does not have the shape and the values
// that its sender gave it.
struct array_stage {
  int wrong = 0;

  flow operator()(microbatch mb) {
    message out;
    message const in = co_await mb.recv_activation();
    co_await F([&](pass_context ctx) {
      if (!mb.is_first_stage()) check(array(in), mb.stage() - 1, mb.index());
      out = make(ctx, mb);
    });
    co_await mb.send_activation(std::move(out));
    co_await R([] {});
    message const back = co_await mb.recv_gradient();
    auto const backward = [&](pass_context ctx) {
      if (!mb.is_last_stage()) check(array(back), mb.stage() + 1, mb.index());
      out = make(ctx, mb);
    };
    if (mb.is_fused()) {
      co_await BW(backward);
      co_await mb.send_gradient(std::move(out));
    } else {
      co_await B(backward);
      co_await mb.send_gradient(std::move(out));
      co_await W([] {});
    }
  }

  static array make(pass_context ctx, microbatch mb) {
    auto made = make_array<float>(ctx, {rows_of(mb.stage(), mb.index()), width});
    std::ranges::fill(made.values<float>(), static_cast<float>(mb.index()));
    return made;
  }
  void check(array const& from, int sender, int microbatch) {
    auto const shape = from.shape();
    auto const values = from.values<float const>();
    bool const is_right = shape.size() == 2 && shape[0] == rows_of(sender, microbatch) &&
                          shape[1] == width && std::ssize(values) == shape[0] * width &&
                          std::ranges::all_of(values, [&](float value) {
                            return value == static_cast<float>(microbatch);
                          });
    if (!is_right) ++wrong;
  }
};

data_type random_type(seeded_random& random) {
  constexpr data_type all[] = {
      data_type_of<float>(),
      data_type_of<double>(),
      data_type_of<std::int8_t>(),
      data_type_of<std::uint64_t>(),
      data_type_of<bool>(),
      {type_code::brain_floating, 16},
      {type_code::complex, 64},
      {type_code::floating, 16, 4}};
  return all[random.integer(0, std::ssize(all) - 1)];
}

}  // namespace

TEST_CASE("an array keeps type, shape and values on its way", "[array]") {
  seeded_random random(run_seed());
  arena memory;
  arena receiver;
  for (int i = 0; i < 300; ++i) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(random.integer(0, 12)));
    for (auto& size : shape) size = random.integer(0, shape.size() > 6 ? 2 : 5);
    auto const type = random_type(random);
    std::int64_t count = 1;
    for (auto const size : shape) count *= size;

    array const made(pass_context(memory), type, shape);
    std::vector<std::byte> bits(static_cast<std::size_t>(count) * type.size());
    for (auto& each : bits) each = static_cast<std::byte>(random.integer(0, 255));
    if (!bits.empty()) std::memcpy(made.data(), bits.data(), bits.size());

    message const sent = made;
    array const received(sent.move_to(receiver));
    CHECK(received.data() != made.data());
    CHECK(received.type() == type);
    CHECK(std::ranges::equal(received.shape(), shape));
    CHECK(received.count() == count);
    CHECK(reinterpret_cast<std::uintptr_t>(received.data()) % 64 == 0);
    CHECK((bits.empty() || std::memcmp(received.data(), bits.data(), bits.size()) == 0));
    CHECK(sent.total_size() == array_size(type, shape));
  }
}

TEST_CASE("shapes may vary from microbatch to microbatch", "[array]") {
  int plans = 0;
  for (auto const& placement : zbpp::test::placements_to_run(3)) {
    auto costs = zbpp::test::uneven_costs();
    costs.edge = array_size<float>({most_rows, width});
    zbpp::test::for_each_plan_of(
        problem(placement, 7, costs),
        {.recomputed = true},
        [&](std::string const& name, plan const& p) {
          INFO(name);
          auto const run = [&](auto backend) {
            std::vector<array_stage> stages(static_cast<std::size_t>(placement.stages()));
            pipeline pipe{p, backend, stages};
            pipe.step();
            for (auto const& stage : stages) CHECK(stage.wrong == 0);
          };
          run(virtual_time{});
          run(threads{});
          ++plans;
        });
  }
  CHECK(plans > 10);
}

TEST_CASE("only an array is taken for one", "[array]") {
  seeded_random random(run_seed());
  arena memory;
  pass_context const ctx(memory);
  auto const right = make_array<float>(ctx, {2, 3});
  buffer const bits = right;
  CHECK_THAT(refusal([] { array{buffer()}; }), Catch::Contains("0 bytes holds no array"));
  for (std::size_t size = 0; size <= bits.size() + 1; ++size) {
    auto const part = ctx.allocate(size);
    std::memset(part.data(), 0, size);
    std::memcpy(part.data(), bits.data(), std::min(size, bits.size()));
    if (size == bits.size()) {
      CHECK_NOTHROW(array{part});
    } else {
      CHECK_THAT(refusal([&] { array{part}; }), Catch::Contains("its sender has to send"));
    }
  }
  // Wrong bits of the head are refused, or make another array of the same size.
  for (int i = 0; i < 2000; ++i) {
    auto const changed = ctx.allocate(bits.size());
    std::memcpy(changed.data(), bits.data(), bits.size());
    for (auto left = random.integer(1, 4); left > 0; --left)
      changed.data()[random.integer(0, 31)] = static_cast<std::byte>(random.integer(0, 255));
    try {
      array const other{changed};
      CHECK(array_size(other.type(), other.shape()) == static_cast<bytes>(bits.size()));
    } catch (error const& refused) {
      CHECK(refused.code() == errc::wrong_size);
    }
  }
}

TEST_CASE("what an array cannot be is refused", "[array]") {
  arena memory;
  pass_context const ctx(memory);
  CHECK_THAT(
      refusal([&] {
        static_cast<void>(make_array<float>(ctx, {2, -1}));
      }),
      Catch::Contains("an array of shape (2, -1) and type float32 cannot be made"));
  data_type const without_bits{type_code::floating, 0};
  data_type const without_lanes{type_code::floating, 32, 0};
  for (auto const type : {without_bits, without_lanes}) {
    std::vector<std::int64_t> const shape{2};
    CHECK_THAT(
        refusal([&] { static_cast<void>(array(ctx, type, shape)); }),
        Catch::Contains("each element has a bit or more"));
    // Nor is one taken from a head that states it: no data stands behind it.
    auto const empty = make_array<float>(ctx, {0});
    buffer const head = empty;
    std::memcpy(head.data() + 8, &type, sizeof type);
    CHECK_THAT(refusal([&] { array{head}; }), Catch::Contains("holds no array"));
  }
  auto const huge = std::int64_t{1} << 40;
  CHECK(array_size<float>({huge, 0, huge}) == 64);
  CHECK(array_size<float>({huge, huge, 0}) == 64);
  CHECK(make_array<float>(ctx, {huge, huge, 0}).count() == 0);
  CHECK_THAT(
      refusal([&] {
        static_cast<void>(array_size<float>({huge, huge}));
      }),
      Catch::Contains("2^62 bytes at most"));
  CHECK_THAT(
      refusal([&] {
        static_cast<void>(make_array<float>(pass_context(memory, backend_kind::cuda), {2}));
      }),
      Catch::Contains("an array lies in memory of the host"));
  CHECK_THAT(
      refusal([&] { static_cast<void>(make_array<float>(ctx, {2}).values<std::int32_t>()); }),
      Catch::Contains("an array of float32 was asked for values of int32"));
  CHECK(to_string(data_type{type_code::floating, 16, 4}) == "float16x4");
  CHECK(to_string(data_type{type_code::brain_floating, 16}) == "bfloat16");
}

}  // namespace test_array
