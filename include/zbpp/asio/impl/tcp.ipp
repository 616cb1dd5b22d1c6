// SPDX-License-Identifier: Apache-2.0
//
// Makes and connects the transports of a rank.
#pragma once

#include <zbpp/analysis/largest_messages.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/tcp_transport.hpp>
#include <zbpp/asio/socket_states.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/config.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace zbpp::asio {

ZBPP_INLINE tcp::executor::executor(tcp by, plan const& planned)
    : one_rank(
          *by.run_,
          planned,
          {.on_failure = [this](rank_failure const&) { notify(&wakeup_); }},
          by.settings_.share_losses,
          {},
          by.ranks()),
      run_(by.run_),
      settings_(std::move(by.settings_)) {
  if (!by.layout_) return;
  prepare([&] {
    groups_ = std::make_unique<socket_grid>(*run_, *by.layout_, wakeup_, settings_);
    groups_->connect();
  });
}

ZBPP_INLINE std::unique_ptr<detail::tcp_transport> tcp::executor::make_transport(
    program const& program, traffic const& messages, problem const& problem) {
  auto& own = links_.emplace_back(*this, program, messages.channels());
  auto made = own.connections.make_transport(largest_messages(messages, problem), settings_);
  if (exchanges_states(program)) {
    own.states = std::make_unique<socket_states>(
        *run_, program, problem, wakeup_, settings_, supervisor().places());
    own.states->link_to(*made);
  }
  return made;
}

ZBPP_INLINE void tcp::executor::connect(detail::tcp_transport& transport) {
  auto& own = links_.back();
  supervisor().watch(*own.code);
  call_name const named(control_channel(), supervisor().connecting(links_.size() == 1));
  own.connections.connect(transport);
  if (own.states != nullptr) own.states->connect();
}

ZBPP_INLINE void tcp::executor::settle(std::vector<failure>& failures) {
  one_rank::settle(failures);
  for (auto const& each : links_)
    if (each.connections.transport() != nullptr) each.connections.transport()->close();
  if (groups_ != nullptr) groups_->close();
}

ZBPP_INLINE tcp::executor::links& tcp::executor::links_of(detail::tcp_transport const& transport) {
  return *std::ranges::find(
      links_, &transport, [](links const& each) { return each.connections.transport(); });
}

}  // namespace zbpp::asio
