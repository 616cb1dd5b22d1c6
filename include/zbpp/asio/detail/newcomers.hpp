// SPDX-License-Identifier: Apache-2.0
//
// Connections to rank 0 that are authenticated, and of no rank yet: of processes that have not
// asked to join, or are refused.
#pragma once

#include <zbpp/asio/detail/control_connection.hpp>
#include <zbpp/asio/detail/control_message.hpp>
#include <zbpp/asio/detail/timers.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/error.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

/// Keeps connections until they are those of ranks. Used on the I/O thread alone.
class newcomers {
 public:
  void add(std::shared_ptr<control_connection> one) { all_.push_back(std::move(one)); }
  /// Gives up a connection, if it is here. @return the connection, else null
  std::shared_ptr<control_connection> remove(control_connection const& one) {
    auto const place = std::ranges::find(all_, &one, [](auto const& each) { return each.get(); });
    if (place == all_.end()) return nullptr;
    auto const removed = *place;
    all_.erase(place);
    return removed;
  }
  /// Says why a process will not run, and closes its connection when it has read that.
  void turn_away(control_connection& one, std::string const& text) {
    one.send(control_kind::refuse, write(rank_failure{{}, {}, errc::no_rendezvous, text}));
    one.finish(std::chrono::seconds(1));
    remove(one);
  }
  /// Does so with those that have not asked to join in time.
  void turn_away_late(std::string const& text) {
    constexpr std::chrono::seconds limit{5};
    auto const now = steady::now();
    for (auto const& one : std::vector(all_))
      if (now - one->heard() > limit) turn_away(*one, text);
  }

  [[nodiscard]] auto begin() const noexcept { return all_.begin(); }
  [[nodiscard]] auto end() const noexcept { return all_.end(); }

 private:
  std::vector<std::shared_ptr<control_connection>> all_;
};

}  // namespace zbpp::asio::detail
