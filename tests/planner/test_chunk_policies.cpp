// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/memory.hpp>
#include <zbpp/planner/chunk_policies.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/interleaved.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <support/catch.hpp>
#include <support/changed_problems.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace test_chunk_policies {

using namespace zbpp;

using test::with_gradients;
using test::with_limits;

namespace {

constexpr int trials = test::thinned(60, 20);
constexpr double brief = 0.008;  // a search that is over before anybody looks up

// Everything that takes memory takes some; no two stages are alike.
problem uneven(
    test::seeded_random& random,
    placement const& placement,
    int microbatches,
    bool in_rates = false) {
  std::vector<stage_costs> stages;
  auto const sizes = random.integer(0, 40);
  auto const workspace = random.integer(0, 90);
  for (int s = 0; s < placement.stages(); ++s) {
    stage_costs c;
    c.forward = random.integer(50, 150);
    c.backward_input = random.integer(50, 150);
    c.backward_weight = random.integer(20, 150);
    if (random.chance(0.3))
      c.backward_fused = std::max(c.backward_input, c.backward_weight) + random.integer(0, 20);
    c.activation = random.integer(50, 150);
    c.weight_gradient_input = random.integer(0, c.activation);
    c.static_memory = random.integer(0, 500);
    c.workspace = workspace;
    c.edge = in_rates ? sizes : random.integer(0, sizes);
    stages.push_back(c);
  }
  if (!in_rates) return {placement, microbatches, stages, random.integer(0, 20)};
  auto const pairs = static_cast<std::size_t>(placement.ranks()) * detail::index(placement.ranks());
  return {
      placement,
      microbatches,
      stages,
      transfer_costs(
          placement.ranks(), std::vector<ticks>(pairs, 5), std::vector<double>(pairs, 0.25))};
}

// What a rank holds of one microbatch between F and B.
bytes microbatch_of(problem const& problem, int rank) {
  bytes sum = 0;
  for (int s : problem.placement().stages_of(rank)) sum += problem.costs(s).activation;
  return sum;
}

bool w_ascends(schedule const& order) {
  std::map<int, int> last;
  for (auto const& p : order.passes().all())
    if (p.makes_weight_gradient() &&
        std::exchange(last.emplace(p.stage, -1).first->second, p.microbatch) > p.microbatch)
      return false;
  return true;
}

ticks cost_of(schedule const& order, problem const& problem) {
  return cost(simulate(order, problem));
}

// A limit for each rank, between what it needs at least and what an order without limits takes.
std::vector<bytes> some_limits(
    test::seeded_random& random, problem const& problem, schedule const& free) {
  auto const most = peak_memory(lower(free), problem);
  auto least = least_memory(problem);
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    auto& limit = least[detail::index(rank)];
    limit = random.integer(limit, std::max(limit, most[detail::index(rank)].total));
  }
  return least;
}

}  // namespace

TEST_CASE(
    "V-Half and V-Min keep their budget and the limits of the problem", "[chunk_policies][long]") {
  int limited = 0;
  for (int trial = 0; trial < trials; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 6));
    auto const m = static_cast<int>(random.integer(1, 3 * p));
    auto problem = uneven(random, placement::v_shape(p), m, random.chance(0.5));
    if (trial % 4 >= 2) problem = with_gradients(random, problem);
    if (trial % 2 == 1)
      problem = with_limits(problem, some_limits(random, problem, zb_v{}(problem)));
    auto const check = [&](schedule const& order, int most) {
      auto const peaks = peak_activations(order, problem);
      for (int rank = 0; rank < p; ++rank)
        CHECK(peaks[detail::index(rank)] <= most * microbatch_of(problem, rank));
      CHECK(verify(lower(order), problem).empty());
      CHECK(w_ascends(order));
      limited += peaks != peak_activations(zb_v{}(problem), problem) ? 1 : 0;
    };
    INFO("p " << p << ", m " << m);
    check(v_half{.search = {.seconds = brief}}(problem), (p + 2) / 2);
    check(v_min{.search = {.seconds = brief}}(problem), (p + 4) / 3);
  }
  CHECK(limited > trials);
}

TEST_CASE(
    "for equal times V-Half and V-Min have the bubble they are known for", "[chunk_policies]") {
  for (int p : test::thinned<std::vector<int>>({4, 5, 8, 16}, {4, 5}))
    for (int m : {3 * p, 8 * p})
      for (bytes kept_for_w : {50, 100}) {
        INFO("p " << p << ", m " << m << ", W keeps " << kept_for_w << " of 100");
        problem const problem(
            placement::v_shape(p),
            m,
            stage_costs{
                .forward = 100,
                .backward_input = 100,
                .backward_weight = 100,
                .activation = 100,
                .weight_gradient_input = kept_for_w});
        search_settings const search{.seconds = p < 8 ? 0.1 : 0.75};
        // (cost - work) / cost <= p / (2m), and 2p / (3m)
        auto const half = cost_of(v_half{.search = search}(problem), problem);
        CHECK(2 * m * (half - 600 * m) <= p * half);
        auto const least = cost_of(v_min{.search = search}(problem), problem);
        CHECK(3 * m * (least - 600 * m) <= 2 * p * least);
      }
}

TEST_CASE("V-Half is no worse than ZB-V where that fits its budget", "[chunk_policies]") {
  int fitting = 0;
  for (int trial = 0; trial < trials; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 4));
    auto const m = static_cast<int>(random.integer(1, p));
    auto const problem = uneven(random, placement::v_shape(p), m, true);
    auto const known = zb_v{}(problem);
    auto const peaks = peak_activations(known, problem);
    bool fits = true;
    for (int rank = 0; rank < p; ++rank)
      fits = fits && peaks[detail::index(rank)] <= (p + 2) / 2 * microbatch_of(problem, rank);
    if (!fits) continue;
    ++fitting;
    CHECK(cost_of(v_half{.search = {.seconds = 0}}(problem), problem) <= cost_of(known, problem));
  }
  CHECK(fitting > trials / 3);
}

TEST_CASE(
    "where the order of ZB-V fits greedy_auto costs no more, else it finds one that fits",
    "[chunk_policies][zb_v][long]") {
  int searched = 0;
  for (int trial = 0; trial < trials; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 5));
    auto const m = static_cast<int>(random.integer(1, 4 * p));
    auto free = uneven(random, placement::v_shape(p), m);
    if (trial % 2 == 1) free = with_gradients(random, free);
    greedy_auto const decide{.search = {.seconds = brief}};
    auto const own = zb_v{}(free);
    auto const check_as_cheap = [&](problem const& problem) {
      auto const order = decide(problem);
      CHECK(cost_of(order, problem) <= cost_of(own, problem));
      CHECK(verify(lower(order), problem).empty());
    };
    check_as_cheap(free);
    std::vector<bytes> enough;
    for (auto const& peak : peak_memory(lower(own), free)) enough.push_back(peak.total);
    check_as_cheap(with_limits(free, enough));
    // One byte less on one rank is either too little for any order, or searched for.
    auto const rank = detail::index(random.integer(0, p - 1));
    auto const least = least_memory(free)[rank];
    --enough[rank];
    auto const model = with_limits(free, enough);
    if (enough[rank] < least) {
      CHECK(test::refusal(errc::unsupported_problem, [&] {
              (void)decide(model);
            }).find("no schedule fits") != std::string::npos);
      continue;
    }
    auto const order = decide(model);
    CHECK(order != own);
    CHECK(verify(lower(order), model).empty());
    CHECK(w_ascends(order));
    ++searched;
  }
  CHECK(searched > trials / 2);
}

TEST_CASE(
    "a policy that chooses costs no more than one of the registry that keeps no more",
    "[chunk_policies][long]") {
  // Chunks that a rank keeps at most, as the documentation says.
  constexpr int as_interleaved = 0;
  constexpr int any = std::numeric_limits<int>::max();
  auto const kept = [](std::string_view policy, problem const& problem) {
    auto const p = problem.ranks();
    auto const of_microbatches = [&](int most) {
      return 2 * std::min(most, problem.microbatches());
    };
    if (policy == "zb_v") return of_microbatches(p);
    if (policy == "v_half") return of_microbatches((p + 2) / 2);
    if (policy == "v_min") return of_microbatches((p + 4) / 3);
    bool const is_interleaved =
        policy == "interleaved" || policy == "interleaved_zb" || policy == "grouped_interleaved";
    return is_interleaved || policy == "one_f_one_b" ? as_interleaved : any;
  };
  auto const policies = builtin_policies();
  int compared = 0;
  int cheaper = 0;
  auto const compare = [&](problem const& problem) {
    std::map<std::string_view, ticks> costs;
    for (auto const& policy : policies) try {
        costs[policy.name()] = cost_of(policy(problem, {.seconds = brief}), problem);
      } catch (error const& refused) {
        REQUIRE(refused.code() == errc::unsupported_problem);
      }
    for (auto const& [chooser, taken] : costs)
      for (auto const& [other, least] : costs) {
        bool const chooses = find_policy(chooser, policies).searches();
        if (!chooses || chooser == other || kept(other, problem) > kept(chooser, problem)) continue;
        INFO(chooser << " " << taken << ", " << other << " " << least);
        CHECK(taken <= least);
        ++compared;
        cheaper += taken < least ? 1 : 0;
      }
  };
  for (int p : test::thinned<std::vector<int>>({2, 4, 5}, {2, 3}))
    for (int m : {1, p - 1, p, p + 1, 2 * p - 2, 2 * p + 1}) {
      for (auto const& placement :
           {placement::linear(p), placement::v_shape(p), placement::looped(p, 2)}) {
        INFO("p " << p << ", m " << m << ", " << placement.name());
        auto const even = [&](ticks f, ticks b, ticks w, ticks hop) {
          compare(
              {placement,
               m,
               stage_costs{
                   .forward = f,
                   .backward_input = b,
                   .backward_weight = w,
                   .activation = 10,
                   .weight_gradient_input = 5},
               hop});
        };
        even(10, 10, 10, 0);
        even(10, 13, 7, 3);
        ZBPP_SEEDED(random, 100 * p + m);
        std::vector<stage_costs> stages;
        for (int s = 0; s < placement.stages(); ++s)
          stages.push_back(
              {.forward = random.integer(50, 150),
               .backward_input = random.integer(50, 150),
               .backward_weight = random.integer(20, 150),
               .activation = 10,
               .weight_gradient_input = random.integer(0, 10)});
        compare({placement, m, stages, random.integer(0, 20)});
      }
    }
  CHECK(cheaper > compared / 4);
}

TEST_CASE("ZB-I is no worse than 1F1B-I, in its memory", "[chunk_policies]") {
  int better = 0;
  for (int trial = 0; trial < trials; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 5));
    auto const v = static_cast<int>(random.integer(1, 4));
    auto const m = static_cast<int>(random.integer(1, 4 * p));
    auto problem = uneven(random, placement::looped(p, v), m, random.chance(0.5));
    if (trial % 2 == 1) problem = with_gradients(random, problem);
    auto const plain = interleaved{}(problem);
    auto const most = peak_activations(plain, problem);
    INFO("p " << p << ", v " << v << ", m " << m);
    interleaved_zb const decide{.search = {.seconds = brief}};
    auto const order = decide(problem);
    auto const peaks = peak_activations(order, problem);
    for (int rank = 0; rank < p; ++rank)
      CHECK(peaks[detail::index(rank)] <= most[detail::index(rank)]);
    CHECK(verify(lower(order), problem).empty());
    CHECK(w_ascends(order));
    CHECK(cost_of(order, problem) <= cost_of(plain, problem));
    better += cost_of(order, problem) < cost_of(plain, problem) ? 1 : 0;
  }
  CHECK(better > trials / 3);
}

TEST_CASE("ZB-I keeps limits", "[chunk_policies]") {
  for (int trial = 0; trial < trials; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 4));
    auto const v = static_cast<int>(random.integer(1, 3));
    auto const m = static_cast<int>(random.integer(1, 3 * p));
    auto const free = uneven(random, placement::looped(p, v), m);
    interleaved_zb const decide{.search = {.seconds = brief}};
    auto const problem = with_limits(free, some_limits(random, free, decide(free)));
    INFO("p " << p << ", v " << v << ", m " << m);
    auto const order = decide(problem);
    CHECK(verify(lower(order), problem).empty());
    CHECK(w_ascends(order));
    auto const most = peak_activations(interleaved{}(free), free);
    auto const peaks = peak_activations(order, problem);
    for (int rank = 0; rank < p; ++rank)
      CHECK(peaks[detail::index(rank)] <= most[detail::index(rank)]);
  }
}

TEST_CASE("policies of several chunks say what they need", "[chunk_policies]") {
  auto const refused =
      [](auto const& decide, placement const& placement, std::vector<bytes> limits) {
        problem const problem(placement, 3, stage_costs{.activation = 10}, {}, std::move(limits));
        return test::refusal(errc::unsupported_problem, [&] { (void)decide(problem); });
      };
  CHECK(
      refused(v_half{}, placement::linear(2), {}) ==
      "V-Half needs a v placement, two stages per rank; this one is linear");
  CHECK(
      refused(v_min{}, placement::looped(2, 2), {}) ==
      "V-Min needs a v placement, two stages per rank; this one is looped");
  CHECK(
      refused(interleaved_zb{}, placement::v_shape(2), {}) ==
      "ZB-I needs a looped placement; this one is v");
  std::string const text = "rank 0: no schedule fits: the rank needs 20 bytes for one microbatch "
                           "at a time, its limit is "
                           "19; the least limit that works for every rank is 20";
  CHECK(refused(v_half{}, placement::v_shape(2), {19}) == text);
  CHECK(refused(v_min{}, placement::v_shape(2), {19}) == text);
  CHECK(refused(interleaved_zb{}, placement::looped(2, 2), {19}) == text);
}

}  // namespace test_chunk_policies
