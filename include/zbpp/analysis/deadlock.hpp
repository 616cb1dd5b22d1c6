// SPDX-License-Identifier: Apache-2.0
//
// Finds out whether a program can come to a standstill. Transfers queue up in the order in which a
// rank issues them; one completes when it is at the head of its queue on both sides. Passes wait for
// what they consume; nothing else waits. Whatever the speeds, the outcome is the same, so running
// the program once proves or refutes it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/analysis/program.hpp>
#include <zbpp/analysis/traffic.hpp>

namespace zbpp {

/// Says which transfers of a rank share one queue.
enum class channel_layout : std::uint8_t {
  one_per_rank,           ///< all of a rank's sends and receives
  one_per_pair,           ///< all between two ranks, in both directions
  one_per_directed_pair,  ///< all from one rank to another: what zbpp uses
};

/// Names a channel layout in words.
[[nodiscard]] constexpr std::string_view to_string(channel_layout layout) noexcept {
  switch (layout) {
    case channel_layout::one_per_rank: return "one channel a rank";
    case channel_layout::one_per_pair: return "one channel a rank pair";
    case channel_layout::one_per_directed_pair: return "one channel a directed pair";
  }
  return "unknown";
}

namespace detail {

/// Runs a program whose channels' ends agree until nothing moves.
class deadlock_search {
 public:
  deadlock_search(program const& what, traffic const& messages, channel_layout layout)
      : what_(what),
        messages_(messages),
        layout_(layout),
        queues_(index(std::max(what.ranks(), 2 * messages.map().size()))),
        done_(index(messages.map().size()), 0),
        next_(index(what.ranks()), 0),
        sleeping_(index(what.ranks()), false) {
    std::vector<std::size_t> length(queues_.size(), 0);
    for_each_transfer([&](place const& p) { ++length[queue_of(p)]; });
    std::size_t begin = 0;
    for (std::size_t q = 0; q < queues_.size(); ++q) {
      queues_[q].head = queues_[q].issued = begin;
      begin += length[q];
    }
    transfers_.resize(begin);
    for_each_transfer([&](place const& p) {
      auto& q = queues_[queue_of(p)];
      q.rank = p.rank;
      transfers_[q.issued++] = p.position;
    });
    for (auto& q : queues_) q.issued = q.head;
  }

  [[nodiscard]] std::vector<diagnostic> run() {
    for (int rank = what_.ranks() - 1; rank >= 0; --rank) awake_.push_back(rank);
    while (!awake_.empty()) {
      auto const rank = awake_.back();
      awake_.pop_back();
      run_rank(rank);
    }
    for (int rank = 0; rank < what_.ranks(); ++rank)
      if (sleeping_[index(rank)]) return {explain({rank, next_[index(rank)]})};
    for (auto const& q : queues_)
      if (q.head < q.issued) return {explain(head_of(q))};
    return {};
  }

 private:
  struct place {
    int rank = -1;
    std::int32_t position = 0;
    friend bool operator==(place const&, place const&) = default;
  };
  // Transfers of one rank of which each must wait for those before it: a stretch of transfers_.
  struct queue {
    int rank = -1;
    std::size_t head = 0;    // the first that is not done
    std::size_t issued = 0;  // the first that the rank has not come to
  };

  template <class Visit>
  void for_each_transfer(Visit visit) const {
    for (int rank = 0; rank < what_.ranks(); ++rank) {
      std::int32_t position = 0;
      for (auto const& i : what_.instructions(rank)) {
        if (i.is_send() || i.is_receive()) visit(place{rank, position});
        ++position;
      }
    }
  }

  [[nodiscard]] message_note const& note(place const& p) const {
    return messages_.notes(p.rank)[index(p.position)];
  }
  [[nodiscard]] place head_of(queue const& q) const { return {q.rank, transfers_[q.head]}; }

  // The queue of a transfer; each side of a channel has its own.
  [[nodiscard]] std::size_t queue_of(place const& p) const {
    return queue_of(p.rank, note(p).channel);
  }
  [[nodiscard]] std::size_t queue_of(int rank, int channel) const {
    if (layout_ == channel_layout::one_per_rank) return index(rank);
    if (layout_ == channel_layout::one_per_pair)
      channel = std::min(channel, messages_.map().reverse(channel));
    return 2 * index(channel) + (messages_.map().ends(channel).first == rank ? 0 : 1);
  }

  void run_rank(int rank) {
    auto const row = what_.instructions(rank);
    auto const notes = messages_.notes(rank);
    for (auto& next = next_[index(rank)]; index(next) < row.size(); ++next) {
      auto const& [channel, sequence, retired] = notes[index(next)];
      if (channel == channel_map::none) continue;
      if (!row[index(next)].is_pass()) {
        auto const q = queue_of(rank, channel);
        ++queues_[q].issued;
        complete(q);
      } else if (done_[index(channel)] <= sequence) {
        sleeping_[index(rank)] = true;
        return;
      }
    }
  }

  // Completes the head of a queue if its other end is a head too, then whatever stood behind.
  void complete(std::size_t first) {
    ready_.push_back(first);
    while (!ready_.empty()) {
      auto const id = ready_.back();
      ready_.pop_back();
      auto& q = queues_[id];
      if (q.head == q.issued) continue;
      auto const& wanted = note(head_of(q));
      auto const [from, to] = messages_.map().ends(wanted.channel);
      auto const other_id = queue_of(q.rank == from ? to : from, wanted.channel);
      auto& other = queues_[other_id];
      if (other.head == other.issued || !is_same(note(head_of(other)), wanted)) continue;
      ++q.head;
      ++other.head;
      done_[index(wanted.channel)] = wanted.sequence + 1;
      ready_.push_back(id);
      ready_.push_back(other_id);
      if (sleeping_[index(to)]) {
        sleeping_[index(to)] = false;
        awake_.push_back(to);
      }
    }
  }

  [[nodiscard]] static bool is_same(message_note const& a, message_note const& b) {
    return a.channel == b.channel && a.sequence == b.sequence;
  }

  // One thing that the pass or transfer at `p` waits for.
  [[nodiscard]] place waits_for(place const& p) const {
    auto const& wanted = note(p);
    auto const [from, to] = messages_.map().ends(wanted.channel);
    auto late = p;
    for (int rank : {to, from}) {
      auto const& q = queues_[queue_of(rank, wanted.channel)];
      if (q.head < q.issued && is_same(note(head_of(q)), wanted)) continue;
      auto const begin = transfers_.begin() + static_cast<std::ptrdiff_t>(q.head);
      auto const end = transfers_.begin() + static_cast<std::ptrdiff_t>(q.issued);
      bool const is_issued = std::any_of(begin, end, [&](std::int32_t position) {
        return is_same(note({rank, position}), wanted);
      });
      if (is_issued) return head_of(q);
      late = {rank, next_[index(rank)]};
    }
    return late;
  }

  [[nodiscard]] std::string name(place const& p) const {
    return "rank " + std::to_string(p.rank) + " position " + std::to_string(p.position) + " (" +
           to_string(what_.instructions(p.rank)[index(p.position)]) + ")";
  }

  [[nodiscard]] diagnostic explain(place const& start) const {
    std::vector<place> way{start};
    auto first = way.end();
    for (;;) {
      auto const next = waits_for(way.back());
      first = std::find(way.begin(), way.end(), next);
      if (first != way.end()) break;
      way.push_back(next);
    }
    auto text =
        "with " + std::string(to_string(layout_)) + " the ranks wait in a circle: " + name(*first);
    for (auto p = first + 1; p != way.end(); ++p) text += " waits for " + name(*p);
    text += " waits for " + name(*first);
    return make_diagnostic(what_, fault::deadlock, first->rank, first->position, text);
  }

  program const& what_;
  traffic const& messages_;
  channel_layout layout_;
  std::vector<std::int32_t> transfers_;  // positions, queue by queue
  std::vector<queue> queues_;
  std::vector<std::int32_t> done_;  // by channel, how many messages have arrived
  std::vector<std::int32_t> next_;  // position of each rank
  std::vector<bool> sleeping_;
  std::vector<int> awake_;
  std::vector<std::size_t> ready_;
};

/// Looks for a standstill of a program that has no other fault.
/// @return nothing, or one diagnostic with the waiting cycle
/// @complexity O(instructions)
[[nodiscard]] inline std::vector<diagnostic> find_deadlock(
    program const& what, traffic const& messages, channel_layout layout) {
  return deadlock_search(what, messages, layout).run();
}

}  // namespace detail
}  // namespace zbpp
