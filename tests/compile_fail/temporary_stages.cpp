// expect: a pipeline refers to its stages and does not own them: give the container a name
// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <vector>

struct idle {
  zbpp::flow operator()(zbpp::microbatch) { co_return; }
};

void make(zbpp::plan const& planned) {
#if defined(ZBPP_EXPECT_OK)
  std::vector<idle> stages(1);
  zbpp::pipeline const pipe{planned, zbpp::virtual_time{}, stages};
#else
  zbpp::pipeline<zbpp::virtual_time> const pipe{
      planned, zbpp::virtual_time{}, std::vector<idle>(1)};
#endif
}
