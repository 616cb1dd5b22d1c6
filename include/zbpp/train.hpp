// SPDX-License-Identifier: Apache-2.0
//
// What a trainer needs: problems, handcrafted policies, plans and their proof, flows and stages,
// pipelines on threads and in virtual time, and optimizers. Searches, bounds, pictures and files
// are in `zbpp/plan.hpp`.
#pragma once

#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/checksum.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/layer.hpp>
#include <zbpp/optim/settings.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/policy/handcrafted.hpp>
#include <zbpp/policy/policy.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/object.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/run_options.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/started_step.hpp>
#include <zbpp/runtime/step_result.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/training.hpp>
#include <zbpp/runtime/virtual_time.hpp>
