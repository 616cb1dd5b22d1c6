// SPDX-License-Identifier: Apache-2.0
//
// How many bytes of messages a rank holds while each of its instructions runs.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Follows the messages of one rank after another through their instructions.
class edge_count {
 public:
  /// @param devices  by rank: those on one hand messages over, and the sender alone counts them
  edge_count(problem const& problem, traffic const& messages, std::span<int const> devices)
      : problem_(problem),
        map_(messages.map()),
        devices_(devices),
        unretired_(index(map_.size())) {}

  /// Begins the row of another rank.
  void begin_row() { in_use_ = 0; }

  /// Begins an instruction. @return what is in use while it runs
  bytes begin(instruction const& i, message_note const& note) {
    if (i.is_receive() && !is_handed_over(note)) in_use_ += edge_between(i.stage, i.other_stage());
    if (i.is_send() && note.acknowledged >= 0) retire(note.channel, note.acknowledged);
    if (!i.is_pass()) return in_use_;
    if (note.retired >= 0) retire(map_.reverse(note.channel), note.retired);
    in_use_ += output_of(i.as_pass());
    return in_use_;
  }

  /// Ends an instruction: what a pass consumed is free, and what it sends waits to be retired.
  void end(instruction const& i, message_note const& note) {
    if (i.is_pass() && !is_handed_over(note)) in_use_ -= input_of(i.as_pass());
    if (i.is_send()) {
      auto& queue = unretired_[index(note.channel)];
      queue.sizes.push_back(edge_between(i.stage, i.other_stage()));
    }
  }

 private:
  struct outgoing {
    std::vector<bytes> sizes;  // of all messages so far
    std::size_t retired = 0;
  };

  [[nodiscard]] bool is_handed_over(message_note const& note) const noexcept {
    if (note.channel == channel_map::none) return false;
    auto const [from, to] = map_.ends(note.channel);
    return share_device(from, to, devices_);
  }
  [[nodiscard]] bytes edge_between(int a, int b) const {
    return problem_.costs(std::min(a, b)).edge;
  }

  [[nodiscard]] bytes output_of(pass const& p) const {
    if (p.kind == pass_kind::forward && p.stage + 1 < problem_.stages())
      return problem_.costs(p.stage).edge;
    return p.makes_input_gradient() && p.stage > 0 ? problem_.costs(p.stage - 1).edge : 0;
  }

  [[nodiscard]] bytes input_of(pass const& p) const {
    if (p.kind == pass_kind::forward && p.stage > 0) return problem_.costs(p.stage - 1).edge;
    return p.makes_input_gradient() && p.stage + 1 < problem_.stages()
               ? problem_.costs(p.stage).edge
               : 0;
  }

  void retire(int channel, std::int32_t count) {
    auto& queue = unretired_[index(channel)];
    for (; queue.retired < index(count); ++queue.retired) in_use_ -= queue.sizes[queue.retired];
  }

  problem const& problem_;
  channel_map const& map_;
  std::span<int const> devices_;
  std::vector<outgoing> unretired_;
  bytes in_use_ = 0;
};

}  // namespace zbpp::detail
