// SPDX-License-Identifier: Apache-2.0
//
// Arrays that a kernel and the same text on the host work on, one after the other, and how far
// apart their results may be.
#pragma once

#include <gpu_model/ptx/memory.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace zbpp::test::ptx {

/// Counts the values of a type from one float to the other; all that are not numbers are alike.
/// @tparam Bits  as wide as Float, signed
template <class Bits, class Float>
[[nodiscard]] std::int64_t values_between(Float a, Float b) {
  auto const order = [](Float of) {
    auto const bits = std::int64_t{std::bit_cast<Bits>(of)};
    return bits < 0 ? std::int64_t{std::numeric_limits<Bits>::min()} - bits : bits;
  };
  auto const is_number = [](Float of) { return !std::isnan(static_cast<double>(of)); };
  if (!is_number(a) && !is_number(b)) return 0;
  return std::abs(order(a) - order(b));
}

/// Says whether two values are the same, or differ by so many places of the last digit at most.
template <class Value>
[[nodiscard]] bool is_near(Value const& a, Value const& b, std::int64_t places) {
  if constexpr (std::same_as<Value, float>)
    return values_between<std::int32_t>(a, b) <= places;
  else if constexpr (std::same_as<Value, double>)
    return values_between<std::int64_t>(a, b) <= places;
  else if constexpr (std::is_integral_v<Value>)
    return a == b;
  else
    return values_between<std::int16_t>(a, b) <= places;  // bf16
}

/// Holds arrays in the memory of the device.
class arrays {
 public:
  /// Compares the values of a host and a device.
  template <class Value>
  using comparison = bool (*)(Value const&, Value const&, std::int64_t places);

  /// Makes an array of which nothing was written yet, to the eyes of kernels.
  template <class Value>
  [[nodiscard]] Value* add(
      std::string name, std::size_t count, comparison<Value> near = is_near<Value>) {
    return make(std::move(name), count, near, false);
  }
  /// Makes an array with what `next` gives for each element.
  template <class Value, std::invocable Next>
  [[nodiscard]] Value* filled(
      std::string name, std::size_t count, Next next, comparison<Value> near = is_near<Value>) {
    auto* const first = make(std::move(name), count, near, true);
    for (std::size_t i = 0; i < count; ++i) first[i] = next();
    return first;
  }

  [[nodiscard]] memory& of_device() { return memory_; }

  /// Runs the host, then the device from where the host began, and compares all elements. What the
  /// device made is what stays.
  /// @param places  of the last digit by which results may differ
  /// @return the first element that differs, as "name[0]"; empty if none does
  template <class Host, class Device>
  [[nodiscard]] std::string difference(Host host, Device device, std::int64_t places = 0) {
    for (auto& each : all_) each->keep();
    host();
    for (auto& each : all_) each->restore();
    device();
    for (auto& each : all_)
      if (auto found = each->difference(places); !found.empty()) return found;
    return {};
  }

 private:
  // 256 bytes as cudaMalloc aligns, and as many after the array that belong to none.
  static constexpr std::size_t apart = 256;
  static constexpr std::byte unwritten{1};  // as comparisons may read a bool there

  struct one {
    std::vector<std::byte> room;
    array* known = nullptr;
    std::size_t element = 0;
    std::function<bool(std::byte const*, std::byte const*, std::int64_t)> near;
    std::vector<std::byte> before;
    std::vector<std::byte> of_host;
    std::vector<char> was_written;

    void keep() {
      before.assign(known->bytes().begin(), known->bytes().end());
      was_written = known->is_written();
    }
    void restore() {
      of_host.assign(known->bytes().begin(), known->bytes().end());
      std::ranges::copy(before, known->bytes().begin());
      known->is_written() = was_written;
    }
    [[nodiscard]] std::string difference(std::int64_t places) const {
      auto const* const device = known->bytes().data();
      for (std::size_t at = 0; at < of_host.size(); at += element)
        if (!near(of_host.data() + at, device + at, places))
          return known->name() + "[" + std::to_string(at / element) + "]";
      return {};
    }
  };

  template <class Value>
  [[nodiscard]] Value* make(
      std::string name, std::size_t count, comparison<Value> near, bool is_written) {
    static_assert(std::is_trivially_copyable_v<Value>);
    auto made = std::make_unique<one>();
    auto const bytes = count * sizeof(Value);
    made->room.resize(bytes + 2 * apart, unwritten);
    void* first = made->room.data();
    auto space = made->room.size() - apart;
    std::align(apart, bytes, first, space);
    made->known = &memory_.add(
        std::move(name),
        std::bit_cast<std::uint64_t>(first),
        {static_cast<std::byte*>(first), bytes},
        is_written);
    made->element = sizeof(Value);
    made->near = [near](std::byte const* a, std::byte const* b, std::int64_t places) {
      return near(*reinterpret_cast<Value const*>(a), *reinterpret_cast<Value const*>(b), places);
    };
    all_.push_back(std::move(made));
    return static_cast<Value*>(first);
  }

  std::vector<std::unique_ptr<one>> all_;
  memory memory_;
};

}  // namespace zbpp::test::ptx
