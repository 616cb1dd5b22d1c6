// SPDX-License-Identifier: Apache-2.0
//
// The instructions of PTX that compute one value from others, by their full names; memory, branches
// and other lanes are in lane.hpp and warp.hpp. Those are here that nvcc makes of the kernels of
// this repository, for all types that they have.
//
// Single and double precision are those of the host, which rounds to nearest as IEEE 754 has it.
// ex2.approx stands for the table of a GPU, whose last bit differs.
#pragma once

#include <gpu_model/ptx/program.hpp>

#include <bit>
#include <cfenv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <unordered_map>

namespace zbpp::test::ptx {

/// Takes a value from the low bits of a register.
template <class T>
[[nodiscard]] T value_of(std::uint64_t bits) {
  if constexpr (std::same_as<T, bool>)
    return (bits & 1) != 0;
  else if constexpr (std::same_as<T, float>)
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  else if constexpr (std::same_as<T, double>)
    return std::bit_cast<double>(bits);
  else
    return static_cast<T>(bits);
}

/// Makes the bits of a register from a value.
template <class T>
[[nodiscard]] std::uint64_t bits_of(T value) {
  if constexpr (std::same_as<T, float>)
    return std::bit_cast<std::uint32_t>(value);
  else if constexpr (std::same_as<T, double>)
    return std::bit_cast<std::uint64_t>(value);
  else
    return static_cast<std::uint64_t>(value);
}

/// Makes the bits of a bf16, the upper half of a float, rounded to nearest, ties to even.
[[nodiscard]] inline std::uint64_t bf16_bits(float value) {
  if (std::isnan(value)) return 0x7fff;
  auto const bits = std::bit_cast<std::uint32_t>(value);
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

/// Holds the operations by name.
class operation_table {
 public:
  operation_table() {
    add_integer<std::uint16_t>("u16");
    add_integer<std::int16_t>("s16");
    add_integer<std::uint32_t>("u32");
    add_integer<std::int32_t>("s32");
    add_integer<std::uint64_t>("u64");
    add_integer<std::int64_t>("s64");
    add_bits<bool>("pred");
    add_bits<std::uint16_t>("b16");
    add_bits<std::uint32_t>("b32");
    add_bits<std::uint64_t>("b64");
    add_float<float>("f32");
    add_float<double>("f64");
    add_single();
    add_wide<std::uint32_t, std::uint64_t>("u32");
    add_wide<std::int32_t, std::int64_t>("s32");
    all_["cvta.to.global.u64"] = first;
  }

  /// @throws fault if there is none of that name
  [[nodiscard]] operation operator[](std::string const& name) const {
    auto const found = all_.find(name);
    if (found == all_.end()) throw fault("the interpreter has no " + name);
    return found->second;
  }

 private:
  using bits = std::uint64_t;

  static bits first(bits a, bits, bits) { return a; }

  // Adds an operation on values of one type.
  template <class T, class Do>
  void add(std::string const& name, Do) {
    static_assert(std::is_empty_v<Do>);
    all_[name] = [](bits a, bits b, bits c) {
      return bits_of(Do()(value_of<T>(a), value_of<T>(b), value_of<T>(c)));
    };
  }
  // What integers and bits have in common with floats.
  template <class T>
  void add_common(std::string const& type) {
    add<T>("setp.eq." + type, [](T a, T b, T) { return a == b; });
    all_["mov." + type] = first;
    all_["selp." + type] = [](bits a, bits b, bits c) { return value_of<bool>(c) ? a : b; };
  }
  template <class T>
  void add_order(std::string const& type) {
    add<T>("setp.lt." + type, [](T a, T b, T) { return a < b; });
    add<T>("setp.le." + type, [](T a, T b, T) { return a <= b; });
    add<T>("setp.gt." + type, [](T a, T b, T) { return a > b; });
    add<T>("setp.ge." + type, [](T a, T b, T) { return a >= b; });
  }
  // Sums and products wrap around, which is defined for unsigned numbers only.
  template <class T>
  void add_integer(std::string const& type) {
    add_common<T>(type);
    add_order<T>(type);
    add<T>("setp.ne." + type, [](T a, T b, T) { return a != b; });
    add<T>("add." + type, [](T a, T b, T) { return bits(a) + bits(b); });
    add<T>("sub." + type, [](T a, T b, T) { return bits(a) - bits(b); });
    add<T>("neg." + type, [](T a, T, T) { return 0 - bits(a); });
    add<T>("mul.lo." + type, [](T a, T b, T) { return bits(a) * bits(b); });
    add<T>("mad.lo." + type, [](T a, T b, T c) { return bits(a) * bits(b) + bits(c); });
    add<T>("div." + type, [](T a, T b, T) { return static_cast<T>(a / divisor(a, b)); });
    add<T>("rem." + type, [](T a, T b, T) { return static_cast<T>(a % divisor(a, b)); });
    add<T>("min." + type, [](T a, T b, T) { return a < b ? a : b; });
    add<T>("max." + type, [](T a, T b, T) { return a < b ? b : a; });
    all_["shr." + type] = [](bits a, bits b, bits) {
      constexpr bits last = 8 * sizeof(T) - 1;
      auto const value = value_of<T>(a);
      auto const by = value_of<std::uint32_t>(b);
      auto const most = std::is_signed_v<T> ? value >> last : 0;
      return bits_of(by > last ? static_cast<T>(most) : static_cast<T>(value >> by));
    };
    add_conversions<T>(type);
  }
  // The quotient of the least number and -1 is none of T.
  template <class T>
  static T divisor(T a, T b) {
    if (b == 0) throw fault("divides by 0");
    if constexpr (std::is_signed_v<T>)
      if (b == -1 && bits(a) == 0 - bits(a) && a != 0)
        throw fault("divides the least number by -1");
    return b;
  }
  template <class T>
  void add_conversions(std::string const& type) {
    auto const to = "." + type;
    add<T>("cvt.u16" + to, [](T a, T, T) { return static_cast<std::uint16_t>(a); });
    add<T>("cvt.u32" + to, [](T a, T, T) { return static_cast<std::uint32_t>(a); });
    add<T>("cvt.s32" + to, [](T a, T, T) { return static_cast<std::int32_t>(a); });
    add<T>("cvt.u64" + to, [](T a, T, T) { return static_cast<std::uint64_t>(a); });
    add<T>("cvt.s64" + to, [](T a, T, T) { return static_cast<std::int64_t>(a); });
    add<T>("cvt.rn.f32" + to, [](T a, T, T) { return static_cast<float>(a); });
    add<T>("cvt.rn.f64" + to, [](T a, T, T) { return static_cast<double>(a); });
  }
  template <class T>
  void add_bits(std::string const& type) {
    add_common<T>(type);
    add<T>("setp.ne." + type, [](T a, T b, T) { return a != b; });
    add<T>("and." + type, [](T a, T b, T) { return bits(a) & bits(b); });
    add<T>("or." + type, [](T a, T b, T) { return bits(a) | bits(b); });
    add<T>("xor." + type, [](T a, T b, T) { return bits(a) ^ bits(b); });
    add<T>("not." + type, [](T a, T, T) { return ~bits(a); });
    all_["shl." + type] = [](bits a, bits b, bits) {
      auto const by = value_of<std::uint32_t>(b);
      return by < 8 * sizeof(T) ? a << by : 0;
    };
  }
  template <class T>
  void add_float(std::string const& type) {
    add_common<T>(type);
    add_order<T>(type);
    // Comparisons are false for what is not a number, but for those that end in u.
    add<T>("setp.ne." + type, [](T a, T b, T) { return a < b || a > b; });
    add<T>("setp.ltu." + type, [](T a, T b, T) { return !(a >= b); });
    add<T>("setp.leu." + type, [](T a, T b, T) { return !(a > b); });
    add<T>("setp.gtu." + type, [](T a, T b, T) { return !(a <= b); });
    add<T>("setp.geu." + type, [](T a, T b, T) { return !(a < b); });
    add<T>("setp.equ." + type, [](T a, T b, T) { return !(a < b || a > b); });
    add<T>("setp.neu." + type, [](T a, T b, T) { return a != b; });
    for (std::string const rounding : {".", ".rn."}) {
      add<T>("add" + rounding + type, [](T a, T b, T) { return a + b; });
      add<T>("sub" + rounding + type, [](T a, T b, T) { return a - b; });
      add<T>("mul" + rounding + type, [](T a, T b, T) { return a * b; });
    }
    add<T>("fma.rn." + type, [](T a, T b, T c) { return std::fma(a, b, c); });
    add<T>("div.rn." + type, [](T a, T b, T) { return a / b; });
    add<T>("rcp.rn." + type, [](T a, T, T) { return 1 / a; });
    add<T>("sqrt.rn." + type, [](T a, T, T) { return std::sqrt(a); });
    add<T>("neg." + type, [](T a, T, T) { return -a; });
    add<T>("abs." + type, [](T a, T, T) { return std::fabs(a); });
    add<T>("min." + type, [](T a, T b, T) { return std::fmin(a, b); });
    add<T>("max." + type, [](T a, T b, T) { return std::fmax(a, b); });
  }
  void add_single() {
    add<float>("cvt.f64.f32", [](float a, float, float) { return static_cast<double>(a); });
    add<double>("cvt.rn.f32.f64", [](double a, double, double) { return static_cast<float>(a); });
    add<float>(
        "cvt.sat.f32.f32", [](float a, float, float) { return a > 0 ? std::fmin(a, 1.0F) : 0.0F; });
    add<float>("cvt.rn.bf16.f32", [](float a, float, float) { return bf16_bits(a); });
    add<float>("cvt.rn.bf16x2.f32", [](float high, float low, float) {
      return bf16_bits(high) << 16 | bf16_bits(low);
    });
    add<std::uint16_t>("cvt.f32.bf16", [](std::uint16_t a, std::uint16_t, std::uint16_t) {
      return std::uint32_t{a} << 16;
    });
    add<float>("fma.rm.f32", [](float a, float b, float c) { return fma_rounded_down(a, b, c); });
    add<float>("ex2.approx.ftz.f32", [](float a, float, float) {
      return without_subnormals(std::exp2(without_subnormals(a)));
    });
  }
  // The compiler must not know the values, which it would compute with another rounding.
  static float fma_rounded_down(float a, float b, float c) {
    auto const before = std::fegetround();
    std::fesetround(FE_DOWNWARD);
    float const volatile x = a;
    float const volatile result = std::fma(x, b, c);
    std::fesetround(before);
    return result;
  }
  static float without_subnormals(float a) {
    return std::fpclassify(a) == FP_SUBNORMAL ? std::copysign(0.0F, a) : a;
  }
  template <class T, class Wide>
  void add_wide(std::string const& type) {
    add<T>("mul.wide." + type, [](T a, T b, T) { return Wide{a} * Wide{b}; });
    add<T>("mul.hi." + type, [](T a, T b, T) { return (Wide{a} * Wide{b}) >> 32; });
    all_["mad.wide." + type] = [](bits a, bits b, bits c) {
      return bits_of(Wide{value_of<T>(a)} * Wide{value_of<T>(b)}) + c;
    };
  }

  std::unordered_map<std::string, operation> all_;
};

}  // namespace zbpp::test::ptx
