// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/plan.hpp>
#include <zbpp/policy/classic.hpp>
#include <zbpp/runtime/crew.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>

#include <vector>

namespace {

struct without_crew {
  using carrier = zbpp::in_process;
  using clock = zbpp::virtual_time::clock;
};
struct with_a_crew_that_settles_nothing : zbpp::virtual_time {
  class crew : public zbpp::virtual_time::crew {
   public:
    crew(with_a_crew_that_settles_nothing, zbpp::plan const& planned)
        : zbpp::virtual_time::crew({}, planned) {}
    static void settle(std::vector<zbpp::failure> const&) = delete;
  };
};

}  // namespace

TEST_CASE("the backend concept takes what can run ranks and nothing else", "[crew]") {
  STATIC_REQUIRE(zbpp::backend<zbpp::threads>);
  STATIC_REQUIRE(zbpp::backend<zbpp::virtual_time>);
  STATIC_REQUIRE_FALSE(zbpp::backend<without_crew>);
  STATIC_REQUIRE_FALSE(zbpp::backend<with_a_crew_that_settles_nothing>);
  STATIC_REQUIRE_FALSE(zbpp::backend<int>);
}

TEST_CASE("backends of one process run all ranks", "[crew]") {
  for (int ranks : {1, 2, 5}) {
    auto const planned = zbpp::make_plan(
        zbpp::one_f_one_b{},
        zbpp::problem(zbpp::placement::linear(ranks), 3, zbpp::stage_costs{.forward = 1}));
    zbpp::one_process const crew(planned);
    REQUIRE(crew.ranks().size() == static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank)
      CHECK(crew.ranks()[static_cast<std::size_t>(rank)] == rank);
  }
}
