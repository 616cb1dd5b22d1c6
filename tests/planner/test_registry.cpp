// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <support/catch.hpp>
#include <support/policy_grid.hpp>
#include <support/refusal.hpp>

#include <set>
#include <string>
#include <string_view>
#include <vector>

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
  for (auto const& policy : zbpp::builtin_policies()) {
    CHECK(zbpp::find_policy(policy.name()).title() == policy.title());
    CHECK(zbpp::find_policy(policy.title()).name() == policy.name());
    CHECK_FALSE(policy.summary().empty());
  }
  CHECK(zbpp::find_policy("ZB-H1").name() == "zb_h1");
  CHECK(zbpp::find_policy("1F1B").name() == "one_f_one_b");
}

TEST_CASE("policies that search take the settings of a search", "[registry]") {
  std::set<std::string_view> searching;
  for (auto const& policy : zbpp::builtin_policies())
    if (policy.searches()) searching.insert(policy.name());
  CHECK(
      searching == std::set<std::string_view>{"greedy_auto", "interleaved_zb", "v_half", "v_min"});
  // Each of them refuses a budget that is no time as soon as it has to search, with the settings of
  // a call as with its own. The others have no settings that could be refused.
  zbpp::stage_costs const stage{
      .forward = 1, .backward_input = 1, .backward_weight = 1, .activation = 1};
  zbpp::search_settings const wrong{.seconds = -1};
  for (auto const& policy : zbpp::builtin_policies()) {
    auto const placement = policy.name() == "interleaved_zb" ? zbpp::placement::looped(2, 2)
                                                             : zbpp::placement::v_shape(2);
    zbpp::problem const problem(placement, 4, stage, 0, {2});
    if (policy.searches())
      CHECK_THROWS_AS(policy(problem, wrong), zbpp::error);
    else if (policy.refusal(placement, 4).empty())
      CHECK(policy(problem, wrong) == policy(problem));
  }
  zbpp::problem const problem(zbpp::placement::v_shape(2), 4, stage);
  zbpp::greedy_auto const own{.search = {.seconds = -1}};
  CHECK_THROWS_AS(zbpp::any_policy(own)(problem), zbpp::error);
  zbpp::search_settings const brief{.seconds = 0.01, .seed = 5};
  CHECK(zbpp::any_policy(own)(problem, brief) == zbpp::greedy_auto{.search = brief}(problem));
}

TEST_CASE("a policy says why it refuses a placement, and not what does not fit", "[registry]") {
  auto const refused = [](std::string_view name, zbpp::placement const& placement, int m) {
    return zbpp::find_policy(name).refusal(placement, m);
  };
  CHECK(
      refused("zb_h1", zbpp::placement::v_shape(2), 4) ==
      "ZB-H1 needs a linear placement, one stage per rank; this one is v");
  CHECK(refused("zb_v", zbpp::placement::v_shape(2), 4).empty());
  CHECK(refused("greedy_auto", zbpp::placement::custom({0, 1, 0}), 4).empty());
  CHECK_FALSE(zbpp::any_policy(picky{.most = 3}).refusal(zbpp::placement::linear(2), 4).empty());
  CHECK(zbpp::any_policy(picky{.most = 4}).refusal(zbpp::placement::linear(2), 4).empty());
}

TEST_CASE("no two built-in policies share a name or a title", "[registry]") {
  std::set<std::string_view> names;
  for (auto const& policy : zbpp::builtin_policies()) {
    names.insert(policy.name());
    names.insert(policy.title());
  }
  CHECK(names.size() == 2 * zbpp::builtin_policies().size());
}

TEST_CASE(
    "policies are gone through in the order of the list, those that search among them",
    "[registry]") {
  std::vector<std::string_view> names;
  std::vector<std::string_view> searching;
  zbpp::for_each_policy([&](auto const& policy) {
    names.push_back(policy.name);
    if constexpr (requires { policy.search; }) searching.push_back(policy.name);
  });
  std::vector<std::string_view> listed;
  std::vector<std::string_view> listed_searching;
  for (auto const& policy : zbpp::builtin_policies()) {
    listed.push_back(policy.name());
    if (policy.searches()) listed_searching.push_back(policy.name());
  }
  CHECK(names == listed);
  CHECK(searching == listed_searching);
}

TEST_CASE("a handcrafted policy takes what suits it, and nothing else", "[registry]") {
  for (int const ranks : {1, 2, 3}) {
    auto all = zbpp::test::placements(ranks);
    all.push_back(zbpp::placement::custom(std::vector<int>(2, 0)));
    for (auto const& placement : all)
      for (int const m : zbpp::test::microbatch_counts(placement.ranks())) {
        zbpp::problem const problem(placement, m, zbpp::test::uneven_costs());
        std::vector<zbpp::schedule> orders;
        zbpp::for_each_handcrafted([&](auto const& policy) {
          CAPTURE(policy.name, placement.text(), m);
          CHECK(policy.suits(placement, m) == zbpp::test::is_supported(policy, problem));
          CHECK(
              policy.suits(placement, m) == zbpp::any_policy(policy).refusal(placement, m).empty());
          if (policy.suits(placement, m)) orders.push_back(policy(problem));
        });
        CHECK(zbpp::detail::handcrafted_orders(problem) == orders);
      }
  }
}

TEST_CASE("an unknown name is answered with the names there are", "[registry]") {
  CHECK(
      refusal([] { (void)zbpp::find_policy("zb-h3"); }) ==
      "no policy is called 'zb-h3'; there are gpipe one_f_one_b interleaved grouped_interleaved "
      "zb_h1 zb_h2 zb_v dualpipe_v stp interleaved_zb v_half v_min greedy_auto");
}

TEST_CASE("a policy in the registry does what its type does, with its settings", "[registry]") {
  zbpp::problem const problem(zbpp::placement::linear(3), 4, zbpp::stage_costs{});
  CHECK(zbpp::find_policy("zb_h2")(problem) == zbpp::zb_h2{}(problem));
  // Within a limit that the order of ZB-V does not keep, too: one name is one order.
  for (zbpp::bytes const limit : {2, 100}) {
    zbpp::stage_costs const stage{
        .forward = 3, .backward_input = 7, .backward_weight = 2, .activation = 1};
    zbpp::problem const on_v(zbpp::placement::v_shape(3), 8, stage, 1, {limit});
    CHECK(zbpp::find_policy("zb_v")(on_v) == zbpp::zb_v{}(on_v));
  }
  CHECK(zbpp::any_policy(picky{.most = 4})(problem) == zbpp::one_f_one_b{}(problem));
  CHECK(refusal(zbpp::errc::unsupported_problem, [&] {
          (void)zbpp::any_policy(picky{.most = 3})(problem);
        }) == "Picky needs fewer microbatches");
}

TEST_CASE("a list can be extended without touching the built-in one", "[registry]") {
  auto policies = zbpp::builtin_policies();
  policies.emplace_back(picky{});
  CHECK(zbpp::find_policy("picky", policies).title() == "Picky");
  CHECK(zbpp::builtin_policies().size() + 1 == policies.size());
}

}  // namespace test_registry
