// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/memory.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>

#include <support/catch.hpp>
#include <support/independent_check.hpp>
#include <support/instructions.hpp>
#include <support/policy_grid.hpp>
#include <support/refusal.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace test_memory {

using namespace zbpp;
using namespace zbpp::test;

namespace {

// Says what a rank holds while each of its instructions runs, thing by thing: for every activation
// and every message, whether it is alive there.
class brute_force {
 public:
  brute_force(program const& code, problem const& problem, std::vector<int> devices = {})
      : code_(code),
        problem_(problem),
        check_(code.placement(), code.microbatches(), code.instructions().nested()),
        devices_(std::move(devices)) {
    for (int rank = 0; rank < code.ranks(); ++rank) {
      int position = 0;
      for (auto const& i : code.instructions(rank)) at_[i] = position++;
    }
  }

  [[nodiscard]] memory_peak peak(int rank) const {
    memory_peak most;
    auto const row = code_.instructions(rank);
    for (int i = 0; i < static_cast<int>(row.size()); ++i) {
      auto const& now = row[static_cast<std::size_t>(i)];
      auto const held = activations(rank, i);
      bytes fixed = 0;
      for (int s : code_.placement().stages_of(rank)) fixed += problem_.costs(s).static_memory;
      auto const moving = edges(rank, i);
      auto const workspace = now.is_pass() ? problem_.costs(now.stage).workspace : 0;
      if (now.is_pass()) most.activations = std::max(most.activations, held);
      most.edges = std::max(most.edges, moving);
      if (auto const total = held + fixed + moving + workspace; total > most.total) {
        most.total = total;
        most.position = i;
      }
    }
    return most;
  }

  [[nodiscard]] bytes arena_size(int rank) const {
    auto const counted = peak(rank);
    auto most = counted.activations + counted.edges;
    for (int i = 0; i < static_cast<int>(code_.instructions(rank).size()); ++i)
      most = std::max(most, activations(rank, i) + edges(rank, i) + lent(rank, i));
    return most;
  }

 private:
  static constexpr int never = std::numeric_limits<int>::max();

  [[nodiscard]] int at(instruction const& i) const {
    auto const found = at_.find(i);
    return found == at_.end() ? never : found->second;
  }

  [[nodiscard]] bytes activations(int rank, int now) const {
    bytes held = 0;
    for (int s : code_.placement().stages_of(rank))
      for (int m = 0; m < code_.microbatches(); ++m) held += activation(s, m, now);
    return held;
  }

  [[nodiscard]] bytes activation(int s, int m, int now) const {
    using enum instruction_kind;
    auto const& c = problem_.costs(s);
    if (now < at({forward, s, m})) return 0;
    if (auto const again = at({recompute, s, m}); again != never && now < again)
      return c.recompute_input;
    auto const its_b = check_.backward_of(s, m);
    if (now < at(its_b)) return c.activation;
    if (now == at(its_b))
      return c.activation + (its_b.kind == backward_input ? c.output_gradient : 0);
    return now <= at(check_.weight_of(s, m)) ? c.weight_gradient_input : 0;
  }

  [[nodiscard]] bytes edges(int rank, int now) const {
    using enum instruction_kind;
    bytes sum = 0;
    for (int s = 0; s + 1 < code_.stages(); ++s)
      for (int m = 0; m < code_.microbatches(); ++m)
        for (instruction const& send :
             {instruction{send_activation, s, m}, instruction{send_gradient, s + 1, m}}) {
          auto const from = code_.placement().rank_of(send.stage);
          auto const to = code_.placement().rank_of(send.other_stage());
          auto const made = at(check_.producer_of(send));
          auto const used = at(check_.consumer_of(send));
          bool alive = false;
          if (from == to) {
            alive = from == rank && made <= now && now <= used;
          } else if (from == rank) {
            alive = made <= now && !(code_.instructions(rank)[index(now)].is_pass()
                                         ? check_.is_known_consumed(send, now)
                                         : check_.is_known_consumed(send, now - 1));
          } else if (to == rank && !shares(from, to)) {
            auto const receive = instruction{
                send.moves_activation() ? receive_activation : receive_gradient,
                send.other_stage(),
                m};
            alive = at(receive) <= now && now <= used;
          }
          if (alive) sum += problem_.costs(s).edge;
        }
    return sum;
  }

  // What has been handed over, counts as no edge any more, and may still be used.
  [[nodiscard]] bytes lent(int rank, int now) const {
    using enum instruction_kind;
    bytes sum = 0;
    auto const row = code_.instructions(rank);
    auto const last = row[index(now)].is_pass() ? now : now - 1;
    for (int s = 0; s + 1 < code_.stages(); ++s)
      for (int m = 0; m < code_.microbatches(); ++m)
        for (instruction const& send :
             {instruction{send_activation, s, m}, instruction{send_gradient, s + 1, m}}) {
          auto const to = code_.placement().rank_of(send.other_stage());
          if (code_.placement().rank_of(send.stage) != rank || to == rank || !shares(rank, to))
            continue;
          if (at(send) > now || !check_.is_known_consumed(send, last)) continue;
          auto const flow_end = at(check_.weight_of(send.other_stage(), m));
          bool is_over = false;
          for (int i = 0; i <= last; ++i) {
            if (!row[index(i)].is_pass()) continue;
            auto const input = check_.input_of(row[index(i)]);
            is_over =
                is_over || (independent_check::is_send(input) &&
                            code_.placement().rank_of(input.stage) == to && at(input) > flow_end);
          }
          if (!is_over) sum += problem_.costs(s).edge;
        }
    return sum;
  }

  [[nodiscard]] bool shares(int a, int b) const {
    return !devices_.empty() && devices_[index(a)] == devices_[index(b)];
  }
  [[nodiscard]] static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  program const& code_;
  problem const& problem_;
  independent_check check_;
  std::vector<int> devices_;
  std::map<instruction, int> at_;
};

// Costs that tell every stage from every other.
// @param added  what B adds for W on some stages, more than F keeps on most of them
problem uneven(problem const& shape, bytes added) {
  std::vector<stage_costs> stages;
  for (int s = 0; s < shape.stages(); ++s)
    stages.push_back(
        {.forward = 1,
         .backward_input = 1,
         .backward_weight = 1,
         .activation = 1000 + 37 * s,
         .weight_gradient_input = 300 + 11 * s,
         .recompute_input = 50 + 7 * s,
         .edge = 10 + 3 * s,
         .static_memory = 5000 + s,
         .workspace = 400 - 13 * s});
  for (std::size_t s = 0; s < stages.size(); s += s % 3 + 1) {
    stages[s].output_gradient = added;
    stages[s].weight_gradient_input += added;
  }
  return {shape.placement(), shape.microbatches(), stages};
}

}  // namespace

TEST_CASE("F keeps an activation, B frees all but what W needs, W frees that", "[memory]") {
  auto const placement = placement::linear(1);
  problem const problem(placement, 2, stage_costs{.activation = 10, .weight_gradient_input = 3});
  auto const profile = [&](std::string const& row) {
    return zbpp::activation_profile(schedule(placement, 2, passes({row})), problem)
        .nested()
        .front();
  };
  CHECK(profile("0F0 0F1 0B0 0W0 0BW1") == std::vector<bytes>{10, 20, 20, 13, 10});
  CHECK(profile("0F0 0B0 0F1 0B1 0W0 0W1") == std::vector<bytes>{10, 10, 13, 13, 6, 3});
}

TEST_CASE("B adds gradients for W, and BW does not", "[memory]") {
  auto const placement = placement::linear(1);
  problem const problem(
      placement,
      2,
      stage_costs{
          .activation = 10,
          .weight_gradient_input = 12,
          .output_gradient = 7,
          .recompute_input = 2});
  auto const profile = [&](std::string const& row) {
    return zbpp::activation_profile(schedule(placement, 2, passes({row})), problem)
        .nested()
        .front();
  };
  CHECK(profile("0F0 0F1 0B0 0W0 0B1 0W1") == std::vector<bytes>{10, 20, 27, 22, 17, 12});
  CHECK(profile("0F0 0B0 0F1 0B1 0W0 0W1") == std::vector<bytes>{10, 17, 22, 29, 24, 12});
  CHECK(profile("0F0 0F1 0BW0 0BW1") == std::vector<bytes>{10, 20, 20, 10});
  CHECK(profile("0F0 0F1 0R0 0B0 0W0 0R1 0BW1") == std::vector<bytes>{2, 4, 12, 19, 14, 10, 10});
}

TEST_CASE("with R a forward keeps its input, and R adds the rest", "[memory]") {
  auto const placement = placement::linear(1);
  problem const problem(
      placement,
      2,
      stage_costs{.activation = 10, .weight_gradient_input = 3, .recompute_input = 2});
  schedule const order(placement, 2, passes({"0F0 0F1 0R1 0B1 0W1 0B0 0W0"}));
  CHECK(
      zbpp::activation_profile(order, problem).nested().front() ==
      std::vector<bytes>{10, 12, 20, 20, 13, 10, 3});
  CHECK(zbpp::peak_activations(order, problem) == std::vector<bytes>{20});
}

TEST_CASE("a rank without passes holds no activations", "[memory]") {
  schedule const order(placement::linear(2), 1, passes({"0F0", ""}));
  problem const problem(placement::linear(2), 1, stage_costs{.activation = 4});
  CHECK(zbpp::peak_activations(order, problem) == std::vector<bytes>{4, 0});
}

TEST_CASE(
    "edges count on both ends, from the pass that makes them to the one that consumes them",
    "[memory]") {
  auto const placement = placement::linear(2);
  problem const problem(
      placement,
      1,
      stage_costs{.activation = 100, .edge = 7, .static_memory = 1000, .workspace = 30});
  auto const code = zbpp::lower(schedule(placement, 1, passes({"0F0 0B0 0W0", "1F0 1B0 1W0"})));
  // Rank 0: 0F0 0SEND_F0 0RECV_B0 0B0 0W0 0STEP. The gradient tells that the activation was used.
  // Rank 1: 1RECV_F0 1F0 1B0 1SEND_B0 1W0 1STEP. Nothing tells that the gradient was used.
  CHECK(
      zbpp::peak_memory(code, problem) ==
      std::vector<memory_peak>{
          {.activations = 100, .edges = 14, .total = 1137, .position = 0},
          {.activations = 100, .edges = 7, .total = 1137, .position = 1}});
}

TEST_CASE("memory is that of the definition on every policy and shape", "[memory][long]") {
  int cases = 0;
  int fewer = 0;   // ranks that need less where they share a device
  int larger = 0;  // arenas that hold more than their rank counts
  zbpp::test::for_each_schedule(
      {1, 2, 3, 4},
      [&](zbpp::any_policy const& decide, problem const& shape, schedule const& order) {
        if (shape.stages() * shape.microbatches() > zbpp::test::thinned(16, 8))
          return;  // the definition takes long
        INFO(zbpp::test::name_of(decide, shape));
        for (auto const& variant :
             {order, zbpp::fuse_backward(order), zbpp::test::with_recompute(order)})
          for (int ahead : {0, 2}) {
            auto const code = zbpp::lower(variant, {.receive_ahead = ahead});
            auto const problem = uneven(shape, ahead == 0 ? 0 : 900);
            auto const peaks = zbpp::peak_memory(code, problem);
            brute_force const expected(code, problem);
            for (int rank = 0; rank < code.ranks(); ++rank)
              CHECK(peaks[static_cast<std::size_t>(rank)] == expected.peak(rank));
            for (auto const& devices : {std::vector{0, 0, 0, 0}, {1, 0, 0, 1}, {0, 0, 1, 1}}) {
              std::vector<int> const some(devices.begin(), devices.begin() + code.ranks());
              auto const shared = zbpp::peak_memory(code, problem, some);
              auto const sizes = zbpp::arena_sizes(code, problem, some);
              brute_force const together(code, problem, some);
              for (int rank = 0; rank < code.ranks(); ++rank) {
                auto const i = static_cast<std::size_t>(rank);
                CHECK(shared[i] == together.peak(rank));
                CHECK(sizes[i] == together.arena_size(rank));
                CHECK(shared[i].total <= peaks[i].total);
                fewer += shared[i].total < peaks[i].total ? 1 : 0;
                larger += sizes[i] > shared[i].activations + shared[i].edges ? 1 : 0;
              }
            }
            ++cases;
          }
      });
  CHECK(cases > zbpp::test::thinned(200, 100));
  CHECK(fewer > cases);
  CHECK(larger > 0);
}

TEST_CASE("memory of another placement or number of microbatches is refused", "[memory]") {
  std::string const text =
      "made for another placement or another number of microbatches than the problem's";
  schedule const order(placement::linear(2), 1, passes({"0F0 0BW0", "1F0 1BW0"}));
  problem const other(placement::linear(1), 1, stage_costs{});
  CHECK(refusal([&] { (void)zbpp::activation_profile(order, other); }) == text);
  CHECK(refusal([&] { (void)zbpp::peak_activations(order, other); }) == text);
  CHECK(refusal([&] { (void)zbpp::peak_memory(zbpp::lower(order), other); }) == text);
}

}  // namespace test_memory
