// SPDX-License-Identifier: Apache-2.0
#include <support/independent_check.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace zbpp::test {

independent_check::independent_check(placement const& placement, int microbatches, nested_rows all)
    : where_(placement), microbatches_(microbatches), rows_(std::move(all)) {
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (std::size_t i = 0; i < rows_[r].size(); ++i)
      at_[{static_cast<int>(r), rows_[r][i]}] = static_cast<int>(i);
}

bool independent_check::has_each_once() const {
  bool const validations = has_validations();
  bool steps = validations;
  for (auto const& row : rows_)
    for (auto const& i : row)
      steps = steps || i.is_step() || i.kind == instruction_kind::gather_weights;
  auto const tied = tied_stages();
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    auto row = rows_[r];
    auto expected = expected_of(static_cast<int>(r), row, steps);
    auto const first = where_.stages_of(static_cast<int>(r)).front();
    if (validations) expected.push_back({instruction_kind::reduce_norm, first, 0});
    if (validations) expected.push_back({instruction_kind::validate, first, 0});
    for (int s : where_.stages_of(static_cast<int>(r)))
      if (tied.count(s) != 0)
        for (auto kind : {instruction_kind::send_tied, instruction_kind::add_tied})
          expected.push_back({kind, s, 0});
    for (int s : where_.stages_of(static_cast<int>(r)))
      if (reduces())
        for (auto kind :
             {instruction_kind::start_reduction,
              instruction_kind::finish_reduction,
              instruction_kind::gather_weights})
          if (kind != instruction_kind::gather_weights || gathers())
            expected.push_back({kind, s, 0});
    std::sort(row.begin(), row.end());
    std::sort(expected.begin(), expected.end());
    if (row != expected) return false;
  }
  return true;
}

bool independent_check::keeps_dependences() const {
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (auto const& later : rows_[r])
      for (auto const& earlier : needs_of(later))
        if (auto const found = at_.find({static_cast<int>(r), earlier});
            found != at_.end() && found->second > at_.at({static_cast<int>(r), later}))
          return false;
  return true;
}

bool independent_check::keeps_cut() const {
  using enum instruction_kind;
  if (!has_validations()) return true;
  struct seen_on_rank {
    bool validates_early = false;
    bool validates_before_steps = true;
    bool validates_behind_forwards = true;
    bool has_waiting_step = false;
    bool has_immediate_step = false;
  };
  std::vector<seen_on_rank> all;
  std::set<instruction> sent;
  std::set<instruction> received;
  for (auto const& row : rows_) {
    auto& seen = all.emplace_back();
    bool before_norm = true;
    bool before_validation = true;
    for (auto const& i : row) {
      if (i.kind == reduce_norm) before_norm = false;
      if (i.kind == optimizer_step) seen.has_waiting_step = true;
      if (i.kind == immediate_step) {
        seen.has_immediate_step = true;
        if (tied_stages().count(i.stage) != 0) return false;
      }
      if (i.kind == validate) {
        before_validation = false;
        seen.validates_early = before_norm;
      }
      if (!before_validation) continue;
      if (i.kind == optimizer_step) seen.validates_before_steps = false;
      if (is_send(i)) sent.insert(i);
      if (is_receive(i)) received.insert(send_of(i));
      if (i.kind != forward && !is_send(i) && !is_receive(i))
        seen.validates_behind_forwards = false;
    }
  }
  if (all.back().validates_early) {
    for (auto const& seen : all)
      if (!seen.validates_early || !seen.validates_behind_forwards || seen.has_immediate_step)
        return false;
    return sent == received;
  }
  for (std::size_t r = 0; r < all.size(); ++r) {
    auto const& seen = all[r];
    if (!seen.validates_early && !seen.validates_before_steps) return false;
    if (!seen.validates_early) continue;
    if (!seen.validates_behind_forwards || seen.has_waiting_step) return false;
    if (r > 0 && !all[r - 1].validates_early) return false;
  }
  return true;
}

bool independent_check::keeps_channel_order() const {
  std::map<rank_pair, std::vector<instruction>> sent;
  std::map<rank_pair, std::vector<instruction>> expected;
  for (auto const& row : rows_)
    for (auto const& i : row) {
      if (is_send(i)) sent[channel_of(i)].push_back(i);
      if (is_receive(i)) expected[channel_of(i)].push_back(send_of(i));
    }
  return sent == expected;
}

std::map<rank_pair, depth> independent_check::depths() const {
  std::map<rank_pair, depth> result;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    auto const rank = static_cast<int>(r);
    for (int position = 0; position < static_cast<int>(rows_[r].size()); ++position) {
      auto const& i = rows_[r][static_cast<std::size_t>(position)];
      if (is_receive(i)) {
        auto& d = result[channel_of(i)];
        d.slots = std::max(d.slots, open_after(rank, position, channel_of(i)));
      }
      if (is_send(i)) {
        auto& d = result[channel_of(i)];
        int count = 0;
        for (int k = 0; k <= position; ++k) {
          auto const& sent = rows_[r][static_cast<std::size_t>(k)];
          if (is_send(sent) && channel_of(sent) == channel_of(i) &&
              !is_known_consumed(sent, position))
            ++count;
        }
        d.in_flight = std::max(d.in_flight, count);
      }
    }
  }
  return result;
}

bool independent_check::is_known_consumed(instruction const& message, int position) const {
  auto const [from, to] = channel_of(message);
  int consumed_at = 0;  // on the receiver, the last of this message and those before it
  for (auto const& i : row(from)) {
    if (is_send(i) && channel_of(i) == channel_of(message))
      consumed_at = std::max(consumed_at, at_.at({to, consumer_of(i)}));
    if (i == message) break;
  }
  auto const& receiver = row(to);
  for (int k = consumed_at + 1; k < static_cast<int>(receiver.size()); ++k) {
    auto const& back = receiver[static_cast<std::size_t>(k)];
    if (is_send(back) && channel_of(back) == rank_pair(to, from) &&
        at_.at({from, consumer_of(back)}) <= position)
      return true;
  }
  return false;
}

instruction independent_check::producer_of(instruction const& send) const {
  if (send.kind == instruction_kind::send_activation)
    return {instruction_kind::forward, send.stage, send.microbatch};
  return backward_of(send.stage, send.microbatch);
}

instruction independent_check::consumer_of(instruction const& send) const {
  if (send.kind == instruction_kind::send_activation)
    return {instruction_kind::forward, send.stage + 1, send.microbatch};
  return backward_of(send.stage - 1, send.microbatch);
}

instruction independent_check::backward_of(int stage, int m) const {
  return either(instruction_kind::backward_input, instruction_kind::backward, stage, m);
}

instruction independent_check::weight_of(int stage, int m) const {
  return either(instruction_kind::backward_weight, instruction_kind::backward, stage, m);
}

std::vector<instruction> independent_check::needs_of(instruction const& i) const {
  using enum instruction_kind;
  auto const s = i.stage;
  auto const m = i.microbatch;
  std::vector<instruction> needs;
  switch (i.kind) {
    case forward:
      needs = {{receive_activation, s, m}};
      if (s > 0) needs.push_back({forward, s - 1, m});
      break;
    case recompute: needs = {{forward, s, m}}; break;
    case backward_input:
    case backward:
      needs = {{receive_gradient, s, m}, {forward, s, m}, {recompute, s, m}};
      if (s + 1 < where_.stages()) needs.push_back(backward_of(s + 1, m));
      if (i.kind == backward && m > 0) needs.push_back(weight_of(s, m - 1));
      break;
    case backward_weight:
      needs = {{backward_input, s, m}};
      if (m > 0) needs.push_back(weight_of(s, m - 1));
      break;
    case send_activation:
    case send_gradient: needs = {producer_of(i)}; break;
    case optimizer_step:
    case immediate_step:
      for (int k = 0; k < microbatches_; ++k) needs.push_back(weight_of(s, k));
      needs.push_back({reduce_norm, where_.stages_of(where_.rank_of(s)).front(), 0});
      needs.push_back({add_tied, s, 0});
      needs.push_back({finish_reduction, s, 0});
      break;
    case start_reduction:
      for (int k = 0; k < microbatches_; ++k) needs.push_back(weight_of(s, k));
      break;
    case finish_reduction: needs.push_back({start_reduction, s, 0}); break;
    case gather_weights: needs = {{optimizer_step, s, 0}, {immediate_step, s, 0}}; break;
    case reduce_norm:
      for (int own : where_.stages_of(where_.rank_of(s))) {
        for (int k = 0; k < microbatches_; ++k) needs.push_back(weight_of(own, k));
        needs.push_back({add_tied, own, 0});
        needs.push_back({finish_reduction, own, 0});
      }
      for (auto const& other : row(where_.rank_of(s)))  // others wait for it at their norms
        if (is_send(other)) needs.push_back(other);
      break;
    case send_tied:
      needs.push_back({finish_reduction, s, 0});
      for (int k = 0; k < microbatches_; ++k) needs.push_back(weight_of(s, k));
      for (int own : where_.stages_of(where_.rank_of(s)))
        if (own < s) needs.push_back({send_tied, own, 0});
      break;
    case add_tied:  // others wait for what stands behind it, as this one does for them
      for (auto const& other : row(where_.rank_of(s)))
        if (other.is_pass() || is_send(other) || other.kind == send_tied) needs.push_back(other);
      break;
    default: break;
  }
  return needs;
}

bool independent_check::is_send(instruction const& i) {
  return i.kind == instruction_kind::send_activation || i.kind == instruction_kind::send_gradient;
}

bool independent_check::is_receive(instruction const& i) {
  return i.kind == instruction_kind::receive_activation ||
         i.kind == instruction_kind::receive_gradient;
}

instruction independent_check::send_of(instruction const& receive) {
  if (receive.kind == instruction_kind::receive_activation)
    return {instruction_kind::send_activation, receive.stage - 1, receive.microbatch};
  return {instruction_kind::send_gradient, receive.stage + 1, receive.microbatch};
}

rank_pair independent_check::channel_of(instruction const& i) const {
  auto const send = is_send(i) ? i : send_of(i);
  auto const other = send.kind == instruction_kind::send_activation ? 1 : -1;
  return {where_.rank_of(send.stage), where_.rank_of(send.stage + other)};
}

instruction independent_check::input_of(instruction const& i) const {
  using enum instruction_kind;
  if (i.kind == forward && i.stage > 0 && crosses(i.stage - 1))
    return {send_activation, i.stage - 1, i.microbatch};
  if ((i.kind == backward_input || i.kind == backward) && i.stage + 1 < where_.stages() &&
      crosses(i.stage))
    return {send_gradient, i.stage + 1, i.microbatch};
  return i;
}

std::set<int> independent_check::tied_stages() const {
  std::set<int> stages;
  for (auto const& row : rows_)
    for (auto const& i : row)
      if (i.is_of_tied()) stages.insert(i.stage);
  return stages;
}

bool independent_check::reduces() const {
  for (auto const& row : rows_)
    for (auto const& i : row)
      if (i.is_of_reduction()) return true;
  return false;
}

bool independent_check::gathers() const {
  for (auto const& row : rows_)
    for (auto const& i : row)
      if (i.kind == instruction_kind::gather_weights) return true;
  return false;
}

bool independent_check::has_validations() const {
  for (auto const& row : rows_)
    for (auto const& i : row)
      if (i.is_of_rank() || i.kind == instruction_kind::immediate_step) return true;
  return false;
}

bool independent_check::crosses(int stage) const {
  return where_.rank_of(stage) != where_.rank_of(stage + 1);
}

instruction independent_check::either(
    instruction_kind split, instruction_kind fused, int stage, int m) const {
  bool const is_fused = at_.count({where_.rank_of(stage), {fused, stage, m}}) != 0;
  return {is_fused ? fused : split, stage, m};
}

std::vector<instruction> independent_check::expected_of(
    int rank, std::vector<instruction> const& present, bool steps) const {
  using enum instruction_kind;
  std::set<instruction> const has(present.begin(), present.end());
  std::vector<instruction> expected;
  for (int s : where_.stages_of(rank)) {
    for (int m = 0; m < microbatches_; ++m) {
      expected.push_back({forward, s, m});
      if (has.count({recompute, s, m}) != 0) expected.push_back({recompute, s, m});
      if (has.count({backward, s, m}) != 0) {
        expected.push_back({backward, s, m});
      } else {
        expected.push_back({backward_input, s, m});
        expected.push_back({backward_weight, s, m});
      }
      if (s > 0 && crosses(s - 1)) {
        expected.push_back({receive_activation, s, m});
        expected.push_back({send_gradient, s, m});
      }
      if (s + 1 < where_.stages() && crosses(s)) {
        expected.push_back({send_activation, s, m});
        expected.push_back({receive_gradient, s, m});
      }
    }
    bool const is_immediate = has.count({immediate_step, s, 0}) != 0;
    if (steps) expected.push_back({is_immediate ? immediate_step : optimizer_step, s, 0});
  }
  return expected;
}

int independent_check::open_after(int rank, int position, rank_pair channel) const {
  int open = 0;
  for (int k = 0; k <= position; ++k) {
    auto const& i = row(rank)[static_cast<std::size_t>(k)];
    if (is_receive(i) && channel_of(i) == channel) ++open;
    if (auto const input = input_of(i); is_send(input) && !is_send(i))
      if (channel_of(input) == channel) --open;
  }
  return open;
}

bool independent_check::can_deadlock(channel_layout layout) const {
  using key = std::tuple<int, int, int>;  // rank, and the two ends of the queue's channel
  struct message {
    std::vector<std::pair<std::size_t, std::size_t>> ends;  // rank and position
    std::uint64_t before = 0;  // messages that stand before it in a queue of either end
  };
  std::map<instruction, std::size_t> number;
  std::vector<message> messages;
  for (auto const& row : rows_)
    for (auto const& i : row)
      if (is_send(i)) number.emplace(i, number.size());
  messages.resize(number.size());
  std::map<key, std::uint64_t> queued;
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (std::size_t position = 0; position < rows_[r].size(); ++position) {
      auto const& i = rows_[r][position];
      if (!is_send(i) && !is_receive(i)) continue;
      auto const id = number.at(is_send(i) ? i : send_of(i));
      auto const [from, to] = channel_of(i);
      auto const rank = static_cast<int>(r);
      auto& queue = queued
          [layout == channel_layout::one_per_rank ? key{rank, 0, 0}
           : layout == channel_layout::one_per_pair
               ? key{rank, std::min(from, to), std::max(from, to)}
               : key{rank, from, to}];
      messages[id].ends.emplace_back(r, position);
      messages[id].before |= queue;
      queue |= std::uint64_t{1} << id;
    }

  // A state: 6 bits for the position of each rank, and a bit for each message that is through.
  auto const shift = 6 * rows_.size();
  if (shift + messages.size() > 64) throw std::invalid_argument("too large to visit every state");
  for (auto const& row : rows_)
    if (row.size() > 63) throw std::invalid_argument("too large to visit every state");
  auto const position_of = [](std::uint64_t state, std::size_t rank) {
    return static_cast<std::size_t>(state >> (6 * rank) & 63);
  };
  std::uint64_t final_state = 0;
  for (std::size_t r = 0; r < rows_.size(); ++r)
    final_state |= static_cast<std::uint64_t>(rows_[r].size()) << (6 * r);
  for (std::size_t id = 0; id < messages.size(); ++id)
    final_state |= std::uint64_t{1} << (shift + id);

  // The bit of the message that each instruction waits for; 0 where it waits for none.
  std::vector<std::vector<std::uint64_t>> awaited(rows_.size());
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (auto const& i : rows_[r]) {
      auto const input = input_of(i);
      bool const waits = !is_send(i) && is_send(input);
      awaited[r].push_back(waits ? std::uint64_t{1} << (shift + number.at(input)) : 0);
    }

  // A sum waits until all ranks have sent their part of it.
  std::vector<std::pair<std::size_t, std::size_t>> sent_tied;  // rank and position
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (std::size_t position = 0; position < rows_[r].size(); ++position)
      if (rows_[r][position].kind == instruction_kind::send_tied)
        sent_tied.emplace_back(r, position);
  auto const may_go = [&](std::uint64_t state, std::size_t r, std::size_t position) {
    if ((awaited[r][position] & ~state) != 0) return false;
    return rows_[r][position].kind != instruction_kind::add_tied ||
           std::all_of(sent_tied.begin(), sent_tied.end(), [&](auto const& sent) {
             return position_of(state, sent.first) > sent.second;
           });
  };

  std::unordered_set<std::uint64_t> seen{0};
  std::vector<std::uint64_t> open{0};
  while (!open.empty()) {
    auto const state = open.back();
    open.pop_back();
    bool moved = false;
    auto const go = [&](std::uint64_t next) {
      moved = true;
      if (seen.insert(next).second) open.push_back(next);
    };
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      auto const position = position_of(state, r);
      if (position == rows_[r].size()) continue;
      if (may_go(state, r, position)) go(state + (std::uint64_t{1} << (6 * r)));
    }
    for (std::size_t id = 0; id < messages.size(); ++id) {
      auto const& x = messages[id];
      auto const through = state >> shift;
      bool const is_issued = std::all_of(x.ends.begin(), x.ends.end(), [&](auto const& end) {
        return position_of(state, end.first) > end.second;
      });
      if ((through >> id & 1) == 0 && is_issued && (x.before & ~through) == 0)
        go(state | std::uint64_t{1} << (shift + id));
    }
    if (!moved && state != final_state) return true;
  }
  return false;
}

}  // namespace zbpp::test
