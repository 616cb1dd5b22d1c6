// SPDX-License-Identifier: Apache-2.0
//
// What crosses an edge between two stages: buffers or an object, held together by shared handles.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/object.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace zbpp {

/// Holds up to eight buffers or one object; what an activation or a gradient consists of.
class message {
 public:
  static constexpr std::size_t max_buffers = 8;

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
  message(object given) noexcept : object_(std::move(given)) {}
  message(message const& other) noexcept : object_(other.object_) {
    for (auto const& each : other.buffers()) append(each);
  }
  message(message&& other) noexcept : object_(std::move(other.object_)) { take(other); }
  message& operator=(message const& other) noexcept { return *this = message(other); }
  message& operator=(message&& other) noexcept {
    if (this == &other) return *this;
    clear();
    object_ = std::move(other.object_);
    take(other);
    return *this;
  }
  ~message() { std::destroy_n(buffers_, size_); }

  /// Adds a buffer.
  /// @throws error (wrong_size) when there are eight already, or an object
  void push_back(buffer added) {
    if (size_ == max_buffers || object_) refuse_more();
    append(std::move(added));
  }
  /// Releases all that it holds.
  void clear() noexcept {
    object_ = {};
    std::destroy_n(buffers_, size_);
    size_ = 0;
  }

  /// @return how many buffers there are
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// @return whether it holds nothing, as on the first stage where nobody sends
  [[nodiscard]] bool empty() const noexcept { return size_ == 0 && !object_; }
  /// @return the i-th buffer; an empty one when there are fewer
  [[nodiscard]] buffer const& operator[](std::size_t i) const noexcept {
    static buffer const nothing;
    return i < size_ ? buffers_[i] : nothing;
  }
  /// @return the first buffer; an empty one when there is none
  [[nodiscard]] operator buffer const&() const noexcept { return (*this)[0]; }
  /// @return all buffers
  [[nodiscard]] std::span<buffer const> buffers() const noexcept { return {buffers_, size_}; }
  /// Gives the object that `make_edge` made, here or in another process. One from another process
  /// is made of the bytes that came, at the first call.
  /// @throws error (bad_argument) when there is none of this type; what its serializer throws
  template <edge_object Value>
  [[nodiscard]] Value& get() const {
    if constexpr (serializable<Value>) {
      if (!object_ && size_ == 1) read_object<Value>();
    }
    auto* found = object_.get<Value>();
    if (found == nullptr) refuse_object();
    return *found;
  }
  /// @return the object; an empty one when there is none. For transports.
  [[nodiscard]] object const& held_object() const noexcept { return object_; }
  /// @return the bytes of all buffers together, or those that the object counts as
  [[nodiscard]] bytes total_size() const noexcept {
    bytes sum = size_ == 0 ? object_.size() : 0;
    for (auto const& each : buffers()) sum += static_cast<bytes>(each.size());
    return sum;
  }

 private:
  [[noreturn]] static void refuse_more();
  [[noreturn]] void refuse_object() const;

  // What it is made of stays, and is what counts.
  template <class Value>
  void read_object() const {
    object_ = object(buffers_[0], Value(serializer<Value>::read(buffers_[0])));
  }

  void append(buffer added) noexcept { std::construct_at(&buffers_[size_++], std::move(added)); }
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

  mutable object object_;
  std::size_t size_ = 0;
  union {
    buffer buffers_[max_buffers];  // the first size_ of them exist
  };
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/message.ipp>
#endif
