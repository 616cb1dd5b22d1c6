// SPDX-License-Identifier: Apache-2.0
//
// What an evaluation gives beside losses: the messages that the flows of the last stage send.
#pragma once

#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/pass_context.hpp>

namespace zbpp {

/// Holds what the last stage made of one microbatch; valid during the call that it is handed to.
struct evaluation_output {
  int microbatch = 0;
  /// What the flow of the last stage sent. On a GPU it lies in memory of the device, and what makes
  /// it is only enqueued: enqueue what reads it on the stream of `context`.
  zbpp::message const& message;
  pass_context context;  ///< where the passes of the last stage run
};

}  // namespace zbpp
