// SPDX-License-Identifier: Apache-2.0
//
// Says why a step has stalled: what every rank waits for, and who is at the end of the chain or
// which ranks wait in a cycle. It knows the program and what the ranks told of themselves; it has
// no clock and no socket.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

using zbpp::detail::index;

/// Writes what a report of a stall says. Trusts no number of a report.
class stall_report {
 public:
  /// @param layout  of the ranks, where each runs a rank of one of several pipelines; may be null
  stall_report(
      program const& program,
      std::span<progress_report const> reports,
      std::int64_t limit_ms,
      grid_layout const* layout)
      : program_(program), map_(program.placement()), limit_ms_(limit_ms), layout_(layout) {
    auto const ranks = index(this->ranks());
    reports_.resize(ranks);
    for (auto const& r : reports)
      if (r.rank >= 0 && index(r.rank) < ranks) reports_[index(r.rank)] = r;
    does_.resize(ranks);
    next_.assign(ranks, nobody);
    passes_.reserve(ranks, program.instructions().size());
    for (int rank = 0; rank < program.ranks(); ++rank) {
      auto const row = program.instructions(rank);
      for (std::size_t i = 0; i < row.size(); ++i) {
        if (!row[i].is_pass()) continue;
        passes_.push(i);
        is_evaluation_ = is_evaluation_ && row[i].kind == instruction_kind::forward;
      }
      passes_.end_row();
    }
    for (int rank = 0; rank < this->ranks(); ++rank) explain(rank);
  }

  /// @return one line per rank, then the cycles, then who is waited for
  [[nodiscard]] std::string text() const {
    std::string result;
    for (int rank = 0; rank < ranks(); ++rank) {
      auto const& r = reports_[index(rank)];
      result += '\n';
      result += full_name(rank) + ": " + does_[index(rank)];
      if (r)
        result +=
            " for " +
            seconds_text(std::chrono::milliseconds(is_silent(*r) ? r->silence_ms : quiet_ms(*r)));
    }
    add_cycles(result);
    add_ends(result);
    return result;
  }

  /// @return for how long a rank has been where it was last seen
  [[nodiscard]] static std::int64_t quiet_ms(progress_report const& r) noexcept {
    // Ages from the wire may be anything; their sum must not overflow.
    constexpr auto most = std::int64_t{1} << 61;
    return std::clamp<std::int64_t>(r.age_ms, 0, most) +
           std::clamp<std::int64_t>(r.silence_ms, 0, most);
  }

 private:
  static constexpr int nobody = -1;
  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);

  // Ranks are those of the run, if not said otherwise; the program knows those of a pipeline.
  [[nodiscard]] int ranks() const noexcept {
    return layout_ == nullptr ? program_.ranks() : layout_->ranks();
  }
  [[nodiscard]] int in_pipeline(int rank) const {
    return layout_ == nullptr ? rank : layout_->place_in_group(grid_axis::pipeline, rank);
  }
  [[nodiscard]] auto row_of(int rank) const { return program_.instructions(in_pipeline(rank)); }
  [[nodiscard]] auto passes_of(int rank) const { return passes_[in_pipeline(rank)]; }
  // The rank that is some rank of the pipeline of `of`.
  [[nodiscard]] int beside(int of, int in_pipeline) const {
    if (layout_ == nullptr) return in_pipeline;
    auto at = layout_->coordinates(of);
    at.pipeline = in_pipeline;
    return layout_->rank_of(at);
  }

  [[nodiscard]] static std::string name(int rank) { return "rank " + std::to_string(rank); }
  // Writes `rank 5 (pipeline 1, replica 2)`.
  [[nodiscard]] std::string full_name(int rank) const {
    return layout_ == nullptr ? name(rank)
                              : name(rank) + " (" + coordinates_text(*layout_, rank) + ")";
  }
  [[nodiscard]] bool is_silent(progress_report const& r) const noexcept {
    return r.silence_ms > limit_ms_;
  }

  // Writes `F 3 of stage 2`.
  [[nodiscard]] static std::string describe(instruction const& i) {
    return std::string(to_string(i.kind)) + " " + std::to_string(i.microbatch) + " of stage " +
           std::to_string(i.stage);
  }
  // Writes `position 41 of 120`.
  [[nodiscard]] std::string place(int rank, std::size_t at) const {
    return "position " + std::to_string(at) + " of " + std::to_string(row_of(rank).size());
  }
  [[nodiscard]] std::string through(int rank, int channel) const {
    auto const [from, to] = map_.ends(channel);
    return "channel " + std::to_string(beside(rank, from)) + "->" +
           std::to_string(beside(rank, to));
  }

  // Finds what a rank does, and for whom it waits.
  void explain(int rank) {
    auto& does = does_[index(rank)];
    auto const& report = reports_[index(rank)];
    if (!report) {
      does = "has not told where it is";
      return;
    }
    auto const passes = passes_of(rank);
    auto const started = report->passes_started;
    if (is_silent(*report)) {
      does = "has not been heard";
    } else if (report->phase == progress_phase::outside) {
      does = "is outside step()";
    } else if (report->phase == progress_phase::replaying) {
      does = "replays the step, of which its host sees the end alone,";
    } else if (started < 0 || index(started) > passes.size()) {
      does = "tells of " + std::to_string(started) + " passes, which are not of this program,";
    } else if (report->phase == progress_phase::in_pass && started > 0) {
      auto const at = passes[index(started - 1)];
      does = "runs " + describe(row_of(rank)[at]) + " (" + place(rank, at) + ")";
    } else if (report->phase == progress_phase::sending) {
      explain_sending(rank, *report);
    } else {
      explain_waiting(rank, *report);
    }
  }

  // A rank on its way to its next pass. What it does in between is not told apart from it.
  void explain_waiting(int rank, progress_report const& report) {
    auto& does = does_[index(rank)];
    auto const row = row_of(rank);
    auto const passes = passes_of(rank);
    auto const next = index(report.passes_started);
    auto const begin = next == 0 ? 0 : passes[next - 1] + 1;
    auto const end = next == passes.size() ? row.size() : passes[next];
    for (auto i = begin; i < end; ++i) {
      if (row[i].is_step())
        does += "steps the optimizer of stage " + std::to_string(row[i].stage) + ", or ";
      if (row[i].kind == instruction_kind::add_tied)
        does += "waits for gradients of tied weights, or ";
      if (row[i].kind == instruction_kind::finish_reduction)
        does += "waits for the gradients of stage " + std::to_string(row[i].stage) +
                " of its replicas, or ";
      if (is_evaluation_ && row[i].is_send())
        does += "waits for " + name(beside(rank, map_.ends(map_.of(row[i])).second)) +
                " to take what was sent, or ";
      if (row[i].is_of_rank()) does += "waits for gradients or the verdict of another rank, or ";
    }
    if (end == row.size()) {
      does += "is at the end of its program";
      return;
    }
    auto const channel = map_.of_input(row[end].as_pass());
    if (channel == channel_map::none) {
      does += "is about to run " + describe(row[end]) + " (" + place(rank, end) + ")";
      return;
    }
    auto const from = beside(rank, map_.ends(channel).first);
    bool const is_forward = row[end].kind == instruction_kind::forward;
    auto const stage = row[end].stage + (is_forward ? -1 : 1);
    does += std::string("waits for ") + (is_forward ? "activation " : "gradient ") +
            std::to_string(row[end].microbatch) + " of stage " + std::to_string(stage);
    auto const maker = find(from, is_forward, stage, row[end].microbatch);
    bool const is_made = has_come_to(from, maker, report.step, false);
    does += is_made ? ", which is under way from " : " from ";
    does += name(from) + " (" + place(rank, end) + ", " + through(rank, channel) + ")";
    if (!is_made) next_[index(rank)] = from;
  }

  // A rank that has run its program and cannot get rid of a message.
  void explain_sending(int rank, progress_report const& report) {
    auto& does = does_[index(rank)];
    for (auto const& i : row_of(rank)) {
      auto const channel = i.is_send() ? map_.of(i) : channel_map::none;
      if (channel == channel_map::none) continue;
      auto const to = beside(rank, map_.ends(channel).second);
      auto const taker = find(to, i.moves_activation(), i.other_stage(), i.microbatch);
      if (has_come_to(to, taker, report.step, true)) continue;
      does = std::string("waits for ") + name(to) + " to take " +
             (i.moves_activation() ? "activation " : "gradient ") + std::to_string(i.microbatch) +
             " of stage " + std::to_string(i.stage) + " (" + through(rank, channel) + ")";
      next_[index(rank)] = to;
      return;
    }
    does = "sends what is left";
  }

  // The F of a stage and microbatch, or its B or BW: how many passes of the rank stand before it.
  [[nodiscard]] std::size_t find(int rank, bool is_forward, int stage, int microbatch) const {
    auto const row = row_of(rank);
    auto const passes = passes_of(rank);
    for (std::size_t n = 0; n < passes.size(); ++n) {
      auto const p = row[passes[n]].as_pass();
      if (p.stage == stage && p.microbatch == microbatch &&
          (is_forward ? p.kind == pass_kind::forward : p.makes_input_gradient()))
        return n;
    }
    return nowhere;
  }

  // Whether a rank has started a pass of a step, or has run it.
  [[nodiscard]] bool has_come_to(
      int rank, std::size_t pass, std::int64_t step, bool started) const noexcept {
    auto const& report = reports_[index(rank)];
    if (!report || pass == nowhere || report->passes_started < 0) return false;
    if (report->step != step) return report->step > step;
    auto const begun = index(report->passes_started);
    bool const runs = report->phase == progress_phase::in_pass && begun > 0;
    return pass < begun - (runs && !started ? 1 : 0);
  }

  // Reports each cycle once, from its lowest rank.
  void add_cycles(std::string& text) const {
    for (int rank = 0; rank < ranks(); ++rank) {
      std::string chain = name(rank);
      auto at = next_[index(rank)];
      for (int left = ranks(); left > 0 && at > rank; --left) {
        chain += " -> " + name(at);
        at = next_[index(at)];
      }
      if (at == rank) text += "\nwaiting cycle: " + chain + " -> " + name(rank);
    }
  }

  // Reports each rank that itself waits for nobody, with the ranks that wait for it, directly or
  // through others.
  void add_ends(std::string& text) const {
    std::vector<std::vector<int>> waiting(next_.size());
    for (int rank = 0; rank < ranks(); ++rank) {
      auto end = rank;
      for (int left = ranks(); left > 0 && next_[index(end)] != nobody; --left)
        end = next_[index(end)];
      if (end != rank && next_[index(end)] == nobody) waiting[index(end)].push_back(rank);
    }
    for (int rank = 0; rank < ranks(); ++rank) {
      auto const& waiters = waiting[index(rank)];
      if (waiters.empty()) continue;
      if (waiters.size() + 1 == next_.size())
        text += "\neverybody waits for ";
      else
        text += "\n" + ranks_text(waiters) + (waiters.size() == 1 ? " waits for " : " wait for ");
      text += full_name(rank) + ", which " + does_[index(rank)];
    }
  }

  program const& program_;
  channel_map map_;
  std::int64_t limit_ms_;
  grid_layout const* layout_;
  bool is_evaluation_ = true;  // where a send may wait
  std::vector<std::optional<progress_report>> reports_;
  rows<std::size_t> passes_;       // of each rank of a pipeline: where passes stand in its row
  std::vector<std::string> does_;  // of each rank
  std::vector<int> next_;          // for whom each rank waits
};

/// Tells once that a step has stalled, and why. Rank 0 shows it the reports of all ranks from time
/// to time, from one thread at a time.
///
/// A step has stalled when some rank is in it and none has progressed for longer than the limit. A
/// rank that has not been heard counts as being where it was.
class stall_detector {
 public:
  /// Takes the program that all ranks run.
  /// @param limit   how long a single pass, or a message, may take at most
  /// @param layout  of the ranks, where each runs a rank of one of several pipelines
  /// @throws error (bad_argument) unless limit is more than 0
  explicit stall_detector(
      program program,
      std::chrono::milliseconds limit = std::chrono::seconds(60),
      std::shared_ptr<grid_layout const> layout = nullptr)
      : program_(std::move(program)), limit_ms_(limit.count()), layout_(std::move(layout)) {
    zbpp::detail::require(
        limit_ms_ > 0, "the limit of a stall_detector is 0 ms or less; set it above 0 ms");
  }

  /// Looks at the reports of all ranks, at most one each.
  /// @return what every rank waits for and which cycle or rank is to blame, if the step has
  ///         stalled and this was not said before; else nothing
  [[nodiscard]] std::optional<std::string> operator()(std::span<progress_report const> reports) {
    auto still = std::int64_t{-1};
    bool in_step = false;
    for (auto const& r : reports) {
      auto const quiet = stall_report::quiet_ms(r);
      still = still < 0 ? quiet : std::min(still, quiet);
      in_step = in_step || r.phase != progress_phase::outside;
    }
    if (!in_step || still <= limit_ms_) {
      is_told_ = false;
      return std::nullopt;
    }
    if (std::exchange(is_told_, true)) return std::nullopt;
    return "the step has stalled: no rank has progressed for " +
           seconds_text(std::chrono::milliseconds(still)) + " (limit " +
           seconds_text(std::chrono::milliseconds(limit_ms_)) +
           ", rendezvous_settings::stall_deadline)" +
           stall_report(program_, reports, limit_ms_, layout_.get()).text();
  }

 private:
  program program_;
  std::int64_t limit_ms_;
  std::shared_ptr<grid_layout const> layout_;  // null where all ranks are one pipeline
  bool is_told_ = false;
};

}  // namespace zbpp::asio::detail
