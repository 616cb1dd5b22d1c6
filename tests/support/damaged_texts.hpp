// SPDX-License-Identifier: Apache-2.0
//
// Files that are not whole, or were altered.
#pragma once

#include <support/catch.hpp>
#include <support/seeded.hpp>

#include <cstddef>
#include <iterator>
#include <string>

namespace zbpp::test {

/// Checks that a reader takes a file, and refuses it when it is too short by any number of bytes.
/// Of 500 with other bytes at random places it may refuse any.
/// @param is_refused  called with the text of a file; checks what else is to be true of a refusal
template <class IsRefused>
void check_cut_and_altered_texts(std::string const& text, IsRefused const& is_refused) {
  CHECK_FALSE(is_refused(text));
  for (std::size_t size = 0; size < text.size(); ++size) CHECK(is_refused(text.substr(0, size)));
  ZBPP_SEEDED(random, 11);
  for (int i = 0; i < 500; ++i) {
    auto wrong = text;
    for (auto changes = random.integer(1, 3); changes > 0; --changes)
      wrong[static_cast<std::size_t>(random.integer(0, std::ssize(text) - 1))] =
          static_cast<char>(random.integer(0, 255));
    static_cast<void>(is_refused(wrong));
  }
}

/// As above, of a file whose last byte is a boolean. It is refused as well when it is too long, or
/// when that byte is no boolean.
template <class IsRefused>
void check_damaged_texts(std::string const& text, IsRefused const& is_refused) {
  check_cut_and_altered_texts(text, is_refused);
  CHECK(is_refused(text + ' '));
  auto not_bool = text;
  not_bool.back() = 2;
  CHECK(is_refused(not_bool));
}

}  // namespace zbpp::test
