// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/pass_context.hpp>

#include <support/catch.hpp>

#include <type_traits>

namespace test_pass_context {

using zbpp::arena;
using zbpp::backend_kind;
using zbpp::pass_context;
using zbpp::purpose;

TEST_CASE("a place gives memory of its rank, counted by purpose", "[where]") {
  arena memory;
  where const at(memory);
  auto const kept = at.allocate(100);
  auto const sent = at.allocate_edge(7);
  CHECK(kept.size() == 100);
  CHECK(sent.size() == 7);
  CHECK(memory.usage().now(purpose::activation) == 100);
  CHECK(memory.usage().now(purpose::edge) == 7);
}

TEST_CASE("a place says what it is, and is passed by value", "[where]") {
  arena memory;
  where const at(memory);
  CHECK(at.kind() == backend_kind::host);
  CHECK(at.native() == nullptr);
  int stream = 0;
  where const elsewhere(memory, backend_kind::host, &stream);
  CHECK(elsewhere.native() == &stream);
  STATIC_REQUIRE(std::is_trivially_copyable_v<where>);
}

}  // namespace test_pass_context
