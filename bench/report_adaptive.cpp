// SPDX-License-Identifier: Apache-2.0
//
// What planning again and W that run while ranks wait give: steps under virtual time whose passes
// and messages do not take what the plan says. The plan that stays, with and without such W, and
// a `replanner`, with and without, stand beside a plan that is searched with the true mean
// costs, in the very step in which they change. All see the same draws.
// The second table is about layers that may change ranks, four for each rank at the beginning.
// usage: report_adaptive [RANKS]     up to so many ranks, 8 by default and 32 at most
#include "whole_number.hpp"
#include <zbpp/model/detail/divided_stages.hpp>
#include <zbpp/plan.hpp>
#include <zbpp/zbpp.hpp>

#include <support/adaptive_loop.hpp>
#include <support/plain_flow.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <numbers>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace zbpp;

namespace {

constexpr int steps = 200;
constexpr int change = 30;  // the step from which ranks are slower

// A number from 0 to 1 that depends on what is asked for alone.
double draw(std::uint64_t step, std::uint64_t kind, std::uint64_t index) {
  auto bits =
      (step * 0x9E3779B97F4A7C15U) ^ (kind * 0xBF58476D1CE4E5B9U) ^ (index * 0x94D049BB133111EBU);
  for (int i = 0; i < 3; ++i) {
    bits ^= bits >> 31U;
    bits *= 0xD6E8FEB86659FD93U;
  }
  bits ^= bits >> 32U;
  return (static_cast<double>(bits >> 11U) + 0.5) * 0x1p-53;
}
double lognormal(double spread, std::uint64_t step, std::uint64_t kind, std::uint64_t index) {
  auto const normal = std::sqrt(-2 * std::log(draw(step, kind, 2 * index))) *
                      std::cos(2 * std::numbers::pi * draw(step, kind, 2 * index + 1));
  return std::exp(spread * normal - spread * spread / 2);
}

struct scenario {
  char const* name;
  double spread;  // of each pass, as a share of it
  std::function<double(int rank, int ranks, int step)> factor;
  double spikes = 0;  // share of messages that take ten times as long
};

problem stated(int p) {
  stage_costs const even{
      .forward = 10'000'000,
      .backward_input = 10'000'000,
      .backward_weight = 8'000'000,
      .activation = 10,
      .weight_gradient_input = 5,
      .edge = 8};
  return {placement::linear(p), 3 * p, even, 500'000, {15 * p + 100}};
}

problem true_costs(int p, scenario const& of, int step) {
  auto const plain = stated(p);
  std::vector<stage_costs> costs(plain.all_costs().begin(), plain.all_costs().end());
  for (int s = 0; s < p; ++s)
    for (auto const time :
         {&stage_costs::forward, &stage_costs::backward_input, &stage_costs::backward_weight}) {
      auto& t = costs[static_cast<std::size_t>(s)].*time;
      t = static_cast<ticks>(static_cast<double>(t) * of.factor(s, p, step));
    }
  return {plain.placement(), plain.microbatches(), costs, plain.transfer(), {15 * p + 100}};
}

// @param layers  of a stage, where each is a stage of its own; they share its draws
virtual_noise noise_of(problem const& plain, scenario const& of, int const& step, int layers = 1) {
  auto const ranks = plain.ranks();
  return {
      .pass_time =
          [&, ranks, layers](int rank, pass const& p, ticks) {
            auto const stage = p.stage / layers;
            auto const index = static_cast<std::uint64_t>(
                (stage * 4096 + p.microbatch) * 8 + static_cast<int>(p.kind));
            return static_cast<ticks>(
                static_cast<double>(plain.costs(stage).of(p.kind) / layers) *
                of.factor(rank, ranks, step) *
                lognormal(of.spread, static_cast<std::uint64_t>(step), 1, index));
          },
      .message_time =
          [&, sent = std::uint64_t{0}](int rank, ticks planned) mutable {
            auto const now = static_cast<std::uint64_t>(step);
            return draw(now, 2 + static_cast<std::uint64_t>(rank), ++sent % 4096) < of.spikes
                       ? 10 * planned
                       : planned;
          }};
}

struct times {
  double mean = 0;
  double high = 0;  // the 95th percentile

  explicit times(std::vector<ticks> took) {
    took.erase(took.begin(), took.begin() + change);
    std::ranges::sort(took);
    mean = to_milliseconds(std::accumulate(took.begin(), took.end(), ticks{0})) /
           static_cast<double>(took.size());
    high = to_milliseconds(took[took.size() * 95 / 100]);
  }
};

template <class Pipeline>
times run(Pipeline& pipe, int& step) {
  std::vector<ticks> took;
  for (step = 0; step < steps; ++step) took.push_back(cost(pipe.step().measured));
  return times(std::move(took));
}

// What one scenario gives, each kind of pipeline in turn.
struct found_times {
  times stays;
  times stays_on_stall;
  times adapts;
  times adapts_on_stall;
  times knows;
  std::size_t switches = 0;
};

void print(char const* name, int ranks, found_times const& found) {
  std::printf("| %s | %d |", name, ranks);
  auto const column = [](times const& of) { std::printf(" %.1f (%.1f) |", of.mean, of.high); };
  column(found.stays);
  column(found.stays_on_stall);
  column(found.adapts);
  column(found.adapts_on_stall);
  column(found.knows);
  auto const lost = found.stays.mean - found.knows.mean;
  auto const gained = found.stays.mean - found.adapts.mean;
  auto const share = lost > 0.001 * found.stays.mean
                         ? std::to_string(std::lround(100 * gained / lost)).append(" %")
                         : "nothing lost";
  std::printf(" %zu | %s |\n", found.switches, share.c_str());
  std::fflush(stdout);
}

// @param knowing  gives the plan for the true costs of a step, where it is not that of the step
//                 before
template <class Knowing>
void report(
    char const* name,
    plan const& first,
    virtual_noise const& noise,
    replan_settings const& settings,
    int& step,
    Knowing const& knowing) {
  std::vector<test::plain_flow> stages(detail::index(first.problem().stages()));
  training_options const usual;
  training_options const on_stall{.on_stall = {.runs_w = true}};
  auto const stay = [&](training_options const& options) {
    pipeline pipe{first, virtual_time{noise}, stages, options};
    return run(pipe, step);
  };
  std::size_t switches = 0;
  auto const adapt = [&](training_options const& options) {
    test::adaptive_loop pipe{first, virtual_time{noise}, stages, settings, report_call(), options};
    auto const found = run(pipe, step);
    switches = pipe.switches().size();
    return found;
  };
  auto const know = [&] {
    std::vector<ticks> took;
    std::optional<pipeline<virtual_time>> pipe;
    for (step = 0; step < steps; ++step) {
      if (auto planned = knowing(step)) {
        pipe.reset();
        pipe.emplace(*planned, virtual_time{noise}, stages);
      }
      took.push_back(cost(pipe->step().measured));
    }
    return times(std::move(took));
  };
  auto const with_both = adapt(on_stall);
  auto const adapted = adapt(usual);
  print(
      name,
      first.problem().ranks(),
      {stay(usual), stay(on_stall), adapted, with_both, know(), switches});
}

void report_orders(int p, scenario const& of) {
  auto const plain = stated(p);
  greedy_auto const policy{.search = {.seconds = 2.5}};
  int step = 0;
  auto const noise = noise_of(plain, of, step);
  replan_settings const settings{.least_gain = 0.005, .least_steps = 20, .in_background = false};
  report(of.name, make_plan(policy, plain), noise, settings, step, [&](int now) {
    bool const is_same = now > 0 && true_costs(p, of, now) == true_costs(p, of, now - 1);
    return is_same ? std::nullopt : std::optional(make_plan(policy, true_costs(p, of, now)));
  });
}

constexpr int layers_per_rank = 4;

problem layers_of(int p, std::vector<double> speeds = {}) {
  return {
      detail::divided_stages(stated(p).all_costs(), layers_per_rank),
      {.ranks = p,
       .microbatches = 3 * p,
       .transfer = 500'000,
       .memory_limits = {15 * p + 100},
       .rank_speeds = std::move(speeds)}};
}

plan plan_layers(problem const& model) {
  auto split = find_plan(model, {.stage_per_layer = true, .seconds = 2.5});
  return {"layers", std::move(split.problem), std::move(split.schedule)};
}

std::vector<double> speeds_of(int p, scenario const& of, int step) {
  std::vector<double> speeds;
  for (int rank = 0; rank < p; ++rank) speeds.push_back(1 / of.factor(rank, p, step));
  return speeds;
}

void report_moves(int p, scenario const& of) {
  auto const plain = stated(p);
  int step = 0;
  auto const noise = noise_of(plain, of, step, layers_per_rank);
  replan_settings const settings{
      .least_gain = 0.005, .least_steps = 20, .moves_stages = true, .in_background = false};
  report(of.name, plan_layers(layers_of(p)), noise, settings, step, [&](int now) {
    bool const is_same = now > 0 && speeds_of(p, of, now) == speeds_of(p, of, now - 1);
    return is_same ? std::nullopt : std::optional(plan_layers(layers_of(p, speeds_of(p, of, now))));
  });
}

}  // namespace

int main(int argc, char** argv) {
  auto const most = argc > 1 ? bench::whole_number(argv[1]) : 8;
  if (argc > 2 || !most) {
    std::fputs("usage: report_adaptive [RANKS]; a whole number\n", stderr);
    return 2;
  }
  auto const same = [](int, int, int) { return 1.0; };
  auto const slow = [](double factor) {
    return [factor](int rank, int ranks, int step) {
      return step >= change && rank == ranks / 2 ? factor : 1.0;
    };
  };
  auto const drift = [](int rank, int, int step) {
    return rank == 0 ? 1 + 0.4 * std::max(step / 10 * 10 - change, 0) / (steps - change) : 1.0;
  };
  std::vector<scenario> const all{
      {"noise 5 %", 0.05, same},
      {"noise 15 %", 0.15, same},
      {"noise 30 %", 0.3, same},
      {"noise 5 %, 2 % of messages ten times as long", 0.05, same, 0.02},
      {"noise 5 %, a rank 1.2 times as slow", 0.05, slow(1.2)},
      {"noise 5 %, a rank 1.5 times as slow", 0.05, slow(1.5)},
      {"noise 5 %, the first rank slower and slower, up to 1.4", 0.05, drift}};
  auto const table = [&](char const* title, int up_to, auto const& row) {
    std::printf(
        "\n%s Means in ms, and the 95th percentile.\n\n| costs | ranks | stays | W while waiting | "
        "adapts | both | knows | switches | recovered |\n|---|---|---|---|---|---|---|---|---|\n",
        title);
    for (auto const& each : all)
      for (int p = 4; p <= std::min(*most, up_to); p *= 2) row(p, each);
  };
  table("Orders.", 32, report_orders);
  // More layers need more than this budget.
  table("Layers that may change ranks.", 16, report_moves);
}
