// SPDX-License-Identifier: Apache-2.0
#include <support/torch_checks.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace test_torch_generator {

using namespace zbpp::test;
using zbpp::torch::dropout;
using zbpp::torch::generator_for;
using zbpp::torch::random_key;
using zbpp::torch::random_place;

namespace {

std::uint32_t next_of(at::Generator generator) {
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random();
}

}  // namespace

TEST_CASE("the key of a place is what the documented mixer gives", "[torch]") {
  // Computed apart from this code, with Python's integers.
  CHECK(random_key({}) == 0x78ae5a9a6b5fd45eU);
  CHECK(
      random_key({.seed = 1, .step = 2, .microbatch = 3, .stage = 4, .operation = 5}) ==
      0x141ea6a5b8259323U);
  CHECK(random_key({.seed = 7, .step = -1}) == 0x9c2a840be7b8a25bU);
}

TEST_CASE("places that differ in one number or swap two have different streams", "[torch]") {
  std::set<std::uint64_t> keys;
  std::set<std::uint32_t> firsts;
  std::size_t places = 0;
  for (std::uint64_t seed : {0U, 1U}) {
    for (std::int64_t step = 0; step < 4; ++step) {
      for (std::int64_t mb = 0; mb < 4; ++mb) {
        for (std::int64_t stage = 0; stage < 4; ++stage) {
          for (std::int64_t operation = 0; operation < 4; ++operation) {
            random_place const place{seed, step, mb, stage, operation};
            keys.insert(random_key(place));
            firsts.insert(next_of(generator_for(place)));
            ++places;
          }
        }
      }
    }
  }
  CHECK(keys.size() == places);
  CHECK(firsts.size() == places);
}

TEST_CASE("a generator runs MT19937 from a state of SplitMix64's numbers", "[torch]") {
  random_place const place{.seed = 5, .step = 1, .microbatch = 2, .stage = 3, .operation = 4};
  std::uint64_t const key = random_key(place);
  std::stringstream state;
  for (std::uint64_t i = 1; i <= 624; ++i) {
    std::uint64_t z = key + i * 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    state << ((z ^ (z >> 31U)) >> 32U) << ' ';
  }
  state << 624;
  std::mt19937 expected;
  state >> expected;

  at::Generator made = generator_for(place);
  CHECK(made.current_seed() == key);
  std::size_t wrong = 0;
  for (int i = 0; i < 2000; ++i) wrong += next_of(made) != expected() ? 1 : 0;
  CHECK(wrong == 0);
}

TEST_CASE("masks depend neither on the order of passes nor on threads", "[torch]") {
  at::Tensor const x = at::ones({7, 11});
  std::vector<random_place> places;
  for (std::int64_t mb = 0; mb < 6; ++mb) {
    for (std::int64_t operation = 0; operation < 2; ++operation) {
      places.push_back({.seed = run_seed(), .step = 3, .microbatch = mb, .operation = operation});
    }
  }
  std::vector<at::Tensor> expected;
  for (random_place const& place : places) expected.push_back(dropout(x, 0.4, place));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(same_bits(expected[i], expected[j]));
  }

  std::vector<std::size_t> order(places.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  ZBPP_SEEDED(random, 1);
  for (int trial = 0; trial < 5; ++trial) {
    random.shuffle(std::span(order));
    std::vector<at::Tensor> found(places.size());
    auto const run = [&](std::size_t first) {
      for (std::size_t i = first; i < order.size(); i += 2) {
        static_cast<void>(at::rand({3}));  // the generator that all share makes no difference
        found[order[i]] = dropout(x, 0.4, places[order[i]]);
      }
    };
    std::thread other(run, 1);
    run(0);
    other.join();
    CHECK(same_bits(found, expected));
  }
}

namespace {

// [dropout
at::Tensor hidden(at::Tensor const& x, std::int64_t step, std::int64_t microbatch) {
  constexpr std::int64_t after_attention = 0;  // tells the operations of a stage apart
  return zbpp::torch::dropout(
      x,
      0.1,
      {.seed = 42,
       .step = step,
       .microbatch = microbatch,
       .stage = 3,
       .operation = after_attention});
}
// dropout]

}  // namespace

TEST_CASE("the dropout of the page is the same whenever it runs", "[torch]") {
  at::Tensor const x = at::ones({64});
  at::Tensor const first = hidden(x, 1, 2);
  CHECK_FALSE(same_bits(hidden(x, 2, 1), first));
  CHECK(same_bits(hidden(x, 1, 2), first));
}

TEST_CASE("dropout keeps elements with probability 1 - p and keeps their mean", "[torch]") {
  at::Tensor x = at::ones({100, 100}).set_requires_grad(true);
  for (double const p : {0.1, 0.5, 0.9}) {
    at::Tensor const y = dropout(x, p, {.seed = 3, .operation = 1});
    at::Tensor const kept = y.ne(0).to(at::kFloat);
    CHECK(same_bits(y, kept.div(1.0 - p)));
    // Five standard deviations of the mean of 10^4 Bernoulli numbers.
    CHECK(std::abs(kept.mean().item<double>() - (1 - p)) < 5 * std::sqrt(p * (1 - p)) / 100);
    y.sum().backward();
    CHECK(same_bits(x.grad(), y));
    x.mutable_grad().reset();
  }
  CHECK(same_bits(dropout(x, 0.0, random_place{}), x));
  CHECK(same_bits(dropout(x, 1.0, random_place{}), at::zeros({100, 100})));
}

TEST_CASE("a probability that is none is refused", "[torch]") {
  auto const refused = [](double p) {
    return refusal([&] { static_cast<void>(dropout(at::ones({2}), p, random_place{})); });
  };
  CHECK(refused(-0.5) == "dropout got the probability -0.5; it must be from 0 to 1");
  CHECK(refused(1.5) == "dropout got the probability 1.5; it must be from 0 to 1");
  CHECK(
      refused(std::numeric_limits<double>::quiet_NaN()) ==
      "dropout got the probability nan; it must be from 0 to 1");
}

}  // namespace test_torch_generator
