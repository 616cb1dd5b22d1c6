// SPDX-License-Identifier: Apache-2.0
#include <zbpp/io/checksum.hpp>
#include <zbpp/io/text.hpp>

#include <support/catch.hpp>

#include <chrono>
#include <limits>
#include <string>
#include <string_view>

namespace test_io_text {

using namespace zbpp;
using std::chrono::milliseconds;

TEST_CASE("a time is written exactly, without needless zeros", "[io][text]") {
  CHECK(number_text(1'500'000, time_unit::milliseconds) == "1.5");
  CHECK(number_text(1'500'000, time_unit::nanoseconds) == "1500000");
  CHECK(number_text(0, time_unit::seconds) == "0");
  CHECK(number_text(1, time_unit::seconds) == "0.000000001");
  CHECK(
      number_text(std::numeric_limits<ticks>::max(), time_unit::seconds) == "9223372036.854775807");
  CHECK(time_text(2'000, time_unit::microseconds) == "2 us");
}

TEST_CASE("a unit has a name and a size", "[io][text]") {
  ticks size = 1;
  for (auto const unit :
       {time_unit::nanoseconds,
        time_unit::microseconds,
        time_unit::milliseconds,
        time_unit::seconds}) {
    CHECK(ticks_in(unit) == size);
    CHECK(time_text(size, unit) == "1 " + std::string(to_string(unit)));
    size *= 1000;
  }
}

TEST_CASE("a double is written as short as reads back", "[io][text]") {
  CHECK(number_text(0.1) == "0.1");
  CHECK(number_text(0.0) == "0");
  CHECK(number_text(1.0 / 3) == "0.3333333333333333");
}

TEST_CASE("a duration is rounded to a tenth of a second", "[io][text]") {
  CHECK(seconds_text(milliseconds(61'249)) == "61.2 s");
  CHECK(seconds_text(milliseconds(61'250)) == "61.3 s");
  CHECK(seconds_text(milliseconds(9'999)) == "10.0 s");
  CHECK(seconds_text(milliseconds(49)) == "0.0 s");
  CHECK(seconds_text(milliseconds(-5)) == "0.0 s");
  CHECK(seconds_text(milliseconds::max()) == "9223372036854775.8 s");
}

TEST_CASE("a text becomes one line, short and valid", "[io][text]") {
  CHECK(one_line("a\nb\x1b\x7f") == "a b  ");
  CHECK(one_line("\xC3\xA9\xFF") == "\xC3\xA9?");
  CHECK(one_line("\xC3\xA9\xC3\xA9z", 2) == "\xC3\xA9\xC3\xA9");
}

// Their authors publish these sums.
TEST_CASE("a checksum is FNV-1a, whole or in pieces", "[io][text]") {
  CHECK(hex_text(checksum_of(std::string_view{})) == "cbf29ce484222325");
  CHECK(hex_text(checksum_of(std::string_view("a"))) == "af63dc4c8601ec8c");
  checksum sum;
  sum.add("foo");
  sum.add("bar");
  CHECK(hex_text(sum.value()) == "85944171f73967e8");
}

}  // namespace test_io_text
