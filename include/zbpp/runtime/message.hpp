// SPDX-License-Identifier: Apache-2.0
//
// What crosses an edge between two stages: buffers or an object, held together by shared handles.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/object.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace zbpp {

/// Holds up to eight buffers or one object; what an activation or a gradient consists of.
class message {
 public:
  static constexpr std::size_t max_buffers = 8;
  /// The size, among those that a transport sends, of a part that is an empty handle.
  static constexpr std::uint64_t no_buffer = ~std::uint64_t{0};

  /// Makes an empty message.
  message() noexcept {}
  /// Takes the buffers in order.
  template <std::convertible_to<buffer>... Buffers>
    requires(
        sizeof...(Buffers) > 0 && sizeof...(Buffers) <= max_buffers &&
        (!std::same_as<std::remove_cvref_t<Buffers>, message> &&
         ...))  // it would lose all buffers but the first
  message(Buffers&&... given) noexcept {
    (append(buffer(std::forward<Buffers>(given))), ...);
  }
  /// Takes an object.
  message(object given) noexcept {
    if (given) append_object(std::move(given));
  }
  message(message const& other) noexcept : size_(other.size_) {
    for (auto const& each : other.handles()) append_handle(each);
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
  /// @throws error (wrong_size) when there are eight already, or an object
  void push_back(buffer added) {
    if (size_ == max_buffers || has_object()) refuse_more();
    append(std::move(added));
  }
  /// Releases all that it holds.
  void clear() noexcept {
    while (count_ > 0)
      std::destroy_at(&handles_[--count_]);  // an object before what it was read of
    size_ = 0;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// @return whether it holds nothing, as on the first stage where nobody sends
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  /// @return the i-th buffer; an empty one when there are fewer
  [[nodiscard]] buffer const& operator[](std::size_t i) const noexcept {
    static buffer const nothing;
    return i < size_ ? handles_[i] : nothing;
  }
  /// @return the first buffer; an empty one when there is none
  [[nodiscard]] operator buffer const&() const noexcept { return (*this)[0]; }
  [[nodiscard]] std::span<buffer const> buffers() const noexcept { return {handles_, size_}; }
  /// Gives the object that `make_edge` made, here or in another process. One from another process
  /// is made of the received bytes at the first call. A message that is forwarded sends the bytes.
  /// @throws error (bad_argument) when there is none of this type; what its serializer throws
  template <edge_object Value>
  [[nodiscard]] Value& get() const {
    if constexpr (serializable<Value>) {
      if (!has_object() && size_ == 1) read_object<Value>();
    }
    auto* found = has_object() ? object::value_at<Value>(handles_[size_]) : nullptr;
    if (found == nullptr) refuse_object();
    return *found;
  }
  [[nodiscard]] bool has_object() const noexcept { return count_ != size_; }
  /// @return the object; an empty one when there is none. For transports.
  [[nodiscard]] object held_object() const noexcept {
    return has_object() ? object(handles_[size_]) : object();
  }
  /// Gives what another rank gets of it, for a transport inside a process: copies of the buffers,
  /// in the other rank's arena, or the object, moved there. It copies none of the sender's handles,
  /// so the receiver's thread may call it.
  /// @throws std::bad_alloc
  [[nodiscard]] message move_to(arena& memory) const {
    message made;
    for (auto const& from : buffers()) {
      auto own = from ? memory.allocate(from.size(), purpose::edge) : buffer{};
      if (from.size() > 0) std::memcpy(own.data(), from.data(), from.size());
      made.append(std::move(own));
    }
    // What was read of bytes is read of them again.
    if (has_object() && size_ == 0)
      made.append_object(object::move_from(handles_[size_], memory, purpose::edge));
    return made;
  }
  /// @return the sizes of the buffers in bytes, `no_buffer` for empty handles. For transports.
  [[nodiscard]] std::array<std::uint64_t, max_buffers> sizes() const noexcept {
    std::array<std::uint64_t, max_buffers> all{};
    for (std::size_t i = 0; i < size_; ++i)
      all[i] = handles_[i] ? std::uint64_t{handles_[i].size()} : no_buffer;
    return all;
  }
  /// Copies the bytes of the buffers, one after the other. @return how many
  std::size_t copy_to(std::byte* to) const noexcept {
    std::size_t count = 0;
    for (auto const& from : buffers()) {
      if (from.size() > 0) std::memcpy(to + count, from.data(), from.size());
      count += from.size();
    }
    return count;
  }
  /// Makes a message of bytes that were copied so. @throws std::bad_alloc
  [[nodiscard]] static message copy_of(
      std::span<std::uint64_t const> sizes, std::byte const* from, arena& memory);
  /// Counts what others share under another purpose from now on.
  void retag_shared(purpose use) const noexcept {
    for (auto const& each : handles())
      if (each.use_count() > 1) each.retag(use);
  }
  [[nodiscard]] bytes total_size() const noexcept {
    bytes sum = 0;
    for (auto const& each : handles()) sum += static_cast<bytes>(each.size());
    return sum;
  }

 private:
  [[noreturn]] static void refuse_more();
  [[noreturn]] void refuse_object() const;

  // What it is made of stays, and is what counts.
  template <class Value>
  void read_object() const {
    append_object(object(handles_[0], Value(serializer<Value>::read(handles_[0]))));
  }

  [[nodiscard]] std::span<buffer const> handles() const noexcept { return {handles_, count_}; }
  void append(buffer added) noexcept {
    append_handle(std::move(added));
    ++size_;
  }
  void append_object(object added) const noexcept { append_handle(std::move(added.place_)); }
  void append_handle(buffer added) const noexcept {
    std::construct_at(&handles_[count_++], std::move(added));
  }
  void take(message& other) noexcept {
    if (other.count_ == 1) {  // most often; a loop would be taken for a block copy
      append_handle(std::move(other.handles_[0]));
    } else {
      for (std::uint32_t i = 0; i < other.count_; ++i) append_handle(std::move(other.handles_[i]));
    }
    size_ = other.size_;
    other.size_ = other.count_ = 0;  // what was moved from holds nothing, so nothing is destroyed
  }

  std::uint32_t size_ = 0;           // buffers
  mutable std::uint32_t count_ = 0;  // buffers, and one more for the object after them
  union {
    mutable buffer handles_[max_buffers];  // the first count_ of them exist
  };
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/message.ipp>
#endif
