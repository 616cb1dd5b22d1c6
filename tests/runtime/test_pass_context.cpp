// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/pass_context.hpp>

#include <support/catch.hpp>

#include <type_traits>

namespace test_pass_context {

using namespace zbpp;

TEST_CASE("a pass context gives memory of its rank, counted by purpose", "[pass_context]") {
  arena memory;
  pass_context const ctx(memory);
  auto const kept = ctx.allocate(100);
  auto const sent = ctx.allocate_edge(7);
  CHECK(kept.size() == 100);
  CHECK(sent.size() == 7);
  CHECK(memory.usage().now(purpose::activation) == 100);
  CHECK(memory.usage().now(purpose::edge) == 7);
}

TEST_CASE("a pass context says what it is, and is passed by value", "[pass_context]") {
  arena memory;
  pass_context const ctx(memory);
  CHECK(ctx.kind() == backend_kind::host);
  CHECK(ctx.native() == nullptr);
  int stream = 0;
  pass_context const elsewhere(memory, backend_kind::host, &stream);
  CHECK(elsewhere.native() == &stream);
  STATIC_REQUIRE(std::is_trivially_copyable_v<pass_context>);
}

}  // namespace test_pass_context
