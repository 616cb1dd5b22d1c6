// SPDX-License-Identifier: Apache-2.0
//
// What the rows of a kernel are written over, the numbers that they read, and how they read them:
// eight at a time, which for bf16 is an access of 128 bits; and which memory a kernel uses, for the
// race detector of the model of CUDA.
#pragma once

#include "train_gpt/settings.hpp"

#ifdef ZBPP_CUDA_MODEL
#include <gpu_model/cuda/cuda_model.hpp>
#endif

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

namespace gpt::cuda {

/// Is what activations and the weights of products are made of.
using bf16 = __nv_bfloat16;

/// Reads an element.
[[nodiscard]] __host__ __device__ inline float wide(bf16 x) { return __bfloat162float(x); }
/// Rounds to the nearest element, ties to even.
[[nodiscard]] __host__ __device__ inline bf16 narrow(float x) { return __float2bfloat16(x); }

/// Holds eight neighbours of a row, as fp32. Rows of all kernels have a multiple of eight elements
/// and start at multiples of 16 bytes.
struct eight {
  static constexpr index count = 8;
  float at[count];

  /// Adds each to its like.
  __host__ __device__ eight& operator+=(eight const& more) {
    for (int i = 0; i < count; ++i) at[i] += more.at[i];
    return *this;
  }
  /// @return the sum of each and its like
  [[nodiscard]] __host__ __device__ friend eight operator+(eight a, eight const& b) {
    return a += b;
  }
  /// @return the product of each and its like
  [[nodiscard]] __host__ __device__ friend eight operator*(eight a, eight const& b) {
    for (int i = 0; i < count; ++i) a.at[i] *= b.at[i];
    return a;
  }
};

/// Reads piece `p` of a row, which has eight elements.
[[nodiscard]] __host__ __device__ inline eight load(bf16 const* row, index p = 0) {
  auto const* const from = row + eight::count * p;
  eight all{};
#ifdef __CUDA_ARCH__
  uint4 const raw = *reinterpret_cast<uint4 const*>(from);
  unsigned const words[4] = {raw.x, raw.y, raw.z, raw.w};
  for (int w = 0; w < 4; ++w) {  // a bf16 is the upper half of a float
    all.at[2 * w] = __uint_as_float(words[w] << 16U);
    all.at[2 * w + 1] = __uint_as_float(words[w] & 0xffff0000U);
  }
#else
  for (int i = 0; i < 8; ++i) all.at[i] = wide(from[i]);
#endif
  return all;
}
/// Reads piece `p` of a row.
[[nodiscard]] __host__ __device__ inline eight load(float const* row, index p = 0) {
  auto const* const from = row + eight::count * p;
#ifdef __CUDA_ARCH__
  auto const* const halves = reinterpret_cast<float4 const*>(from);
  float4 const low = halves[0];
  float4 const high = halves[1];
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
#else
  eight all{};
  std::memcpy(all.at, from, sizeof(all.at));
  return all;
#endif
}

/// Writes piece `p` of a row, each element rounded to the nearest bf16, ties to even.
__host__ __device__ inline void store(bf16* row, index p, eight const& all) {
  auto* const to = row + eight::count * p;
#ifdef __CUDA_ARCH__
  unsigned words[4];
  for (int w = 0; w < 4; ++w) {
    __nv_bfloat162 const two = __floats2bfloat162_rn(all.at[2 * w], all.at[2 * w + 1]);
    memcpy(&words[w], &two, sizeof(two));
  }
  // By its own instruction: the compiler cuts some assignments in four.
  __stwb(reinterpret_cast<uint4*>(to), make_uint4(words[0], words[1], words[2], words[3]));
#else
  for (int i = 0; i < 8; ++i) to[i] = narrow(all.at[i]);
#endif
}
/// Writes piece `p` of a row.
__host__ __device__ inline void store(float* row, index p, eight const& all) {
  auto* const to = row + eight::count * p;
#ifdef __CUDA_ARCH__
  auto* const halves = reinterpret_cast<float4*>(to);
  __stwb(halves, make_float4(all.at[0], all.at[1], all.at[2], all.at[3]));
  __stwb(halves + 1, make_float4(all.at[4], all.at[5], all.at[6], all.at[7]));
#else
  std::memcpy(to, all.at, sizeof(all.at));
#endif
}

/// Makes eight of what a function gives for 0 to 7.
template <class Make>
[[nodiscard]] __host__ __device__ inline eight make_eight(Make make) {
  eight all{};
  for (int i = 0; i < 8; ++i) all.at[i] = make(i);
  return all;
}

/// Gives what is left of eight numbers when they are stored as bf16.
[[nodiscard]] __host__ __device__ inline eight rounded(eight const& all) {
  return make_eight([&](int i) { return wide(narrow(all.at[i])); });
}

/// Adds all eight, in their order.
[[nodiscard]] __host__ __device__ inline float sum(eight const& all) {
  float total = 0.0F;
  for (float const each : all.at) total += each;
  return total;
}

/// Holds a value for each lane, in its registers: piece i of a row of at most 32.
template <class Value>
class per_lane {
 public:
  __host__ __device__ Value& operator[]([[maybe_unused]] index piece) {
#ifdef __CUDA_ARCH__
    return own_;
#else
    return all_[piece];
#endif
  }

 private:
#ifdef __CUDA_ARCH__
  Value own_;
#else
  Value all_[32];
#endif
};

/// Works on one row: 32 lanes that share its pieces, a piece being eight elements. On a GPU they
/// are a warp, which waits for no other; on the host, where tests run, a loop that adds in the same
/// order. Piece i belongs to lane i mod 32 in every loop over the row: what a lane wrote it may
/// read again, and what others wrote it may not.
class lanes {
 public:
  static constexpr int count = 32;

  /// Does something for every piece.
  template <class Do>
  __host__ __device__ void each(index pieces, Do piece) const {
#ifdef __CUDA_ARCH__
    for (index i = threadIdx.x % count; i < pieces; i += count) piece(i);
#else
    for (index i = 0; i < pieces; ++i) piece(i);
#endif
  }

  /// Folds the terms of all pieces, in an order that depends on their number alone.
  /// @return the result, on every lane
  template <class Value, class Term, class Two>
  [[nodiscard]] __host__ __device__ Value
  fold(index pieces, Value nothing, Term term, Two two) const {
#ifdef __CUDA_ARCH__
    Value own = nothing;
    for (index i = threadIdx.x % count; i < pieces; i += count) own = two(own, term(i));
    for (int half = count / 2; half > 0; half /= 2) own = two(own, lane_above(own, half));
    return of_first_lane(own);
#else
    Value of_lane[count];
    for (int lane = 0; lane < count; ++lane) {
      of_lane[lane] = nothing;
      for (index i = lane; i < pieces; i += count) of_lane[lane] = two(of_lane[lane], term(i));
    }
    for (int half = count / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) of_lane[i] = two(of_lane[i], of_lane[i + half]);
    return of_lane[0];
#endif
  }

  /// Adds the terms of all pieces.
  template <class Term>
  [[nodiscard]] __host__ __device__ float sum(index pieces, Term term) const {
    return fold(pieces, 0.0F, term, [](float a, float b) { return a + b; });
  }

 private:
#ifdef __CUDA_ARCH__
  // Calls a shuffle for every word of a value.
  template <class Value, class Shuffle>
  [[nodiscard]] __device__ static Value by_words(Value const& of, Shuffle shuffle) {
    static_assert(sizeof(Value) % sizeof(unsigned) == 0);
    unsigned words[sizeof(Value) / sizeof(unsigned)];
    memcpy(words, &of, sizeof(of));
    for (auto& word : words) word = shuffle(word);
    Value other;
    memcpy(&other, words, sizeof(other));
    return other;
  }
  template <class Value>
  [[nodiscard]] __device__ static Value lane_above(Value const& of, int distance) {
    return by_words(of, [=](unsigned w) { return __shfl_down_sync(0xffffffffU, w, distance); });
  }
  template <class Value>
  [[nodiscard]] __device__ static Value of_first_lane(Value const& of) {
    return by_words(of, [](unsigned w) { return __shfl_sync(0xffffffffU, w, 0); });
  }
#endif
};

/// Collects which memory a launch reads and writes, for the model of CUDA and for the table of
/// kernels.
struct touching {
#ifdef ZBPP_CUDA_MODEL
  using range = zbpp::cuda_model::range;
#else
  struct range {
    void const* data;
    std::size_t bytes;
  };
#endif
  std::vector<range> read;
  std::vector<range> written;

  /// Notes `count` values at each address, which are read where they are constant, else written;
  /// none where it is null.
  template <class... Values>
  void operator()(index count, Values*... at) {
    auto const note = [&](bool is_read, void const* first, std::size_t bytes) {
      if (first != nullptr) (is_read ? read : written).push_back({first, bytes});
    };
    (note(std::is_const_v<Values>, at, static_cast<std::size_t>(count) * sizeof(Values)), ...);
  }
  /// Notes `count` values that are read and written.
  template <class Value>
  void changes(index count, Value* at) {
    (*this)(count, at, static_cast<Value const*>(at));
  }
};

}  // namespace gpt::cuda
