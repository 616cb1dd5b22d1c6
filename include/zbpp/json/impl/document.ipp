// SPDX-License-Identifier: Apache-2.0
//
// How a text becomes a tree, with the parser of nlohmann-json, and how errors name a place in it.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/detail/text_encoding.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/json/detail/document.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp::json::detail {

// Takes what the parser finds.
class document::builder final : public nlohmann::json_sax<nlohmann::json> {
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
      nlohmann::detail::exception const& fault) override {
    // In front of the reason stand the parser's own name and count of the place.
    std::string_view reason = fault.what();
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
      refusal_ = zbpp::detail::joined("found more than ") + most_values +
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
      refusal_ = zbpp::detail::joined("found more than ") + most_levels +
                 " brackets within each other; expected at most that many";
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

ZBPP_INLINE document::document(std::string_view text, std::string name) : name_(std::move(name)) {
  text = zbpp::detail::without_byte_order_mark(text);
  check_bytes(text);
  builder build(*this, text);
  if (!nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &build))
    throw error(errc::bad_format) + name_ + ": " + build.refusal();
}

// Refuses what the parser takes for the end of the text, a NUL byte, and what it would spend
// minutes on: a number of a size that none has.
ZBPP_INLINE void document::check_bytes(std::string_view text) const {
  auto refuse = [&](std::string const& expected) {
    throw error(errc::bad_format) + name_ + ": " + expected;
  };
  if (text.size() > largest_text)
    refuse(zbpp::detail::joined("found ", text.size(), " bytes; expected at most ", largest_text));
  if (auto const other = zbpp::detail::foreign_encoding(text); !other.empty())
    refuse(
        zbpp::detail::joined("line 1: found ") + other + "; expected " +
        zbpp::detail::expected_instead_of(other));
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
          zbpp::detail::joined(place(text, i + 1 - digits)) + ": found a number of more than " +
          most_digits + " characters; expected at most that many");
  }
}

ZBPP_INLINE std::string document::place(std::string_view text, std::size_t position) {
  auto const before = text.substr(0, position);
  auto const line = std::count(before.begin(), before.end(), '\n') + 1;
  auto const column = before.size() - (before.rfind('\n') + 1) + 1;
  return zbpp::detail::joined("line ", line, ", column ", column);
}

ZBPP_INLINE void value::refuse(std::string const& expected) const { refuse(shown(), expected); }

ZBPP_INLINE void value::refuse(std::string const& found, std::string const& expected) const {
  refuse_as("found " + found + "; expected " + expected);
}

ZBPP_INLINE void value::refuse_as(std::string const& message) const {
  auto const position = path();
  throw error(errc::bad_format) + all_->name_ + ": " + (position.empty() ? "" : position + ": ") +
      message;
}

ZBPP_INLINE std::string value::shown() const {
  switch (node().kind) {
    case value_kind::array: return zbpp::detail::joined("an array of ", size());
    case value_kind::object: return "an object";
    case value_kind::string: return "'" + one_line(text(), 40) + "'";
    default: return one_line(text(), 40);
  }
}

// Such as stages[3].forward; empty for the outermost value.
ZBPP_INLINE std::string value::path() const {
  if (node().parent == document::none) return {};
  value const parent(*all_, node().parent);
  auto const before = parent.path();
  if (parent.is(value_kind::object))
    return before + (before.empty() ? "" : ".") + one_line(all_->text(node().key), 40);
  std::size_t position = 0;
  for (auto next = node().parent + 1; next < at_; next = all_->nodes_[next].end) ++position;
  return zbpp::detail::joined(before, "[", position, "]");
}

}  // namespace zbpp::json::detail
