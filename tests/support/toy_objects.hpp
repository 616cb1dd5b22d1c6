// SPDX-License-Identifier: Apache-2.0
//
// The toy network with edges that carry objects instead of memory.
#pragma once

#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/object.hpp>
#include <zbpp/runtime/stage.hpp>

#include <support/toy_mlp.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

namespace zbpp::test::toy {

/// Carries the two parts of an edge, and counts how many of its kind there are. It cannot be copied
/// and takes nothing from the heap.
class parcel {
 public:
  static inline std::atomic<int> alive = 0;
  static constexpr std::size_t most = most_rows * width;

  parcel() { ++alive; }
  parcel(parcel&& other) noexcept : sizes(other.sizes), values(other.values) {
    other.sizes = {};
    ++alive;
  }
  parcel& operator=(parcel&&) = delete;
  ~parcel() { --alive; }

  std::array<std::uint32_t, 2> sizes{};
  std::array<std::array<float, most>, 2> values{};
};

/// Declared size of an edge in bytes: the largest parcel as its serializer writes it.
inline constexpr bytes parcel_edge = edge + static_cast<bytes>(sizeof(parcel::sizes));

/// Moves the two parts of a message into a parcel, and the parcel into an edge.
[[nodiscard]] inline message pack(message const& parts, pass_context ctx) {
  if (parts.empty()) return {};
  parcel packed;
  for (std::size_t i = 0; i < 2; ++i) {
    auto const from = parts[i].as<float>();
    packed.sizes[i] = static_cast<std::uint32_t>(from.size());
    std::ranges::copy(from, packed.values[i].begin());
  }
  return ctx.make_edge(std::move(packed), parcel_edge);
}

/// Copies the two parts of a parcel to memory; gives a message that is none as it is.
[[nodiscard]] inline message unpack(message const& packed, pass_context ctx) {
  if (!packed.has_object() && packed.size() != 1) return packed;
  auto const& from = packed.get<parcel>();
  message parts;
  for (std::size_t i = 0; i < 2; ++i) {
    parts.push_back(ctx.allocate(from.sizes[i] * sizeof(float)));
    std::copy_n(from.values[i].begin(), from.sizes[i], parts[i].as<float>().begin());
  }
  return parts;
}

/// The passes of one stage, which packs what it sends.
class packing_passes {
 public:
  using saved = passes::saved;

  explicit packing_passes(stage_model& stage) : work_(stage) {}

  message forward(saved& kept, message const& input, microbatch mb, pass_context ctx) {
    return pack(work_.forward(kept, unpack(input, ctx), mb, ctx), ctx);
  }
  message backward_input(saved& kept, message const& gradient, microbatch mb, pass_context ctx) {
    return pack(work_.backward_input(kept, unpack(gradient, ctx), mb, ctx), ctx);
  }
  message backward(saved& kept, message const& gradient, microbatch mb, pass_context ctx) {
    return pack(work_.backward(kept, unpack(gradient, ctx), mb, ctx), ctx);
  }
  void backward_weight(saved& kept, microbatch mb, pass_context ctx) {
    work_.backward_weight(kept, mb, ctx);
  }
  void recompute(saved& kept, microbatch mb, pass_context ctx) { work_.recompute(kept, mb, ctx); }

 private:
  passes work_;
};

}  // namespace zbpp::test::toy

/// Sends the sizes of both parts, then the values that there are.
template <>
struct zbpp::serializer<zbpp::test::toy::parcel> {
  using parcel = zbpp::test::toy::parcel;

  static std::size_t size(parcel const& from) {
    return sizeof from.sizes + (from.sizes[0] + from.sizes[1]) * sizeof(float);
  }
  static void write(parcel const& from, std::span<std::byte> to) {
    auto* at = to.data();
    auto put = [&](void const* data, std::size_t count) {
      std::memcpy(at, data, count);
      at += count;
    };
    put(&from.sizes, sizeof from.sizes);
    for (std::size_t i = 0; i < 2; ++i) put(from.values[i].data(), from.sizes[i] * sizeof(float));
  }
  static parcel read(buffer const& from) {
    parcel made;
    auto const* at = from.data();
    auto get = [&](void* data, std::size_t count) {
      std::memcpy(data, at, count);
      at += count;
    };
    get(&made.sizes, sizeof made.sizes);
    for (std::size_t i = 0; i < 2; ++i) get(made.values[i].data(), made.sizes[i] * sizeof(float));
    return made;
  }
};
