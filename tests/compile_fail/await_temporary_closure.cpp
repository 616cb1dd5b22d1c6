// expect [GNU 12]: g++ 12 destroys this temporary closure twice: name it first
// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/microbatch.hpp>

#include <memory>

zbpp::flow run(zbpp::microbatch, std::shared_ptr<int> number) {
#if defined(ZBPP_EXPECT_OK)
  auto work = [number] { ++*number; };
  co_await zbpp::F(work);
#else
  co_await zbpp::F([number] { ++*number; });
#endif
}
