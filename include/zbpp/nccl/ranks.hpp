// SPDX-License-Identifier: Apache-2.0
//
// Runs a pipeline over several processes, with one rank and its GPU in each: passes are enqueued on
// the rank's stream, messages travel by NCCL, and a failure in one process ends the step in all.
#pragma once

#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/nccl/settings.hpp>

#include <optional>
#include <utility>

namespace zbpp::nccl {

namespace detail {
class rank_pass_observer;
class transport;
}  // namespace detail

/// Runs the rank of this process; each of the other processes runs its own.
///
/// All ranks make their pipelines, and take their steps, in the same order. A failure on one rank,
/// an error of a communicator or a stalled step ends the step on all ranks: communicators are
/// aborted, and every rank throws the first failure; a rank that has finished its part already
/// throws it in its next call. After that the run is over, and every later call throws the same.
class ranks {
 public:
  using transport_type = detail::transport;
  using pass_observer = detail::rank_pass_observer;
  /// Whether arenas take their planned size from the device when the pipeline is made.
  static constexpr bool reserves_memory = true;

  class executor;

  /// Takes part in a run, which must outlive the pipeline.
  explicit ranks(asio::rendezvous& run, ranks_settings settings = {})
      : run_(&run), settings_(std::move(settings)) {}
  /// Takes part in a run that is a grid, each of whose pipelines has the ranks of a plan, as
  /// `asio::tcp`. Calls of groups go by TCP.
  ranks(asio::rendezvous& run, grid_layout layout, ranks_settings settings = {})
      : run_(&run), layout_(std::move(layout)), settings_(std::move(settings)) {}

  /// @return the grid that the run is; null where it is none
  [[nodiscard]] grid_layout const* layout() const noexcept { return layout_ ? &*layout_ : nullptr; }

 private:
  asio::rendezvous* run_;
  std::optional<grid_layout> layout_;
  ranks_settings settings_;
};

}  // namespace zbpp::nccl

#include <zbpp/nccl/detail/ranks_executor.hpp>
