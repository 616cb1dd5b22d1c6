// SPDX-License-Identifier: Apache-2.0
//
// Where the ranks of a run meet: each process makes a rendezvous, knows afterwards who is there,
// and can exchange what the run needs beside its messages.
#pragma once

#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/token.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/runtime/agreement.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace zbpp::asio {

class control;
class socket_grid;

namespace detail {

class data_connector;
class run_transport;

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
      run_token token = run_token::from_environment());
  rendezvous(rendezvous&&) noexcept;
  rendezvous& operator=(rendezvous&&) noexcept;
  /// Leaves the run, which is no failure unless another rank still needs this one.
  ~rendezvous();

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int ranks() const noexcept;
  /// @return the number of this process on its machine; -1 where nothing said so
  [[nodiscard]] int local_rank() const noexcept;
  [[nodiscard]] roster const& everybody() const noexcept;

  /// Collects a part of every rank; at most `largest_blob` bytes each.
  /// @return the parts in the order of ranks
  /// @throws error (bad_argument) when the part is too large; the failure of the run
  std::vector<blob> all_gather(std::span<std::byte const> own);
  /// Gives everybody what the root has; the others' argument is ignored.
  /// @throws error (bad_argument) when the root's part is too large, or the root is no rank; the
  ///         failure of the run
  blob broadcast(std::span<std::byte const> own, int root);
  /// Waits until all ranks are here. @throws error, the failure of the run
  void barrier();
  /// Checks that all ranks hold the same as rank 0, such as the `fingerprint` of a plan.
  /// @throws error (no_agreement), the same on all ranks, that says whose differs and in what, and
  ///         the run goes on; the failure of the run
  void agree(std::span<agreement_item const> own);

  /// Throws the failure of the run, if it has failed; else returns at once. A rank that computes
  /// alone while the others wait should call this regularly, to stop soon after a failure.
  /// @throws error, the failure of the run
  void check();

  /// Ends the run on all ranks for a reason of this one, outside a step; blocks until all know it.
  /// Does nothing when the run has failed already.
  void fail(std::string text);

  /// @return what authors of backends use (control.hpp, process_executor.hpp)
  [[nodiscard]] control& control_channel() noexcept { return *control_; }

 private:
  friend class detail::run_transport;
  friend class socket_grid;

  std::unique_ptr<control> control_;
  std::unique_ptr<detail::data_connector> connector_;  // for all pipelines
};

}  // namespace zbpp::asio

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/rendezvous.ipp>
#endif
