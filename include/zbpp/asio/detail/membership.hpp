// SPDX-License-Identifier: Apache-2.0
//
// What rank 0 knows of a run: which ranks have joined, what each called, what all collected.
#pragma once

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
#include <zbpp/runtime/run_options.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

// One collective call at rank 0: who has come, whether all call the same, and what all get.

/// Collects a value of each rank, one round after the other.
template <class Value>
class round {
 public:
  explicit round(int ranks) : values_(zbpp::detail::index(ranks)) {}

  [[nodiscard]] bool has(int rank) const noexcept {
    return values_[zbpp::detail::index(rank)].has_value();
  }
  [[nodiscard]] bool is_empty() const noexcept { return count_ == 0; }
  [[nodiscard]] bool is_complete() const noexcept { return count_ == values_.size(); }

 protected:
  void set(int rank, Value value) {
    values_[zbpp::detail::index(rank)] = std::move(value);
    ++count_;
  }
  void clear() {
    std::fill(values_.begin(), values_.end(), std::nullopt);
    count_ = 0;
  }
  [[nodiscard]] std::vector<std::optional<Value>>& values() noexcept { return values_; }
  [[nodiscard]] std::vector<std::optional<Value>> const& values() const noexcept { return values_; }

 private:
  std::vector<std::optional<Value>> values_;
  std::size_t count_ = 0;
};

/// Collects the calls of all ranks, one collective after the other.
class collective_round : public round<collective_call> {
 public:
  using round::round;

  /// Takes a rank's call. @return whether it is the first of its collective
  /// @throws error (bad_format) when the rank has called already, or names a root that is no rank
  [[nodiscard]] bool add(int rank, collective_call call) {
    if (has(rank) || call.sequence != number_)
      throw error(errc::bad_format, "a collective call out of turn");
    if (call.root < 0 || zbpp::detail::index(call.root) >= values().size())
      throw error(errc::bad_format) + "a call from root " + call.root + " of " + values().size() +
          " ranks";
    bool const is_first = is_empty();
    set(rank, std::move(call));
    return is_first;
  }

  /// @return who made which call within one call of the user, when these differ; else empty
  [[nodiscard]] std::string mismatch() const {
    std::string text;
    std::optional<std::pair<collective, int>> first;
    bool differs = false;
    for (std::size_t rank = 0; rank < values().size(); ++rank) {
      if (!values()[rank]) continue;
      auto const& call = *values()[rank];
      if (!first) first = {call.kind, call.root};
      differs = differs || *first != std::pair{call.kind, call.root};
      text += zbpp::detail::joined(text.empty() ? "rank " : ", rank ") + rank + " called " +
              to_string(call.kind) + " in " + call.name();
    }
    return differs ? text + "; all ranks have to make the same calls in the same order" : "";
  }
  /// @return who called what: "ranks 0 and 1 called barrier, rank 2 called all_gather"
  [[nodiscard]] std::string who_text() const {
    std::string text;
    for (auto const& name : names_of_calls()) {
      std::vector<int> callers;
      for (int rank = 0; rank < static_cast<int>(values().size()); ++rank)
        if (has(rank) && values()[zbpp::detail::index(rank)]->name() == name)
          callers.push_back(rank);
      text += (text.empty() ? "" : ", ") + ranks_text(callers) + " called " + name;
    }
    return text;
  }
  [[nodiscard]] std::string late_text(std::chrono::milliseconds deadline) const {
    std::vector<int> missing;
    for (int rank = 0; rank < static_cast<int>(values().size()); ++rank)
      if (!has(rank)) missing.push_back(rank);
    return ranks_text(missing) + " did not come within " + seconds_text(deadline) + ": " +
           who_text() + set_by("collective_deadline");
  }
  /// @return what is wrong when the parts together do not fit into one frame; else empty
  [[nodiscard]] std::string too_large() const {
    std::size_t size = 64;
    for (auto const& call : values()) size += call->part.size() + sizeof(std::uint32_t);
    constexpr std::size_t most = std::numeric_limits<std::uint32_t>::max();
    if (size <= most) return {};
    return zbpp::detail::joined("the parts of ") + values().front()->name() + " are " + size +
           " bytes together; at most " + most + " fit";
  }

  /// Ends a collective that all have called. @return what all ranks get
  [[nodiscard]] collective_outcome finish() {
    collective_outcome outcome{number_, {}};
    auto const kind = values().front()->kind;
    auto const root = zbpp::detail::index(values().front()->root);
    if (kind == collective::broadcast) outcome.parts.push_back(std::move(values()[root]->part));
    if (kind == collective::all_gather)
      for (auto& call : values()) outcome.parts.push_back(std::move(call->part));
    clear();
    ++number_;
    return outcome;
  }

 private:
  [[nodiscard]] std::vector<std::string> names_of_calls() const {
    std::vector<std::string> names;
    for (auto const& call : values())
      if (call && std::find(names.begin(), names.end(), call->name()) == names.end())
        names.push_back(call->name());
    return names;
  }

  std::uint64_t number_ = 0;
};

// What ranks ask for after a step, as rank 0 collects it: one round for each step, and no rank
// begins the next round before it knows what came of the last.

/// Collects the proposals of all ranks.
class proposals : public round<after_step> {
 public:
  using round::round;

  /// Takes that of a rank.
  /// @throws error (bad_format) when it has made one in this round
  void add(int rank, after_step next) {
    if (has(rank)) throw error(errc::bad_format, "a second proposal for one step");
    set(rank, next);
  }
  /// Ends a round that is complete. @return the most that a rank has asked for
  [[nodiscard]] after_step finish() {
    auto const most = *std::ranges::max_element(values());
    clear();
    return *most;
  }
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
      bool const is_of_destroyed =
          last_[other].kind == call_kind::run && contains(left_[r], last_[other].pipeline);
      if (!has_left && !is_of_destroyed) continue;
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
    auto const& call = last_[zbpp::detail::index(other)];
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
    one.send(control_kind::refuse, write(rank_failure{{}, {}, errc::no_rendezvous, text}));
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
  std::optional<rank_failure> accusation;  ///< by another rank, until this one has answered
  int accused_by = 0;                      ///< that other rank
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
