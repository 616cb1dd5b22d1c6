// SPDX-License-Identifier: Apache-2.0
//
// Joins a run by a `control`, and makes the calls of users with it.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/data_connector.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>

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
[[nodiscard]] ZBPP_INLINE std::unique_ptr<control> join(
    launch start, rendezvous_settings settings, run_token token) {
  location const here{start.rank, -1, -1, -1};
  try {
    return std::make_unique<control>(std::move(start), std::move(settings), std::move(token));
  } catch (error const&) {
    throw;
  } catch (std::exception const& failed) {
    throw error(errc::io_failed, here) + "cannot join the run: " + reason_of(failed);
  }
}

}  // namespace detail

ZBPP_INLINE rendezvous::rendezvous(launch start, rendezvous_settings settings, run_token token)
    : control_(detail::join(std::move(start), std::move(settings), std::move(token))),
      connector_(std::make_unique<detail::data_connector>(*control_)) {}

ZBPP_INLINE rendezvous::rendezvous(rendezvous&&) noexcept = default;

ZBPP_INLINE rendezvous& rendezvous::operator=(rendezvous&&) noexcept = default;

ZBPP_INLINE rendezvous::~rendezvous() = default;

ZBPP_INLINE int rendezvous::rank() const noexcept { return control_->rank(); }

ZBPP_INLINE int rendezvous::ranks() const noexcept { return control_->ranks(); }

ZBPP_INLINE int rendezvous::local_rank() const noexcept { return control_->start().local_rank; }

ZBPP_INLINE roster const& rendezvous::everybody() const noexcept { return control_->everybody(); }

ZBPP_INLINE std::vector<blob> rendezvous::all_gather(std::span<std::byte const> own) {
  return control_->collect(collective::all_gather, own);
}

ZBPP_INLINE blob rendezvous::broadcast(std::span<std::byte const> own, int root) {
  auto const part = root == rank() ? own : std::span<std::byte const>();
  return std::move(control_->collect(collective::broadcast, part, root).front());
}

ZBPP_INLINE void rendezvous::barrier() { control_->collect(collective::barrier); }

ZBPP_INLINE void rendezvous::agree(std::span<agreement_item const> own) { control_->agree(own); }

ZBPP_INLINE void rendezvous::check() { control_->check(); }

ZBPP_INLINE void rendezvous::fail(std::string text) {
  static_cast<void>(
      control_->settle(rank_failure{{rank(), -1, -1, -1}, {}, errc::peer_failed, std::move(text)}));
}

}  // namespace zbpp::asio
