// SPDX-License-Identifier: Apache-2.0
#include <zbpp/model/program.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/refusal.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace test_program {

using namespace zbpp;
using namespace zbpp::test;

TEST_CASE("an instruction is written as stage, kind, microbatch", "[program]") {
  for (std::string const text :
       {"0F1",
        "10B11",
        "2W3",
        "3BW4",
        "4R5",
        "1SEND_F2",
        "2RECV_F0",
        "3SEND_B12",
        "4RECV_B5",
        "6STEP",
        "3NORM",
        "3VALIDATE",
        "0SEND_T",
        "7ADD_T",
        "2STEP_NOW",
        "1REDUCE",
        "1REDUCED",
        "2GATHER"})
    CHECK(to_string(parse_instruction(text)) == text);
  CHECK(
      to_string(instruction{static_cast<instruction_kind>(zbpp::instruction_kinds), 1, 2}) ==
      "1?2");
}

TEST_CASE("the table of passes stands in the order of their kinds", "[program]") {
  for (std::size_t k = 0; k < zbpp::pass_kinds; ++k) {
    CHECK(zbpp::pass_table[k].kind == static_cast<pass_kind>(k));
    CHECK(to_string(static_cast<instruction_kind>(k)) == zbpp::pass_table[k].letters);
  }
  CHECK_FALSE(is_known(static_cast<pass_kind>(zbpp::pass_kinds)));
}

TEST_CASE("the first five instructions are the passes", "[program]") {
  for (int k = 0; k < zbpp::instruction_kinds; ++k) {
    instruction const i{static_cast<instruction_kind>(k), 3, 7};
    CHECK(i.is_pass() == (k < 5));
    if (!i.is_pass()) continue;
    pass const same{static_cast<pass_kind>(k), 3, 7};
    CHECK(i.as_pass() == same);
    CHECK(to_instruction(same) == i);
    CHECK(to_string(i) == to_string(same));
  }
}

TEST_CASE("sends and receives know the stage at their other end", "[program]") {
  auto const is = [](std::string const& text) { return parse_instruction(text); };
  CHECK(is("2SEND_F0").other_stage() == 3);
  CHECK(is("2RECV_B0").other_stage() == 3);
  CHECK(is("2RECV_F0").other_stage() == 1);
  CHECK(is("2SEND_B0").other_stage() == 1);
  for (auto const& [text, send, receive, activation] :
       {std::tuple("0SEND_F0", true, false, true),
        std::tuple("0RECV_F0", false, true, true),
        std::tuple("0SEND_B0", true, false, false),
        std::tuple("0RECV_B0", false, true, false),
        std::tuple("0F0", false, false, false),
        std::tuple("0STEP", false, false, false)}) {
    CHECK(is(text).is_send() == send);
    CHECK(is(text).is_receive() == receive);
    CHECK(is(text).moves_activation() == activation);
  }
}

TEST_CASE("a program takes any rows, but one per rank", "[program]") {
  program const code(
      placement::linear(2), 3, instructions({"9F9 0STEP", ""}), {{.from = 0, .to = 1, .slots = 2}});
  CHECK(code.ranks() == 2);
  CHECK(code.stages() == 2);
  CHECK(code.microbatches() == 3);
  CHECK(code.instructions(0).size() == 2);
  CHECK(code.instructions(1).empty());
  CHECK(code.channels().front().slots == 2);
  CHECK(code == program(code.placement(), 3, code.instructions(), code.channels()));
  CHECK(code != program(code.placement(), 3, code.instructions(), {}));
  CHECK(refusal([] {
          program(placement::linear(2), 3, instructions({"0F0"}), {});
        }) == "the program has 1 rows; its placement has 2 ranks");
  CHECK(refusal([] {
          program(placement::linear(1), 0, instructions({""}), {});
        }) == "microbatches is 0; a step has at least 1");
}

}  // namespace test_program
