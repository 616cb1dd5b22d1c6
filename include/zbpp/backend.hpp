// SPDX-License-Identifier: Apache-2.0
//
// What authors of backends and transports need, and users do not: the engine of a rank, the
// concepts of what it runs on, channels and what their messages prove, links for states of
// gradients, and threads. docs/architecture.md, "Adding a backend", says how these go together; a
// backend with one rank per process also needs asio/process_executor.hpp.
#pragma once

#include <zbpp/analysis/evaluation.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/engine_run.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/gradient_sums.hpp>
#include <zbpp/runtime/in_process.hpp>
#include <zbpp/runtime/memory_source.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/message_rings.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/pass_observer.hpp>
#include <zbpp/runtime/rank_memory.hpp>
#include <zbpp/runtime/rank_transport.hpp>
#include <zbpp/runtime/run_options.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/transport.hpp>
#include <zbpp/runtime/workers.hpp>
