// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/detail/order_search.hpp>
// What the checks need besides.
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/list_scheduler.hpp>

#include <support/catch.hpp>
#include <support/random_rules.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace test_pass_network {

using zbpp::bytes;
using zbpp::problem;
using zbpp::detail::list_scheduler;
using zbpp::detail::never;
using zbpp::detail::pass_network;
using zbpp::test::seeded_random;
using zbpp::test::thinned;

namespace {

struct trial {
  zbpp::problem problem;
  std::vector<bytes> room;
  zbpp::schedule order;
};

trial some_trial(seeded_random& random) {
  auto const [problem, rules] = zbpp::test::some_trial(random, false, random.chance(0.5));
  list_scheduler engine(problem);
  REQUIRE(engine.run(rules) != never);
  std::vector<bytes> room;
  for (int rank = 0; rank < problem.ranks(); ++rank) room.push_back(engine.room(rank));
  return {problem, std::move(room), engine.order()};
}

// Moves a pass before others of its rank, as far as it may and no farther than a few.
// @return whether there was room
bool move_some(pass_network& network, seeded_random& random) {
  auto const rank = static_cast<int>(random.integer(0, network.ranks() - 1));
  auto const begin = network.begin(rank);
  auto const at = static_cast<int>(random.integer(begin, network.end(rank) - 1));
  auto const farthest = std::max(begin, at - static_cast<int>(random.integer(1, 6)));
  auto const pass = network.at(at);
  std::vector<std::int32_t> passes{pass};
  auto first = at;
  while (first > farthest && network.may_go_before(pass, network.at(first - 1))) --first;
  for (int i = first; i < at; ++i) passes.push_back(network.at(i));
  if (first == at || network.estimate(first, passes, never - 1) == never) return false;
  network.move(first, passes);
  return true;
}

// A network of an order.
pass_network loaded(trial const& of) {
  pass_network network(of.problem, of.room);
  network.load(of.order);
  return network;
}

// Compares a network with another one, which loads its order anew.
void check_anew(pass_network const& network, pass_network& fresh) {
  fresh.load(network.order());
  CHECK(network.row() == fresh.row());
  CHECK(network.cost() == fresh.cost());
  int different = 0;
  for (int rank = 0; rank < network.ranks(); ++rank)
    for (int i = network.begin(rank); i < network.end(rank); ++i) {
      auto const x = network.at(i);
      bool const is_equal = network.head(x) == fresh.head(x) && network.tail(x) == fresh.tail(x) &&
                            network.position(x) == i && network.lack(x, i) == fresh.lack(x, i);
      different += is_equal ? 0 : 1;
    }
  CHECK(different == 0);
}

}  // namespace

TEST_CASE("after any moves, times are those of the whole order", "[pass_network]") {
  int moves = 0;
  for (int i = 0; i < thinned(200, 100); ++i) {
    ZBPP_SEEDED(random, static_cast<std::uint64_t>(i));
    auto const some = some_trial(random);
    auto network = loaded(some);
    auto fresh = loaded(some);
    pass_network::kept_order kept;
    network.keep(kept);
    for (int round = 0; round < 12; ++round) {
      // Tails are told after one move or after some.
      for (auto n = random.integer(1, 3); n > 0; --n) moves += move_some(network, random) ? 1 : 0;
      network.time_tails();
      check_anew(network, fresh);
      CHECK(network.cost() == cost(zbpp::simulate(network.order(), some.problem)));
      if (random.chance(0.2)) network.keep(kept);
      if (random.chance(0.2)) {
        network.go_back(kept);
        check_anew(network, fresh);
      }
    }
  }
  CHECK(moves > thinned(1000, 500));
}

TEST_CASE("it goes back to an order that was kept, also in the midst of moves", "[pass_network]") {
  for (int i = 0; i < thinned(100, 50); ++i) {
    ZBPP_SEEDED(random, static_cast<std::uint64_t>(i));
    auto const some = some_trial(random);
    auto network = loaded(some);
    auto fresh = loaded(some);
    pass_network::kept_order kept;
    network.keep(kept);
    for (int n = 0; n < 5; ++n) move_some(network, random);
    network.go_back(kept);
    CHECK(network.order() == some.order);
    check_anew(network, fresh);
    for (int n = 0; n < 5; ++n) move_some(network, random);
    network.time_tails();
    check_anew(network, fresh);
  }
}

}  // namespace test_pass_network
