// SPDX-License-Identifier: Apache-2.0
//
// The text of a JSON file as a tree that keeps what a strict reader has to see: keys that stand
// twice, the digits of every number, and the path to each value for the messages of errors.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>

#include <nlohmann/json.hpp>

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
  document(std::string_view text, std::string name) : name_(std::move(name)) {
    check_bytes(text);
    builder build(*this, text);
    if (!nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &build))
      throw error(errc::bad_format, name_ + ": " + build.refusal());
  }
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

  // Takes what the parser finds.
  class builder final : public nlohmann::json_sax<nlohmann::json> {
   public:
    builder(document& to, std::string_view text) : to_(to), text_(text) {}

    [[nodiscard]] std::string const& refusal() const noexcept { return refusal_; }

    bool null() override { return add(value_kind::null, "null"); }
    bool boolean(bool value) override { return add(value_kind::boolean, value ? "true" : "false"); }
    bool number_integer(number_integer_t value) override {
      return add(value_kind::number, std::to_string(value));
    }
    bool number_unsigned(number_unsigned_t value) override {
      return add(value_kind::number, std::to_string(value));
    }
    bool number_float(number_float_t /*rounded*/, string_t const& digits) override {
      return add(value_kind::number, digits);
    }
    bool string(string_t& value) override { return add(value_kind::string, value); }
    bool binary(binary_t& /*bytes*/) override { return false; }  // not in texts
    bool start_object(std::size_t /*unknown*/) override { return open(value_kind::object); }
    bool end_object() override { return close(); }
    bool start_array(std::size_t /*unknown*/) override { return open(value_kind::array); }
    bool end_array() override { return close(); }
    bool key(string_t& name) override {
      key_ = keep(name);
      return true;
    }

    bool parse_error(
        std::size_t position,
        std::string const& /*token*/,
        nlohmann::detail::exception const& what) override {
      // In front of the reason stand the parser's own name and count of the place.
      std::string_view reason = what.what();
      reason.remove_prefix(std::min(reason.size(), reason.find("] ") + 2));
      if (reason.starts_with("parse error"))
        reason.remove_prefix(std::min(reason.size(), reason.find(": ") + 2));
      refusal_ = place(text_, position == 0 ? 0 : position - 1) + ": " + one_line(reason, 200);
      return false;
    }

   private:
    [[nodiscard]] slice keep(std::string_view text) {
      slice const kept{
          static_cast<std::uint32_t>(to_.texts_.size()), static_cast<std::uint32_t>(text.size())};
      to_.texts_ += text;
      return kept;
    }

    bool add(value_kind kind, std::string_view text) {
      if (to_.nodes_.size() == most_values) {
        refusal_ = "found more than " + std::to_string(most_values) +
                   " values; expected at most that many";
        return false;
      }
      node made;
      made.kind = kind;
      made.key = key_;
      made.text = keep(text);
      if (!open_.empty()) {
        made.parent = open_.back();
        ++to_.nodes_[made.parent].count;
      }
      made.end = static_cast<std::uint32_t>(to_.nodes_.size()) + 1;
      to_.nodes_.push_back(made);
      key_ = {};
      return true;
    }

    bool open(value_kind kind) {
      if (open_.size() == most_levels) {
        refusal_ = "found more than " + std::to_string(most_levels) +
                   " brackets within each other; expected at most 5";
        return false;
      }
      if (!add(kind, {})) return false;
      open_.push_back(static_cast<std::uint32_t>(to_.nodes_.size()) - 1);
      return true;
    }

    bool close() {
      to_.nodes_[open_.back()].end = static_cast<std::uint32_t>(to_.nodes_.size());
      open_.pop_back();
      return true;
    }

    document& to_;
    std::string_view text_;
    std::string refusal_;
    slice key_;
    std::vector<std::uint32_t> open_;
  };

  // Refuses what the parser takes for the end of the text, a NUL byte, and what it would spend
  // minutes on: a number of a size that none has.
  void check_bytes(std::string_view text) const {
    auto refuse = [&](std::string const& what) {
      throw error(errc::bad_format, name_ + ": " + what);
    };
    if (text.size() > largest_text)
      refuse(
          "found " + std::to_string(text.size()) + " bytes; expected at most " +
          std::to_string(largest_text));
    if (auto const nul = text.find('\0'); nul != std::string_view::npos)
      refuse(place(text, nul) + ": found a NUL byte; expected JSON, which has none");
    std::size_t digits = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
      auto const c = text[i];
      if (in_string) {
        if (c == '\\') ++i;
        in_string = c != '"';
        continue;
      }
      in_string = c == '"';
      bool const in_number =
          (c >= '0' && c <= '9') || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-';
      digits = in_number ? digits + 1 : 0;
      if (digits > most_digits)
        refuse(
            place(text, i + 1 - digits) + ": found a number of more than " +
            std::to_string(most_digits) + " characters; expected at most that many");
    }
  }

  [[nodiscard]] static std::string place(std::string_view text, std::size_t position) {
    auto const before = text.substr(0, position);
    auto const line = std::count(before.begin(), before.end(), '\n') + 1;
    auto const column = before.size() - (before.rfind('\n') + 1) + 1;
    return "line " + std::to_string(line) + ", column " + std::to_string(column);
  }

  [[nodiscard]] std::string_view text(slice where) const noexcept {
    return std::string_view(texts_).substr(where.begin, where.size);
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

  /// @return whether there is a value
  [[nodiscard]] explicit operator bool() const noexcept { return all_ != nullptr; }
  /// @return whether it is of a kind
  [[nodiscard]] bool is(value_kind kind) const noexcept { return node().kind == kind; }
  /// @return the digits of a number, the characters of a string, `true` or `false`
  [[nodiscard]] std::string_view text() const noexcept { return all_->text(node().text); }
  /// @return how many elements an array or members an object has
  [[nodiscard]] std::size_t size() const noexcept { return node().count; }

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
    if (!is(value_kind::object)) refuse("an object");
    std::array<value, Count> found;
    for_each([&](value const& member) {
      auto const key = all_->text(member.node().key);
      auto const at = std::find(names.begin(), names.end(), key);
      if (at == names.end()) member.refuse("a key that is unknown here", list(names));
      auto& place = found[static_cast<std::size_t>(at - names.begin())];
      if (place) member.refuse("the key twice", "it once");
      place = member;
    });
    for (std::size_t i = 0; i < required; ++i)
      if (!found[i]) refuse("no key '" + std::string(names[i]) + "'", list(names));
    return found;
  }

  /// Refuses the value, which is shown in the message.
  /// @throws error (bad_format) always
  [[noreturn]] void refuse(std::string const& expected) const { refuse(shown(), expected); }

  /// Refuses what was found at the value.
  /// @throws error (bad_format) always
  [[noreturn]] void refuse(std::string const& found, std::string const& expected) const {
    refuse_as("found " + found + "; expected " + expected);
  }

  /// Refuses the value with a message of another's.
  /// @throws error (bad_format) always
  [[noreturn]] void refuse_as(std::string const& message) const {
    auto const where = path();
    throw error(
        errc::bad_format, all_->name_ + ": " + (where.empty() ? "" : where + ": ") + message);
  }

 private:
  value(document const& all, std::uint32_t at) : all_(&all), at_(at) {}

  [[nodiscard]] document::node const& node() const noexcept { return all_->nodes_[at_]; }

  template <std::size_t Count>
  [[nodiscard]] static std::string list(std::array<std::string_view, Count> const& names) {
    std::string text;
    for (std::size_t i = 0; i < Count; ++i)
      text.append(i == 0 ? "" : i + 1 < Count ? ", " : " and ").append(names[i]);
    return text;
  }

  [[nodiscard]] std::string shown() const {
    switch (node().kind) {
      case value_kind::array: return "an array of " + std::to_string(size());
      case value_kind::object: return "an object";
      case value_kind::string: return "'" + one_line(text(), 40) + "'";
      default: return one_line(text(), 40);
    }
  }

  // Such as stages[3].forward; empty for the outermost value.
  [[nodiscard]] std::string path() const {
    if (node().parent == document::none) return {};
    value const parent(*all_, node().parent);
    auto const before = parent.path();
    if (parent.is(value_kind::object))
      return before + (before.empty() ? "" : ".") + one_line(all_->text(node().key), 40);
    std::size_t position = 0;
    for (auto next = node().parent + 1; next < at_; next = all_->nodes_[next].end) ++position;
    return before + "[" + std::to_string(position) + "]";
  }

  document const* all_ = nullptr;
  std::uint32_t at_ = 0;
};

}  // namespace zbpp::json::detail
