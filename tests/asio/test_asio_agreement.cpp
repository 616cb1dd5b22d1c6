// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/detail/agreement_wire.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/runtime/agreement.hpp>

#include <support/catch.hpp>
#include <support/policy_grid.hpp>
#include <support/random_problem.hpp>
#include <support/random_timeline.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace test_asio_agreement {

using namespace zbpp;
using namespace zbpp::test;

namespace {

using items = std::vector<agreement_item>;
using names = std::set<std::string>;

// All that a problem is made from, so that one number can be changed.
struct parts {
  zbpp::placement placement = zbpp::placement::linear(1);
  int microbatches = 1;
  std::vector<stage_costs> costs = {};
  int table_ranks = 0;
  std::vector<ticks> latency = {0};
  std::vector<double> rates = {};
  std::vector<bytes> limits = {};

  [[nodiscard]] problem make() const {
    auto const transfer = table_ranks == 0 ? transfer_costs(latency.front())
                                           : transfer_costs(table_ranks, latency, rates);
    return {placement, microbatches, costs, transfer, limits};
  }
};

// Costs each of which can grow by one.
stage_costs roomy_costs(seeded_random& random) {
  auto costs = random_costs(random);
  costs.forward += 3;
  costs.backward_input += 2;
  costs.backward_weight += 2;
  if (costs.backward_fused)
    costs.backward_fused = std::max(costs.backward_input, costs.backward_weight) + 1;
  if (costs.overlapped) costs.overlapped = std::max(costs.forward, costs.backward_input) + 1;
  if (costs.overlapped_fused) {
    // So that it may be left out, and B and W may move by one.
    costs.backward_fused = costs.backward_input + costs.backward_weight - 1;
    costs.overlapped_fused = std::max(costs.forward, *costs.backward_fused + 1) + 1;
  }
  costs.activation = std::max(costs.weight_gradient_input, costs.recompute_input) + 2;
  ++costs.weight_gradient_input;  // so that B can add one more
  return costs;
}

parts random_parts(seeded_random& random, schedule const& order) {
  parts result{.placement = order.placement(), .microbatches = order.microbatches()};
  for (int s = 0; s < order.stages(); ++s) result.costs.push_back(roomy_costs(random));
  auto const ranks = static_cast<std::size_t>(order.ranks());
  if (random.chance(0.7)) {
    result.table_ranks = order.ranks();
    result.latency.resize(ranks * ranks);
    for (auto& entry : result.latency) entry = random_magnitude(random, 9);
    result.rates.resize(random.chance(0.7) ? ranks * ranks : 0);
    for (auto& entry : result.rates) entry = random.real();
  }
  result.limits.resize(random.chance(0.3) ? 0 : random.chance(0.5) ? 1 : ranks);
  for (auto& limit : result.limits) limit = random_magnitude(random, 15);
  return result;
}

// The parts of a plan, each of which can be changed alone.
struct plan_parts {
  std::string policy;
  zbpp::problem problem;
  zbpp::schedule schedule;
  zbpp::program program;
};

items fingerprint_of(plan_parts const& all) {
  return fingerprint(all.policy, all.problem, all.schedule, all.program);
}

plan_parts random_plan(seeded_random& random, parts& from) {
  auto order = random_schedule(random, 0.8);
  from = random_parts(random, order);
  auto code = lower(order, {.receive_ahead = static_cast<int>(random.integer(0, 2))});
  return {"some policy", from.make(), std::move(order), std::move(code)};
}

names changed(items const& before, items const& after) {
  names result;
  REQUIRE(before.size() == after.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    REQUIRE(before[i].name == after[i].name);
    if (before[i] != after[i]) result.insert(before[i].name);
  }
  return result;
}

// Each change of one thing, with the items that name it.
struct mutation {
  names expected;
  plan_parts changed;
};

// What follows where an optional cost is not said.
ticks usual_of(detail::cost_field const& field, stage_costs const& c) {
  if (field.name == "backward_fused") return c.backward_input + c.backward_weight;
  if (field.name == "overlapped") return c.forward + c.backward_input;
  return field.name == "recompute" ? 0 : c.forward + c.of(pass_kind::backward);
}

void add_cost_mutations(plan_parts const& base, parts const& from, std::vector<mutation>& all) {
  auto const add = [&](std::size_t stage, auto apply) {
    auto other = from;
    apply(other.costs[stage]);
    mutation m{{"costs of stage " + std::to_string(stage)}, base};
    m.changed.problem = other.make();
    all.push_back(std::move(m));
  };
  for (std::size_t s = 0; s < from.costs.size(); ++s)
    for (auto const& field : detail::cost_fields) {
      auto const value = field.of(from.costs[s]);
      if (value) add(s, [&](stage_costs& c) { field.set(c, *value + 1); });
      if (field.optional == nullptr) continue;
      if (value) add(s, [&](stage_costs& c) { (c.*field.optional).reset(); });
      // What is not said is not the same as what follows from not saying it.
      if (!value) add(s, [&](stage_costs& c) { field.set(c, usual_of(field, c)); });
      if (!value && field.kind == detail::cost_kind::joint)
        add(s, [&](stage_costs& c) { field.set(c, usual_of(field, c) - 1); });
    }
}

void add_problem_mutations(plan_parts const& base, parts const& from, std::vector<mutation>& all) {
  auto const add = [&](char const* name, auto apply) {
    auto other = from;
    apply(other);
    mutation m{{name}, base};
    m.changed.problem = other.make();
    all.push_back(std::move(m));
  };
  add("number of microbatches", [](parts& p) { ++p.microbatches; });
  for (std::size_t i = 0; i < from.latency.size(); ++i)
    add("transfers", [i](parts& p) { ++p.latency[i]; });
  for (std::size_t i = 0; i < from.rates.size(); ++i)
    add("transfers", [i](parts& p) { p.rates[i] += 0x1p-40; });
  add("transfers", [](parts& p) {
    auto const ranks = static_cast<std::size_t>(p.placement.ranks());
    if (p.table_ranks == 0) {
      p.latency.assign(ranks * ranks, p.latency.front());
      p.table_ranks = p.placement.ranks();
    } else if (p.rates.empty()) {
      p.rates.assign(ranks * ranks, 0);
    } else {
      p.rates.clear();
    }
  });
  for (std::size_t i = 0; i < from.limits.size(); ++i)
    add("memory limits", [i](parts& p) { ++p.limits[i]; });
  add("memory limits", [](parts& p) {
    if (p.limits.empty())
      p.limits.push_back(0);
    else
      p.limits.clear();
  });
  if (from.placement.ranks() > 1)
    add("placement", [](parts& p) {
      auto const now = p.placement.rank_of_stages();
      std::vector<int> list(now.begin(), now.end());
      for (int& rank : list) rank = rank == 0 ? 1 : rank == 1 ? 0 : rank;
      p.placement = placement::custom(list);
    });
}

void add_order_mutations(plan_parts const& base, std::vector<mutation>& all) {
  auto const passes = base.schedule.passes().nested();
  for (std::size_t r = 0; r < passes.size(); ++r) {
    auto const add = [&](auto apply) {
      auto other = passes;
      apply(other[r]);
      mutation m{{"passes of rank " + std::to_string(r)}, base};
      m.changed.schedule = schedule(base.schedule.placement(), base.schedule.microbatches(), other);
      all.push_back(std::move(m));
    };
    if (passes[r].empty()) continue;
    add([](auto& row) { row.pop_back(); });
    add([](auto& row) {
      row[0].kind = row[0].kind == pass_kind::forward ? pass_kind::backward : pass_kind::forward;
    });
    if (passes[r].size() > 1) add([](auto& row) { std::swap(row.front(), row.back()); });
    for (std::size_t i = 1; i < passes[r].size(); ++i)
      if (zbpp::detail::may_pair(passes[r][i - 1], passes[r][i]))
        add([i](auto& row) { row[i].is_paired = true; });
    if (base.schedule.microbatches() > 1)
      add([](auto& row) { row[0].microbatch = row[0].microbatch == 0 ? 1 : 0; });
  }
}

void add_program_mutations(plan_parts const& base, std::vector<mutation>& all) {
  auto const& code = base.program;
  auto const add = [&](auto apply) {
    auto instructions = code.instructions().nested();
    auto channels = code.channels();
    apply(instructions, channels);
    mutation m{{"program"}, base};
    m.changed.program =
        program(code.placement(), code.microbatches(), rows(instructions), channels);
    all.push_back(std::move(m));
  };
  for (std::size_t r = 0; r < static_cast<std::size_t>(code.ranks()); ++r) {
    if (code.instructions(static_cast<int>(r)).empty()) continue;
    add([r](auto& i, auto&) { i[r].pop_back(); });
    add([r](auto& i, auto&) { i[r].push_back(i[r].front()); });
    add([r](auto& i, auto&) { ++i[r].front().stage; });
    add([r](auto& i, auto&) { ++i[r].back().microbatch; });
    add([r](auto& i, auto&) { i[r].back().is_paired = true; });
    add([r](auto& i, auto&) {
      auto& kind = i[r].front().kind;
      kind = kind == instruction_kind::optimizer_step ? instruction_kind::forward
                                                      : instruction_kind::optimizer_step;
    });
  }
  // The same instructions, the last of a rank given to the next one.
  if (code.ranks() > 1 && !code.instructions(0).empty())
    add([](auto& i, auto&) {
      i[1].insert(i[1].begin(), i[0].back());
      i[0].pop_back();
    });
  for (std::size_t c = 0; c < code.channels().size(); ++c) {
    add([c](auto&, auto& channels) { ++channels[c].slots; });
    add([c](auto&, auto& channels) { ++channels[c].in_flight; });
    add([c](auto&, auto& channels) { std::swap(channels[c].from, channels[c].to); });
  }
}

items random_items(seeded_random& random) {
  items result;
  for (auto left = random.integer(0, 5); left > 0; --left) {
    agreement_item item;
    for (auto n = random.integer(0, 3); n > 0; --n)
      item.name += static_cast<char>(
          random.chance(0.5) ? random.integer('a', 'b') : random.integer(-128, 127));
    for (auto n = random.integer(0, 100); n > 0; --n)
      item.value += static_cast<char>(random.integer(-128, 127));
    item.digest = static_cast<std::uint64_t>(random.integer(0, 1));
    result.push_back(std::move(item));
  }
  return result;
}

bool names_item(std::string const& text, std::string const& name) {
  for (auto at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    auto const end = at + name.size();
    if (end == text.size() || text[end] == ',' || text[end] == ' ') return true;
  }
  return false;
}

}  // namespace

TEST_CASE("equal plans have equal fingerprints", "[asio]") {
  for_each_schedule(
      {1, 2, 3}, [](any_policy const& policy, problem const& problem, schedule const&) {
        if (problem.microbatches() > 4) return;
        auto const make = [&] { return fingerprint(make_plan(policy, problem)); };
        auto const one = make();
        auto const two = make();
        INFO(name_of(policy, problem));
        CHECK(one == two);
        CHECK(differences(one, two).empty());
      });
}

TEST_CASE("a fingerprint names everything once", "[asio]") {
  auto const planned = make_plan(zb_h1{}, problem(placement::linear(2), 3, uneven_costs(), 87));
  auto const list = fingerprint(planned);
  std::vector<std::string> found;
  for (auto const& item : list) found.push_back(item.name);
  CHECK(
      found == std::vector<std::string>{
                   "version of zbpp",
                   "number of ranks",
                   "number of microbatches",
                   "placement",
                   "costs of stage 0",
                   "costs of stage 1",
                   "transfers",
                   "memory limits",
                   "policy",
                   "passes of rank 0",
                   "passes of rank 1",
                   "program"});
  CHECK(list[1].value == "2");
  CHECK(list[2].value == "3");
  CHECK(list[8].value == zb_h1::title);
}

TEST_CASE("every change of a plan changes the items that name it and no other", "[asio]") {
  for (std::uint64_t trial = 0; trial < 20; ++trial) {
    ZBPP_SEEDED(random, trial);
    parts from;
    auto const base = random_plan(random, from);
    auto const before = fingerprint_of(base);
    std::vector<mutation> all;
    add_cost_mutations(base, from, all);
    add_problem_mutations(base, from, all);
    add_order_mutations(base, all);
    add_program_mutations(base, all);
    mutation other_policy{{"policy"}, base};
    other_policy.changed.policy += "!";
    all.push_back(std::move(other_policy));
    REQUIRE(all.size() > 10);
    for (auto const& m : all) {
      auto const after = fingerprint_of(m.changed);
      CHECK(changed(before, after) == m.expected);
      CHECK(names_item(differences(before, after), *m.expected.begin()));
    }
  }
}

TEST_CASE("other ranks and other stages are told", "[asio]") {
  auto const of = [](placement const& placement) {
    return fingerprint(
        make_plan(greedy_auto{{.seconds = 0}}, problem(placement, 2, uneven_costs())));
  };
  auto const text = differences(of(placement::linear(2)), of(placement::v_shape(2)));
  CHECK(names_item(text, "placement"));
  CHECK(text.find("number of ranks") == std::string::npos);
  CHECK(text.find("costs of stage 3 (only there)") != std::string::npos);
  auto const ranks = differences(
      of(placement::linear(3)), of(placement::linear(2)), "on rank 2", "on rank 0", 100);
  CHECK(ranks.find("number of ranks (3 on rank 2, 2 on rank 0)") == 0);
  CHECK(ranks.find("passes of rank 2 (only on rank 2)") != std::string::npos);
}

TEST_CASE("differences are empty for equal lists only, whatever is in them", "[asio]") {
  auto const sorted = [](items list) {
    std::ranges::stable_sort(list, {}, &agreement_item::name);
    return list;
  };
  int equal = 0;
  for (std::uint64_t trial = 0; trial < 2000; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const first = random_items(random);
    auto second = random.chance(0.7) ? first : random_items(random);
    if (random.chance(0.5)) random.shuffle(std::span(second));
    if (!second.empty() && random.chance(0.5)) {
      auto& one = random.pick(std::span(second));
      one.digest ^= std::uint64_t{1} << 63U;
    }
    auto const text = differences(first, second);
    bool const same = sorted(first) == sorted(second);
    equal += same ? 1 : 0;
    CHECK(text.empty() == same);
    CHECK(text.size() < 8 * 250);
    CHECK(std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; }));
  }
  CHECK(equal > 100);
  items many(100);
  CHECK(differences(many, {}).ends_with(" and 92 more"));
}

TEST_CASE("items go over the wire, and what is cut short is refused", "[asio]") {
  agreement_item const item{"costs of stage 3", 7, "a value"};
  zbpp::asio::wire_writer writer;
  fields(writer, item);
  zbpp::asio::wire_reader reader(writer.bytes());
  agreement_item received;
  fields(reader, received);
  CHECK(received == item);
  CHECK_NOTHROW(reader.expect_end());
  for (std::size_t size = 0; size < writer.bytes().size(); ++size) {
    zbpp::asio::wire_reader cut(std::span(writer.bytes()).first(size));
    CHECK_THROWS_AS(fields(cut, received), error);
  }
  agreement_item const wordy{std::string(1000, 'n'), 0, std::string(1000, 'v')};
  zbpp::asio::wire_writer long_writer;
  fields(long_writer, wordy);
  zbpp::asio::wire_reader long_reader(long_writer.bytes());
  fields(long_reader, received);
  CHECK(received.name.size() == agreement_item::longest_text);
}

TEST_CASE("of two long values a difference shows where they part", "[asio]") {
  auto const start = std::string(100, 'a');
  items const one{zbpp::make_item("row", start + "B" + std::string(100, 'c'))};
  items const other{zbpp::make_item("row", start + "D" + std::string(100, 'c'))};
  auto const text = differences(one, other);
  CHECK(text.find("aB") != std::string::npos);
  CHECK(text.find("aD") != std::string::npos);
  CHECK(text.size() < 200);
}

TEST_CASE("other numbers of replicas, and what their messages take, are differences", "[asio]") {
  problem const alone(placement::linear(2), 3, uneven_costs(), 87);
  auto const with = [&](zbpp::replica_costs const& replicas) {
    return fingerprint(make_plan(zb_h1{}, with_replicas(alone, replicas)));
  };
  auto const one = with({.count = 2});
  for (auto const& other : {with({.count = 3}), with({.count = 2, .latency = 1}), with({})})
    CHECK(differences(one, other, "rank 0", "rank 1", 9).find("replicas") != std::string::npos);
}

TEST_CASE("other factors of microbatches are named as a difference", "[asio]") {
  problem const alike(placement::linear(2), 3, uneven_costs(), 87);
  auto const with = [&](std::vector<double> factors) {
    return fingerprint(make_plan(zb_h1{}, with_microbatch_factors(alike, std::move(factors))));
  };
  auto const one = with({1, 0.5, 0.25});
  for (auto const& other : {with({1, 0.5, 0.75}), with({})})
    CHECK(
        differences(one, other, "rank 0", "rank 1", 9).find("factors of microbatches") !=
        std::string::npos);
}

}  // namespace test_asio_agreement
