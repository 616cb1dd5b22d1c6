// SPDX-License-Identifier: Apache-2.0
//
// How a program of this folder takes part in a run of several processes: ranks.cpp; on the model of
// CUDA all ranks are in one process: ranks_model.cpp.
#pragma once

#include <zbpp/asio/rendezvous.hpp>

#include <functional>

namespace zbpp::bench {

/// Calls `body` as the rank that the launcher's variables name (docs/launch.md), with a GPU made
/// current for it; on the model, as each rank of a run of WORLD_SIZE, on a thread and a device
/// each.
/// @param fails  whether the run is to fail: what it then leaves to the device is in no order, and
///               the model does not hold that against the program
/// @throws error, or what `body` throws; on the model an error (device_failed) with its text
void run_as_rank(
    asio::rendezvous_settings const& settings,
    bool fails,
    std::function<void(asio::rendezvous&)> const& body);

/// Ends the process of this rank with status 9, without a goodbye; on the model the connections of
/// its thread, and what its device was given.
/// @throws on the model, when the other ranks have ended
[[noreturn]] void end_process(asio::rendezvous& run);

}  // namespace zbpp::bench
