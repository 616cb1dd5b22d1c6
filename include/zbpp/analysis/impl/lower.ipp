// SPDX-License-Identifier: Apache-2.0
//
// How `lower` places transfers.
#pragma once

#include <zbpp/analysis/detail/common_order.hpp>
#include <zbpp/analysis/detail/fuse_pairs.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// @return how many F without a pair stand at the beginning of a row
[[nodiscard]] inline std::int32_t leading_forwards(std::span<pass const> row) {
  std::int32_t count = 0;
  while (index(count) < row.size() && row[index(count)].kind == pass_kind::forward &&
         !next_is_paired(row, index(count)))
    ++count;
  return count;
}

/// Places transfers: every message is opened by the position of the pass that consumes it, and each
/// rank's receives are merged into its passes.
class lowering {
 public:
  lowering(schedule const& schedule, lower_options options)
      : schedule_(schedule),
        options_(std::move(options)),
        map_(schedule.placement()),
        forward_(schedule.stages(), schedule.microbatches(), missing),
        backward_(schedule.stages(), schedule.microbatches(), missing),
        last_w_(index(schedule.stages()), missing),
        is_tied_(index(schedule.stages()), false),
        is_at_once_(index(schedule.stages()), false),
        incoming_(index(map_.size())) {
    if (options_.step == step_kind::post_validated) cut_ = passes_before_validation(schedule);
    if (options_.step == step_kind::none) {
      options_.reduces = options_.shards_optimizer = false;
      options_.tied.clear();
    }
    for (int s : options_.tied) is_tied_[index(s)] = true;
    for (int s : options_.at_once) is_at_once_[index(s)] = true;
    for (int rank = 0; rank + 1 < schedule.ranks() && has_all_at_once(rank); ++rank)
      leading_.push_back(leading_forwards(schedule.passes(rank)));
  }

  [[nodiscard]] program run() {
    find_passes();
    collect_messages();
    for (int c = 0; c < map_.size(); ++c) open_in_order(incoming_[index(c)], map_.ends(c).second);
    auto size = schedule_.passes().size() + index(6 * schedule_.stages() + 2 * schedule_.ranks());
    for (auto const& messages : incoming_) size += 2 * messages.size();
    rows<instruction> result;
    result.reserve(index(schedule_.ranks()), size);
    for (int rank = 0; rank < schedule_.ranks(); ++rank) emit(rank, result);
    auto channels = traffic(schedule_.placement(), schedule_.microbatches(), result).channels();
    return {
        schedule_.placement(), schedule_.microbatches(), std::move(result), std::move(channels)};
  }

 private:
  static constexpr std::int32_t missing = -1;

  // A message as its receiver sees it: the receive instruction, and before which pass it is opened.
  struct message {
    instruction receive;
    std::int32_t position;
    bool is_in_cut;  // both ends move it before they validate
  };

  [[nodiscard]] bool has_all_at_once(int rank) const {
    auto const stages = schedule_.placement().stages_of(rank);
    return std::all_of(stages.begin(), stages.end(), [&](int s) { return is_at_once_[index(s)]; });
  }

  // Whether the rank validates the step before in front of the pass at a position.
  [[nodiscard]] bool validates_at(int rank, std::int32_t position) const {
    if (!cut_.empty()) return position == cut_[index(rank)];
    return index(rank) < leading_.size() && position == leading_[index(rank)];
  }

  void find_passes() {
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      std::int32_t position = 0;
      for (auto const& p : schedule_.passes(rank)) {
        if (p.kind == pass_kind::forward) forward_(p.stage, p.microbatch) = position;
        if (p.makes_input_gradient()) backward_(p.stage, p.microbatch) = position;
        if (p.makes_weight_gradient()) last_w_[index(p.stage)] = position;
        ++position;
      }
    }
  }

  void collect_messages() {
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      std::int32_t sent_at = -1;
      for (auto const& p : schedule_.passes(rank)) {
        ++sent_at;
        auto const channel = output_channel(p);
        if (channel == channel_map::none) continue;
        bool const down = p.kind == pass_kind::forward;
        auto const to = p.stage + (down ? 1 : -1);
        auto const kind =
            down ? instruction_kind::receive_activation : instruction_kind::receive_gradient;
        auto position = (down ? forward_ : backward_)(to, p.microbatch);
        if (position == missing)  // verify names the missing pass; the message itself is in order
          position = static_cast<std::int32_t>(schedule_.passes(map_.ends(channel).second).size());
        bool const is_in_cut = !cut_.empty() && sent_at < cut_[index(rank)];
        incoming_[index(channel)].push_back({{kind, to, p.microbatch}, position, is_in_cut});
      }
    }
  }

  [[nodiscard]] int output_channel(pass const& p) const {
    if (p.kind == pass_kind::forward) return map_.of_activation(p.stage);
    return p.makes_input_gradient() ? map_.of_gradient(p.stage) : channel_map::none;
  }

  // A receive may not stand after one that was sent later, so it opens no later than any of those.
  // Where the rank validates, it has opened all messages of the cut and no other.
  void open_in_order(std::vector<message>& messages, int rank) const {
    auto const cut = cut_.empty() ? 0 : cut_[index(rank)];
    auto earliest = std::numeric_limits<std::int32_t>::max();
    for (auto m = messages.rbegin(); m != messages.rend(); ++m) {
      auto const wanted = std::max(m->position - options_.receive_ahead, 0);
      earliest = std::min(earliest, m->is_in_cut ? std::min(wanted, cut) : std::max(wanted, cut));
      m->position = earliest;
    }
  }

  void emit(int rank, rows<instruction>& result) const {
    auto const receives = receives_of(rank);
    auto next = receives.begin();
    std::int32_t position = 0;
    auto const first_stage = schedule_.placement().stages_of(rank).front();
    auto const row = schedule_.passes(rank);
    for (auto const& p : row) {
      if (validates_at(rank, position)) {
        for (; next != receives.end() && next->is_in_cut; ++next) result.push(next->receive);
        result.push({instruction_kind::validate, first_stage, 0});
      }
      bool const begins_pair = next_is_paired(row, index(position));
      auto const opened_by = begins_pair ? position + 1 : position;
      for (; next != receives.end() && next->position <= opened_by; ++next)
        result.push(next->receive);
      result.push(to_instruction(p));
      if (p.is_paired) emit_send(row[index(position - 1)], result);
      if (!begins_pair) emit_send(p, result);
      if (last_w_[index(p.stage)] == position) {
        if (options_.reduces)
          result.push({instruction_kind::start_reduction, p.stage, 0});
        else if (steps_behind_w(p.stage))
          result.push({instruction_kind::optimizer_step, p.stage, 0});
      }
      ++position;
    }
    for (; next != receives.end(); ++next) result.push(next->receive);
    if (validates_at(rank, position)) result.push({instruction_kind::validate, first_stage, 0});
    if (options_.reduces) emit_reduced(rank, result);
    emit_tied(rank, result);
    if (options_.step > step_kind::unchecked) emit_agreement(rank, result);
    if (options_.shards_optimizer)
      for (int s : schedule_.placement().stages_of(rank))
        result.push({instruction_kind::gather_weights, s, 0});
    result.end_row();
  }

  // Whether a stage steps by itself, as soon as its gradients are complete.
  [[nodiscard]] bool steps_behind_w(int stage) const {
    return options_.step == step_kind::unchecked && !is_tied_[index(stage)];
  }

  // After all passes, in the order in which the reductions began, so that each stage whose sums
  // are here steps while others wait.
  void emit_reduced(int rank, rows<instruction>& result) const {
    auto stages = schedule_.placement().stages_of(rank);
    std::vector<int> begun(stages.begin(), stages.end());
    std::ranges::stable_sort(begun, {}, [&](int s) { return last_w_[index(s)]; });
    for (int s : begun) {
      if (last_w_[index(s)] == missing) continue;
      result.push({instruction_kind::finish_reduction, s, 0});
      if (steps_behind_w(s)) result.push({instruction_kind::optimizer_step, s, 0});
    }
  }

  // Stages that step at once do so while the norm is on its way.
  void emit_agreement(int rank, rows<instruction>& result) const {
    using enum instruction_kind;
    auto const stages = schedule_.placement().stages_of(rank);
    result.push({reduce_norm, stages.front(), 0});
    for (int s : stages)
      if (is_at_once_[index(s)]) result.push({immediate_step, s, 0});
    if (cut_.empty() && index(rank) >= leading_.size()) result.push({validate, stages.front(), 0});
    for (int s : stages)
      if (!is_at_once_[index(s)]) result.push({optimizer_step, s, 0});
  }

  void emit_send(pass const& p, rows<instruction>& result) const {
    using enum instruction_kind;
    if (output_channel(p) == channel_map::none) return;
    auto const kind = p.kind == pass_kind::forward ? send_activation : send_gradient;
    result.push({kind, p.stage, p.microbatch});
  }

  // After all passes, for a GPU has to be done with them before the host gets the gradients.
  void emit_tied(int rank, rows<instruction>& result) const {
    using enum instruction_kind;
    bool const steps = options_.step == step_kind::unchecked;
    auto const stages = schedule_.placement().stages_of(rank);
    for (auto kind : {send_tied, add_tied, optimizer_step})
      for (int s : stages)
        if (is_tied_[index(s)] && (kind != optimizer_step || steps)) result.push({kind, s, 0});
  }

  [[nodiscard]] std::vector<message> receives_of(int rank) const {
    std::vector<int> channels;
    for (int stage : schedule_.placement().stages_of(rank))
      for (auto kind : {pass_kind::forward, pass_kind::backward})
        if (auto const c = map_.of_input({kind, stage, 0}); c != channel_map::none)
          channels.push_back(c);
    std::sort(channels.begin(), channels.end());
    channels.erase(std::unique(channels.begin(), channels.end()), channels.end());
    std::vector<message> all;
    for (int c : channels) {
      auto const middle = static_cast<std::ptrdiff_t>(all.size());
      all.insert(all.end(), incoming_[index(c)].begin(), incoming_[index(c)].end());
      std::inplace_merge(
          all.begin(), all.begin() + middle, all.end(), [](message const& a, message const& b) {
            return std::pair(a.position, !a.is_in_cut) < std::pair(b.position, !b.is_in_cut);
          });
    }
    return all;
  }

  schedule const& schedule_;
  lower_options options_;
  channel_map map_;
  cells<std::int32_t> forward_;                 // position of F in its rank's row
  cells<std::int32_t> backward_;                // position of B or BW
  std::vector<std::int32_t> last_w_;            // by stage, position of its last W or BW
  std::vector<bool> is_tied_;                   // by stage
  std::vector<bool> is_at_once_;                // by stage
  std::vector<std::vector<message>> incoming_;  // by channel, in the sender's order
  std::vector<std::int32_t> cut_;               // by rank, how many passes come before it validates
  std::vector<std::int32_t> leading_;  // the same of the first ranks, where only these go on
};

}  // namespace detail

ZBPP_INLINE program lower(schedule const& schedule, lower_options options) {
  detail::require(options.receive_ahead >= 0, "receive_ahead counts passes; it is at least 0");
  auto const are_stages = [&](std::vector<int> const& named) {
    return named.empty() ||
           (named.front() >= 0 && named.back() < schedule.stages() &&
            std::adjacent_find(named.begin(), named.end(), std::greater_equal()) == named.end());
  };
  detail::require(are_stages(options.tied), "tied names stages of the schedule in ascending order");
  detail::require(
      are_stages(options.at_once), "at_once names stages of the schedule in ascending order");
  detail::require(
      options.at_once.empty() || options.step == step_kind::synchronous,
      "at_once names stages that do not wait for the norm, and only synchronous steps wait; lower "
      "with step_kind::synchronous, or leave at_once empty");
  for (int s : options.at_once)
    if (std::binary_search(options.tied.begin(), options.tied.end(), s))
      throw error(errc::bad_argument, {.stage = s}) +
          "at_once names it and its weights are tied, which step alike; leave it out of at_once";
  detail::require(
      !options.shards_optimizer || options.reduces || options.step == step_kind::none,
      "shards_optimizer divides the steps of replicas, and reduces is false; set both");
  detail::require(
      !options.shards_optimizer || options.step != step_kind::post_validated,
      "a sharded optimizer gives weights to the other replicas, which cannot be taken back; lower "
      "with step_kind::synchronous");
  detail::require(
      !options.shards_optimizer || options.tied.empty(),
      "shards_optimizer divides the layers of a stage, and tied weights need the sums of all "
      "replicas; leave one of the two out");
  bool const is_shared = options.layout != channel_layout::one_per_directed_pair;
  detail::require(
      !is_shared || options.receive_ahead == 0,
      "where directed pairs of ranks share a queue, receives follow the sends; leave receive_ahead "
      "at 0");
  auto code = detail::lowering(schedule, std::move(options)).run();
  if (!is_shared) return code;
  auto rows = detail::common_order(code).run();
  auto channels = traffic(code.placement(), code.microbatches(), rows).channels();
  return {code.placement(), code.microbatches(), std::move(rows), std::move(channels)};
}

ZBPP_INLINE std::vector<std::int32_t> passes_before_validation(schedule const& schedule) {
  using detail::index;
  constexpr std::int32_t missing = -1;
  auto const& placement = schedule.placement();
  cells<std::int32_t> position(schedule.stages(), schedule.microbatches(), missing);
  std::vector<std::int32_t> count(index(schedule.ranks()), 0);
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    auto const row = schedule.passes(rank);
    for (std::size_t i = 0; i < row.size(); ++i)
      if (row[i].kind == pass_kind::forward)
        position(row[i].stage, row[i].microbatch) = static_cast<std::int32_t>(i);
    count[index(rank)] = detail::leading_forwards(row);
  }
  auto const has_input = [&](pass const& p) {
    if (p.stage == 0) return true;
    auto const made_at = position(p.stage - 1, p.microbatch);
    return made_at != missing && made_at < count[index(placement.rank_of(p.stage - 1))];
  };
  for (bool again = true; again;) {
    again = false;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      auto const row = schedule.passes(rank);
      auto& most = count[index(rank)];
      std::int32_t kept = 0;
      while (kept < most && has_input(row[index(kept)])) ++kept;
      again = again || kept < most;
      most = kept;
    }
  }
  return count;
}

ZBPP_INLINE schedule passes_of(program const& program) {
  rows<pass> passes;
  for (int rank = 0; rank < program.ranks(); ++rank) {
    for (auto const& i : program.instructions(rank))
      if (i.is_pass()) passes.push(i.as_pass());
    passes.end_row();
  }
  return {program.placement(), program.microbatches(), std::move(passes)};
}

ZBPP_INLINE schedule fuse_backward(schedule const& schedule) {
  return detail::fuse_pairs(schedule, [](pass const&) { return true; });
}

ZBPP_INLINE schedule split_backward(schedule const& schedule) {
  rows<pass> passes;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    auto const row = schedule.passes(rank);
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto const& p = row[i];
      if (p.kind != pass_kind::backward) {
        passes.push(p);
        continue;
      }
      if (p.is_paired)
        throw error(errc::bad_argument, {.rank = rank, .position = static_cast<std::int64_t>(i)}) +
            to_string(p) +
            " is part of a pair; split the backward passes of a schedule without pairs";
      passes.push({pass_kind::backward_input, p.stage, p.microbatch});
      passes.push({pass_kind::backward_weight, p.stage, p.microbatch});
    }
    passes.end_row();
  }
  return {schedule.placement(), schedule.microbatches(), std::move(passes)};
}

}  // namespace zbpp
