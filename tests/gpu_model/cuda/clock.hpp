// SPDX-License-Identifier: Apache-2.0
//
// Vector clocks of the model: a slot for the host (0) and one for each stream. The epoch of a slot
// is the number of operations that it has run, so "a happens before b" is one comparison.
#pragma once

#include <algorithm>
#include <cstdint>

namespace zbpp::cuda_model {

inline constexpr unsigned max_slots = 2048;  // the host and 2047 streams

class vector_clock {
 public:
  vector_clock() = default;
  vector_clock(vector_clock const& other) { *this = other; }
  vector_clock& operator=(vector_clock const& other) {
    width_ = other.width_;
    std::copy_n(other.epoch_, width_, epoch_);
    return *this;
  }

  std::uint32_t operator[](unsigned slot) const { return slot < width_ ? epoch_[slot] : 0; }

  void set(unsigned slot, std::uint32_t epoch) {
    widen(slot + 1);
    epoch_[slot] = epoch;
  }

  void join(vector_clock const& other) {
    widen(other.width_);
    for (unsigned slot = 0; slot < other.width_; ++slot)
      epoch_[slot] = std::max(epoch_[slot], other.epoch_[slot]);
  }

 private:
  void widen(unsigned width) {
    if (width > width_) {
      std::fill(epoch_ + width_, epoch_ + width, 0U);
      width_ = width;
    }
  }

  unsigned width_ = 0;
  std::uint32_t epoch_[max_slots];  // only the first width_ mean something
};

}  // namespace zbpp::cuda_model
