// SPDX-License-Identifier: Apache-2.0
//
// The members of a run as rank 0 knows them, and what is wrong with ranks that join, or do not.
#pragma once

#include <zbpp/asio/detail/collective_round.hpp>
#include <zbpp/asio/detail/control_connection.hpp>
#include <zbpp/asio/detail/control_message.hpp>
#include <zbpp/asio/detail/host.hpp>
#include <zbpp/asio/detail/limit_text.hpp>
#include <zbpp/asio/detail/listener.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/detail/timers.hpp>
#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/asio/token.hpp>
#include <zbpp/config.hpp>
#include <zbpp/io/text.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

/// Holds what rank 0 knows of a rank.
struct member_record {
  member_record() = default;
  /// Is that of a rank that asked to join on this connection.
  member_record(std::shared_ptr<control_connection> by, join_request request)
      : to(std::move(by)),
        data(std::move(request.data)),
        from(to->name()),
        came_over_loopback(to->address().is_loopback()),
        has_come(true) {
    if (data.host.empty()) data.host = to->address().to_string();
    progress.rank = request.rank;
  }

  std::shared_ptr<control_connection> to;  ///< null: rank 0 itself, or nobody
  roster_entry data;
  std::string from;  ///< the address of its connection, for people
  std::string went;  ///< why its connection ended before the run began
  bool came_over_loopback = false;
  bool has_come = false;
  bool is_told = false;    ///< that the run has failed
  bool has_ended = false;  ///< nothing more is expected of it
  bool has_left = false;
  std::optional<rank_failure> doubt;  ///< what another rank noticed of it, until it has answered
  int doubted_by = 0;                 ///< that other rank
  progress_report progress;

  /// @return how long it has said nothing; 0 where nothing connects it
  [[nodiscard]] steady::duration silence() const {
    return to == nullptr ? steady::duration::zero() : steady::now() - to->heard();
  }
};

/// @return the rank of a connection; -1 where it belongs to none
[[nodiscard]] inline int rank_of(
    std::vector<member_record> const& members, control_connection const& of) {
  auto const found =
      std::ranges::find(members, &of, [](member_record const& s) { return s.to.get(); });
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

/// @return what all ranks told last
[[nodiscard]] inline std::vector<progress_report> reports_of(
    std::vector<member_record> const& members) {
  std::vector<progress_report> reports;
  for (auto const& s : members) reports.push_back(s.progress);
  return reports;
}

/// @return how long the most silent of the ranks that are still expected has said nothing
[[nodiscard]] inline steady::duration longest_silence(std::vector<member_record> const& members) {
  auto longest = steady::duration::zero();
  for (auto const& s : members)
    if (!s.has_ended) longest = std::max(longest, s.silence());
  return longest;
}

/// @return whether every rank that is still expected has been told that the run has failed
[[nodiscard]] inline bool are_all_told(std::vector<member_record> const& members) {
  return std::ranges::all_of(
      members, [](member_record const& m) { return m.is_told || m.has_ended; });
}

/// Sends a heartbeat to every rank, and notes how long each has been silent.
/// @param was_late  whether this process was suspended, so that silence counts from now on
inline void send_heartbeats(std::vector<member_record>& members, bool was_late) {
  for (auto& m : members) {
    m.progress.silence_ms = std::chrono::round<std::chrono::milliseconds>(m.silence()).count();
    if (m.to == nullptr) continue;
    if (!m.to->is_behind()) m.to->send(control_kind::heartbeat);
    if (was_late) m.to->excuse(steady::now());
  }
}

/// Expects nothing more of ranks that have been silent for the deadline.
/// @return these ranks
[[nodiscard]] inline std::vector<int> give_up_silent(
    std::vector<member_record>& members, std::chrono::milliseconds deadline) {
  std::vector<int> silent;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    auto& m = members[rank];
    if (m.has_ended || m.silence() < deadline) continue;
    m.has_ended = true;
    m.to->expect_no_reader();  // it gets the verdict, should it wake up
    silent.push_back(static_cast<int>(rank));
  }
  return silent;
}

/// @return what is wrong with a rank that wants to join from an address; empty if nothing
[[nodiscard]] inline std::string mistake_in(
    join_request const& request,
    std::string const& from,
    std::vector<member_record> const& members) {
  auto const ranks = static_cast<std::int32_t>(members.size());
  auto const who = "rank " + std::to_string(request.rank) + " at " + from;
  if (request.version != ZBPP_VERSION)
    return who + " is built with version " + version_text(request.version) +
           " of zbpp, rank 0 with " + version_text(ZBPP_VERSION) +
           "; build all ranks with the same";
  if (request.ranks != ranks)
    return who + " expects " + std::to_string(request.ranks) + " ranks, rank 0 expects " +
           std::to_string(ranks) + "; start all with the same number";
  if (request.rank < 0 || request.rank >= ranks)
    return who + " is out of range; ranks go from 0 to " + std::to_string(ranks - 1);
  auto const& taken = members[zbpp::detail::index(request.rank)];
  if (!taken.has_come) return {};
  return "rank " + std::to_string(request.rank) + " came twice: from " +
         (request.rank == 0 ? "where the run meets" : taken.from) + " and from " + from +
         "; give every process a rank of its own";
}

/// @return which ranks did not come, and what is known about them
[[nodiscard]] inline std::string missing_text(
    std::vector<member_record> const& members,
    std::chrono::milliseconds deadline,
    std::string const& place,
    listener_counts const& counts) {
  std::vector<int> missing;
  std::string left;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].has_come) continue;
    missing.push_back(static_cast<int>(rank));
    if (!members[rank].went.empty())
      left += "; rank " + std::to_string(rank) + " joined, and left before all were there (" +
              members[rank].went + "); look at its output";
  }
  auto text = ranks_text(missing) + " of " + std::to_string(members.size()) +
              " did not come within " + seconds_text(deadline) + " to " + place +
              "; start each with the same host, port, number of ranks and token" +
              set_by("join_deadline") + left;
  auto const turned_away = counts.refused + counts.dropped;
  if (turned_away > 0)
    text += "; connections turned away: " + std::to_string(turned_away) +
            ", the last one because " + counts.last_reason;
  if (counts.failed > 0)
    text += "; connections that rank 0 could not accept: " + std::to_string(counts.failed) +
            ", the last one: " + counts.last_failure;
  return text;
}

/// @return where a run meets, for people: the address that rank 0 listens on, or where that is any
///         of its machine, the one that ranks were told
[[nodiscard]] inline std::string place_text(launch const& start, tcp::endpoint const& listening) {
  auto const address = listening.address();
  return host_and_port(
      address.is_unspecified() ? start.host : address.to_string(), listening.port());
}

/// @return what to tell a rank that comes when the run is complete
[[nodiscard]] inline std::string late_text(int rank, std::size_t ranks, std::string const& place) {
  return "the run at " + place + " is complete: rank " + std::to_string(rank) + " came when all " +
         std::to_string(ranks) +
         " ranks were there; a run cannot be joined later, start another one";
}

/// @return why ranks on other machines cannot reach some of this one; empty if they can
[[nodiscard]] inline std::string unreachable_text(std::vector<member_record> const& members) {
  std::vector<int> here;
  std::vector<int> elsewhere;
  for (std::size_t rank = 1; rank < members.size(); ++rank) {
    auto const& s = members[rank];
    boost::system::error_code is_name;
    bool const is_local = net::ip::make_address(s.data.host, is_name).is_loopback();
    if (s.came_over_loopback && is_local) here.push_back(static_cast<int>(rank));
    if (!s.came_over_loopback) elsewhere.push_back(static_cast<int>(rank));
  }
  if (here.empty() || elsewhere.empty()) return {};
  return ranks_text(here) + " came over loopback, where " + ranks_text(elsewhere) +
         " cannot reach them; give rank 0's host by a name or address that all machines know, or "
         "set rendezvous_settings::advertise";
}

/// @return the data addresses of all ranks, under a new random number
[[nodiscard]] inline roster roster_of(std::vector<member_record> const& members) {
  roster all;
  auto const random = make_challenge();
  std::copy_n(random.begin(), all.run_id.size(), all.run_id.begin());
  for (auto const& s : members) all.ranks.push_back(s.data);
  return all;
}

}  // namespace zbpp::asio::detail
