// SPDX-License-Identifier: Apache-2.0
//
// A backend for runs of many processes, one rank in each: passes run on the calling thread,
// messages travel by TCP, and what fails in one process ends the step in all of them.
#pragma once

#include <zbpp/asio/detail/tcp_transport.hpp>
#include <zbpp/asio/process_executor.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/runtime/backend.hpp>

#include <memory>

namespace zbpp::asio {

/// Runs the rank of this process; each of the others runs its own.
///
/// All ranks make their pipelines, and take their steps, in the same order. A failure on one rank
/// ends the step on every rank, at the latest `rendezvous_settings::deadline` after the current
/// pass. A rank that has already returned from `step()` gets the error from its next call; from
/// evaluations nothing comes back, so there it may be a later one. The run is over then, and every
/// later call throws the same failure.
class tcp : public process_backend {
 public:
  using transport_type = detail::run_transport;
  using executor = process_executor<tcp>;
  using process_backend::process_backend;

  /// @return what carries the messages of this rank; not connected yet
  [[nodiscard]] std::unique_ptr<transport_type> make_transport(rank_program const& of) const {
    return std::make_unique<transport_type>(
        run(), of.messages.channels(), of.largest(), of.wake, settings(), of.ranks);
  }
};

}  // namespace zbpp::asio

#if defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/detail/backend_link.hpp>

extern template class zbpp::detail::backend_of<zbpp::asio::tcp>;
#endif
