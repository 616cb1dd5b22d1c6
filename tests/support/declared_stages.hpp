// SPDX-License-Identifier: Apache-2.0
//
// Stages that take the memory which their costs declare, on any backend, and the comparison of what
// a run takes with what its plan says.
#pragma once

#include <zbpp/analysis/memory.hpp>
#include <zbpp/runtime/detail/pipeline_setup.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/catch.hpp>
#include <support/plan_grid.hpp>
#include <support/policy_grid.hpp>
#include <support/seeded.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace zbpp::test::memory_use {

[[nodiscard]] inline std::size_t size_of(bytes count) { return static_cast<std::size_t>(count); }

/// Ships `size` bytes in two buffers.
[[nodiscard]] inline message two_parts(pass_context ctx, bytes size) {
  return {ctx.allocate_edge(size_of(size / 3)), ctx.allocate_edge(size_of(size - size / 3))};
}

/// Ships an object that counts as `size` bytes.
struct stands_for_memory {
  bytes size;
};
[[nodiscard]] inline message one_object(pass_context ctx, bytes size) {
  return ctx.make_edge(stands_for_memory{size}, size);
}

/// Takes memory from the arena, or counts what is taken from elsewhere.
template <class Memory>
[[nodiscard]] Memory take(pass_context ctx, bytes size) {
  if constexpr (std::is_same_v<Memory, buffer>)
    return ctx.allocate(size_of(size));
  else
    return ctx.count_external(size);
}

/// Takes what the costs of its stage say, no more and no less.
template <class Memory = buffer, message (*MakeEdge)(pass_context, bytes) = two_parts>
struct declared {
  problem const* stated = nullptr;

  flow operator()(microbatch mb) {
    stage_costs const& c = stated->costs(mb.stage());
    bytes const edge_before = mb.is_first_stage() ? 0 : stated->costs(mb.stage() - 1).edge;
    Memory start;
    Memory for_b;
    Memory for_w;
    Memory made_by_b;
    bytes const kept_for_w = c.weight_gradient_input - c.output_gradient;
    message in = co_await mb.recv_activation();
    message out;
    co_await F([&](pass_context ctx) {
      if (mb.is_recomputed()) {
        start = take<Memory>(ctx, c.recompute_input);
      } else {
        for_b = take<Memory>(ctx, c.activation - kept_for_w);
        for_w = take<Memory>(ctx, kept_for_w);
      }
      if (mb.is_last_stage())
        mb.report_loss(0);
      else
        out = MakeEdge(ctx, c.edge);
      in.clear();
    });
    co_await mb.send_activation(std::move(out));
    co_await R([&](pass_context ctx) {
      for_b = take<Memory>(ctx, c.activation - kept_for_w - c.recompute_input);
      for_w = take<Memory>(ctx, kept_for_w);
    });
    message back = co_await mb.recv_gradient();
    auto backward_input = [&](pass_context ctx) {
      if (!mb.is_first_stage()) out = MakeEdge(ctx, edge_before);
      if (!mb.is_fused()) made_by_b = take<Memory>(ctx, c.output_gradient);
      for_b.reset();
      start.reset();
      back.clear();
    };
    if (mb.is_fused()) {
      co_await BW(backward_input);
      co_await mb.send_gradient(std::move(out));
    } else {
      co_await B(backward_input);
      co_await mb.send_gradient(std::move(out));
      co_await W([&] {
        for_w.reset();
        made_by_b.reset();
      });
    }
  }
};

/// Keeps the activation and the gradient that it receives, as real layers do, instead of copies.
struct keeps_its_input {
  static constexpr bytes edge = 40;
  static constexpr bytes activation = 100;
  static constexpr bytes weight_gradient_input = 2 * edge;

  flow operator()(microbatch mb) {
    message x = co_await mb.recv_activation();
    buffer for_b;
    message out;
    message dy;
    co_await F([&](pass_context ctx) {
      if (mb.is_first_stage()) x = ctx.allocate(size_of(edge));
      if (mb.is_last_stage()) dy = ctx.allocate(size_of(edge));
      for_b = ctx.allocate(size_of(activation - (mb.is_last_stage() ? 2 : 1) * edge));
      if (!mb.is_last_stage()) out = ctx.allocate_edge(size_of(edge));
    });
    co_await mb.send_activation(std::move(out));
    message back = co_await mb.recv_gradient();
    auto backward_input = [&](pass_context ctx) {
      if (!mb.is_last_stage()) dy = std::move(back);
      if (!mb.is_first_stage()) out = ctx.allocate_edge(size_of(edge));
      for_b.reset();
    };
    co_await B(backward_input);
    co_await mb.send_gradient(std::move(out));
    co_await W([&] {
      x.clear();
      dy.clear();
    });
  }
};

/// True for stages that hold all memory of a pass at one time, and none of it twice, so that the
/// most of all together is as the plan says, too.
template <class Stage>
inline constexpr bool fills_total = false;
template <class Memory, message (*MakeEdge)(pass_context, bytes)>
inline constexpr bool fills_total<declared<Memory, MakeEdge>> = true;

/// Runs steps and compares what each rank took with what is said of its plan, whose stages state
/// neither static memory nor workspace.
template <class Backend, class Stage>
void check_peaks(plan const& planned, Backend backend, Stage const& stage) {
  std::vector<Stage> stages(zbpp::detail::index(planned.problem().stages()), stage);
  pipeline pipe{planned, backend, stages};
  auto const ranks = planned.problem().ranks();
  auto const devices = zbpp::detail::backend_of<Backend>(backend).devices_of(ranks);
  auto const expected = peak_memory(planned.program(), planned.problem(), devices);
  for (int repeat = 0; repeat < 2; ++repeat) {
    pipe.step();
    for (int rank = 0; rank < ranks; ++rank) {
      INFO("rank " << rank << ", step " << repeat);
      auto const& usage = pipe.memory(rank);
      CHECK(usage.most(purpose::activation) == expected[zbpp::detail::index(rank)].activations);
      CHECK(usage.most(purpose::edge) == expected[zbpp::detail::index(rank)].edges);
      CHECK(usage.peak_total <= expected[zbpp::detail::index(rank)].total);
      if (fills_total<Stage>) CHECK(usage.peak_total == expected[zbpp::detail::index(rank)].total);
      CHECK(usage.total() == 0);
      CHECK(usage.in_use == std::array<bytes, purposes>{});
    }
  }
}

/// States limits of random sizes, in bytes.
struct uneven_sizes {
  bytes most_added = 0;  ///< by B for W
  bytes least_edge = 0;
};

/// Makes a problem whose stages have random costs, each its own.
[[nodiscard]] inline problem uneven_problem(
    seeded_random& random, placement placement, int microbatches, uneven_sizes sizes = {}) {
  std::vector<stage_costs> costs(zbpp::detail::index(placement.stages()), uneven_costs());
  for (auto& c : costs) {
    c.activation = random.integer(500, 2000);
    c.weight_gradient_input = random.integer(0, 300);
    c.recompute_input = random.integer(0, 200);
    c.edge = random.integer(sizes.least_edge, 500);
    if (sizes.most_added == 0) continue;
    c.output_gradient = random.integer(0, sizes.most_added);
    c.weight_gradient_input += c.output_gradient;
  }
  return {std::move(placement), microbatches, std::move(costs), 87};
}

/// Calls `check(plan)` for the plans of uneven problems on some ranks, with R and BW among them.
template <class Check>
void for_each_uneven_plan(int ranks, uneven_sizes sizes, Check check) {
  for (auto const& placement : placements_to_run(ranks))
    for (int m : microbatches_to_run(ranks)) {
      ZBPP_SEEDED(random, ranks * 100 + m);
      auto const problem = uneven_problem(random, placement, m, sizes);
      for_each_plan_of(
          problem,
          {.recomputed = true, .receive_ahead = m % 3},
          [&](std::string const& name, plan const& planned) {
            INFO(name);
            check(planned);
          });
    }
}

}  // namespace zbpp::test::memory_use
