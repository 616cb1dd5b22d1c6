// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>

#include <set>
#include <string>
#include <string_view>

namespace test_registry {

using zbpp::test::refusal;

namespace {

// A policy whose setting decides what it refuses to do.
struct picky {
  static constexpr std::string_view name = "picky";
  static constexpr std::string_view title = "Picky";
  static constexpr std::string_view summary = "1F1B for few microbatches";
  int most = 1;

  zbpp::schedule operator()(zbpp::problem const& problem) const {
    zbpp::detail::support(problem.microbatches() <= most, title, "needs fewer microbatches");
    return zbpp::one_f_one_b{}(problem);
  }
};

}  // namespace

TEST_CASE("a built-in policy is found by its name and by its title", "[registry]") {
  auto const all = zbpp::builtin_policies();
  for (auto const& policy : all) {
    CHECK(zbpp::find_policy(all, policy.name()).title() == policy.title());
    CHECK(zbpp::find_policy(all, policy.title()).name() == policy.name());
    CHECK_FALSE(policy.summary().empty());
  }
  CHECK(zbpp::find_policy(all, "ZB-H1").name() == "zb_h1");
  CHECK(zbpp::find_policy(zbpp::builtin_policies(), "1F1B").name() == "one_f_one_b");
}

TEST_CASE("no two built-in policies share a name or a title", "[registry]") {
  std::set<std::string_view> names;
  for (auto const& policy : zbpp::builtin_policies()) {
    names.insert(policy.name());
    names.insert(policy.title());
  }
  CHECK(names.size() == 2 * zbpp::builtin_policies().size());
}

TEST_CASE("an unknown name is answered with the names there are", "[registry]") {
  CHECK(
      refusal([] { (void)zbpp::find_policy(zbpp::builtin_policies(), "zb-h3"); }) ==
      "no policy is called 'zb-h3'; there are gpipe one_f_one_b interleaved interleaved_zb zb_h1 "
      "zb_h2 zb_v v_half v_min dualpipe_v greedy_auto");
}

TEST_CASE("a policy in the registry does what its type does, with its settings", "[registry]") {
  zbpp::problem const problem(zbpp::placement::linear(3), 4, zbpp::stage_costs{});
  CHECK(zbpp::find_policy(zbpp::builtin_policies(), "zb_h2")(problem) == zbpp::zb_h2{}(problem));
  CHECK(zbpp::any_policy(picky{.most = 4})(problem) == zbpp::one_f_one_b{}(problem));
  CHECK(refusal(zbpp::errc::unsupported_problem, [&] {
          (void)zbpp::any_policy(picky{.most = 3})(problem);
        }) == "Picky needs fewer microbatches");
}

TEST_CASE("a list can be extended without touching the built-in one", "[registry]") {
  auto mine = zbpp::builtin_policies();
  mine.emplace_back(picky{});
  CHECK(zbpp::find_policy(mine, "picky").title() == "Picky");
  CHECK(zbpp::builtin_policies().size() + 1 == mine.size());
}

}  // namespace test_registry
