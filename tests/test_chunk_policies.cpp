// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/memory.hpp>
#include <zbpp/planner/chunk_policies.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/zb_v.hpp>
#include <zbpp/policy/fixed_zb_v.hpp>
#include <zbpp/policy/interleaved.hpp>

#include <support/catch.hpp>
#include <support/changed_problems.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace test_chunk_policies {

using namespace zbpp;

using test::with_gradients;
using test::with_limits;

namespace {

constexpr int trials = test::thinned(60, 20);
constexpr double brief = 0.002;  // a search that is over before anybody looks up

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

TEST_CASE("V-Half and V-Min keep their budget and the limits of the problem", "[chunk_policies]") {
  int limited = 0;
  for (int trial = 0; trial < trials; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 6));
    auto const m = static_cast<int>(random.integer(1, 3 * p));
    auto what = uneven(random, placement::v_shape(p), m, random.chance(0.5));
    if (trial % 4 >= 2) what = with_gradients(random, what);
    if (trial % 2 == 1) what = with_limits(what, some_limits(random, what, fixed_zb_v{}(what)));
    auto const check = [&](schedule const& order, int most) {
      auto const peaks = peak_activations(order, what);
      for (int rank = 0; rank < p; ++rank)
        CHECK(peaks[detail::index(rank)] <= most * microbatch_of(what, rank));
      CHECK(verify(lower(order), what).empty());
      CHECK(w_ascends(order));
      limited += peaks != peak_activations(fixed_zb_v{}(what), what) ? 1 : 0;
    };
    INFO("p " << p << ", m " << m);
    check(v_half{.search = {.seconds = brief}}(what), (p + 2) / 2);
    check(v_min{.search = {.seconds = brief}}(what), (p + 4) / 3);
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
        search_settings const search{.seconds = p < 8 ? 0.02 : 0.15};
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
    auto const what = uneven(random, placement::v_shape(p), m, true);
    auto const known = fixed_zb_v{}(what);
    auto const peaks = peak_activations(known, what);
    bool fits = true;
    for (int rank = 0; rank < p; ++rank)
      fits = fits && peaks[detail::index(rank)] <= (p + 2) / 2 * microbatch_of(what, rank);
    if (!fits) continue;
    ++fitting;
    CHECK(cost_of(v_half{.search = {.seconds = 0}}(what), what) <= cost_of(known, what));
  }
  CHECK(fitting > trials / 3);
}

TEST_CASE("ZB-V is its own order where that fits, else one that does", "[chunk_policies][zb_v]") {
  int searched = 0;
  for (int trial = 0; trial < trials; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 5));
    auto const m = static_cast<int>(random.integer(1, 4 * p));
    auto free = uneven(random, placement::v_shape(p), m);
    if (trial % 2 == 1) free = with_gradients(random, free);
    zb_v const decide{.search = {.seconds = brief}};
    auto const own = fixed_zb_v{}(free);
    CHECK(decide(free) == own);
    std::vector<bytes> enough;
    for (auto const& peak : peak_memory(lower(own), free)) enough.push_back(peak.total);
    CHECK(decide(with_limits(free, enough)) == own);
    // One byte less on one rank is either too little for any order, or searched for.
    auto const rank = detail::index(random.integer(0, p - 1));
    auto const least = least_memory(free)[rank];
    --enough[rank];
    auto const what = with_limits(free, enough);
    if (enough[rank] < least) {
      CHECK(test::refusal(errc::unsupported_problem, [&] {
              (void)decide(what);
            }).find("no schedule fits") != std::string::npos);
      continue;
    }
    auto const order = decide(what);
    CHECK(order != own);
    CHECK(verify(lower(order), what).empty());
    CHECK(w_ascends(order));
    ++searched;
  }
  CHECK(searched > trials / 2);
}

TEST_CASE("ZB-I is no worse than 1F1B-I, in its memory", "[chunk_policies]") {
  int better = 0;
  for (int trial = 0; trial < trials; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 5));
    auto const v = static_cast<int>(random.integer(1, 4));
    auto const groups = static_cast<int>(random.integer(1, 4));
    auto what = uneven(random, placement::looped(p, v), p * groups, random.chance(0.5));
    if (trial % 2 == 1) what = with_gradients(random, what);
    auto const plain = interleaved{}(what);
    auto const most = peak_activations(plain, what);
    INFO("p " << p << ", v " << v << ", m " << p * groups);
    interleaved_zb const decide{.search = {.seconds = brief}};
    auto const order = decide(what);
    auto const peaks = peak_activations(order, what);
    for (int rank = 0; rank < p; ++rank)
      CHECK(peaks[detail::index(rank)] <= most[detail::index(rank)]);
    CHECK(verify(lower(order), what).empty());
    CHECK(w_ascends(order));
    CHECK(cost_of(order, what) <= cost_of(plain, what));
    better += cost_of(order, what) < cost_of(plain, what) ? 1 : 0;
  }
  CHECK(better > trials / 3);
}

TEST_CASE("ZB-I takes any number of microbatches and keeps limits", "[chunk_policies]") {
  for (int trial = 0; trial < trials; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 4));
    auto const v = static_cast<int>(random.integer(1, 3));
    auto const m = static_cast<int>(random.integer(1, 3 * p));
    auto const free = uneven(random, placement::looped(p, v), m);
    interleaved_zb const decide{.search = {.seconds = brief}};
    auto const what = with_limits(free, some_limits(random, free, decide(free)));
    INFO("p " << p << ", v " << v << ", m " << m);
    auto const order = decide(what);
    CHECK(verify(lower(order), what).empty());
    CHECK(w_ascends(order));
    problem const whole_groups(
        free.placement(), (m + p - 1) / p * p, {free.all_costs().begin(), free.all_costs().end()});
    auto const most = peak_activations(interleaved{}(whole_groups), whole_groups);
    auto const peaks = peak_activations(order, what);
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
