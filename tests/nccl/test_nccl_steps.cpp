// SPDX-License-Identifier: Apache-2.0
//
// Optimizer steps that ranks agree on while NCCL moves their messages: the bits of one process,
// whatever a GPU runs first.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/catch.hpp>
#include <support/cuda_steps.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_in_one_process.hpp>
#include <support/padded_toy.hpp>
#include <support/seeded.hpp>

namespace test_nccl_steps {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
using zbpp::problem;
using zbpp::step_kind;

namespace {

// Uses all memory that is free when a pass ends, so that what a message gets was in use just now.
using stage = gpu_steps::optimized_stage<toy::padded_passes<toy::launched_passes_with_scratch>>;

}  // namespace

TEST_CASE("ranks over NCCL agree on steps with the bits of one process", "[nccl]") {
  auto seed = run_seed();
  gpu_steps::for_each_case([&](zbpp::any_policy const& policy, problem const& problem) {
    for (auto const kind : {step_kind::post_validated, step_kind::synchronous}) {
      auto const planned = make_plan(policy, problem, {.step = kind});
      for (auto const& with : gpu_steps::troubles_in_turn(planned, seed)) {
        model::reset({.seed = ++seed, .devices = problem.ranks()});
        INFO("interleaving " << seed << ", clips at " << with.clip);
        gpu_steps::check(
            gpu_steps::train_on<stage>(planned, with, nccl_in_one_process{}),
            gpu_steps::train_alone(planned, with),
            planned,
            with);
      }
    }
  });
}

TEST_CASE("ranks over NCCL step without agreement with the bits of a plain loop", "[nccl][long]") {
  auto seed = run_seed() + 900;
  gpu_steps::for_each_case_without_agreement([&](zbpp::plan const& planned, auto const& with) {
    model::reset({.seed = ++seed, .devices = planned.problem().ranks()});
    INFO("interleaving " << seed << ", clips at " << with.clip);
    gpu_steps::check(
        gpu_steps::train_on<stage>(planned, with, nccl_in_one_process{}),
        gpu_steps::train_alone(planned, with),
        planned,
        with);
  });
}

}  // namespace test_nccl_steps
