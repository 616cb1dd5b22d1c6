// SPDX-License-Identifier: Apache-2.0
//
// What travels on the socket of a channel, byte by byte: messages one way, credits the other. The
// reader checks a header in full before anything is done with it.
#pragma once

#include <zbpp/asio/wire.hpp>
#include <zbpp/runtime/message.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace zbpp::asio::detail {

/// Says what a frame is.
enum class message_frame_kind : std::uint8_t {
  message = 1,  ///< a message; the bytes of its parts follow the header
  credit = 2,   ///< how many messages of the channel the receiver has had room for so far
};

/// Holds the header of a frame.
struct message_frame {
  /// The size of a part that is an empty handle rather than a buffer.
  static constexpr std::uint64_t no_buffer = ~std::uint64_t{0};
  static constexpr std::size_t base_size = 16;  ///< of a header without part sizes, in bytes
  static constexpr std::size_t most_size = base_size + message::max_buffers * sizeof(std::uint64_t);

  message_frame_kind kind = message_frame_kind::message;
  std::uint8_t parts = 0;
  bool has_credit = false;     ///< whether `credit` means something
  std::uint32_t step = 0;      ///< how many steps the sender's channel went through before
  std::uint32_t sequence = 0;  ///< of the message in its step
  std::uint32_t credit = 0;    ///< of a message: for the channel the other way
  std::array<std::uint64_t, message::max_buffers> sizes{};  ///< of the parts, in bytes

  /// @return how many bytes the parts have together
  [[nodiscard]] std::uint64_t payload() const noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < parts; ++i) sum += sizes[i] == no_buffer ? 0 : sizes[i];
    return sum;
  }
};

/// Says which frames a reader takes.
struct message_frame_rule {
  message_frame_kind kind = message_frame_kind::message;
  std::uint32_t step = 0;      ///< of the last message
  std::uint32_t sequence = 0;  ///< of the next message, if it is of the same step
  std::uint64_t most = 0;      ///< bytes of a message
};

/// Tells what a reader made of some bytes.
struct message_frame_reading {
  std::size_t size =
      0;              ///< of the header in bytes; 0 when more bytes are needed, or `wrong` is set
  std::string wrong;  ///< what is wrong and what is expected; empty when nothing is
};

// A byte that no text protocol begins with, then the version of this format.
inline constexpr std::uint8_t frame_mark = 0xb0;
inline constexpr std::uint8_t frame_version = 1;
inline constexpr std::uint8_t credit_flag = 0x80;  // beside the number of parts

template <class Number>
[[nodiscard]] Number number_at(std::span<std::byte const> bytes, std::size_t at) noexcept {
  Number value{};
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

[[nodiscard]] inline std::string_view to_string(message_frame_kind kind) noexcept {
  return kind == message_frame_kind::message ? "a message" : "a credit";
}

[[nodiscard]] inline std::string check_order(
    message_frame const& f, message_frame_rule const& rule) {
  bool const is_next = f.step == rule.step && f.sequence == rule.sequence;
  bool const begins_step = f.step > rule.step && f.sequence == 0;
  if (is_next || begins_step) return {};
  return "found message " + std::to_string(f.sequence) + " of step " + std::to_string(f.step) +
         "; expected message " + std::to_string(rule.sequence) + " of step " +
         std::to_string(rule.step) + ", or message 0 of a later one";
}

[[nodiscard]] inline std::string check_sizes(
    message_frame const& f, message_frame_rule const& rule) {
  std::uint64_t left = rule.most;
  for (std::size_t i = 0; i < f.parts; ++i) {
    if (f.sizes[i] == message_frame::no_buffer) continue;
    if (f.sizes[i] > left)
      return "part " + std::to_string(i) + " of message " + std::to_string(f.sequence) + " has " +
             std::to_string(f.sizes[i]) + " bytes; the whole message has at most " +
             std::to_string(rule.most);
    left -= f.sizes[i];
  }
  return {};
}

/// Writes a header to where there is room for `message_frame::most_size` bytes.
/// @return its size in bytes
inline std::size_t encode(message_frame const& f, std::byte* to) noexcept {
  std::array<std::uint8_t, 4> const head{
      frame_mark,
      frame_version,
      static_cast<std::uint8_t>(f.kind),
      static_cast<std::uint8_t>(f.parts | (f.has_credit ? credit_flag : 0))};
  std::array<std::uint32_t, 3> const numbers{f.step, f.sequence, f.credit};
  std::memcpy(to, head.data(), sizeof(head));
  std::memcpy(to + sizeof(head), numbers.data(), sizeof(numbers));
  std::memcpy(to + message_frame::base_size, f.sizes.data(), f.parts * sizeof(std::uint64_t));
  return message_frame::base_size + f.parts * sizeof(std::uint64_t);
}

/// Reads the header that some bytes begin with. Trusts none of them, and refuses as early as it
/// can; allocates only to say what is wrong.
/// @param to  gets the header; unspecified unless the result has a size
[[nodiscard]] inline message_frame_reading decode(
    std::span<std::byte const> bytes, message_frame_rule const& rule, message_frame& to) {
  if (bytes.size() < message_frame::base_size) return {};
  auto const head = number_at<std::array<std::uint8_t, 4>>(bytes, 0);
  if (head[0] != frame_mark || head[1] != frame_version)
    return {
        .wrong = "found the bytes " + std::to_string(head[0]) + ", " + std::to_string(head[1]) +
                 " where a frame begins with " + std::to_string(frame_mark) + ", " +
                 std::to_string(frame_version) + " (mark, version)"};
  if (head[2] != static_cast<std::uint8_t>(rule.kind))
    return {
        .wrong = "found a frame of kind " + std::to_string(head[2]) + "; this end takes kind " +
                 std::to_string(static_cast<int>(rule.kind)) + ", " +
                 std::string(to_string(rule.kind))};
  to.kind = rule.kind;
  to.has_credit = (head[3] & credit_flag) != 0;
  to.parts = head[3] & static_cast<std::uint8_t>(~credit_flag);
  to.step = number_at<std::uint32_t>(bytes, 4);
  to.sequence = number_at<std::uint32_t>(bytes, 8);
  to.credit = number_at<std::uint32_t>(bytes, 12);
  if (rule.kind == message_frame_kind::credit) {
    if (to.parts != 0 || !to.has_credit || to.step != 0 || to.sequence != 0)
      return {.wrong = "found a credit with parts, without a number, or of a step; it has none"};
    return {.size = message_frame::base_size, .wrong = {}};
  }
  if (to.parts > message::max_buffers)
    return {
        .wrong = "found a message of " + std::to_string(to.parts) + " parts; it has at most " +
                 std::to_string(message::max_buffers)};
  if (auto wrong = check_order(to, rule); !wrong.empty()) return {.wrong = std::move(wrong)};
  auto const size = message_frame::base_size + to.parts * sizeof(std::uint64_t);
  if (bytes.size() < size) return {};
  std::memcpy(
      to.sizes.data(), bytes.data() + message_frame::base_size, to.parts * sizeof(std::uint64_t));
  if (auto wrong = check_sizes(to, rule); !wrong.empty()) return {.wrong = std::move(wrong)};
  return {.size = size, .wrong = {}};
}

}  // namespace zbpp::asio::detail
