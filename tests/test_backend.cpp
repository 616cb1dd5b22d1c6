// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/plan.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>

#include <vector>

namespace test_backend {

namespace {

struct without_executor {
  using transport_type = zbpp::in_process;
  using pass_observer = zbpp::virtual_time::pass_observer;
};
struct with_an_executor_that_settles_nothing : zbpp::virtual_time {
  class executor : public zbpp::virtual_time::executor {
   public:
    executor(with_an_executor_that_settles_nothing, zbpp::plan const& planned)
        : zbpp::virtual_time::executor({}, planned) {}
    static void settle(std::vector<zbpp::failure> const&) = delete;
  };
};

}  // namespace

TEST_CASE("the backend concept takes what can run ranks and nothing else", "[backend]") {
  STATIC_REQUIRE(zbpp::backend<zbpp::threads>);
  STATIC_REQUIRE(zbpp::backend<zbpp::virtual_time>);
  STATIC_REQUIRE_FALSE(zbpp::backend<without_executor>);
  STATIC_REQUIRE_FALSE(zbpp::backend<with_an_executor_that_settles_nothing>);
  STATIC_REQUIRE_FALSE(zbpp::backend<int>);
}

TEST_CASE("backends of one process run all ranks", "[backend]") {
  for (int ranks : {1, 2, 5}) {
    auto const planned = zbpp::make_plan(
        zbpp::one_f_one_b{},
        zbpp::problem(zbpp::placement::linear(ranks), 3, zbpp::stage_costs{.forward = 1}));
    zbpp::one_process const executor(planned);
    REQUIRE(executor.ranks().size() == static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank)
      CHECK(executor.ranks()[static_cast<std::size_t>(rank)] == rank);
  }
}

}  // namespace test_backend
