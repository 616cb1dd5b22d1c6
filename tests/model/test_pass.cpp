// SPDX-License-Identifier: Apache-2.0
#include <zbpp/model/pass.hpp>

#include <support/catch.hpp>

namespace test_pass {

using zbpp::pass;
using zbpp::pass_kind;

TEST_CASE("a pass is written as stage, letter, microbatch", "[pass]") {
  CHECK(to_string(pass{pass_kind::forward, 2, 0}) == "2F0");
  CHECK(to_string(pass{pass_kind::backward_input, 0, 11}) == "0B11");
  CHECK(to_string(pass{pass_kind::backward_weight, 1, 2}) == "1W2");
  CHECK(to_string(pass{pass_kind::backward, 3, 4}) == "3BW4");
  CHECK(to_string(pass{pass_kind::recompute, 5, 6}) == "5R6");
  CHECK(to_string(pass{static_cast<pass_kind>(9), 1, 2}) == "1?2");
}

TEST_CASE("B and BW make the gradient of the input, W and BW that of the weights", "[pass]") {
  auto const makes = [](pass_kind kind) {
    return std::pair(pass{kind}.makes_input_gradient(), pass{kind}.makes_weight_gradient());
  };
  CHECK(makes(pass_kind::forward) == std::pair(false, false));
  CHECK(makes(pass_kind::backward_input) == std::pair(true, false));
  CHECK(makes(pass_kind::backward_weight) == std::pair(false, true));
  CHECK(makes(pass_kind::backward) == std::pair(true, true));
  CHECK(makes(pass_kind::recompute) == std::pair(false, false));
}

TEST_CASE("passes are ordered by kind, stage, microbatch", "[pass]") {
  CHECK(pass{pass_kind::forward, 9, 9} < pass{pass_kind::backward_input, 0, 0});
  CHECK(pass{pass_kind::forward, 0, 9} < pass{pass_kind::forward, 1, 0});
  CHECK(pass{pass_kind::forward, 1, 0} < pass{pass_kind::forward, 1, 1});
}

}  // namespace test_pass
