// expect: for one stage, a std::array of it
// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <array>

struct idle {
  zbpp::flow operator()(zbpp::microbatch) { co_return; }
};

void make(zbpp::plan const& planned) {
#if defined(ZBPP_EXPECT_OK)
  std::array stages{idle{}};
#else
  idle stages;
#endif
  zbpp::pipeline<zbpp::virtual_time> const pipe{planned, zbpp::virtual_time{}, stages};
}
