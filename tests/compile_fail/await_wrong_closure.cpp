// expect: a pass takes a closure that can be called with a zbpp::pass_context, or with nothing
// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/microbatch.hpp>

zbpp::flow run(zbpp::microbatch) {
#if defined(ZBPP_EXPECT_OK)
  co_await zbpp::F([](zbpp::pass_context) {});
#else
  co_await zbpp::F([](int) {});
#endif
}
