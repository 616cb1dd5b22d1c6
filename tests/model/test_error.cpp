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
  using zbpp::detail::joined;
  std::string const name = "forward";
  std::string_view const unit = " ns";
  std::string const text = joined("stage ", std::uint16_t{3}, ": ", name, ' ', -5, unit, "");
  CHECK(text == "stage 3: forward -5 ns");
  std::string const chained = joined("stage ") + std::uint16_t{3} + ": " + name + ' ' + -5 + unit;
  CHECK(chained == text);
  std::string const numbers =
      joined(std::int64_t{-1} << 62, ' ', std::uint64_t{1} << 63, ' ', 0.5, ' ', 1e20f);
  CHECK(
      numbers == "-4611686018427387904 9223372036854775808 0.500000 100000002004087734272.000000");
  CHECK(std::string(joined()).empty());
}

TEST_CASE("the message of an error goes on by +, behind its place", "[error]") {
  struct special : zbpp::error {
    using error::error;
    int native = 7;
  };
  zbpp::location const at{.rank = 1, .stage = 2};
  std::string const name = "forward";
  try {
    throw special(zbpp::errc::wrong_size, at) + name + " has " + std::int64_t{-3} + " bytes" + '.';
  } catch (special const& thrown) {  // the type is kept
    CHECK(thrown.what() == std::string("rank 1, stage 2: forward has -3 bytes."));
    CHECK(thrown.message() == "forward has -3 bytes.");
    CHECK(thrown.code() == zbpp::errc::wrong_size);
    CHECK(thrown.location() == at);
    CHECK(thrown.native == 7);
  }
  auto made = zbpp::error(zbpp::errc::bad_format) + "at most " + 2u;
  made.locate(at);
  CHECK(made.what() == std::string("rank 1, stage 2: at most 2"));
  CHECK(made.message() == "at most 2");
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
