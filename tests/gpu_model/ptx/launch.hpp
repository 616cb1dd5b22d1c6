// SPDX-License-Identifier: Apache-2.0
//
// Launches a kernel: blocks one after another, in an order drawn from a seed, and the lanes of each
// in another order after every wait. An order is enough, as lanes that depend on each other without
// a wait are a race, which memory.hpp finds.
#pragma once

#include <gpu_model/ptx/lane.hpp>
#include <gpu_model/ptx/memory.hpp>
#include <gpu_model/ptx/program.hpp>
#include <gpu_model/ptx/warp.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace zbpp::test::ptx {

/// Says how many blocks a launch has, and how many lanes each of them.
struct launch_size {
  int blocks;
  int lanes;
};

/// Lays the arguments of a kernel out as it declares them.
/// @throws fault if they are of other sizes
template <class... Values>
[[nodiscard]] std::vector<std::byte> arguments(kernel const& of, Values const&... values) {
  std::vector<std::byte> bytes(of.parameter_bytes);
  std::size_t next = 0;
  [[maybe_unused]] auto const put = [&]<class Value>(Value const& value) {
    if (next == of.parameters.size() || of.parameters[next].size != sizeof(value))
      throw fault(of.name + " has other parameters");
    std::memcpy(bytes.data() + of.parameters[next++].offset, &value, sizeof(value));
  };
  (put(values), ...);
  if (next != of.parameters.size()) throw fault(of.name + " has more parameters");
  return bytes;
}

/// Runs one block of a launch.
class block {
 public:
  block(
      kernel const& runs,
      launch_size size,
      int number,
      memory& global,
      memory& parameters,
      seeded_random& random)
      : number_(number),
        shared_bytes_(runs.shared_bytes),
        memory_{global, shared_, parameters},
        random_(&random) {
    shared_.add("shared memory", 0, shared_bytes_, false).begin_launch();
    for (int l = 0; l < size.lanes; ++l) {
      lanes_.emplace_back(runs, l, random.bits());
      lanes_.back().set_special("%tid.x", static_cast<std::uint64_t>(l));
      lanes_.back().set_special("%ntid.x", static_cast<std::uint64_t>(size.lanes));
      lanes_.back().set_special("%ctaid.x", static_cast<std::uint64_t>(number));
      lanes_.back().set_special("%nctaid.x", static_cast<std::uint64_t>(size.blocks));
      lanes_.back().set_special("%smid", static_cast<std::uint64_t>(number));  // one each
    }
  }

  /// @throws fault
  void run() {
    std::vector<std::size_t> order(lanes_.size());
    std::iota(order.begin(), order.end(), 0U);
    for (;;) {
      random_->shuffle(std::span(order));
      for (auto const l : order) run(lanes_[l]);
      if (std::ranges::all_of(lanes_, &lane::has_ended)) return;
      if (!exchange() && !pass_barrier()) throw fault("its lanes wait for each other for ever");
    }
  }

 private:
  void run(lane& one) {
    try {
      one.run(memory_, number_, barriers_);
    } catch (fault const& found) {
      throw fault(
          "lane " + std::to_string(one.number()) + ", line " + std::to_string(one.next().line) +
          ": " + found.what());
    }
  }
  [[nodiscard]] bool exchange() {
    bool is_done = false;
    for (std::size_t first = 0; first < lanes_.size(); first += warp::size) {
      auto const count = std::min(warp::size, lanes_.size() - first);
      is_done = warp(std::span(lanes_).subspan(first, count)).exchange() || is_done;
    }
    return is_done;
  }
  // All lanes have to come to the same barrier.
  [[nodiscard]] bool pass_barrier() {
    auto const waits = [&](lane const& l) {
      return !l.has_ended() && l.next().act == action::barrier && &l.next() == &lanes_[0].next();
    };
    if (!std::ranges::all_of(lanes_, waits)) return false;
    for (auto& each : lanes_) each.go_on();
    ++barriers_;
    return true;
  }

  int number_;
  int barriers_ = 0;
  std::vector<std::byte> shared_bytes_;
  memory shared_;
  block_memory memory_;
  std::vector<lane> lanes_;
  seeded_random* random_;
};

/// Runs a kernel.
/// @param with  its arguments(), as bytes
/// @throws fault  that says what it does that it must not do
inline void launch(
    kernel const& runs,
    launch_size size,
    std::vector<std::byte> with,
    memory& global,
    seeded_random& random) {
  if (size.lanes > runs.most_lanes) throw fault(runs.name + " is not for so many lanes");
  memory parameters;
  parameters.add("the parameters", 0, with, true);
  parameters.begin_launch();
  global.begin_launch();
  std::vector<int> order(static_cast<std::size_t>(size.blocks));
  std::iota(order.begin(), order.end(), 0);
  random.shuffle(std::span(order));
  for (int const number : order) {
    try {
      block(runs, size, number, global, parameters, random).run();
    } catch (fault const& found) {
      throw fault(runs.name + ", block " + std::to_string(number) + ", " + found.what());
    }
  }
}

}  // namespace zbpp::test::ptx
