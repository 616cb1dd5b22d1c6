// SPDX-License-Identifier: Apache-2.0
//
// What model/costs.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

ZBPP_INLINE ticks from_milliseconds(double milliseconds) {
  if (!(milliseconds >= 0 && milliseconds <= 1e12))
    throw error(errc::bad_argument) + "a time of " + milliseconds +
        " ms; times go from 0 to 10^12 ms";
  return static_cast<ticks>(std::llround(milliseconds * 1e6));
}

ZBPP_INLINE void stage_costs::check(int stage) const {
  auto refuse = [stage](std::string const& text) {
    throw error(errc::bad_argument, text, {.stage = stage});
  };
  for (auto const& field : detail::cost_fields)  // what two passes take together is compared below
    if (auto const value = field.of(*this).value_or(0);
        value < 0 && field.kind != detail::cost_kind::joint)
      refuse(detail::joined(field.name, " is ", value, "; at least 0"));
  if (output_gradient > weight_gradient_input)
    refuse("output_gradient is more than weight_gradient_input; W keeps all that B adds for it, so "
           "count that in weight_gradient_input, too");
  if (weight_gradient_input - output_gradient > activation)
    refuse(
        std::string("weight_gradient_input is more than activation") +
        (output_gradient > 0 ? " and output_gradient together" : "") +
        "; state all that B adds for W as output_gradient");
  if (recompute_input > activation)
    refuse("recompute_input is more than activation; R adds what F did not keep");
  // B + W may be more than a number holds.
  auto const time_of = [this](pass_kind kind) {
    if (kind != pass_kind::backward || backward_fused) return static_cast<std::uint64_t>(of(kind));
    return static_cast<std::uint64_t>(backward_input) + static_cast<std::uint64_t>(backward_weight);
  };
  for (auto const& field : detail::cost_fields) {
    if (field.kind != detail::cost_kind::joint) continue;
    auto const both = this->*field.optional;
    if (!both) continue;
    auto const one = time_of(field.one);
    auto const other = time_of(field.other);
    auto const together = static_cast<std::uint64_t>(*both);
    if (*both < 0 || together < std::max(one, other) || together - one > other) {
      auto const a = to_string(field.one);
      auto const b = to_string(field.other);
      refuse(
          detail::joined(field.name, " must lie between max(", a, ", ", b, ") and ", a, " + ", b));
    }
  }
}

namespace detail {

/// @return what messages of replicas take that follow one another, with so many bytes in all
[[nodiscard]] ZBPP_INLINE ticks
exchange_time(replica_costs const& replicas, int rounds, double moved) noexcept {
  constexpr ticks most = ticks{1} << 62;
  auto const moving = moved * replicas.time_per_byte;
  if (moving >= static_cast<double>(most) || replicas.latency >= most / 4) return most;
  return std::min(most, rounds * replicas.latency + static_cast<ticks>(std::llround(moving)));
}

}  // namespace detail

ZBPP_INLINE ticks replica_costs::operator()(bytes gradients) const noexcept {
  if (count == 1) return 0;
  auto const all = static_cast<double>(gradients);
  auto const others = all * (count - 1) / count;
  if (shards_optimizer) return detail::exchange_time(*this, 1, others);
  // Between two replicas everything goes over once; of more in parts, of which one stays, twice.
  return count == 2 ? detail::exchange_time(*this, 1, all)
                    : detail::exchange_time(*this, 2, 2 * others);
}

ZBPP_INLINE ticks replica_costs::gather_time(bytes weights) const noexcept {
  if (count == 1 || !shards_optimizer) return 0;
  return detail::exchange_time(*this, 1, static_cast<double>(weights) * (count - 1) / count);
}

ZBPP_INLINE void replica_costs::check() const {
  constexpr int most = 1 << 20;
  if (count < 1 || count > most)
    throw error(errc::bad_argument) + "replicas: a count of " + count + "; there are 1 to 2^20";
  if (latency < 0)
    throw error(errc::bad_argument) + "replicas: a latency of " + latency +
        " ns; a latency is at least 0 ns";
  if (!(time_per_byte >= 0 && time_per_byte <= 1e9))
    throw error(errc::bad_argument) + "replicas: " + time_per_byte +
        " ns per byte; a rate lies between 0 and 10^9 ns per byte";
  if (shards_optimizer && count == 1)
    throw error(
        errc::bad_argument,
        "replicas: shards_optimizer is set and there is one replica; give a count above 1");
}

ZBPP_INLINE transfer_costs::transfer_costs(ticks latency) : latency_{latency} { check(); }

ZBPP_INLINE transfer_costs::transfer_costs(
    int ranks, std::vector<ticks> latency, std::vector<double> time_per_byte)
    : ranks_(ranks), latency_(std::move(latency)), time_per_byte_(std::move(time_per_byte)) {
  if (ranks < 1)
    throw error(errc::bad_argument) + "transfer: a table for " + ranks + " ranks; at least 1";
  auto const pairs = detail::index(ranks) * detail::index(ranks);
  auto const check_size = [&](char const* name, std::size_t size) {
    if (size != pairs)
      throw error(errc::bad_argument) + "transfer: " + name + " has " + size + " entries; " +
          ranks + " ranks need " + pairs;
  };
  check_size("latency", latency_.size());
  if (!time_per_byte_.empty()) check_size("time_per_byte", time_per_byte_.size());
  check();
}

ZBPP_INLINE ticks
transfer_costs::operator()(int from, int to, bytes size, double factor) const noexcept {
  if (from == to || time_per_byte_.empty()) return (*this)(from, to, size);
  auto const pair = detail::index(std::int64_t{from} * ranks_ + to);
  return with_rate(latency_[pair], time_per_byte_[pair] * factor, size);
}

ZBPP_INLINE ticks transfer_costs::with_rate(ticks latency, double rate, bytes size) noexcept {
  auto const moving = rate * static_cast<double>(size);
  if (moving >= static_cast<double>(most)) return most;
  return std::min(most, latency + static_cast<ticks>(std::llround(moving)));
}

ZBPP_INLINE void transfer_costs::check() const {
  for (auto latency : latency_)
    if (latency < 0 || latency > most)
      throw error(errc::bad_argument) + "transfer: a latency of " + latency +
          " ns; a latency lies between 0 and 2^62 ns";
  for (auto rate : time_per_byte_)
    if (!(rate >= 0 && rate <= 1e9))
      throw error(errc::bad_argument) + "transfer: " + rate +
          " ns per byte; a rate lies between 0 and 10^9 ns per byte";
}

}  // namespace zbpp
