// SPDX-License-Identifier: Apache-2.0
//
// Everything of zbpp that needs the standard library alone.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/program.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/ascii.hpp>
#include <zbpp/io/chrome_trace.hpp>
#include <zbpp/io/csv.hpp>
#include <zbpp/io/file.hpp>
#include <zbpp/io/svg.hpp>
#include <zbpp/io/terminal.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/policy/classic.hpp>
#include <zbpp/policy/interleaved.hpp>
#include <zbpp/policy/policy.hpp>
#include <zbpp/policy/registry.hpp>
#include <zbpp/policy/zb_h.hpp>
#include <zbpp/policy/zb_v.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/transport.hpp>
#include <zbpp/runtime/virtual_time.hpp>
#include <zbpp/runtime/where.hpp>
