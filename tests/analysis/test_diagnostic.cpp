// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/diagnostic.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>

#include <set>
#include <string_view>

namespace test_diagnostic {

using zbpp::diagnostic;
using zbpp::fault;

TEST_CASE("a diagnostic is written as fault, place, instruction and reason", "[diagnostic]") {
  zbpp::program const code(
      zbpp::placement::linear(1), 3, zbpp::test::instructions({"0F0 0F2"}), {});
  auto const found =
      zbpp::detail::make_diagnostic(code, fault::repeated, 0, 1, "it already stands at 0");
  CHECK(found.location == zbpp::location{.rank = 0, .position = 1, .stage = 0, .microbatch = 2});
  CHECK(found.instruction == zbpp::test::parse_instruction("0F2"));
  CHECK(
      to_string(found) ==
      "repeated at rank 0, position 1, stage 0, microbatch 2: 0F2: it already stands at 0");
}

TEST_CASE("a diagnostic without a place is fault and reason", "[diagnostic]") {
  CHECK(to_string(diagnostic{fault::bad_id, {}, {}, "they differ"}) == "bad id: they differ");
}

TEST_CASE("every fault has words of its own", "[diagnostic]") {
  std::set<std::string_view> words;
  for (int f = 0; f <= static_cast<int>(fault::sum_order); ++f)
    words.insert(to_string(static_cast<fault>(f)));
  CHECK(words.size() == 11);
  CHECK(words.count("unknown") == 0);
}

}  // namespace test_diagnostic
