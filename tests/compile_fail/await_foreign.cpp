// expect: a flow awaits zbpp::F, B, W, BW, R and the messages of its microbatch, nothing else
// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/microbatch.hpp>

#include <coroutine>

zbpp::flow run(zbpp::microbatch mb) {
  auto in = co_await mb.recv_activation();
  co_await zbpp::F([] {});
#if !defined(ZBPP_EXPECT_OK)
  co_await std::suspend_always{};
#endif
}
