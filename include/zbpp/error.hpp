// SPDX-License-Identifier: Apache-2.0
//
// What goes wrong and where: one exception type for callers' mistakes and failed steps, and the
// place (rank, position, stage, microbatch) that every message names.
#pragma once

#include <zbpp/config.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace zbpp {

/// Says which kind of fault an `error` reports.
enum class errc : std::uint8_t {
  bad_argument,         ///< a value is out of range or two values contradict each other
  bad_format,           ///< text that a reader refused
  unsupported_problem,  ///< a policy cannot schedule this problem
  refused_program,      ///< `verify` found a fault, so nothing runs
  wrong_flow,           ///< a flow does not do what the program says
  wrong_size,           ///< an edge carries more than was declared
  io_failed,            ///< a file could not be read or written
  no_rendezvous,        ///< the ranks of a run did not find each other
  no_agreement,         ///< ranks of a run differ in what they should share
  peer_failed,          ///< another rank failed, and with it the run
  stalled,              ///< no rank of a step made progress
  refused_peer,         ///< another process could not show that it belongs to the run
  device_failed,        ///< CUDA or NCCL reported an error
  pass_failed,          ///< a pass threw something that is no `error`
};

/// Names an error code in words.
[[nodiscard]] constexpr std::string_view to_string(errc code) noexcept {
  switch (code) {
    case errc::bad_argument: return "bad argument";
    case errc::bad_format: return "bad format";
    case errc::unsupported_problem: return "unsupported problem";
    case errc::refused_program: return "refused program";
    case errc::wrong_flow: return "wrong flow";
    case errc::wrong_size: return "wrong size";
    case errc::io_failed: return "input or output failed";
    case errc::no_rendezvous: return "ranks did not find each other";
    case errc::no_agreement: return "ranks disagree";
    case errc::peer_failed: return "another rank failed";
    case errc::stalled: return "a step stalled";
    case errc::refused_peer: return "refused peer";
    case errc::device_failed: return "a device failed";
    case errc::pass_failed: return "a pass failed";
  }
  return "unknown";
}

/// Names a place in a pipeline; -1 stands for "does not apply".
struct location {
  int rank = -1;
  std::int64_t position = -1;  ///< index of the instruction or pass in its rank's row
  int stage = -1;
  int microbatch = -1;

  friend bool operator==(location const&, location const&) = default;
};

/// Writes a place as `rank 1, position 4, stage 2, microbatch 0`, leaving out what does not apply.
[[nodiscard]] std::string to_string(location const& at);

namespace detail {

/// A part of a text: text, which it only views, a character, or a number in decimal.
class text_part {
 public:
  /// Views a text, or writes a number. An enumeration, a bool or a byte has to be made one first.
  template <class Part>
  text_part(Part const& part) {
    if constexpr (std::is_convertible_v<Part const&, std::string_view>)
      text_ = part;
    else if constexpr (std::is_same_v<Part, char>)
      made_.assign(1, part);
    else {
      static_assert(std::is_arithmetic_v<Part> && !std::is_same_v<Part, bool>);
      static_assert(sizeof(Part) > 1, "write a byte as int{byte}");
      made_ = std::to_string(part);
    }
  }

  [[nodiscard]] std::string_view text() const noexcept {
    return made_.empty() ? text_ : std::string_view(made_);
  }

 private:
  std::string_view text_;
  std::string made_;
};

/// A text of texts, characters and numbers, as in `joined("stage ", s, " has no rank")`. With more
/// parts than fit into a line it goes on by `+`, as a message of an `error` does.
class [[nodiscard]] joined {
 public:
  /// Joins the parts.
  template <class... Parts>
  explicit joined(Parts const&... parts) {
    (text_.append(text_part(parts).text()), ...);
  }

  /// @return the text with a part more
  joined operator+(text_part const& part) && {
    text_ += part.text();
    return std::move(*this);
  }
  /// @return the text
  operator std::string() && { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace detail

/// Reports bad input or a failed step: what is wrong, where, and what to do.
class error : public std::runtime_error {
 public:
  /// Makes an error whose message follows: `error(errc::bad_argument) + "no rank " + r`. Its
  /// `what()` has the place in front when there is one.
  explicit error(errc code, zbpp::location at = {});
  /// Makes an error with a message.
  template <std::convertible_to<std::string_view> Text>  // a place in braces is no text
  error(errc code, Text message, zbpp::location at = {}) : error(code, at) {
    append(message);
  }

  /// @return the error with a text, a character or a number at the end of its message
  template <std::derived_from<error> Error>
  [[nodiscard]] friend Error operator+(Error&& made, detail::text_part const& part) {
    made.append(part.text());
    return std::move(made);
  }

  [[nodiscard]] errc code() const noexcept { return code_; }
  [[nodiscard]] zbpp::location const& location() const noexcept { return at_; }
  /// Puts a place in front of the message of an error that has none; does nothing to another.
  void locate(zbpp::location const& at);

  /// @return what() without the place
  [[nodiscard]] std::string_view message() const noexcept {
    return std::string_view(std::runtime_error::what()).substr(place_length_);
  }

 private:
  void append(std::string_view text);

  errc code_;
  zbpp::location at_;
  std::size_t place_length_;
};

namespace detail {

/// Turns an index that is known not to be negative into what containers take.
[[nodiscard]] constexpr std::size_t index(std::int64_t i) noexcept {
  return static_cast<std::size_t>(i);
}

/// Throws `errc::bad_argument` with `text` unless `good` holds.
inline void require(bool good, char const* text) {
  if (!good) throw error(errc::bad_argument, text);
}

/// @return what an exception tells, without the backtrace that those of LibTorch end with
[[nodiscard]] std::string text_of(std::exception const& thrown);
/// @return the same of anything that was thrown
[[nodiscard]] std::string text_of(std::exception_ptr const& thrown);

/// Throws on what a callback of the user has thrown, with its name, as `on_step threw: TEXT`;
/// called while it is handled. An `error` keeps its type, and one with a place all it says;
/// anything else is nested in an `error` (pass_failed).
/// @param at  the place of an error that has none
[[noreturn]] void rethrow_of(std::string const& callback, location const& at);

/// Calls a callback of the user; what it throws has the name of the callback.
template <class Call>
decltype(auto) named_call(char const* callback, location const& at, Call const& call) {
  try {
    return call();
  } catch (...) {
    rethrow_of(callback, at);
  }
}

}  // namespace detail
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/impl/error.ipp>
#endif
