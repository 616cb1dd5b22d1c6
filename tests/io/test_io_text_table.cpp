// SPDX-License-Identifier: Apache-2.0
#include <zbpp/io/run_progress.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/io/text_table.hpp>
#include <zbpp/runtime/interrupt.hpp>

#include <support/catch.hpp>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <limits>
#include <string>

namespace test_io_text_table {

using namespace zbpp;

TEST_CASE("a table has names to the left and numbers to the right", "[io]") {
  text_table table({"policy", "cost", "rate"});
  table.add({"1F1B", "66", "27.3"});
  table.add({"ZB-V", "1048"});
  CHECK(
      table.text() == "policy  cost  rate\n"
                      "1F1B      66  27.3\n"
                      "ZB-V    1048\n");
}

TEST_CASE("a remark stands behind the cells and widens no column", "[io]") {
  text_table table({"policy", "cost"});
  table.add({"1F1B", "66"});
  table.add({"ZB-V"}, "needs twice as many layers");
  table.add({}, "nothing");
  CHECK(
      table.text(2) == "  policy  cost\n"
                       "  1F1B      66\n"
                       "  ZB-V    needs twice as many layers\n"
                       "  nothing\n");
}

TEST_CASE("a number has the decimals that are asked for", "[io]") {
  CHECK(fixed_text(2.5, 0) == "2");
  CHECK(fixed_text(-2.345, 1) == "-2.3");
  CHECK(fixed_text(0.125, 4) == "0.1250");
  CHECK(fixed_text(std::numeric_limits<double>::max(), 2).size() == 309 + 3);
  CHECK(fixed_text(std::numeric_limits<double>::quiet_NaN(), 2) == "nan");
}

TEST_CASE("five milestones divide a run, the last at its end", "[io]") {
  for (std::int64_t steps = 1; steps < 60; ++steps) {
    int milestones = 0;
    std::int64_t done = 0;
    while (done < steps) {
      auto const next = run_progress::until_milestone(done, steps);
      REQUIRE(next >= 1);
      REQUIRE(done + next <= steps);
      done += next;
      ++milestones;
    }
    CHECK(milestones >= std::min<std::int64_t>(steps, 5));
    CHECK(milestones <= 9);
  }
}

TEST_CASE("the first interrupt is noticed, and the second ends the program", "[io]") {
  auto const before = std::signal(SIGINT, SIG_DFL);
  interrupt::listen();
  CHECK(!interrupt::was_raised());
  std::raise(SIGINT);
  CHECK(interrupt::was_raised());
  CHECK(std::signal(SIGINT, SIG_DFL) == SIG_DFL);  // the next one would end it
  interrupt::listen();
  CHECK(!interrupt::was_raised());
  std::signal(SIGINT, SIG_IGN);
  interrupt::listen();
  std::raise(SIGINT);
  CHECK(!interrupt::was_raised());
  std::signal(SIGINT, before);
}

}  // namespace test_io_text_table
