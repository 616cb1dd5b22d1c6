// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/policy.hpp>

#include <support/catch.hpp>
#include <support/policy_grid.hpp>
#include <support/refusal.hpp>
#include <support/thinned.hpp>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace test_policy {

namespace {

// Has exactly what the concept asks for.
struct archetype {
  static constexpr char const* name = "archetype";
  static constexpr char const* title = "Archetype";
  static constexpr char const* summary = "nothing more than a policy needs";
  zbpp::schedule operator()(zbpp::problem const& problem) const { return zbpp::gpipe{}(problem); }
};

struct title_is_no_text : archetype {
  enum { title };
};

struct changes_itself : archetype {
  zbpp::schedule operator()(zbpp::problem const&);
};

struct gives_passes : archetype {
  zbpp::rows<zbpp::pass> operator()(zbpp::problem const&) const;
};

}  // namespace

TEST_CASE("a policy has three names and makes schedules", "[policy]") {
  STATIC_REQUIRE(zbpp::policy<archetype>);
  STATIC_REQUIRE(zbpp::policy<zbpp::gpipe>);
  STATIC_REQUIRE(zbpp::policy<zbpp::one_f_one_b>);
  STATIC_REQUIRE(zbpp::policy<zbpp::interleaved>);
  STATIC_REQUIRE(zbpp::policy<zbpp::grouped_interleaved>);
  STATIC_REQUIRE(zbpp::policy<zbpp::zb_h1>);
  STATIC_REQUIRE(zbpp::policy<zbpp::zb_h2>);
  STATIC_REQUIRE(zbpp::policy<zbpp::zb_v>);
  STATIC_REQUIRE(zbpp::policy<zbpp::v_half>);
  STATIC_REQUIRE(zbpp::policy<zbpp::v_min>);
  STATIC_REQUIRE(zbpp::policy<zbpp::interleaved_zb>);
  STATIC_REQUIRE(zbpp::policy<zbpp::dualpipe_v>);
  STATIC_REQUIRE(zbpp::policy<zbpp::stp>);
  STATIC_REQUIRE_FALSE(zbpp::policy<title_is_no_text>);
  STATIC_REQUIRE_FALSE(zbpp::policy<changes_itself>);
  STATIC_REQUIRE_FALSE(zbpp::policy<gives_passes>);
  STATIC_REQUIRE_FALSE(zbpp::policy<zbpp::any_policy>);  // its names are not the type's
}

TEST_CASE(
    "every policy runs every pass once, W in ascending order, and the same each time", "[policy]") {
  zbpp::test::for_each_schedule(
      zbpp::test::thinned<std::vector<int>>({1, 2, 3, 4, 8}, {1, 2, 3, 5}),
      [](zbpp::any_policy const& decide,
         zbpp::problem const& problem,
         zbpp::schedule const& order) {
        INFO(zbpp::test::name_of(decide, problem));
        bool is_once = true;
        bool is_ascending = true;
        std::map<zbpp::pass, int> seen;
        std::map<int, int> last_w;
        for (auto const& p : order.passes().all()) {
          ++seen[p];
          if (!p.makes_weight_gradient()) continue;
          auto const previous = last_w.emplace(p.stage, -1).first;
          is_ascending = is_ascending && previous->second < p.microbatch;
          previous->second = p.microbatch;
        }
        for (int s = 0; s < problem.stages(); ++s)
          for (int m = 0; m < problem.microbatches(); ++m) {
            auto const count = [&](zbpp::pass_kind kind) {
              auto const found = seen.find({kind, s, m});
              return found == seen.end() ? 0 : found->second;
            };
            using enum zbpp::pass_kind;
            bool const split =
                count(backward_input) == 1 && count(backward_weight) == 1 && count(backward) == 0;
            bool const fused =
                count(backward_input) == 0 && count(backward_weight) == 0 && count(backward) == 1;
            is_once = is_once && count(forward) == 1 && (split || fused);
          }
        CHECK(is_once);
        CHECK(is_ascending);
        CHECK(order == decide(problem));
      });
}

TEST_CASE("a policy that cannot schedule a problem says what it needs", "[policy]") {
  int refused = 0;
  zbpp::test::for_each_case(
      zbpp::test::thinned<std::vector<int>>({1, 2, 3, 4, 8}, {1, 2, 3, 5}),
      [&](zbpp::any_policy const& decide, zbpp::problem const& problem) {
        if (zbpp::test::is_supported(decide, problem)) return;
        ++refused;
        auto const text =
            zbpp::test::refusal(zbpp::errc::unsupported_problem, [&] { (void)decide(problem); });
        INFO(zbpp::test::name_of(decide, problem) << ": " << text);
        CHECK(text.rfind(std::string(decide.title()) + " needs a ", 0) == 0);
      });
  CHECK(refused > 100);
}

}  // namespace test_policy
