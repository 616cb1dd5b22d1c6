// SPDX-License-Identifier: Apache-2.0
#include "train_gpt_cuda/rows.hpp"

#include <gpu_model/ptx/arrays.hpp>
#include <gpu_model/ptx/compiled.hpp>
#include <gpu_model/ptx/launch.hpp>
#include <support/catch.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace test_ptx_train_gpt {
namespace {

using namespace gpt::cuda;
using namespace zbpp::test;
using gpt::index;
using gpt::vocabulary;

struct shape {
  index context, width, sequences;
  [[nodiscard]] index tokens() const { return context * sequences; }
};

// Widths of one piece and of several for each lane, with and without a rest.
std::vector<shape> const shapes{
    {8, 8, 1},
    {8, 16, 2},
    {16, 24, 3},
    {24, 264, 2},
    {40, 520, 1},
    {8, 768, 4},
    {16, 1032, 1},
    {64, 64, 2},
    {32, 4104, 1}};

// Memory of a device, and the kernels that work on it.
class device {
 public:
  explicit device(ptx::compiled const& kernels, seeded_random& random)
      : kernels_(&kernels), random_(&random) {}

  [[nodiscard]] float* floats(std::string name, index count) {
    return filled<float>(std::move(name), count, [&] { return number(); });
  }
  [[nodiscard]] bf16* bf16s(std::string name, index count) {
    return filled<bf16>(std::move(name), count, [&] { return narrow(number()); });
  }
  template <class Value>
  [[nodiscard]] Value* empty(std::string name, index count) {
    return memory_.add<Value>(std::move(name), static_cast<std::size_t>(count));
  }
  [[nodiscard]] sequences_of sequences(shape const& of) {
    index const letters = of.context + 51;
    auto* const text = filled<std::uint8_t>(
        "text", letters, [&] { return static_cast<std::uint8_t>(random_->bits()); });
    auto* const first = filled<std::int64_t>(
        "first", of.sequences, [&] { return random_->integer(0, letters - of.context - 1); });
    first[0] = letters - of.context - 1;  // as far back as can be
    return {text, letters, first, of.sequences, of.context};
  }

  // Runs a row function on the host and, as nvcc compiled it, on the device.
  template <class Rows>
  void check(Rows const& rows, std::int64_t places = 0) {
    auto const& runs = kernels_->instance<Rows>("run_rows");
    INFO(runs.name);
    int const rows_of_block = runs.most_lanes / lanes::count;
    auto const blocks = static_cast<int>((rows.rows() + rows_of_block - 1) / rows_of_block);
    auto const found = memory_.difference(
        [&] {
          for (index row = 0; row < rows.rows(); ++row) rows(lanes(), row);
        },
        [&] {
          ptx::launch(
              runs,
              {blocks, runs.most_lanes},
              ptx::arguments(runs, rows, rows.rows()),
              memory_.of_device(),
              *random_);
        },
        places);
    CHECK(found == "");
  }

 private:
  [[nodiscard]] float number() { return static_cast<float>(random_->real(-2, 2)); }
  template <class Value, class Next>
  [[nodiscard]] Value* filled(std::string name, index count, Next next) {
    return memory_.filled<Value>(std::move(name), static_cast<std::size_t>(count), next);
  }

  ptx::arrays memory_;
  ptx::compiled const* kernels_;
  seeded_random* random_;
};

// Calls `check(device, shape)` for every shape.
template <class Check>
void for_all_shapes(Check check) {
  ptx::compiled const kernels(ptx::text_of(ZBPP_PTX_TRAIN_GPT));
  std::uint64_t stream = 0;
  for (auto const& of : shapes) {
    ZBPP_SEEDED(random, ++stream);
    INFO("context " << of.context << ", width " << of.width << ", sequences " << of.sequences);
    device on(kernels, random);
    check(on, of);
  }
}

TEST_CASE("as compiled by nvcc, the kernels of F have the bits of the host") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  for_all_shapes([](device& on, shape const& s) {
    auto const size = s.tokens() * s.width;
    auto const of = on.sequences(s);
    on.check(embed{
        of,
        s.width,
        on.floats("tokens", vocabulary * s.width),
        on.floats("positions", s.context * s.width),
        on.empty<bf16>("embedded", size)});
    auto* const x = on.bf16s("x", size);
    norm const normalise{
        s.tokens(),
        s.width,
        x,
        on.floats("gamma", s.width),
        on.floats("beta", s.width),
        on.empty<bf16>("normal", size),
        on.empty<float>("scale", s.tokens()),
        on.empty<bf16>("normed", size)};
    on.check(normalise);
    x[3] = narrow(std::numeric_limits<float>::quiet_NaN());
    x[size - 1] = narrow(std::numeric_limits<float>::infinity());
    on.check(normalise);
    on.check(mean_loss{s.tokens(), on.floats("losses", s.tokens()), on.empty<float>("mean", 1)});
  });
}

TEST_CASE("as compiled by nvcc, sequences are placed as on the host") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  for_all_shapes([](device& on, shape const& s) {
    auto* const counted = on.empty<std::int64_t>("counted", 1);
    index const sequences = 40 * s.sequences;
    auto* const first = on.empty<std::int64_t>("first", sequences);
    on.check(place_sequences{123, {3, 9, nullptr}, 1000, s.sequences, first});
    on.check(place_sequences{123, {3, 9, nullptr}, 1000, sequences, first});
    CHECK_THROWS_WITH(
        on.check(place_sequences{123, {3, 9, counted}, 1000, sequences, first}),
        Catch::Contains("reads what nobody wrote in counted"));
  });
}

TEST_CASE("as compiled by nvcc, softmax and cross entropy are within a place of the host") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  for_all_shapes([](device& on, shape const& s) {
    for (index const block : {index{8}, index{16}, s.context}) {
      index const rows = 2 * s.context;
      on.check(causal_softmax{rows, s.context, block, on.bf16s("scores", rows * s.context)}, 1);
      on.check(causal_softmax_backward{
          rows,
          s.context,
          block,
          0.25F,
          on.bf16s("probabilities", rows * s.context),
          on.bf16s("gradient", rows * s.context)});
    }
    auto const size = s.tokens() * vocabulary;
    on.check(
        cross_entropy{
            on.sequences(s),
            1.0F / static_cast<float>(s.tokens()),
            on.floats("logits", size),
            on.floats("bias", vocabulary),
            on.empty<bf16>("dlogits", size),
            on.empty<float>("losses", s.tokens())},
        1);
  });
}

TEST_CASE("as compiled by nvcc, the kernels of B and W have the bits of the host") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  for_all_shapes([](device& on, shape const& s) {
    auto const size = s.tokens() * s.width;
    auto const runs = token_runs{s.tokens()}.count();
    auto* const dy = on.bf16s("dy", size);
    auto* const normal = on.bf16s("normal", size);
    auto* const gamma = on.floats("gamma", s.width);
    norm_backward backward{
        s.tokens(),
        s.width,
        dy,
        gamma,
        normal,
        on.floats("scale", s.tokens()),
        nullptr,
        on.empty<bf16>("dx", size)};
    on.check(backward);
    backward.residual = on.bf16s("residual", size);
    on.check(backward);
    auto* const sums = on.empty<float>("sums", runs * s.width);
    on.check(column_sums{s.tokens(), s.width, dy, sums});
    auto* const gamma_sums = on.empty<float>("gamma sums", runs * s.width);
    on.check(norm_weights{
        s.tokens(),
        s.width,
        dy,
        normal,
        gamma,
        on.floats("beta", s.width),
        on.empty<bf16>("y", size),
        gamma_sums,
        on.empty<float>("beta sums", runs * s.width)});
    add_sums adds{};
    adds.items[0] = {sums, runs, s.width, on.floats("gradient", s.width)};
    adds.items[1] = {on.floats("sums of 40", 40 * 8), 40, 8, on.floats("gradient of 8", 8)};
    adds.items[2] = {gamma_sums, runs, s.width, on.floats("gradient of gamma", s.width)};
    adds.count = 3;
    on.check(adds);
    on.check(embed_token_backward{
        on.sequences(s), s.width, dy, on.floats("gradient of tokens", vocabulary * s.width)});
    on.check(embed_position_backward{
        s.sequences,
        s.width,
        s.context,
        dy,
        on.floats("gradient of positions", s.context * s.width)});
  });
}

TEST_CASE("as compiled by nvcc, weights are rounded as on the host") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  for_all_shapes([](device& on, shape const& s) {
    index const count = 8 * s.width;
    auto* const value = on.floats("value", count);
    float const special[] = {
        std::numeric_limits<float>::quiet_NaN(),
        -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::max(),  // rounds to infinity
        std::numeric_limits<float>::denorm_min(),
        -0.0F,
        1.00390625F,  // ties of a bf16
        1.01171875F};
    std::ranges::copy(special, value);
    on.check(round_weights{count, value, on.empty<bf16>("rounded", count)});
  });
}

TEST_CASE("what is wrong in a kernel of train_gpt_cuda is found") {
  if (!ptx::missing().empty()) return skip(ptx::missing());
  auto const text = ptx::text_of(ZBPP_PTX_TRAIN_GPT);
  ptx::compiled const kernels(text);
  ZBPP_SEEDED(random, 0);
  device on(kernels, random);
  shape const s{8, 264, 2};
  auto const size = s.tokens() * s.width;
  auto* const dy = on.bf16s("dy", size);
  auto* const sums = on.empty<float>("sums", s.width);
  CHECK_THROWS_WITH(
      on.check(column_sums{s.tokens(), s.width, dy + 4, sums}),
      Catch::Contains("16 bytes of dy are not aligned"));
  CHECK_THROWS_WITH(
      on.check(column_sums{s.tokens(), s.width, dy, sums + 8}),
      Catch::Contains("are not within sums"));
}

}  // namespace
}  // namespace test_ptx_train_gpt
