// SPDX-License-Identifier: Apache-2.0
#include <zbpp/error.hpp>

#include <support/catch.hpp>

#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

namespace test_error {

TEST_CASE("an error says where in front of what", "[error]") {
  zbpp::error const refused(
      zbpp::errc::wrong_flow, "it awaits B", {.rank = 1, .position = 4, .stage = 2});
  CHECK(refused.what() == std::string("rank 1, position 4, stage 2: it awaits B"));
  CHECK(refused.message() == "it awaits B");
  CHECK(refused.code() == zbpp::errc::wrong_flow);
  CHECK(refused.location() == zbpp::location{.rank = 1, .position = 4, .stage = 2});
}

TEST_CASE("an error without a place is its text alone", "[error]") {
  zbpp::error const refused(zbpp::errc::bad_format, "line 3: no such pass");
  CHECK(refused.what() == std::string("line 3: no such pass"));
  CHECK(refused.message() == refused.what());
}

TEST_CASE("a place leaves out what does not apply and keeps zeros", "[error]") {
  CHECK(zbpp::to_string(zbpp::location{}).empty());
  CHECK(zbpp::to_string(zbpp::location{.microbatch = 0}) == "microbatch 0");
  CHECK(zbpp::to_string(zbpp::location{0, 0, 0, 0}) == "rank 0, position 0, stage 0, microbatch 0");
}

TEST_CASE("a text is joined of texts, characters and numbers", "[error]") {
  std::string const name = "forward";
  std::string_view const unit = " ns";
  CHECK(
      zbpp::detail::joined("stage ", std::uint8_t{3}, ": ", name, ' ', -5, unit, "") ==
      "stage 3: forward -5 ns");
  CHECK(
      zbpp::detail::joined(std::int64_t{-1} << 62, ' ', std::uint64_t{1} << 63, ' ', 0.5) ==
      "-4611686018427387904 9223372036854775808 0.500000");
  CHECK(zbpp::detail::joined().empty());
}

TEST_CASE("every error code has words of its own", "[error]") {
  std::set<std::string_view> words;
  for (int code = 0; code <= static_cast<int>(zbpp::errc::io_failed); ++code)
    words.insert(to_string(static_cast<zbpp::errc>(code)));
  CHECK(words.size() == 7);
  CHECK(words.count("unknown") == 0);
  CHECK(to_string(static_cast<zbpp::errc>(200)) == "unknown");
}

TEST_CASE("what an exception tells has no backtrace of LibTorch", "[error]") {
  auto const text_of = [](char const* text) {
    return zbpp::detail::text_of(std::runtime_error(text));
  };
  CHECK(
      text_of(
          "sizes differ\nException raised from f at a.cpp:1 (most recent call first):\nframe #0") ==
      "sizes differ");
  CHECK(text_of("two\nlines") == "two\nlines");
  CHECK(text_of("Exception raised from me") == "Exception raised from me");
  CHECK(text_of("").empty());
}

}  // namespace test_error
