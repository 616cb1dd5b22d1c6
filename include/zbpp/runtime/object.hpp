// SPDX-License-Identifier: Apache-2.0
//
// An object that crosses an edge as it is, such as a tensor of a library, where sender and receiver
// share a process; and what it takes to send one to another process.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/detail/object_type.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace zbpp {

/// Turns objects of a type into bytes for another process, and back. Specialize it for your type
/// before the first object of the type is made; the concept `serializable` says what it needs.
template <class Value>
struct serializer;

/// Models a type that has a `serializer`: `size` says how many bytes an object takes, `write` fills
/// them, and `read` makes an object of them, which may keep the buffer.
template <class Value>
concept serializable = requires(Value const& value, std::span<std::byte> to, buffer const& from) {
  { serializer<Value>::size(value) } -> std::convertible_to<std::size_t>;
  serializer<Value>::write(value, to);
  { serializer<Value>::read(from) } -> std::convertible_to<Value>;
};

/// Models a type whose objects can cross an edge.
template <class Value>
concept edge_object = std::same_as<Value, std::remove_cvref_t<Value>> &&
                      std::is_nothrow_move_constructible_v<Value> && alignof(Value) <= 64;

namespace detail {

template <class Value>
[[nodiscard]] constexpr object_type make_object_type() noexcept {
  object_type type{
      .size = sizeof(Value),
      .move =
          [](void* to, void* from) noexcept {
            std::construct_at(static_cast<Value*>(to), std::move(*static_cast<Value*>(from)));
          },
      .destroy = [](void* value) noexcept { std::destroy_at(static_cast<Value*>(value)); },
      .wire_size = nullptr,
      .write = nullptr};
  if constexpr (serializable<Value>) {
    type.wire_size = [](void const* value) {
      return static_cast<std::size_t>(serializer<Value>::size(*static_cast<Value const*>(value)));
    };
    type.write = [](void const* value, std::span<std::byte> to) {
      serializer<Value>::write(*static_cast<Value const*>(value), to);
    };
  }
  return type;
}

/// Stands for a type by its address.
template <class Value>
inline constexpr object_type object_type_of = make_object_type<Value>();

}  // namespace detail

/// Owns an object together with its copies; empty when default-made. Its arena counts it as many
/// bytes as its maker said. It is used on its rank's thread only.
class object {
 public:
  object() noexcept = default;
  /// Moves a value into an arena.
  /// @param size  how many bytes it counts as
  /// @throws error (bad_argument) when `size` is negative, or the host cannot touch the memory of
  ///         the arena; std::bad_alloc
  template <edge_object Value>
  object(arena& memory, Value value, bytes size, purpose use)
      : place_(memory.core_->place(detail::object_type_of<Value>, &value, size, use)) {}

  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(place_); }
  /// @return how many bytes the object counts as; 0 when there is none
  [[nodiscard]] bytes size() const noexcept { return static_cast<bytes>(place_.size()); }
  /// @return the object; null when there is none, or one of another type
  template <edge_object Value>
  [[nodiscard]] Value* get() const noexcept {
    return value_at<Value>(place_);
  }
  /// @return how many handles share the object; 0 when there is none
  [[nodiscard]] std::uint32_t use_count() const noexcept { return place_.use_count(); }
  /// Counts the object under another purpose from now on.
  void retag(purpose use) const noexcept { place_.retag(use); }

  /// Writes the object to memory of its own arena, for a transport to another process. It counts
  /// as nothing from then on.
  /// @throws error (bad_argument) when its type has no serializer; (wrong_size) when it takes more
  ///         bytes than it counts as; std::bad_alloc
  [[nodiscard]] buffer to_bytes() const;

 private:
  friend class message;

  // An object that counts as nothing, beside the memory it was read from.
  template <edge_object Value>
  object(buffer const& beside, Value value)
      : place_(
            beside.piece_->owner->place(detail::object_type_of<Value>, &value, 0, purpose::edge)) {}
  explicit object(detail::block* place) noexcept : place_(place) {}
  explicit object(buffer const& place) noexcept : place_(place) {}

  // @return what stands at a place; null when nothing does, or a value of another type
  template <edge_object Value>
  [[nodiscard]] static Value* value_at(buffer const& place) noexcept {
    bool const is_of_type =
        place && place.piece_->object == std::addressof(detail::object_type_of<Value>);
    return is_of_type ? reinterpret_cast<Value*>(place.data()) : nullptr;
  }
  // Moves an object into an arena of another rank. What moving leaves of it stays where it was and
  // counts as before.
  [[nodiscard]] static object move_from(buffer const& place, arena& memory, purpose use) {
    auto const& piece = *place.piece_;
    return object(
        memory.core_->place(*piece.object, piece.data, static_cast<bytes>(piece.size), use));
  }

  buffer place_;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/object.ipp>
#endif
