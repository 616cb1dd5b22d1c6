// SPDX-License-Identifier: Apache-2.0
//
// What crosses an edge between two stages: one buffer or several, held together by shared handles.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/runtime/arena.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace zbpp {

/// Holds up to eight buffers; what an activation or a gradient consists of.
class message {
 public:
  static constexpr std::size_t max_buffers = 8;

  message() noexcept {}
  /// Takes the buffers in order.
  template <std::convertible_to<buffer>... Parts>
    requires(
        sizeof...(Parts) > 0 && sizeof...(Parts) <= max_buffers &&
        (!std::same_as<std::remove_cvref_t<Parts>, message> && ...))  // that one would lose parts
  message(Parts&&... parts) noexcept {
    (append(buffer(std::forward<Parts>(parts))), ...);
  }
  message(message const& other) noexcept {
    for (auto const& part : other.buffers()) append(part);
  }
  message(message&& other) noexcept { take(other); }
  message& operator=(message const& other) noexcept { return *this = message(other); }
  message& operator=(message&& other) noexcept {
    if (this == &other) return *this;
    clear();
    take(other);
    return *this;
  }
  ~message() { clear(); }

  /// Adds a buffer.
  /// @throws error (wrong_size) when there are eight already
  void push_back(buffer part) {
    if (size_ == max_buffers) throw error(errc::wrong_size, "a message carries at most 8 buffers");
    append(std::move(part));
  }
  /// Lets go of all buffers.
  void clear() noexcept {
    for (; size_ > 0; --size_) std::destroy_at(&buffers_[size_ - 1]);
  }

  /// @return how many buffers there are
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// @return whether there is none, as on the first stage where nobody sends
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// @return the i-th buffer; an empty one when there are fewer
  [[nodiscard]] buffer const& operator[](std::size_t i) const noexcept {
    static buffer const nothing;
    return i < size_ ? buffers_[i] : nothing;
  }
  /// @return the first buffer; an empty one when there is none
  [[nodiscard]] operator buffer const&() const noexcept { return (*this)[0]; }
  /// @return all buffers
  [[nodiscard]] std::span<buffer const> buffers() const noexcept { return {buffers_, size_}; }
  /// @return the bytes of all buffers together
  [[nodiscard]] bytes total_size() const noexcept {
    bytes sum = 0;
    for (auto const& part : buffers()) sum += static_cast<bytes>(part.size());
    return sum;
  }

 private:
  void append(buffer part) noexcept { std::construct_at(&buffers_[size_++], std::move(part)); }
  void take(message& other) noexcept {
    if (other.size_ == 1) {  // most often; a loop would be taken for a block copy
      append(std::move(other.buffers_[0]));
      other.size_ = 0;
      return;
    }
    for (; size_ < other.size_; ++size_)
      std::construct_at(&buffers_[size_], std::move(other.buffers_[size_]));
    other.size_ = 0;  // what was moved from holds nothing, so there is nothing to destroy
  }

  std::size_t size_ = 0;
  union {
    buffer buffers_[max_buffers];  // the first size_ of them exist
  };
};

}  // namespace zbpp
