// SPDX-License-Identifier: Apache-2.0
//
// How `lower` places transfers.
#pragma once

#include <zbpp/analysis/detail/fuse_pairs.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Places transfers: every message is opened by the position of the pass that consumes it, and each
/// rank's receives are merged into its passes.
class lowering {
 public:
  lowering(schedule const& schedule, lower_options options)
      : schedule_(schedule),
        options_(options),
        map_(schedule.placement()),
        forward_(schedule.stages(), schedule.microbatches(), missing),
        backward_(schedule.stages(), schedule.microbatches(), missing),
        last_w_(index(schedule.stages()), missing),
        incoming_(index(map_.size())) {}

  [[nodiscard]] program run() {
    find_passes();
    collect_messages();
    for (auto& messages : incoming_) open_in_order(messages);
    auto size = schedule_.passes().size() + index(schedule_.stages());
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
  };

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
      for (auto const& p : schedule_.passes(rank)) {
        auto const channel = output_channel(p);
        if (channel == channel_map::none) continue;
        bool const down = p.kind == pass_kind::forward;
        auto const to = p.stage + (down ? 1 : -1);
        auto const kind =
            down ? instruction_kind::receive_activation : instruction_kind::receive_gradient;
        auto position = (down ? forward_ : backward_)(to, p.microbatch);
        if (position == missing)  // verify names the missing pass; the message itself is in order
          position = static_cast<std::int32_t>(schedule_.passes(map_.ends(channel).second).size());
        incoming_[index(channel)].push_back({{kind, to, p.microbatch}, position});
      }
    }
  }

  [[nodiscard]] int output_channel(pass const& p) const {
    if (p.kind == pass_kind::forward) return map_.of_activation(p.stage);
    return p.makes_input_gradient() ? map_.of_gradient(p.stage) : channel_map::none;
  }

  // A receive may not stand behind one that was sent later, so it opens no later than any of those.
  void open_in_order(std::vector<message>& messages) const {
    auto earliest = std::numeric_limits<std::int32_t>::max();
    for (auto m = messages.rbegin(); m != messages.rend(); ++m) {
      earliest = std::min(earliest, std::max(m->position - options_.receive_ahead, 0));
      m->position = earliest;
    }
  }

  void emit(int rank, rows<instruction>& result) const {
    auto const receives = receives_of(rank);
    auto next = receives.begin();
    std::int32_t position = 0;
    for (auto const& p : schedule_.passes(rank)) {
      for (; next != receives.end() && next->position <= position; ++next)
        result.push(next->receive);
      result.push(to_instruction(p));
      if (output_channel(p) != channel_map::none)
        result.push(
            {p.kind == pass_kind::forward ? instruction_kind::send_activation
                                          : instruction_kind::send_gradient,
             p.stage,
             p.microbatch});
      if (options_.optimizer_steps && last_w_[index(p.stage)] == position)
        result.push({instruction_kind::optimizer_step, p.stage, 0});
      ++position;
    }
    for (; next != receives.end(); ++next) result.push(next->receive);
    result.end_row();
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
            return a.position < b.position;
          });
    }
    return all;
  }

  schedule const& schedule_;
  lower_options options_;
  channel_map map_;
  grid<std::int32_t> forward_;                  // position of F in its rank's row
  grid<std::int32_t> backward_;                 // position of B or BW
  std::vector<std::int32_t> last_w_;            // by stage, position of its last W or BW
  std::vector<std::vector<message>> incoming_;  // by channel, in the sender's order
};

}  // namespace detail

ZBPP_INLINE program lower(schedule const& schedule, lower_options options) {
  detail::require(options.receive_ahead >= 0, "receive_ahead counts passes; it is at least 0");
  return detail::lowering(schedule, options).run();
}

ZBPP_INLINE schedule fuse_backward(schedule const& schedule) {
  return detail::fuse_pairs(schedule, [](pass const&) { return true; });
}

}  // namespace zbpp
