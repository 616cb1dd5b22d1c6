// SPDX-License-Identifier: Apache-2.0
//
// What rank 0 knows of a run: which ranks have joined, what each called, what all collected.
#pragma once

#include <zbpp/asio/detail/client.hpp>
#include <zbpp/asio/detail/control_connection.hpp>
#include <zbpp/asio/detail/io_parts.hpp>
#include <zbpp/asio/detail/listener.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/rank_call.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/asio/token.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

// The failures of a run as rank 0 learns them.

/// Collects failures, and says which one ended the run: the first that rank 0 heard of, except that
/// a rank that another one has lost gives way to what a rank says of itself, and to what rank 0
/// sees. What is noticed of a rank often comes of a failure that is still on its way.
class failure_list {
 public:
  static constexpr int nobody = -1;

  /// Takes a failure.
  /// @param by  the rank that says so; nobody where rank 0 itself sees it
  void add(rank_failure one, int by) {
    bool const is_noticed = one.code == errc::peer_failed && one.location.rank >= 0 &&
                            by != nobody && by != one.location.rank;
    if (is_noticed) {
      if (!noticed_by(one.location.rank)) noticed_.push_back({std::move(one), by});
    } else if (std::ranges::find(stated_, one) == stated_.end()) {
      stated_.push_back(std::move(one));
    }
  }
  /// @return the rank that has lost another one; none where nobody has
  [[nodiscard]] std::optional<int> noticed_by(int rank) const {
    for (auto const& [failure, by] : noticed_)
      if (failure.location.rank == rank) return by;
    return {};
  }
  [[nodiscard]] std::size_t size() const noexcept { return stated_.size() + noticed_.size(); }
  /// @return all of them, the one that ended the run first, without what was noticed of a rank that
  ///         has said itself what it is
  [[nodiscard]] std::vector<rank_failure> in_order() const {
    auto all = stated_;
    for (auto const& each : noticed_) attach(all, each.failure, true);
    return all;
  }

 private:
  struct noticed_failure {
    rank_failure failure;
    int by;
  };

  std::vector<rank_failure> stated_;
  std::vector<noticed_failure> noticed_;
};

// The calls of all ranks as rank 0 learns them: whether all make the same ones in the same order,
// and who waits for a rank that will make no more of them.

/// Compares the calls of ranks one by one, each with the first that came. Ranks may be apart: what
/// is kept are the calls that some rank has not made yet. Allocates nothing once ranks were as far
/// apart as they get.
class call_log {
 public:
  explicit call_log(int ranks)
      : made_(zbpp::detail::index(ranks), 0), last_(made_.size()), left_(made_.size()) {}

  /// Notes the next call of a rank.
  /// @return what is wrong with it, in the words of an error; empty where nothing is
  [[nodiscard]] std::string note(int rank, rank_call const& call) {
    auto const r = zbpp::detail::index(rank);
    auto const number = made_[r]++;
    last_[r] = call;
    auto const at = static_cast<std::size_t>(number - first_);
    if (at == open_.size()) {
      open_.push_back({call, rank, 1});
    } else {
      auto const wrong = compare(open_[at], number, rank, call);
      if (!wrong.empty()) return wrong;
      ++open_[at].ranks;
      // What others are compared with, too: not all ranks have terms.
      if (call.steps.terms && !open_[at].call.steps.terms) {
        open_[at].call = call;
        open_[at].first_rank = rank;
      }
    }
    while (!open_.empty() && open_.front().ranks == made_.size()) {
      open_.erase(open_.begin());
      ++first_;
    }
    return {};
  }

  /// Notes that a rank has destroyed a pipeline.
  void leave(int rank, std::int32_t pipeline) {
    left_[zbpp::detail::index(rank)].push_back(pipeline);
    if (!std::ranges::all_of(left_, [&](auto const& all) { return contains(all, pipeline); }))
      return;
    for (auto& all : left_) std::erase(all, pipeline);
  }

  [[nodiscard]] std::uint64_t calls_of(int rank) const noexcept {
    return made_[zbpp::detail::index(rank)];
  }
  /// @return whose call a rank will not make: "rank 0 called step() for step 3"; or empty
  /// @param has_left  whether that rank makes no calls at all any more, rather than none of the
  ///                  pipelines that it has destroyed
  [[nodiscard]] std::string callers_waiting_for(int rank, bool has_left) const {
    auto const r = zbpp::detail::index(rank);
    if (!has_left && left_[r].empty()) return {};
    std::vector<int> waiting;
    for (std::size_t other = 0; other < made_.size(); ++other) {
      if (made_[other] <= made_[r]) continue;
      if (!has_left && !has_destroyed(rank, last_[other])) continue;
      auto const name = last_[other].name();
      if (waiting.empty() || name == last_[zbpp::detail::index(waiting.front())].name())
        waiting.push_back(static_cast<int>(other));
    }
    return waiting.empty() ? std::string()
                           : said_by(waiting, last_[zbpp::detail::index(waiting.front())]);
  }
  /// @return what a rank called last: "rank 0 called step() for step 3"; empty where nothing
  [[nodiscard]] std::string last_of(int rank) const {
    int const caller[] = {rank};
    return calls_of(rank) == 0 ? std::string() : said_by(caller, last_[zbpp::detail::index(rank)]);
  }
  /// @return whether a rank has destroyed the pipeline that another one used last
  [[nodiscard]] bool has_left_pipeline_of(int other, int rank) const noexcept {
    return other >= 0 && has_destroyed(rank, last_[zbpp::detail::index(other)]);
  }
  /// @return whether a rank has destroyed the pipeline of a call
  [[nodiscard]] bool has_destroyed(int rank, rank_call const& call) const noexcept {
    return call.kind == call_kind::run && contains(left_[zbpp::detail::index(rank)], call.pipeline);
  }

 private:
  struct entry {
    rank_call call;
    int first_rank;     // that made it
    std::size_t ranks;  // that have made it
  };

  [[nodiscard]] static bool contains(
      std::vector<std::int32_t> const& all, std::int32_t one) noexcept {
    return std::ranges::find(all, one) != all.end();
  }
  [[nodiscard]] static std::string said_by(std::span<int const> ranks, rank_call const& call) {
    return ranks_text(ranks) + " called " + call.name();
  }

  [[nodiscard]] std::string compare(
      entry const& before, std::uint64_t number, int rank, rank_call const& call) const {
    // Who made the call is put into words only where somebody reads them.
    if (mismatch(before.call, {}, before.first_rank, call, rank).empty()) return {};
    std::vector<int> others;
    for (int r = 0; r < static_cast<int>(made_.size()); ++r)
      if (r != rank && calls_of(r) > number) others.push_back(r);
    return mismatch(before.call, ranks_text(others), others.front(), call, rank);
  }

  std::vector<std::uint64_t> made_;              // by rank: how many calls
  std::vector<rank_call> last_;                  // by rank
  std::vector<std::vector<std::int32_t>> left_;  // by rank: pipelines that it has destroyed
  std::vector<entry> open_;                      // calls that some rank has not made
  std::uint64_t first_ = 0;                      // number of the first of them
};

// Collective calls at rank 0: who has come, whether all call the same, and what all get. Ranks may
// make further calls while a maximum is open, which blocks none of them.

/// Collects the collective calls of all ranks.
class collective_rounds {
 public:
  explicit collective_rounds(int ranks) : made_(zbpp::detail::index(ranks)) {}

  /// @return the number of the oldest round that blocks ranks; none where there is none
  [[nodiscard]] std::optional<std::uint64_t> blocking() const {
    for (std::size_t i = 0; i < open_.size(); ++i)
      if (first_call(open_[i]).kind != collective::maximum) return first_ + i;
    return {};
  }
  [[nodiscard]] bool is_complete() const noexcept {
    return !open_.empty() && std::ranges::all_of(open_.front(), &slot::has_value);
  }

  /// Takes the next call of a rank.
  /// @return who made which call within one call of the user, when these differ; else empty
  /// @throws error (bad_format) when it is not the next one, or names a root that is no rank
  [[nodiscard]] std::string add(int rank, collective_call call) {
    auto& made = made_[zbpp::detail::index(rank)];
    if (call.sequence != made) throw error(errc::bad_format, "a collective call out of turn");
    if (call.root < 0 || zbpp::detail::index(call.root) >= made_.size())
      throw error(errc::bad_format) + "a call from root " + call.root + " of " + made_.size() +
          " ranks";
    if (call.kind == collective::maximum && call.part.size() != 1)
      throw error(errc::bad_format, "a maximum that is not of one byte");
    auto const number = static_cast<std::size_t>(made++ - first_);
    if (number == open_.size()) open_.emplace_back(made_.size());
    auto& calls = open_[number];
    calls[zbpp::detail::index(rank)] = std::move(call);
    return mismatch(calls);
  }

  /// @return who waits for a rank that will not come: "rank 0 called barrier"; empty where nobody
  /// @param has_left  whether it makes no calls at all any more, rather than none of the pipelines
  ///                  that `log` says it has destroyed
  [[nodiscard]] std::string callers_waiting_for(
      int rank, bool has_left, call_log const& log) const {
    for (auto const& calls : open_) {
      if (calls[zbpp::detail::index(rank)]) continue;
      bool const may_come = !has_left && std::ranges::none_of(calls, [&](slot const& call) {
        return call && log.has_destroyed(rank, call->by);
      });
      if (!may_come) return callers_text(calls);
    }
    return {};
  }
  /// @param number  of an open round
  [[nodiscard]] std::string late_text(
      std::uint64_t number, std::chrono::milliseconds deadline) const {
    auto const& calls = open_[static_cast<std::size_t>(number - first_)];
    std::vector<int> missing;
    for (std::size_t rank = 0; rank < calls.size(); ++rank)
      if (!calls[rank]) missing.push_back(static_cast<int>(rank));
    return ranks_text(missing) + " did not come within " + seconds_text(deadline) + ": " +
           callers_text(calls) + set_by("collective_deadline");
  }
  /// @return what is wrong when the parts together do not fit into one frame; else empty
  [[nodiscard]] std::string too_large() const {
    std::size_t size = 64;
    for (auto const& call : open_.front()) size += call->part.size() + sizeof(std::uint32_t);
    constexpr std::size_t most = std::numeric_limits<std::uint32_t>::max();
    if (size <= most) return {};
    return zbpp::detail::joined("the parts of ") + open_.front().front()->name() + " are " + size +
           " bytes together; at most " + most + " fit";
  }

  /// Ends the oldest round, in which all have called. @return what all ranks get
  [[nodiscard]] collective_outcome finish() {
    auto calls = std::move(open_.front());
    open_.pop_front();
    collective_outcome outcome{first_++, {}};
    auto const root = zbpp::detail::index(calls.front()->root);
    switch (calls.front()->kind) {
      case collective::barrier: break;
      case collective::broadcast: outcome.parts.push_back(std::move(calls[root]->part)); break;
      case collective::all_gather:
        for (auto& call : calls) outcome.parts.push_back(std::move(call->part));
        break;
      case collective::maximum:
        outcome.parts.emplace_back(1);
        for (auto const& call : calls)
          outcome.parts[0][0] = std::max(outcome.parts[0][0], call->part.front());
    }
    return outcome;
  }

 private:
  using slot = std::optional<collective_call>;
  using round = std::vector<slot>;  // by rank

  [[nodiscard]] static collective_call const& first_call(round const& calls) {
    return **std::ranges::find_if(calls, &slot::has_value);
  }
  [[nodiscard]] static std::string mismatch(round const& calls) {
    std::string text;
    auto const& first = first_call(calls);
    bool differs = false;
    for (std::size_t rank = 0; rank < calls.size(); ++rank) {
      if (!calls[rank]) continue;
      auto const& call = *calls[rank];
      differs = differs || first.kind != call.kind || first.root != call.root;
      text += zbpp::detail::joined(text.empty() ? "rank " : ", rank ") + rank + " called " +
              to_string(call.kind) + " in " + call.name();
    }
    return differs ? text + "; all ranks have to make the same calls in the same order" : "";
  }
  // Says who called what: "ranks 0 and 1 called barrier, rank 2 called all_gather".
  [[nodiscard]] static std::string callers_text(round const& calls) {
    std::vector<std::pair<std::string, std::vector<int>>> by_name;
    for (std::size_t rank = 0; rank < calls.size(); ++rank) {
      if (!calls[rank]) continue;
      auto const name = calls[rank]->name();
      auto found = std::ranges::find(by_name, name, [](auto const& each) { return each.first; });
      if (found == by_name.end()) found = by_name.insert(found, {name, {}});
      found->second.push_back(static_cast<int>(rank));
    }
    std::string text;
    for (auto const& [name, callers] : by_name)
      text += (text.empty() ? "" : ", ") + ranks_text(callers) + " called " + name;
    return text;
  }

  std::vector<std::uint64_t> made_;  // by rank: how many calls
  std::deque<round> open_;           // that some rank has not come to
  std::uint64_t first_ = 0;          // number of the oldest
};

// Connections to rank 0 that are authenticated, and of no rank yet: of processes that have not
// asked to join, or are refused.

/// Keeps connections until they are those of ranks. Used on the I/O thread alone.
class pending_connections {
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
    one.send(control_kind::stop, write(rank_failure{{}, {}, errc::no_rendezvous, text}));
    one.finish(std::chrono::seconds(1));
    remove(one);
  }
  /// Turns connections away that have not asked to join in time.
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

// The members of a run as rank 0 knows them, and what is wrong with ranks that join, or do not.

/// Holds what rank 0 knows of a rank.
struct member_record {
  member_record() = default;
  /// A rank that asked to join on this connection.
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
  bool is_informed = false;  ///< that the run has failed
  bool has_ended = false;    ///< nothing more is expected of it
  bool has_left = false;
  progress_report progress;

  /// @return how long it has said nothing; 0 where nothing connects it
  [[nodiscard]] steady::duration silence() const {
    return to == nullptr ? steady::duration::zero() : steady::now() - to->heard();
  }
};

/// @return -1 where the connection belongs to no rank
[[nodiscard]] inline int rank_of(
    std::vector<member_record> const& members, control_connection const& of) {
  auto const found =
      std::ranges::find(members, &of, [](member_record const& s) { return s.to.get(); });
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

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

[[nodiscard]] inline bool are_all_informed(std::vector<member_record> const& members) {
  return std::ranges::all_of(
      members, [](member_record const& m) { return m.is_informed || m.has_ended; });
}

/// Sends a heartbeat to every rank, and notes how long each has been silent.
/// @param was_late  whether this process was suspended, so that silence counts from now on
inline void send_heartbeats(std::vector<member_record>& members, bool was_late) {
  for (auto& m : members) {
    m.progress.silence_ms = std::chrono::round<std::chrono::milliseconds>(m.silence()).count();
    if (m.to == nullptr) continue;
    if (!m.to->is_behind()) m.to->send(control_kind::heartbeat);
    if (was_late) m.to->reset_silence(steady::now());
  }
}

/// Expects nothing more of ranks that have been silent for the deadline.
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
  std::string const name = zbpp::detail::joined("rank ", request.rank, " at ", from);
  if (request.version != ZBPP_VERSION)
    return name + " is built with version " + version_text(request.version) +
           " of zbpp, rank 0 with " + version_text(ZBPP_VERSION) +
           "; build all ranks with the same";
  if (request.ranks != ranks)
    return zbpp::detail::joined(name) + " expects " + request.ranks + " ranks, rank 0 expects " +
           ranks + "; start all with the same number";
  if (request.rank < 0 || request.rank >= ranks)
    return zbpp::detail::joined(name, " is out of range; ranks go from 0 to ", ranks - 1);
  auto const& taken = members[zbpp::detail::index(request.rank)];
  if (!taken.has_come) return {};
  return zbpp::detail::joined("rank ") + request.rank + " came twice: from " +
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
      left += zbpp::detail::joined("; rank ") + rank + " joined, and left before all were there (" +
              members[rank].went + "); look at its output";
  }
  std::string text = zbpp::detail::joined(ranks_text(missing)) + " of " + members.size() +
                     " did not come within " + seconds_text(deadline) + " to " + place +
                     "; start each with the same host, port, number of ranks and token" +
                     set_by("join_deadline") + left;
  auto const turned_away = counts.refused + counts.dropped;
  if (turned_away > 0)
    text += zbpp::detail::joined("; connections turned away: ") + turned_away +
            ", the last one because " + counts.last_reason;
  if (counts.failed > 0)
    text += zbpp::detail::joined("; connections that rank 0 could not accept: ") + counts.failed +
            ", the last one: " + counts.last_failure;
  return text;
}

/// @return where a run meets: where rank 0 listens; if that is anywhere, what ranks were told
[[nodiscard]] inline std::string place_text(launch const& start, tcp::endpoint const& listening) {
  auto const address = listening.address();
  return host_and_port(
      address.is_unspecified() ? start.host : address.to_string(), listening.port());
}

/// @return what to tell a rank that comes when the run is complete
[[nodiscard]] inline std::string late_text(int rank, std::size_t ranks, std::string const& place) {
  return zbpp::detail::joined("the run at ") + place + " is complete: rank " + rank +
         " came when all " + ranks +
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
