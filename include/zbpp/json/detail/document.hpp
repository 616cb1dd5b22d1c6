// SPDX-License-Identifier: Apache-2.0
//
// The text of a JSON file as a tree that keeps what a strict reader has to see: keys that stand
// twice, the digits of every number, and the path to each value for the messages of errors.
// For `json/` and `checkpoint/` alone.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp::json::detail {

/// Says what a JSON value is.
enum class value_kind : std::uint8_t { null, boolean, number, string, array, object };

/// Holds all values of a text in the order in which they begin, in one flat list.
class document {
 public:
  /// Parses all of a text. `name` says in messages what was read.
  /// @throws error (bad_format) with line and column where it is not JSON, nests too deep, or has a
  ///         number of more than 1000 characters; or when there is too much of it
  document(std::string_view text, std::string name);
  document(document const&) = delete;
  document& operator=(document const&) = delete;

 private:
  friend class value;

  // What a writer makes has three bytes and more for each value.
  static constexpr std::size_t most_values = largest_text / 3;
  // A double, written exactly, has at most 767 digits that count.
  static constexpr std::size_t most_digits = 1000;
  // A plan has its deepest values, latencies of pairs of ranks, at level 5.
  static constexpr std::size_t most_levels = 8;
  static constexpr std::uint32_t none = 0xFFFFFFFF;

  // A stretch of `texts_`; its offsets fit 32 bits, as `largest_text` does.
  struct slice {
    std::uint32_t begin = 0;
    std::uint32_t size = 0;
  };

  struct node {
    value_kind kind = value_kind::null;
    std::uint32_t parent = none;
    std::uint32_t end = 0;    // of the values within it
    std::uint32_t count = 0;  // of its elements or members
    slice key;
    slice text;  // digits of a number, characters of a string, word of a boolean
  };

  class builder;  // takes what the parser finds

  void check_bytes(std::string_view text) const;
  [[nodiscard]] static std::string place(std::string_view text, std::size_t position);

  [[nodiscard]] std::string_view text(slice range) const noexcept {
    return std::string_view(texts_).substr(range.begin, range.size);
  }

  std::string name_;
  std::string texts_;
  std::vector<node> nodes_;
};

/// Points at one value of a document, or at none. The document must outlive it.
class value {
 public:
  value() = default;
  /// Points at the outermost value.
  explicit value(document const& all) : all_(&all), at_(0) {}

  [[nodiscard]] explicit operator bool() const noexcept { return all_ != nullptr; }
  [[nodiscard]] bool is(value_kind kind) const noexcept { return node().kind == kind; }
  [[nodiscard]] std::string_view key() const noexcept { return all_->text(node().key); }
  /// @return the digits of a number, the characters of a string, `true` or `false`
  [[nodiscard]] std::string_view text() const noexcept { return all_->text(node().text); }
  /// @return how many elements an array or members an object has
  [[nodiscard]] std::size_t size() const noexcept { return node().count; }

  [[nodiscard]] bool has(std::string_view key) const {
    bool found = false;
    if (is(value_kind::object))
      for_each([&](value const& member) { found = found || member.key() == key; });
    return found;
  }

  /// Calls `visit(element)` for each element of an array or member of an object.
  template <class Visit>
  void for_each(Visit visit) const {
    for (auto next = at_ + 1; next < node().end; next = all_->nodes_[next].end)
      visit(value(*all_, next));
  }

  /// Gives the members of an object, one for each name and in that order, of which the first
  /// `required` must be there.
  /// @throws error (bad_format) when it is no object, or a key is unknown, missing or there twice
  template <std::size_t Count>
  [[nodiscard]] std::array<value, Count> members(
      std::array<std::string_view, Count> const& names, std::size_t required) const {
    return collect(names, required, [&](value const& other) {
      other.refuse("a key that is unknown here", list(names));
    });
  }

  /// Gives members as above, and passes over those with other names.
  /// @throws error (bad_format) when it is no object, or a key is missing or there twice
  template <std::size_t Count>
  [[nodiscard]] std::array<value, Count> known_members(
      std::array<std::string_view, Count> const& names, std::size_t required) const {
    return collect(names, required, [](value const&) {});
  }

  /// Refuses the value, which is shown in the message.
  /// @throws error (bad_format) always
  [[noreturn]] void refuse(std::string const& expected) const;

  /// Refuses what was found at the value.
  /// @throws error (bad_format) always
  [[noreturn]] void refuse(std::string const& found, std::string const& expected) const;

  /// Refuses the value with a message that somebody else wrote.
  /// @throws error (bad_format) always
  [[noreturn]] void refuse_as(std::string const& message) const;

 private:
  value(document const& all, std::uint32_t at) : all_(&all), at_(at) {}

  [[nodiscard]] document::node const& node() const noexcept { return all_->nodes_[at_]; }

  // Calls `meet_other(member)` for each member that has none of the names.
  template <std::size_t Count, class MeetOther>
  [[nodiscard]] std::array<value, Count> collect(
      std::array<std::string_view, Count> const& names,
      std::size_t required,
      MeetOther meet_other) const {
    if (!is(value_kind::object)) refuse("an object");
    std::array<value, Count> found;
    for_each([&](value const& member) {
      auto const at = std::find(names.begin(), names.end(), member.key());
      if (at == names.end()) return meet_other(member);
      auto& place = found[static_cast<std::size_t>(at - names.begin())];
      if (place) member.refuse("the key twice", "it once");
      place = member;
    });
    for (std::size_t i = 0; i < required; ++i)
      if (!found[i]) refuse(zbpp::detail::joined("no key '", names[i], "'"), list(names));
    return found;
  }

  template <std::size_t Count>
  [[nodiscard]] static std::string list(std::array<std::string_view, Count> const& names) {
    std::string text;
    for (std::size_t i = 0; i < Count; ++i)
      text.append(i == 0 ? "" : i + 1 < Count ? ", " : " and ").append(names[i]);
    return text;
  }

  [[nodiscard]] std::string shown() const;
  [[nodiscard]] std::string path() const;

  document const* all_ = nullptr;
  std::uint32_t at_ = 0;
};

}  // namespace zbpp::json::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/json/impl/document.ipp>
#endif
