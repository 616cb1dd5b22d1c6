// SPDX-License-Identifier: Apache-2.0
//
// All definitions of this folder, and the backends that it instantiates for everybody; the compiled
// form has a source for each paragraph.
#pragma once

#include <zbpp/runtime/impl/agreement.ipp>
#include <zbpp/runtime/impl/arena_core.ipp>
#include <zbpp/runtime/impl/chunk_state.ipp>
#include <zbpp/runtime/impl/early_w.ipp>
#include <zbpp/runtime/impl/executor.ipp>
#include <zbpp/runtime/impl/gradient_reduction.ipp>
#include <zbpp/runtime/impl/grid_agreement.ipp>
#include <zbpp/runtime/impl/group.ipp>
#include <zbpp/runtime/impl/in_process.ipp>
#include <zbpp/runtime/impl/in_process_grid.ipp>
#include <zbpp/runtime/impl/member_agreement.ipp>
#include <zbpp/runtime/impl/message.ipp>
#include <zbpp/runtime/impl/microbatch.ipp>
#include <zbpp/runtime/impl/object.ipp>
#include <zbpp/runtime/impl/pipeline.ipp>
#include <zbpp/runtime/impl/pipeline_setup.ipp>
#include <zbpp/runtime/impl/program_run.ipp>
#include <zbpp/runtime/impl/rank_code.ipp>
#include <zbpp/runtime/impl/rank_transport.ipp>
#include <zbpp/runtime/impl/refuse_flow.ipp>
#include <zbpp/runtime/impl/rethrow.ipp>
#include <zbpp/runtime/impl/run_terms.ipp>
#include <zbpp/runtime/impl/running_call.ipp>
#include <zbpp/runtime/impl/state_link.ipp>
#include <zbpp/runtime/impl/step_agreement.ipp>
#include <zbpp/runtime/impl/step_agreements.ipp>
#include <zbpp/runtime/impl/threads.ipp>
#include <zbpp/runtime/impl/tied_gradients.ipp>
#include <zbpp/runtime/impl/workers.ipp>

// The backends.
#include <zbpp/runtime/detail/backend_link.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>
template class zbpp::detail::backend_of<zbpp::threads>;
template class zbpp::detail::backend_of<zbpp::virtual_time>;
