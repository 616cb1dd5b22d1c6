// SPDX-License-Identifier: Apache-2.0
//
// Where the ranks of a run meet: each process makes a rendezvous, knows afterwards who is there,
// and can exchange what the run needs beside its messages.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/data_connector.hpp>
#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/reason.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/asio/token.hpp>
#include <zbpp/asio/wire.hpp>

#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio {

namespace detail {

/// Joins a run.
/// @throws error as `control`, and (io_failed) where the system refuses what sockets need
[[nodiscard]] inline std::unique_ptr<control> join(
    launch start, rendezvous_settings settings, run_token token) {
  location const here{start.rank, -1, -1, -1};
  try {
    return std::make_unique<control>(std::move(start), std::move(settings), std::move(token));
  } catch (error const&) {
    throw;
  } catch (std::exception const& failed) {
    throw error(errc::io_failed, "cannot join the run: " + reason_of(failed), here);
  }
}

}  // namespace detail

/// Holds a process's place in a run of several. One thread uses it.
///
/// Collective calls are made by all ranks, the same ones in the same order, and block. A rank that
/// fails, ends or leaves while others need it fails the run: every call on every rank then throws
/// that failure. Destroy what was made of it, such as pipelines, first.
class rendezvous {
 public:
  /// Meets the other ranks; blocks until all are there.
  /// @throws error (no_rendezvous) that says who is missing, came twice or does not fit;
  ///         (refused_peer) when another process holds another token; (io_failed) when an address
  ///         cannot be listened on, or file descriptors run out; (bad_argument) for wrong settings
  explicit rendezvous(
      launch start,
      rendezvous_settings settings = {},
      run_token token = run_token::from_environment())
      : control_(detail::join(std::move(start), std::move(settings), std::move(token))),
        connector_(std::make_unique<detail::data_connector>(*control_)) {}

  /// @return which rank this process is
  [[nodiscard]] int rank() const noexcept { return control_->rank(); }
  /// @return how many ranks there are
  [[nodiscard]] int ranks() const noexcept { return control_->ranks(); }
  /// @return the number of this process on its machine; -1 where nothing said so
  [[nodiscard]] int local_rank() const noexcept { return control_->start().local_rank; }
  /// @return who is where
  [[nodiscard]] roster const& everybody() const noexcept { return control_->everybody(); }

  /// Collects a part of every rank; at most `largest_blob` bytes each.
  /// @return the parts in the order of ranks
  /// @throws error (bad_argument) when the part is too large; the failure of the run
  std::vector<blob> all_gather(std::span<std::byte const> mine) {
    return control_->collect(collective::all_gather, mine);
  }
  /// Gives everybody what the root has; what the others pass is not looked at.
  /// @throws error (bad_argument) when the root's part is too large, or the root is no rank; the
  ///         failure of the run
  blob broadcast(std::span<std::byte const> mine, int root) {
    auto const part = root == rank() ? mine : std::span<std::byte const>();
    return std::move(control_->collect(collective::broadcast, part, root).front());
  }
  /// Waits until all ranks are here. @throws error, the failure of the run
  void barrier() { control_->collect(collective::barrier); }
  /// Checks that all ranks hold the same as rank 0, such as the `fingerprint` of a plan.
  /// @throws error (no_agreement), the same on all ranks, that says whose differs and in what, and
  ///         the run goes on; the failure of the run
  void agree(std::span<agreement_item const> mine) { control_->agree(mine); }

  /// Throws the failure of the run, if it has failed; else returns at once. A rank that works alone
  /// for long, while the others wait, calls it now and then, and so does not outlive them.
  /// @throws error, the failure of the run
  void check() { control_->check(); }

  /// Ends the run on all ranks for a reason of this one, outside a step; blocks until all know it.
  /// Does nothing when the run has failed already.
  void fail(std::string text) {
    static_cast<void>(control_->settle(
        rank_failure{{rank(), -1, -1, -1}, {}, errc::peer_failed, std::move(text)}));
  }

  /// @return what backends use
  [[nodiscard]] control& control_channel() noexcept { return *control_; }
  /// @return what makes the data connections of backends
  [[nodiscard]] detail::data_connector& data_connections() noexcept { return *connector_; }

 private:
  std::unique_ptr<control> control_;
  std::unique_ptr<detail::data_connector> connector_;
};

}  // namespace zbpp::asio
