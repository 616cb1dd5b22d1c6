// SPDX-License-Identifier: Apache-2.0
//
// Random numbers that depend on the place of an operation in training, and on nothing else.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/torch/detail/libtorch.hpp>

#include <cstdint>
#include <mutex>
#include <sstream>

namespace zbpp::torch {

/// The place of a random operation in training. Each place has a stream of random numbers of its
/// own, whatever the order of passes, the threads and the placement of stages.
struct random_place {
  std::uint64_t seed = 0;  ///< of the run
  std::int64_t step = 0;
  std::int64_t microbatch = 0;
  std::int64_t stage = 0;      ///< better the layer's index, if results shall not depend on the cut
  std::int64_t operation = 0;  ///< tells the operations of one stage apart
  std::int64_t replica = 0;    ///< of the model; 0 in all of them has them draw the same
};

/// @return the place of an operation of a flow, which its replica has for its own
/// @throws error (wrong_flow) as `microbatch::step`
[[nodiscard]] inline random_place place_of(
    microbatch mb, std::uint64_t seed, std::int64_t operation = 0) {
  return {seed, mb.step(), mb.index(), mb.stage(), operation, mb.grid().at().data};
}

/// Scrambles 64 bits; different numbers give different ones.
/// @source finalizer of SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
///         generators", OOPSLA 2014; constants: Stafford's variant 13 of MurmurHash3's finalizer
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t bits) noexcept {
  bits = (bits ^ (bits >> 30U)) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ (bits >> 27U)) * 0x94d049bb133111ebU;
  return bits ^ (bits >> 31U);
}

/// Makes a key of a place: takes in one number after another, each by an addition and `mix`.
[[nodiscard]] constexpr std::uint64_t random_key(random_place const& place) noexcept {
  constexpr std::uint64_t golden =
      0x9e3779b97f4a7c15U;  // 2^64 / golden ratio, SplitMix64's increment
  std::uint64_t key = mix(place.seed + golden);
  for (std::int64_t const number : {place.step, place.microbatch, place.stage, place.operation}) {
    key = mix(key + golden + static_cast<std::uint64_t>(number));
  }
  auto const replica = static_cast<std::uint64_t>(place.replica);
  return replica == 0 ? key : mix(key + golden + replica);  // one model draws as replica 0
}

/// Makes the generator of a place. On the CPU, all 64 bits of the key count, of which LibTorch's
/// own seeding takes 32.
/// @throws what LibTorch throws when it has no such device
/// @source state of MT19937 filled by SplitMix64 (Matsumoto, Nishimura 1998: any state but zero)
[[nodiscard]] inline at::Generator generator_for(
    random_place const& place, at::Device device = at::kCPU) {
  std::uint64_t const key = random_key(place);
  if (!device.is_cpu()) {
    at::Generator original = at::globalContext().defaultGenerator(device);
    at::Generator made;
    {
      std::lock_guard<std::mutex> const lock(original.mutex());
      made = original.clone();
    }
    made.set_current_seed(key);
    return made;
  }
  at::mt19937_data_pod state{};
  state.seed_ = key;
  state.left_ = 1;  // the first number makes the next block of the state
  state.seeded_ = true;
  state.next_ = 0;
  std::uint64_t counter = key;
  for (std::uint32_t& word : state.state_) {
    counter += 0x9e3779b97f4a7c15U;
    word = static_cast<std::uint32_t>(mix(counter) >> 32U);
  }
  at::mt19937 engine;
  engine.set_data(state);
  at::Generator made = at::detail::createCPUGenerator(key);
  at::check_generator<at::CPUGeneratorImpl>(made)->set_engine(engine);
  return made;
}

/// Sets elements to zero with probability `p`, and divides the others by `1 - p`. The same
/// generator state gives the same mask.
/// @throws error (bad_argument) when p is not from 0 to 1
[[nodiscard]] inline at::Tensor dropout(
    at::Tensor const& x, double p, at::Generator const& generator) {
  if (!(p >= 0.0 && p <= 1.0)) {
    std::ostringstream text;
    text << "dropout got the probability " << p << "; it must be from 0 to 1";
    throw error(errc::bad_argument, text.str());
  }
  if (p == 0.0) return x;
  at::Tensor mask = at::empty_like(x.detach());
  if (p == 1.0) return x * mask.zero_();
  return x * mask.bernoulli_(1.0 - p, generator).div_(1.0 - p);
}

/// `dropout` with the generator of a place, on the device of `x`.
/// @throws error (bad_argument) when p is not from 0 to 1
[[nodiscard]] inline at::Tensor dropout(at::Tensor const& x, double p, random_place const& place) {
  return dropout(x, p, generator_for(place, x.device()));
}

}  // namespace zbpp::torch
