// expect: for pointers to them, stage_ref(*p)
// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <memory>
#include <vector>

struct idle {
  zbpp::flow operator()(zbpp::microbatch) { co_return; }
};

void make(zbpp::plan const& planned) {
#if defined(ZBPP_EXPECT_OK)
  std::vector<idle> stages(1);
#else
  std::vector<std::unique_ptr<idle>> stages(1);
#endif
  zbpp::pipeline<zbpp::virtual_time> const pipe{planned, zbpp::virtual_time{}, stages};
}
