// SPDX-License-Identifier: Apache-2.0
//
// How a program is run until nothing moves, to find out whether it can deadlock.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/detail/rank_walk.hpp>
#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Runs a program whose channels' ends agree until nothing moves.
class deadlock_search {
 public:
  deadlock_search(program const& program, traffic const& messages, channel_layout layout)
      : program_(program),
        messages_(messages),
        layout_(layout),
        queues_(index(std::max(program.ranks(), 2 * messages.map().size()))),
        done_(index(messages.map().size()), 0),
        walk_(program.ranks()) {}

  [[nodiscard]] std::vector<diagnostic> run() {
    walk_.run([this](int rank, std::size_t& next) { return advance(rank, next); });
    for (int rank = 0; rank < program_.ranks(); ++rank)
      if (walk_.is_blocked(rank)) return {explain({rank, walk_.position(rank)})};
    for (auto const& q : queues_)
      if (!q.is_empty()) return {explain(head_at(messages_.map().ends(q.first()).first, q))};
    return {};
  }

 private:
  struct place {
    int rank = -1;
    std::size_t position = 0;
    friend bool operator==(place const&, place const&) = default;
  };

  // What a rank has issued and has not got through, by channel; each waits for those before it. The
  // messages of one channel get through in turn, so the channel says which message it is.
  class queue {
   public:
    [[nodiscard]] bool is_empty() const { return head_ == channels_.size(); }
    [[nodiscard]] int first() const { return channels_[head_]; }
    [[nodiscard]] bool begins_with(int channel) const { return !is_empty() && first() == channel; }
    void push(int channel) { channels_.push_back(channel); }
    void pop() {
      if (++head_ < channels_.size()) return;
      channels_.clear();
      head_ = 0;
    }

   private:
    std::vector<int> channels_;
    std::size_t head_ = 0;
  };

  // The queue of a rank for a channel; each end of a channel has its own.
  [[nodiscard]] queue& queue_of(int rank, int channel) {
    if (layout_ == channel_layout::one_per_rank) return queues_[index(rank)];
    if (layout_ == channel_layout::one_per_pair)
      channel = std::min(channel, messages_.map().reverse(channel));
    bool const is_sender = messages_.map().ends(channel).first == rank;
    return queues_[2 * index(channel) + (is_sender ? 0 : 1)];
  }

  // Returns false when the rank is blocked.
  [[nodiscard]] bool advance(int rank, std::size_t& next) {
    auto const row = program_.instructions(rank);
    auto const notes = messages_.notes(rank);
    for (; next < row.size(); ++next) {
      auto const& note = notes[next];
      if (note.channel == channel_map::none) continue;
      if (!row[next].is_pass()) {
        queue_of(rank, note.channel).push(note.channel);
        complete(note.channel);
      } else if (done_[index(note.channel)] <= note.sequence) {
        return false;
      }
    }
    return true;
  }

  // Completes the next message of a channel if it is first at both ends, then what followed.
  void complete(int first) {
    ready_.push_back(first);
    while (!ready_.empty()) {
      auto const channel = ready_.back();
      ready_.pop_back();
      auto const [from, to] = messages_.map().ends(channel);
      auto& sender = queue_of(from, channel);
      auto& receiver = queue_of(to, channel);
      if (!sender.begins_with(channel) || !receiver.begins_with(channel)) continue;
      ++done_[index(channel)];
      for (auto* q : {&sender, &receiver}) {
        q->pop();
        if (!q->is_empty()) ready_.push_back(q->first());
      }
      walk_.wake(to);
    }
  }

  // Where a rank sends or receives a message.
  [[nodiscard]] place find(int rank, int channel, std::int32_t sequence) const {
    auto const notes = messages_.notes(rank);
    for (std::size_t i = 0;; ++i)
      if (notes[i].channel == channel && notes[i].sequence == sequence &&
          !program_.instructions(rank)[i].is_pass())
        return {rank, i};
  }
  [[nodiscard]] place head_at(int rank, queue const& q) const {
    return find(rank, q.first(), done_[index(q.first())]);
  }

  // One thing that the pass or transfer at `p` waits for.
  [[nodiscard]] place waits_for(place const& p) {
    auto const& wanted = messages_.notes(p.rank)[p.position];
    auto const [from, to] = messages_.map().ends(wanted.channel);
    auto late = p;
    for (int rank : {to, from}) {
      auto const own = find(rank, wanted.channel, wanted.sequence);
      auto const next = walk_.position(rank);
      if (own.position >= next) {
        late = {rank, next};
      } else if (auto const head = head_at(rank, queue_of(rank, wanted.channel)); head != own) {
        return head;
      }
    }
    return late;
  }

  [[nodiscard]] std::string name(place const& p) const {
    return joined("rank ") + p.rank + " position " + p.position + " (" +
           to_string(program_.instructions(p.rank)[p.position]) + ")";
  }

  [[nodiscard]] diagnostic explain(place const& start) {
    std::vector<place> way{start};
    auto first = way.end();
    for (;;) {
      auto const next = waits_for(way.back());
      first = std::find(way.begin(), way.end(), next);
      if (first != way.end()) break;
      way.push_back(next);
    }
    std::string text =
        joined("with ", to_string(layout_), " the ranks wait in a cycle: ", name(*first));
    for (auto p = first + 1; p != way.end(); ++p) text += " waits for " + name(*p);
    text += " waits for " + name(*first);
    return make_diagnostic(
        program_, fault::deadlock, first->rank, static_cast<std::int64_t>(first->position), text);
  }

  program const& program_;
  traffic const& messages_;
  channel_layout layout_;
  std::vector<queue> queues_;
  std::vector<std::int32_t> done_;  // by channel, how many messages have got through
  rank_walk walk_;
  std::vector<int> ready_;  // channels whose next message may get through
};

ZBPP_INLINE std::vector<diagnostic> find_deadlock(
    program const& program, traffic const& messages, channel_layout layout) {
  return deadlock_search(program, messages, layout).run();
}

}  // namespace zbpp::detail
