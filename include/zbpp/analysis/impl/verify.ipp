// SPDX-License-Identifier: Apache-2.0
//
// How `verify` looks at one property of a program after another.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/detail/cut_check.hpp>
#include <zbpp/analysis/detail/depth_check.hpp>
#include <zbpp/analysis/detail/sum_order_check.hpp>
#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Collects what is wrong with the instructions of a program, one property after another. A
/// property is checked only where those it builds on hold, so that a mistake is told once.
class verification {
 public:
  explicit verification(program const& program)
      : program_(program),
        map_(program.placement()),
        at_(program.stages(), program.microbatches(), all_absent()),
        step_at_(index(program.stages()), absent),
        send_tied_at_(index(program.stages()), absent),
        add_tied_at_(index(program.stages()), absent),
        reduce_at_(index(program.stages()), absent),
        reduced_at_(index(program.stages()), absent),
        gather_at_(index(program.stages()), absent),
        norm_at_(index(program.ranks()), absent),
        validate_at_(index(program.ranks()), absent) {}

  /// @param limits  the problem whose memory limits are to be kept, or null
  /// @param devices  by rank: those on one hand messages over
  [[nodiscard]] std::vector<diagnostic> run(
      channel_layout layout, problem const* limits, std::span<int const> devices) {
    check_ids();
    if (found_.empty()) check_pairs();
    if (found_.empty()) check_once();
    if (found_.empty()) check_dependences();
    if (found_.empty() && validates_)
      found_ = cut_check(program_, map_, norm_at_, validate_at_).run();
    if (!found_.empty()) return std::move(found_);
    traffic const messages(program_);
    check_channel_ends(messages);
    if (found_.empty()) found_ = depth_check(program_, messages).run();
    if (found_.empty()) found_ = find_deadlock(program_, messages, layout);
    if (!found_.empty()) return std::move(found_);
    if (limits != nullptr) check_memory(messages, *limits, devices);
    for (auto& remark : find_sum_order(program_)) found_.push_back(std::move(remark));
    return std::move(found_);
  }

 private:
  static constexpr std::int32_t absent = -1;
  // Nobody reads more; an empty program of many microbatches would fill the memory.
  static constexpr std::size_t most_told = 1000;
  // Positions of the instructions that a (stage, microbatch) can have, by instruction_kind: the
  // passes, and the sends and receives of both directions.
  using positions = std::array<std::int32_t, pass_kinds + 4>;

  static constexpr positions all_absent() {
    positions all{};
    all.fill(absent);
    return all;
  }

  [[nodiscard]] static std::int32_t& of(positions& cell, instruction_kind kind) {
    return cell[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] static std::int32_t of(positions const& cell, instruction_kind kind) {
    return cell[static_cast<std::size_t>(kind)];
  }

  void add(fault fault, int rank, std::int64_t position, std::string const& text) {
    found_.push_back(make_diagnostic(program_, fault, rank, position, text));
  }

  void check_ids() {
    for (int rank = 0; rank < program_.ranks(); ++rank) {
      std::int64_t position = -1;
      for (auto const& i : program_.instructions(rank)) {
        ++position;
        auto bad = [&](std::string const& text) { add(fault::bad_id, rank, position, text); };
        if (static_cast<int>(i.kind) >= instruction_kinds) {
          bad("there is no such instruction");
        } else if (i.stage < 0 || i.stage >= program_.stages()) {
          bad(joined("stages go from 0 to ", program_.stages() - 1));
        } else if (program_.placement().rank_of(i.stage) != rank) {
          bad(joined("its stage belongs to rank ", program_.placement().rank_of(i.stage)));
        } else if (!i.has_microbatch()) {
          if (i.microbatch != 0) bad("an instruction of a stage or rank carries microbatch 0");
          auto const first = program_.placement().stages_of(rank).front();
          if (i.is_of_rank() && i.stage != first)
            bad(joined("an instruction of a rank carries the first stage of it, ", first));
        } else if (i.microbatch < 0 || i.microbatch >= program_.microbatches()) {
          bad(joined("microbatches go from 0 to ", program_.microbatches() - 1));
        } else if ((i.is_send() || i.is_receive()) && map_.of(i) == channel_map::none) {
          bad("no message crosses there: the neighbouring stage is on the same rank or missing");
        }
      }
    }
  }

  void check_pairs() {
    for (int rank = 0; rank < program_.ranks(); ++rank) {
      auto const row = program_.instructions(rank);
      for (std::size_t i = 0; i < row.size(); ++i) {
        if (!row[i].is_paired) continue;
        bool const may = i > 0 && row[i - 1].is_pass() && row[i].is_pass() &&
                         may_pair(row[i - 1].as_pass(), row[i].as_pass());
        if (!may) add(fault::pair, rank, static_cast<std::int64_t>(i), std::string(pair_rule));
      }
    }
  }

  void check_once() {
    using enum instruction_kind;
    for (int rank = 0; rank < program_.ranks(); ++rank) {
      std::int32_t position = -1;
      for (auto const& i : program_.instructions(rank)) {
        ++position;
        auto& spot = place_of(rank, i);
        if (spot != absent)
          add(fault::repeated, rank, position, joined("it already stands at ", spot));
        spot = position;
      }
    }
    bool const steps = std::any_of(
        step_at_.begin(), step_at_.end(), [](std::int32_t position) { return position != absent; });
    for (int s = 0; s < program_.stages(); ++s) {
      for (int m = 0; m < program_.microbatches(); ++m) {
        if (found_.size() >= most_told) return;
        check_once(s, m);
      }
      if ((steps || validates_) && step_at_[index(s)] == absent)
        add_missing({optimizer_step, s, 0}, absent);
    }
    check_tied();
    check_reductions();
    for (int rank = 0; validates_ && rank < program_.ranks(); ++rank) {
      auto const first = program_.placement().stages_of(rank).front();
      if (norm_at_[index(rank)] == absent) add_missing({reduce_norm, first, 0}, absent);
      if (validate_at_[index(rank)] == absent) add_missing({validate, first, 0}, absent);
    }
  }

  // Where the position of an instruction is kept.
  [[nodiscard]] std::int32_t& place_of(int rank, instruction const& i) {
    switch (i.kind) {
      case instruction_kind::optimizer_step: return step_at_[index(i.stage)];
      case instruction_kind::immediate_step: validates_ = true; return step_at_[index(i.stage)];
      case instruction_kind::reduce_norm: validates_ = true; return norm_at_[index(rank)];
      case instruction_kind::validate: validates_ = true; return validate_at_[index(rank)];
      case instruction_kind::send_tied: return send_tied_at_[index(i.stage)];
      case instruction_kind::add_tied: return add_tied_at_[index(i.stage)];
      case instruction_kind::start_reduction: return reduce_at_[index(i.stage)];
      case instruction_kind::finish_reduction: return reduced_at_[index(i.stage)];
      case instruction_kind::gather_weights: return gather_at_[index(i.stage)];
      default: return of(at_(i.stage, i.microbatch), i.kind);
    }
  }

  // A stage that ships its gradients gets the sum, too.
  void check_tied() {
    using enum instruction_kind;
    for (int s = 0; s < program_.stages(); ++s) {
      auto const sent_at = send_tied_at_[index(s)];
      auto const added_at = add_tied_at_[index(s)];
      if (sent_at == absent && added_at != absent) add_missing({send_tied, s, 0}, added_at);
      if (added_at == absent && sent_at != absent)
        add_missing({add_tied, s, 0}, step_at_[index(s)]);
      check_tied_step(s, std::max(sent_at, added_at));
    }
  }

  // Where gradients of one stage are added up over replicas, those of all are, or replicas would
  // drift apart. All replicas run this program, so an instruction that one of them waits for stands
  // in front of the one that waits on each: none waits for ever that does not alone.
  void check_reductions() {
    using enum instruction_kind;
    auto const is_absent = [](std::int32_t position) { return position == absent; };
    bool const gathers = !std::ranges::all_of(gather_at_, is_absent);
    if (!gathers && std::ranges::all_of(reduce_at_, is_absent) &&
        std::ranges::all_of(reduced_at_, is_absent))
      return;
    for (int s = 0; s < program_.stages(); ++s) {
      auto const begun_at = reduce_at_[index(s)];
      auto const ended_at = reduced_at_[index(s)];
      if (begun_at == absent) add_missing({start_reduction, s, 0}, ended_at);
      if (ended_at == absent) add_missing({finish_reduction, s, 0}, step_at_[index(s)]);
      if (gathers && gather_at_[index(s)] == absent) add_missing({gather_weights, s, 0}, absent);
      if (gathers && step_at_[index(s)] == absent)
        add_missing({optimizer_step, s, 0}, gather_at_[index(s)]);
    }
  }

  // By itself one stage could skip a step that others take, and the weights would differ.
  void check_tied_step(int s, std::int32_t tied_at) {
    auto const rank = program_.placement().rank_of(s);
    auto const at = step_at_[index(s)];
    if (tied_at == absent || at == absent) return;
    if (program_.instructions(rank)[index(at)].kind == instruction_kind::immediate_step)
      add(fault::dependence,
          rank,
          at,
          "the weights of its stage are tied, and step alike; make it an optimizer step that waits "
          "for the norm");
  }

  void check_once(int s, int m) {
    using enum instruction_kind;
    auto const& cell = at_(s, m);
    auto expect = [&](instruction_kind kind, std::int32_t needed_at) {
      if (of(cell, kind) == absent) add_missing({kind, s, m}, needed_at);
    };
    auto expect_message = [&](instruction_kind kind, std::int32_t needed_at) {
      if (map_.of({kind, s, m}) != channel_map::none) expect(kind, needed_at);
    };
    expect(forward, of(cell, recompute) == absent ? b_of(cell) : of(cell, recompute));
    if (of(cell, backward) == absent) {
      expect(backward_input, w_of(cell));
      expect(backward_weight, step_at_[index(s)]);
    } else {
      for (auto kind : {backward_input, backward_weight})
        if (of(cell, kind) != absent)
          add(fault::repeated,
              program_.placement().rank_of(s),
              of(cell, kind),
              to_string(instruction{backward, s, m}) + " already does it");
    }
    expect_message(receive_activation, of(cell, forward));
    expect_message(send_activation, absent);
    expect_message(receive_gradient, b_of(cell));
    expect_message(send_gradient, absent);
  }

  // `needed_at` is the position of what needs the missing instruction, or absent.
  void add_missing(instruction const& i, std::int32_t needed_at) {
    auto const rank = program_.placement().rank_of(i.stage);
    auto const end = static_cast<std::int64_t>(program_.instructions(rank).size());
    auto const position = needed_at == absent ? end : needed_at;
    found_.push_back(make_diagnostic(
        fault::missing,
        rank,
        position,
        i,
        "it is missing; it must stand before " +
            (position == end ? "the end"
                             : to_string(program_.instructions(rank)[index(position)]))));
  }

  // Where B, or the BW that does its work, stands.
  [[nodiscard]] static std::int32_t b_of(positions const& cell) {
    return std::max(
        of(cell, instruction_kind::backward_input), of(cell, instruction_kind::backward));
  }
  [[nodiscard]] static std::int32_t w_of(positions const& cell) {
    return std::max(
        of(cell, instruction_kind::backward_weight), of(cell, instruction_kind::backward));
  }

  // The instruction at `later` needs the one at `earlier`, if both are there.
  void expect_order(int rank, std::int32_t earlier, std::int32_t later) {
    if (earlier == absent || later == absent || earlier < later) return;
    add(fault::dependence,
        rank,
        later,
        joined("it needs ") + to_string(program_.instructions(rank)[index(earlier)]) +
            ", which stands at " + earlier);
  }

  void check_dependences() {
    using enum instruction_kind;
    for (int s = 0; s < program_.stages(); ++s) {
      auto const rank = program_.placement().rank_of(s);
      for (int m = 0; m < program_.microbatches(); ++m) {
        auto const& cell = at_(s, m);
        auto const f = of(cell, forward);
        auto const b = b_of(cell);
        auto const w = w_of(cell);
        expect_order(rank, f, b);
        if (b != w) expect_order(rank, b, w);
        expect_order(rank, f, of(cell, recompute));
        expect_order(rank, of(cell, recompute), b);
        expect_order(rank, of(cell, receive_activation), f);
        expect_order(rank, f, of(cell, send_activation));
        expect_order(rank, of(cell, receive_gradient), b);
        expect_order(rank, b, of(cell, send_gradient));
        if (s + 1 < program_.stages() && program_.placement().rank_of(s + 1) == rank) {
          expect_order(rank, f, of(at_(s + 1, m), forward));
          expect_order(rank, b_of(at_(s + 1, m)), b);
        }
        expect_order(rank, w, step_at_[index(s)]);
        expect_order(rank, w, norm_at_[index(rank)]);
        expect_order(rank, w, send_tied_at_[index(s)]);
        expect_order(rank, w, reduce_at_[index(s)]);
      }
      auto const sum_at = reduced_at_[index(s)];
      expect_order(rank, reduce_at_[index(s)], sum_at);
      expect_order(rank, sum_at, send_tied_at_[index(s)]);
      expect_order(rank, sum_at, norm_at_[index(rank)]);
      expect_order(rank, sum_at, step_at_[index(s)]);
      expect_order(rank, step_at_[index(s)], gather_at_[index(s)]);
      // Those of one rank travel by one channel, and are added in this order.
      for (int other : program_.placement().stages_of(rank))
        if (other < s) expect_order(rank, send_tied_at_[index(other)], send_tied_at_[index(s)]);
      expect_order(rank, add_tied_at_[index(s)], norm_at_[index(rank)]);
      expect_order(rank, add_tied_at_[index(s)], step_at_[index(s)]);
      expect_order(rank, norm_at_[index(rank)], step_at_[index(s)]);
    }
    for (int rank = 0; rank < program_.ranks(); ++rank) check_waits_for_gradients(rank);
  }

  // A rank that waits for gradients of others has nothing left that those wait for. That it has no
  // passes left before its norm was told already.
  void check_waits_for_gradients(int rank) {
    auto const row = program_.instructions(rank);
    auto first = norm_at_[index(rank)];
    bool adds = false;
    for (int s : program_.placement().stages_of(rank)) {
      auto const at = add_tied_at_[index(s)];
      if (at == absent) continue;
      first = adds ? std::min(first, at) : at;
      adds = true;
    }
    for (auto i = static_cast<std::int32_t>(row.size()) - 1; first != absent && i > first; --i) {
      auto const& later = row[index(i)];
      if (later.is_send() ||
          (adds && (later.is_pass() || later.kind == instruction_kind::send_tied)))
        return expect_order(rank, i, first);
    }
  }

  // Messages carry no tags, so what is sent k-th must be what is expected k-th.
  void check_channel_ends(traffic const& messages) {
    using enum instruction_kind;
    std::vector<bool> is_told(index(map_.size()), false);
    auto check = [&](int to, int from, int m, instruction_kind receive, instruction_kind send) {
      auto const c = map_.of({receive, to, m});
      if (c == channel_map::none || is_told[index(c)]) return;
      auto const [sender, receiver] = map_.ends(c);
      auto const sent_at = of(at_(from, m), send);
      auto const expected_at = of(at_(to, m), receive);
      auto const sent = messages.notes(sender)[index(sent_at)].sequence;
      auto const expected = messages.notes(receiver)[index(expected_at)].sequence;
      if (sent == expected) return;
      is_told[index(c)] = true;
      add(fault::channel_order,
          receiver,
          expected_at,
          joined("here it is message ") + expected + " of channel " + sender + "->" + receiver +
              "; rank " + sender + " sends it at position " + sent_at + " as message " + sent);
    };
    for (int s = 0; s + 1 < program_.stages(); ++s) {
      for (int m = 0; m < program_.microbatches(); ++m) {
        check(s + 1, s, m, receive_activation, send_activation);
        check(s, s + 1, m, receive_gradient, send_gradient);
      }
    }
  }

  void check_memory(traffic const& messages, problem const& limits, std::span<int const> devices) {
    auto const peaks = peak_memory(program_, limits, messages, devices);
    for (int rank = 0; rank < program_.ranks(); ++rank) {
      auto const& peak = peaks[index(rank)];
      auto const limit = limits.memory_limit(rank);
      if (limit && peak.total > *limit)
        add(fault::memory,
            rank,
            peak.position,
            joined("here the rank needs ") + peak.total + " bytes; its limit is " + *limit +
                "; greedy_auto searches for an order that fits");
    }
  }

  program const& program_;
  channel_map map_;
  cells<positions> at_;
  std::vector<std::int32_t> step_at_;       // by stage
  std::vector<std::int32_t> send_tied_at_;  // by stage
  std::vector<std::int32_t> add_tied_at_;   // by stage
  std::vector<std::int32_t> reduce_at_;     // by stage
  std::vector<std::int32_t> reduced_at_;    // by stage
  std::vector<std::int32_t> gather_at_;     // by stage
  std::vector<std::int32_t> norm_at_;       // by rank
  std::vector<std::int32_t> validate_at_;   // by rank
  bool validates_ = false;                  // whether any rank has a norm or a validation
  std::vector<diagnostic> found_;
};

}  // namespace detail

ZBPP_INLINE std::vector<diagnostic> verify(program const& program, channel_layout layout) {
  return detail::verification(program).run(layout, nullptr, {});
}

ZBPP_INLINE std::vector<diagnostic> verify(
    program const& program,
    problem const& limits,
    channel_layout layout,
    std::span<int const> devices) {
  detail::require_devices(program, devices);
  if (!detail::fits(program, limits))
    return {{fault::bad_id, {}, {}, "program and problem differ in placement or microbatches"}};
  return detail::verification(program).run(layout, &limits, devices);
}

ZBPP_INLINE void verify_or_throw(
    program const& program,
    problem const& limits,
    channel_layout layout,
    std::span<int const> devices) {
  auto const found = verify(program, limits, layout, devices);
  if (found.empty()) return;
  std::string text = detail::joined("the program is refused, ") + to_string(found.front().fault) +
                     ": " + found.front().text;
  for (std::size_t i = 1; i < found.size(); ++i) text.append("\n").append(to_string(found[i]));
  throw error(errc::refused_program, text, found.front().location);
}

}  // namespace zbpp
