// SPDX-License-Identifier: Apache-2.0
//
// W that run while a rank waits: no result, no message and no peak of memory changes, and what runs
// is an order that `verify` accepts.
#include <zbpp/analysis/explain.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/runtime/training.hpp>

#include <support/backends.hpp>
#include <support/checked_model.hpp>
#include <support/checked_training.hpp>
#include <support/declared_stages.hpp>
#include <support/pass_order.hpp>
#include <support/plain_flow.hpp>
#include <support/toy_history.hpp>
#include <support/toy_mlp.hpp>

#include <cmath>

namespace test_on_stall {

using namespace zbpp;
using namespace zbpp::test;

namespace {

training_options runs_w(double overrun = 0) {
  return {.on_stall = {.runs_w = true, .overrun = overrun}};
}

// Passes and messages that take up to some times as long as stated, drawn anew for each.
virtual_noise noise_of(seeded_random& random, std::int64_t most) {
  return {
      .pass_time = [&random, most](
                       int, pass const&, ticks stated) { return stated * random.integer(1, most); },
      .message_time = [&random,
                       most](int, ticks stated) { return stated + random.integer(0, 500 * most); }};
}

schedule order_of(plan const& planned, timeline const& measured) {
  rows<pass> passes;
  for (int rank = 0; rank < measured.ranks(); ++rank) {
    for (auto const& timed : measured[rank]) passes.push(timed.pass);
    passes.end_row();
  }
  return {planned.problem().placement(), planned.problem().microbatches(), std::move(passes)};
}

// The passes of a rank without its W.
std::vector<pass> others(std::span<pass const> row) {
  std::vector<pass> found;
  std::ranges::copy_if(row, std::back_inserter(found), [](pass const& p) {
    return p.kind != pass_kind::backward_weight;
  });
  return found;
}
std::vector<pass> weight_gradients(std::span<pass const> row) {
  std::vector<pass> found;
  std::ranges::copy_if(
      row, std::back_inserter(found), [](pass const& p) { return p.makes_weight_gradient(); });
  return found;
}

// Checks what ran against the plan. @return how many W ran in front of their places
int check_order(plan const& planned, timeline const& measured) {
  auto const order = order_of(planned, measured);
  int moved = 0;
  for (int rank = 0; rank < measured.ranks(); ++rank) {
    auto const ran = order.passes(rank);
    auto const stated = planned.schedule().passes(rank);
    CHECK(others(ran) == others(stated));
    // Also where one object is two stages of the rank, its gradients add up in the same order.
    CHECK(weight_gradients(ran) == weight_gradients(stated));
    for (std::size_t i = 0; i < ran.size(); ++i)
      if (ran[i].kind == pass_kind::backward_weight)
        moved += std::ranges::find(stated, ran[i]) - stated.begin() > std::ssize(ran.first(i));
  }
  CHECK(verify(lower(order), planned.problem()).empty());
  return moved;
}

}  // namespace

TEST_CASE("W that run while ranks wait keep bits, messages and proofs", "[on-stall][long]") {
  int moved = 0;
  for (int const p : thinned<std::vector<int>>({1, 2, 3, 5}, {2, 3}))
    for (auto const& placement : placements_to_run(p))
      for (double const overrun : {0.0, 1e9}) {
        ZBPP_SEEDED(random, p * 10 + placement.stages());
        auto costs = uneven_costs();
        costs.edge = toy::edge;
        on_plans(
            problem(placement, 2 * p + 1, costs, 300),
            {.recomputed = true},
            [&](plan const& planned) {
              INFO(", overrun " << overrun);
              auto all = toy::make_model(planned.problem().stages());
              std::vector<toy::hand_written> stages(all.begin(), all.end());
              pipeline pipe{planned, virtual_time{noise_of(random, 3)}, stages, runs_w(overrun)};
              auto const found = toy::train(all, [&](int) {
                auto const& result = pipe.step();
                moved += check_order(planned, result.measured);
                for (auto const& account : explain(planned, result.measured).ranks)
                  CHECK(account.sum() == makespan(from_first_start(result.measured)));
                return result.losses;
              });
              CHECK(toy::difference(found, toy::train_reference(planned)).empty());
            });
      }
  CHECK(moved > 0);
}

TEST_CASE("pairs stay together, also those that need no message", "[on-stall]") {
  int moved = 0;
  auto costs = uneven_costs();
  costs.overlapped = 1500;
  for (int const p : {1, 2, 3})
    for (std::string const name : {"dualpipe_v", "stp"})
      for (double const overrun : {0.0, 1e9}) {
        INFO(name << " on " << p << " ranks, overrun " << overrun);
        ZBPP_SEEDED(random, p);
        auto const planned =
            make_plan(find_policy(name), problem(placement::v_shape(p), 3 * p, costs, 300));
        std::vector<plain_flow> stages(detail::index(2 * p));
        pipeline pipe{planned, virtual_time{noise_of(random, 3)}, stages, runs_w(overrun)};
        for (int i = 0; i < 6; ++i) {
          auto const& result = pipe.step();
          moved += check_order(planned, result.measured);
          CHECK(plain_flow::are_expected(result.losses, 2 * p));
        }
      }
  CHECK(moved > 0);
}

TEST_CASE("they take no more memory than the plan says", "[on-stall]") {
  using memory_use::declared;
  for (auto const& placement : placements_to_run(3)) {
    ZBPP_SEEDED(random, placement.stages());
    on_plans(problem(placement, 7, uneven_costs(), 300), {}, [&](plan const& planned) {
      std::vector<declared<>> stages(
          detail::index(planned.problem().stages()), declared<>{&planned.problem()});
      pipeline pipe{planned, virtual_time{noise_of(random, 3)}, stages, runs_w(1e9)};
      for (int i = 0; i < 4; ++i) static_cast<void>(pipe.step());
      auto const peaks = peak_memory(planned.program(), planned.problem());
      for (int rank = 0; rank < 3; ++rank) {
        auto const& usage = pipe.memory(rank);
        auto const& most = peaks[detail::index(rank)];
        CHECK(usage.most(purpose::activation) <= most.activations);
        CHECK(usage.most(purpose::edge) <= most.edges);
        CHECK(usage.peak_total <= most.total);
        CHECK(usage.in_use == std::array<bytes, purposes>{});
      }
    });
  }
}

namespace {

// Ranks whose last stages are slower than the plan has it, so that those in front of them wait for
// gradients with W at hand.
problem slower(problem const& stated) {
  std::vector<stage_costs> costs(stated.all_costs().begin(), stated.all_costs().end());
  costs.back().backward_input *= 3;
  return {stated.placement(), stated.microbatches(), costs, stated.transfer()};
}
virtual_noise noise_of(problem const& taken) {
  return {
      .pass_time = [&taken](int, pass const& p, ticks) { return taken.costs(p.stage).of(p.kind); }};
}
plan late_w() {
  stage_costs const even{.forward = 100, .backward_input = 100, .backward_weight = 80};
  return make_plan(one_f_one_b{}, problem(placement::linear(3), 6, even, 10));
}

}  // namespace

TEST_CASE("a rank that waits for late gradients ends sooner", "[on-stall]") {
  auto const planned = make_plan(zb_h1{}, late_w().problem());
  auto const taken = slower(planned.problem());
  std::vector<plain_flow> stages(3);
  pipeline fixed{planned, virtual_time{noise_of(taken)}, stages};
  pipeline moves{planned, virtual_time{noise_of(taken)}, stages, runs_w()};
  auto const stays = cost(fixed.step().measured);
  // It knows nothing yet.
  CHECK(cost(moves.step().measured) == stays);
  for (int i = 0; i < 5; ++i) {
    auto const& measured = moves.step().measured;
    CHECK(check_order(planned, measured) > 0);
    CHECK(cost(measured) <= stays);
    // To the tick what that order takes.
    CHECK(measured == simulate(order_of(planned, measured), taken));
  }
}

TEST_CASE("optimizer steps of all kinds keep their bits", "[on-stall]") {
  std::uint64_t stream = 0;
  for (auto const kind : {step_kind::synchronous, step_kind::post_validated})
    for (auto const& placement : {placement::linear(3), placement::v_shape(2)}) {
      ZBPP_SEEDED(random, ++stream);
      checked::model_settings settings{
          .stages = placement.stages(),
          .faults = {{.step = 2, .stage = 1, .microbatch = 2}, {.step = 5, .stage = 0}},
          .tied = {0, placement.stages() - 1}};
      auto const problem = checked::make_problem(placement, 6, 87, settings.tied);
      auto const planned = placement.is_v_shape() ? make_plan(zb_v{}, problem, {.step = kind})
                                                  : make_plan(zb_h1{}, problem, {.step = kind});
      auto options = runs_w(1);
      options.clip = 1e-3;
      auto const found =
          checked::train(planned, virtual_time{noise_of(random, 3)}, settings, options, {5, 1, 4});
      CHECK(found.given.bits == checked::train_alone(settings, 6, 10, options).bits);
      CHECK(found.seen.skipped == 2);
      if (kind == step_kind::post_validated) CHECK(found.seen.amended > 0);
    }
}

TEST_CASE("on threads results stay the same, to the bit", "[on-stall]") {
  for (double const overrun : {0.0, 1e9}) {
    auto costs = uneven_costs();
    costs.edge = toy::edge;
    auto const planned = make_plan(one_f_one_b{}, problem(placement::linear(3), 7, costs));
    auto all = toy::make_model(3);
    std::vector<toy::hand_written> stages(all.begin(), all.end());
    auto plain = toy::make_model(3);
    std::vector<toy::hand_written> same(plain.begin(), plain.end());
    pipeline pipe{planned, threads{}, stages, runs_w(overrun)};
    pipeline kept{planned, virtual_time{}, same};
    for (int i = 0; i < thinned(60, 20); ++i) {
      auto const& result = pipe.step();
      static_cast<void>(check_order(planned, result.measured));
      CHECK(toy::is_same(result.losses, kept.step().losses));
      CHECK(toy::is_same(all, plain));
      toy::update(all);
      toy::update(plain);
    }
  }
}

namespace {

// Fails in the W of one microbatch, when it is told to.
struct failing_flow {
  int failing = 0;
  bool* fails = nullptr;

  static message forward(message const&, microbatch mb, pass_context ctx) {
    if (!mb.is_last_stage()) return ctx.allocate_edge(8);
    mb.report_loss(1);
    return {};
  }
  static message backward(message const&, microbatch, pass_context) { return {}; }
  void weight(microbatch mb) const {
    if (*fails && mb.index() == failing) throw std::runtime_error("no more");
  }
  flow operator()(microbatch mb) { return in_order(*this, mb); }
};

}  // namespace

TEST_CASE("one that fails is named, and the next step runs", "[on-stall]") {
  auto const planned = make_plan(zb_h1{}, late_w().problem());
  auto const taken = slower(planned.problem());
  bool fails = false;
  std::vector<failing_flow> stages(3, {.failing = 1, .fails = &fails});
  pipeline pipe{planned, virtual_time{noise_of(taken)}, stages, runs_w()};
  int moved = 0;
  for (int i = 0; i < 4; ++i) moved = check_order(planned, pipe.step().measured);
  CHECK(moved > 0);
  fails = true;
  try {
    static_cast<void>(pipe.step());
    FAIL("it did not fail");
  } catch (error const& failed) {
    auto const at = failed.location();
    CHECK(at.microbatch == 1);
    auto const& named = planned.program().instructions(at.rank)[detail::index(at.position)];
    CHECK(named.kind == instruction_kind::backward_weight);
    CHECK(named.stage == at.stage);
    CHECK(named.microbatch == 1);
  }
  fails = false;
  CHECK(check_order(planned, pipe.step().measured) >= 0);
}

TEST_CASE(
    "moving W is refused where ranks share a thread, or by numbers out of range", "[on-stall]") {
  auto const planned = late_w();
  std::vector<plain_flow> stages(3);
  auto const refused = [&](auto backend, stall_options const& on_stall) {
    return refusal(
        errc::bad_argument, [&] { pipeline(planned, backend, stages, {.on_stall = on_stall}); });
  };
  CHECK(refused(threads{.count = 2}, {.runs_w = true}).find("one per rank") != std::string::npos);
  CHECK(refused(threads{}, {.overrun = 1}).find("runs_w is false") != std::string::npos);
  for (double const wrong : {-0.1, std::nan(""), HUGE_VAL})
    CHECK(
        refused(threads{}, {.runs_w = true, .overrun = wrong}).find("from 0") != std::string::npos);
}

}  // namespace test_on_stall
