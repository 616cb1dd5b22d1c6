// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/auto_plan.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/chunk_policies.hpp>
#include <zbpp/planner/detail/bottleneck.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/search_once.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/partition.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/catch.hpp>
#include <support/exhaustive.hpp>
#include <support/random_layers.hpp>
#include <support/random_pairs.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace test_auto_plan {

using namespace zbpp;

using test::refusal;
using test::seeded_random;
using test::thinned;

namespace {

auto_plan brief(double seconds = 0.02) { return {.search = {.seconds = seconds}}; }

// Every placement that the search promises to look at, listed by hand.
std::vector<placement> all_placements(layered_problem const& model) {
  auto const p = model.placement().ranks();
  auto const layers = static_cast<int>(model.layers().size());
  std::vector<placement> list{placement::linear(p)};
  if (2 * p <= layers) list.push_back(placement::v_shape(p));
  for (int chunks = 2; chunks * p <= layers; ++chunks) list.push_back(placement::looped(p, chunks));
  if (model.placement().name() == "custom") list.push_back(model.placement());
  return list;
}

layered_problem on(layered_problem const& model, placement const& placement) {
  return {
      placement,
      model.microbatches(),
      {model.layers().begin(), model.layers().end()},
      model.transfer(),
      {model.memory_limits().begin(), model.memory_limits().end()},
      {model.rank_speeds().begin(), model.rank_speeds().end()}};
}

// Calls `visit` with every problem that placements, cuts and sets of recomputing stages make.
template <class Visit>
void for_each_problem(layered_problem const& model, Visit visit) {
  for (auto const& placement : all_placements(model)) {
    auto const uncut = on(model, placement);
    auto const count = static_cast<int>(model.layers().size());
    test::for_each_composition(count, placement.stages(), [&](std::vector<int> const& first) {
      for (unsigned set = 0; set < 1U << placement.stages(); ++set) {
        std::vector<bool> recompute;
        for (int s = 0; s < placement.stages(); ++s) recompute.push_back((set >> s & 1U) != 0);
        bool can = true;
        for (int s = 0; s < placement.stages(); ++s) {
          auto const end = s + 1 < placement.stages() ? first[detail::index(s + 1)] : count;
          bool any = false;
          for (int i = first[detail::index(s)]; i < end; ++i)
            any = any || model.layers()[detail::index(i)].recompute;
          can = can && (any || !recompute[detail::index(s)]);
        }
        if (can) visit(uncut.with(first, recompute));
      }
    });
  }
}

// The rank with the most, one microbatch at a time, whatever is recomputed: a scale for limits.
bytes usual_memory(std::vector<layer_costs> const& layers, int ranks) {
  bytes all = 0;
  for (auto const& c : layers) all += c.static_memory + 2 * c.activation;
  return all / ranks;
}

// @param plain  no recomputation, edges and workspace: most often all orders can be searched
layered_problem random_model(
    seeded_random& random, placement const& placement, int count, int microbatches, bool plain) {
  auto layers = test::random_layers(random, count);
  for (auto& c : layers) {
    if (!plain) c.static_memory /= 4;  // so that activations decide
    if (!plain) continue;
    c.recompute.reset();
    c.backward_fused.reset();
    c.recompute_input = c.edge = c.workspace = 0;
  }
  std::vector<bytes> limits;
  if (random.chance(0.6)) {
    auto const usual = usual_memory(layers, placement.ranks());
    for (int rank = 0; rank < placement.ranks(); ++rank)
      limits.push_back(usual * random.integer(plain ? 70 : 60, plain ? 200 : 120) / 100);
    if (random.chance(0.5)) limits.resize(1);
  }
  auto const hop = random.chance(0.5) ? 0 : random.integer(1, 10);
  auto speeds = test::random_speeds(random, placement.ranks());
  return {placement, microbatches, std::move(layers), hop, std::move(limits), std::move(speeds)};
}

std::optional<found_plan> try_plan(auto_plan const& settings, layered_problem const& model) {
  try {
    return settings(model);
  } catch (error const& nothing_fits) {
    INFO(nothing_fits.what());
    CHECK(nothing_fits.code() == errc::unsupported_problem);
    CHECK(nothing_fits.location().rank >= 0);
    return std::nullopt;
  }
}

void check_plan(found_plan const& found, layered_problem const& model) {
  CHECK(
      found.problem ==
      on(model, found.problem.placement()).with(found.first_layer, found.recompute));
  CHECK(cost(simulate(found.schedule, found.problem)) == found.cost);
  CHECK(verify(lower(found.schedule), found.problem).empty());  // limits are among what it judges
  CHECK(holds(found.bound, found.problem));
  CHECK(found.bound.cost <= found.cost);
  CHECK(found.lower_bound <= found.bound.cost);
  CHECK(found.is_optimal() == (found.lower_bound == found.cost));
  for (int s = 0; s < found.problem.stages(); ++s) {
    auto const& all = found.schedule.passes().all();
    bool const has_r = std::any_of(all.begin(), all.end(), [&](pass const& p) {
      return p.kind == pass_kind::recompute && p.stage == s;
    });
    CHECK(has_r == found.recompute[detail::index(s)]);
  }
}

}  // namespace

TEST_CASE("the plan of a small model is the best over placements, cuts and orders", "[auto_plan]") {
  int best = 0;
  int fitting = 0;
  int refused = 0;
  int proved = 0;
  int moved = 0;
  for (int trial = 0; trial < thinned(100, 20); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = trial % 3 == 2 ? 3 : 2;
    auto const count = static_cast<int>(random.integer(p, p == 2 ? 5 : 4));
    auto const m = static_cast<int>(random.integer(1, count > 3 ? 2 : 3));
    auto const placement =
        trial % 5 == 0 && count > p
            ? placement::custom(p == 2 ? std::vector{1, 0, 0} : std::vector{2, 0, 1, 0})
            : placement::linear(p);
    auto const model = random_model(random, placement, count, m, true);
    std::optional<ticks> least;
    for_each_problem(model, [&](problem const& one) {
      auto const cost = test::optimal_cost(one);
      if (cost && *cost < least.value_or(*cost + 1)) least = cost;
    });
    auto const found = try_plan(brief(1), model);
    CHECK(found.has_value() == least.has_value());
    ++(found ? fitting : refused);
    if (!found || !least) continue;
    check_plan(*found, model);
    CHECK(found->cost >= *least);
    if (found->is_optimal()) CHECK(found->cost == *least);
    best += found->cost == *least ? 1 : 0;
    proved += found->is_optimal() ? 1 : 0;
    moved += found->problem.placement().is_linear() ? 0 : 1;
  }
  CAPTURE(fitting, best, refused, proved, moved);
  CHECK(best * 100 >= fitting * 90);  // 94 to 100 with the seeds that were tried
  CHECK(fitting > thinned(50, 5));
  CHECK(refused > thinned(1, -1));
  CHECK(proved > thinned(25, 2));
  CHECK(moved > thinned(8, 0));
}

TEST_CASE("seldom any cut with any set of recomputing stages costs less", "[auto_plan]") {
  int fitting = 0;
  int recomputing = 0;
  int good = 0;
  for (int trial = 0; trial < thinned(40, 2); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(2, 3));
    auto const count = p + static_cast<int>(random.integer(0, 2));
    auto const m = static_cast<int>(random.integer(2, 6));
    auto const model = random_model(random, placement::linear(p), count, m, false);
    std::optional<ticks> least;
    for_each_problem(model, [&](problem const& one) {
      try {
        auto const cost = greedy_auto{.search = {.seconds = 0.008}}.find(one).cost;
        least = std::min(least.value_or(cost), cost);
      } catch (error const& does_not_fit) {
        CHECK(does_not_fit.code() == errc::unsupported_problem);
      }
    });
    auto const found = try_plan(brief(0.2), model);
    CHECK(found.has_value() == least.has_value());
    if (!found || !least) continue;
    ++fitting;
    check_plan(*found, model);
    good += found->cost <= *least ? 1 : 0;
    recomputing += std::count(found->recompute.begin(), found->recompute.end(), true) > 0 ? 1 : 0;
  }
  CAPTURE(fitting, good, recomputing);
  CHECK((good + thinned(0, 1)) * 100 >= fitting * 90);  // of few, one is more than a tenth
  CHECK(fitting > thinned(10, 0));
  CHECK(recomputing > thinned(0, -1));
}

TEST_CASE("the first chunks recompute where that costs least", "[auto_plan]") {
  int fitting = 0;
  int gaining = 0;
  for (int trial = 0; trial < thinned(30, 3); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(2, 4));
    auto const count = p * static_cast<int>(random.integer(2, 4));
    layer_costs const layer{
        .forward = random.integer(10, 20),
        .backward_input = random.integer(10, 20),
        .backward_weight = random.integer(10, 20),
        .recompute = random.integer(5, 15),
        .activation = 100,
        .weight_gradient_input = 80,
        .recompute_input = 10};
    layered_problem const model(
        placement::linear(p),
        static_cast<int>(random.integer(p, 4 * p)),
        std::vector<layer_costs>(detail::index(count), layer),
        random.integer(0, 3),
        {count * random.integer(30, 110)});
    auto const found = try_plan(brief(0), model);
    if (!found) continue;
    ++fitting;
    check_plan(*found, model);
    auto again = layer;
    again.forward += *again.recompute;
    std::vector<layer_costs> const all_again(detail::index(count), again);
    for (auto const& placement : all_placements(model)) {
      auto const first_layer = detail::bottleneck_partition(all_again, placement).first_layer;
      for (int chunks = 0; chunks <= placement.stages() / p; ++chunks) {
        CAPTURE(placement.name(), chunks);
        std::vector<bool> recompute(detail::index(placement.stages()));
        std::fill_n(recompute.begin(), chunks * p, true);
        auto const problem = on(model, placement).with(first_layer, recompute);
        if (detail::fits_memory(problem))
          CHECK(found->cost <= detail::search_once(problem, {.seconds = 0}).cost);
      }
    }
    auto const recomputing = std::count(found->recompute.begin(), found->recompute.end(), true);
    gaining += recomputing > 0 && recomputing < found->problem.stages() ? 1 : 0;
  }
  CAPTURE(fitting, gaining);
  CHECK(fitting > thinned(25, 1));
  CHECK(gaining > thinned(12, -1));
}

TEST_CASE("no partition for a policy of the registry costs less", "[auto_plan]") {
  search_settings const little{.seconds = 0.004};
  auto policies = builtin_policies();
  auto const replace = [&](any_policy const& by) {
    *std::find_if(policies.begin(), policies.end(), [&](any_policy const& one) {
      return one.name() == by.name();
    }) = by;
  };
  replace(interleaved_zb{.search = little});
  replace(v_half{.search = little});
  replace(v_min{.search = little});
  replace(greedy_auto{.search = little});
  int compared = 0;
  int worse = 0;  // than a search within less memory than there is
  for (int trial = 0; trial < thinned(5, 1); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(2, 3));
    auto const count = static_cast<int>(random.integer(2 * p, 2 * p + 1));
    auto const m = p * static_cast<int>(random.integer(1, 2));
    auto const model = random_model(random, placement::linear(p), count, m, false);
    auto const found = try_plan(brief(1), model);
    for (auto const& placement : all_placements(model))
      for (auto const& decide : policies) {
        INFO(placement.name() << " " << placement.stages() << " " << decide.name());
        try {
          auto const other = partition(on(model, placement), decide, {.schedules = 40});
          ++compared;
          REQUIRE(found.has_value());
          if (decide.name() == v_half::name || decide.name() == v_min::name)
            worse += found->cost > other.cost ? 1 : 0;
          else
            CHECK(found->cost <= other.cost);
        } catch (error const& cannot) {
          CHECK(cannot.code() == errc::unsupported_problem);
        }
      }
  }
  CAPTURE(compared, worse);
  CHECK(compared > thinned(15, 2));
  CHECK(worse * 10 <= compared);
}

TEST_CASE("a plan is what it says, twice, and no worse with more budget", "[auto_plan]") {
  int fitting = 0;
  for (int trial = 0; trial < thinned(4, 1); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const placement = test::random_placement(random);
    auto const count = placement.stages() + static_cast<int>(random.integer(0, 10));
    auto const m = static_cast<int>(random.integer(1, 12));
    auto const model = random_model(random, placement, count, m, false);
    std::optional<found_plan> last;
    double const most = thinned(0.03, 0.004);
    for (double const seconds : {0.0, 0.004, 0.01, 0.03}) {
      if (seconds > most) break;
      auto const found = try_plan(brief(seconds), model);
      CHECK((!last || found));
      if (!found) continue;
      ++fitting;
      check_plan(*found, model);
      if (last) CHECK(found->cost <= last->cost);
      last = found;
    }
    if (!last) continue;
    auto const again = brief(most)(model);
    CHECK(again.problem == last->problem);
    CHECK(again.schedule == last->schedule);
  }
  CHECK(fitting > thinned(4, 0));
}

TEST_CASE("a plan with pairs is what it says, and its bound stays below", "[auto_plan]") {
  int paired = 0;
  for (int trial = 0; trial < thinned(12, 4); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const placement = test::random_placement(random);
    auto const count = placement.stages() + static_cast<int>(random.integer(0, 4));
    auto const plain =
        random_model(random, placement, count, 2 * placement.ranks() + trial % 3, trial % 2 == 0);
    std::vector<layer_costs> layers(plain.layers().begin(), plain.layers().end());
    for (auto& c : layers)
      if (random.chance(0.8)) c.overlapped = std::max(c.forward, c.backward_input);
    layered_problem const model(
        plain.placement(),
        plain.microbatches(),
        layers,
        plain.transfer(),
        {plain.memory_limits().begin(), plain.memory_limits().end()});
    auto const found = try_plan(brief(0.004), model);
    if (!found) continue;
    check_plan(*found, model);
    paired += static_cast<int>(zbpp::test::pairs_in(found->schedule));
  }
  CHECK(paired > 0);
}

TEST_CASE("with more memory no plan of a frontier costs more", "[auto_plan][long]") {
  int points = 0;
  for (int trial = 0; trial < thinned(8, 3); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(2, 3));
    auto const count = static_cast<int>(random.integer(p, 8));
    auto const model = random_model(random, placement::linear(p), count, 2 * p, false);
    auto const usual = usual_memory({model.layers().begin(), model.layers().end()}, p);
    std::vector<bytes> limits;
    for (int percent : {180, 60, 90, 120, 90}) limits.push_back(usual * percent / 100);
    auto const settings = brief(0.006);
    auto const frontier = settings.frontier(model, limits);
    for (std::size_t i = 0; i < frontier.size(); ++i) {
      auto const& found = frontier[i];
      auto const limit = found.problem.memory_limits().front();
      layered_problem const limited(
          model.placement(),
          model.microbatches(),
          {model.layers().begin(), model.layers().end()},
          model.transfer(),
          {limit},
          {model.rank_speeds().begin(), model.rank_speeds().end()});
      ++points;
      check_plan(found, limited);
      CHECK(std::find(limits.begin(), limits.end(), limit) != limits.end());
      if (auto const alone = try_plan(settings, limited)) CHECK(found.cost <= alone->cost);
      if (i == 0) continue;
      CHECK(limit > frontier[i - 1].problem.memory_limits().front());
      CHECK(found.cost <= frontier[i - 1].cost);
      CHECK(found.lower_bound <= frontier[i - 1].lower_bound);
    }
  }
  CAPTURE(points);
  CHECK(points > thinned(15, 4));
  layered_problem const any(placement::linear(2), 2, std::vector<layer_costs>(2));
  CHECK(brief().frontier(any, {}).empty());
}

TEST_CASE("of placements that cost the same the fewest stages are taken", "[auto_plan]") {
  layer_costs const layer{.forward = 5, .backward_input = 5, .backward_weight = 5};
  auto const best = [&](placement const& placement, int count, ticks hop) {
    layered_problem const model(
        placement, 4, std::vector<layer_costs>(static_cast<std::size_t>(count), layer), hop);
    return brief()(model).problem.placement();
  };
  CHECK(best(placement::linear(1), 6, 0) == placement::linear(1));
  CHECK(best(placement::custom({0, 0, 0}), 6, 0) == placement::linear(1));
  // With so long a hop chunks only wait for each other.
  CHECK(best(placement::v_shape(2), 8, 5000) == placement::linear(2));
}

TEST_CASE("a head that is split costs less than any plan with the whole head", "[auto_plan]") {
  auto const found = [](int heads, ticks time) {
    std::vector<layer_costs> layers(
        28, {.forward = 10, .backward_input = 10, .backward_weight = 10, .edge = 1});
    layers.resize(
        28 + detail::index(heads),
        {.forward = time, .backward_input = time, .backward_weight = time, .edge = 1});
    return brief()(layered_problem(placement::linear(4), 16, std::move(layers), 1));
  };
  auto const whole = found(1, 120);
  auto const split = found(4, 30);
  CHECK(whole.lower_bound == 16 * 3 * 120);           // the rank of the head does nothing else
  CHECK(split.cost == 16 * 3 * (28 * 10 + 120) / 4);  // and now all ranks have the same work
  CHECK(split.is_optimal());
}

TEST_CASE("a model that fits nowhere is refused with what would do", "[auto_plan]") {
  layer_costs const layer{
      .forward = 5,
      .backward_input = 5,
      .backward_weight = 5,
      .activation = 10,
      .static_memory = 90};
  auto const model = [&](bytes limit) {
    return layered_problem(placement::linear(2), 4, std::vector<layer_costs>(7, layer), 0, {limit});
  };
  CHECK(
      refusal(errc::unsupported_problem, [&] { (void)brief()(model(390)); }) ==
      "rank 0: no partition that was tried fits, on any placement: the closest, linear, needs 400 "
      "bytes, the limit is 390; it fits when every limit is higher by 10");
  CHECK(brief()(model(400)).cost > 0);
  CHECK(brief().frontier(model(1), std::vector<bytes>{399, 400}).size() == 1);
}

TEST_CASE("a search over placements tells how far it is and can be stopped", "[auto_plan]") {
  ZBPP_SEEDED(random, 1);
  auto const layers = test::random_layers(random, 14);
  layered_problem const model(
      placement::linear(3), 9, layers, 7, {usual_memory(layers, 3) * 6 / 5});  // hard to prove
  double last = 0;
  bool ascends = true;
  int calls = 0;
  ticks least = 0;
  auto settings = brief(0.1);
  settings.search.on_progress = [&](search_progress const& now) {
    ascends = ascends && now.spent >= last && now.spent <= 1 && now.lower_bound <= now.cost;
    last = now.spent;
    least = now.cost;
    ++calls;
  };
  auto const found = settings(model);
  CHECK(ascends);
  CHECK(calls > 3);
  CHECK(last > 0.5);
  CHECK(least >= found.cost);

  std::stop_source stop;
  auto endless = brief(1e6);
  endless.search.stop = stop.get_token();
  endless.search.on_progress = [&](search_progress const& now) {
    if (now.spent > 0) stop.request_stop();
  };
  check_plan(endless(model), model);  // stopped on its way
  check_plan(endless(model), model);  // stopped before it begins

  int asked = 0;
  auto const counting = [&](problem const& one) {
    if (++asked == 7) stop.request_stop();
    return gpipe{}(one);
  };
  stop = std::stop_source();
  auto const cut = partition(
      layered_problem(placement::linear(2), 3, std::vector<layer_costs>(40, {.forward = 1})),
      counting,
      {.schedules = 1000, .stop = stop.get_token()});
  CHECK(asked == 7);
  CHECK(cut.tries == 7);
}

TEST_CASE("settings out of range are refused", "[auto_plan]") {
  layered_problem const model(placement::linear(2), 2, std::vector<layer_costs>(4));
  CHECK(refusal([&] {
          (void)brief(-1)(model);
        }) == "a budget of -1.000000 seconds; it lies between 0 and 1000000.000000");
  CHECK(refusal([&] {
          (void)auto_plan{.search = {}, .most_chunks = 1}(model);
        }) == "most_chunks is less than 2; a looped placement has at least 2");
  CHECK(refusal([&] {
          (void)brief().frontier(model, std::vector<bytes>{-1});
        }) == "memory_limit is -1; a limit is at least 0 bytes");
}

}  // namespace test_auto_plan
