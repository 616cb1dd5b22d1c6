// SPDX-License-Identifier: Apache-2.0
//
// Says why a step has stalled: who waits for whom and in what, up to the rank that waits for none,
// or which ranks wait in a cycle. It knows the program and what the ranks told of themselves; it
// has no clock and no socket.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/rank_call.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/group_link.hpp>
#include <zbpp/runtime/state_link.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
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
      : program_(program),
        map_(program.placement()),
        states_(program),
        limit_ms_(limit_ms),
        layout_(layout) {
    auto const ranks = index(this->ranks());
    reports_.resize(ranks);
    for (auto const& r : reports)
      if (is_rank(r.rank)) reports_[index(r.rank)] = r;
    does_.resize(ranks);
    next_.assign(ranks, nobody);
    waiters_.assign(ranks, {});
    for (int rank = 0; rank < this->ranks(); ++rank) explain(rank);
    for (int rank = 0; rank < this->ranks(); ++rank)
      if (auto const end = end_of(rank); end == nobody)
        in_cycle_.push_back(rank);
      else if (end != rank)
        waiters_[index(end)].push_back(rank);
  }

  /// @return the end of a sentence: who waits for whom, down to a rank that does not, or a cycle
  [[nodiscard]] std::string text() const {
    auto const last = suspect();
    if (last == nobody) return chain(in_cycle_.front(), nobody);
    auto const& waiters = waiters_[index(last)];
    auto text = chain(waiters.empty() ? last : waiters.front(), last);
    std::vector<int> more;
    for (int rank = 0; rank < ranks(); ++rank)
      if (rank != last && next_[index(rank)] == nobody && (is_waited_for(rank) || is_in_step(rank)))
        more.push_back(rank);
    if (!more.empty()) text += "; the same holds for " + ranks_text(more);
    if (!in_cycle_.empty()) text += "; " + ranks_text(in_cycle_) + " wait for each other";
    return text;
  }

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
  [[nodiscard]] bool is_rank(int rank) const noexcept { return rank >= 0 && rank < ranks(); }
  [[nodiscard]] std::span<instruction const> row_of(int rank) const {
    return program_.instructions(
        layout_ == nullptr ? rank : layout_->place_in_group(grid_axis::pipeline, rank));
  }
  // The rank that is some rank of the pipeline of `of`.
  [[nodiscard]] int beside(int of, int in_pipeline) const {
    if (layout_ == nullptr) return in_pipeline;
    auto at = layout_->coordinates(of);
    at.pipeline = in_pipeline;
    return layout_->rank_of(at);
  }

  // Writes `rank 5 (pipeline 1, replica 2)`.
  [[nodiscard]] std::string name(int rank) const {
    std::string const number = zbpp::detail::joined("rank ", rank);
    return layout_ == nullptr ? number : number + " (" + coordinates_text(*layout_, rank) + ")";
  }
  // Writes `F 3 of stage 2`, `REDUCED of stage 2` or `NORM`.
  [[nodiscard]] static std::string describe(instruction const& i) {
    std::string text(to_string(i.kind));
    if (i.has_microbatch()) text += zbpp::detail::joined(" ", i.microbatch);
    return i.is_of_rank() ? text : text + " of stage " + std::to_string(i.stage);
  }
  [[nodiscard]] bool is_silent(progress_report const& r) const noexcept {
    return r.silence_ms > limit_ms_;
  }

  // Finds what a rank does, and for whom it waits.
  void explain(int rank) {
    auto& does = does_[index(rank)];
    auto const& report = reports_[index(rank)];
    if (!report) {
      does = "has not told where it is";
    } else if (is_silent(*report)) {
      does = "has not been heard";
    } else if (report->phase == progress_phase::replaying) {
      does = "replays the step, of which its host sees the end alone,";
    } else if (report->wait.kind > wait_kind::instruction) {
      explain_call(rank, *report);
    } else if (report->phase == progress_phase::outside) {
      does = "is outside step()";
    } else if (report->at && position(rank) == nowhere) {
      does = "tells of " + describe(*report->at) + ", which is not of this program,";
    } else if (report->phase == progress_phase::waiting) {
      explain_waiting(rank, *report);
    } else if (report->phase == progress_phase::sending) {
      explain_sending(rank, *report);
    } else if (!report->at) {
      does = "begins the step";
    } else {
      bool const has_run = report->phase == progress_phase::between && report->at->is_pass();
      does = (has_run ? "has run " : "runs ") + describe(*report->at);
    }
  }

  void wait(int rank, int next, std::string const& in) {
    does_[index(rank)] = "waits in " + in;
    if (is_rank(next) && next != rank) next_[index(rank)] = next;
  }

  // A rank in a collective call.
  void explain_call(int rank, progress_report const& report) {
    auto const& in = report.wait;
    if (in.kind == wait_kind::group) {
      std::string text(to_string(static_cast<call_of_group>(in.call)));
      text.append(" of its ").append(to_string(in.axis)).append(" group");
      if (report.phase == progress_phase::outside)
        text += " between steps";
      else if (report.at)
        text += " in " + describe(*report.at);
      return wait(rank, in.peer, text);
    }
    // For the first that has not come.
    int other = 0;
    while (other < ranks() && reports_[index(other)] &&
           reports_[index(other)]->wait.kind == in.kind)
      ++other;
    auto const call = rank_call{.kind = static_cast<call_kind>(in.call), .root = in.peer};
    wait(rank, other, in.kind == wait_kind::run ? call.name() : "run() behind a step");
  }

  // A rank that cannot go on with its program.
  void explain_waiting(int rank, progress_report const& report) {
    auto const row = row_of(rank);
    bool const is_told = report.wait.kind == wait_kind::instruction;
    // It is at what it told last, or behind it where its device goes on.
    bool const is_there =
        is_told && report.at && static_cast<std::uint8_t>(report.at->kind) == report.wait.call;
    auto at = report.at ? position(rank) + (is_there ? 0 : 1) : 0;
    for (; at < row.size(); ++at) {
      auto const& i = row[at];
      if (i.is_pass()) return explain_message(rank, at, report.step);
      if (is_told && static_cast<std::uint8_t>(i.kind) == report.wait.call)
        return wait(rank, awaited_by(rank, i, report.wait.peer), describe(i));
      // Where a device adds gradients up, its host does not know how far it is.
      if (auto const next = is_told ? nobody : late_replica(rank, i, report.step); next != nobody)
        return wait(rank, next, describe(i));
    }
    does_[index(rank)] = "is at the end of its program";
  }

  // For whom a rank waits that says what it lacks in an instruction; in an evaluation that may be
  // room for what it sends.
  [[nodiscard]] int awaited_by(int rank, instruction const& i, int lacks) const {
    if (i.is_send()) return receiver(rank, i);
    if (i.is_of_reduction() && layout_ != nullptr) {
      auto const replicas = layout_->group(grid_axis::data, rank);
      return lacks >= 0 && index(lacks) < replicas.size() ? replicas[index(lacks)] : nobody;
    }
    return lacks >= 0 && lacks < states_.size() ? beside(rank, states_.ends(lacks).first) : nobody;
  }

  // A rank that waits for the messages of a pass, and of that which is paired with it.
  void explain_message(int rank, std::size_t at, std::int64_t step) {
    auto const row = row_of(rank);
    auto& does = does_[index(rank)];
    does = "is about to run " + describe(row[at]);
    for (auto k = at; k < row.size() && (k == at || !row[k].is_pass() || row[k].is_paired); ++k) {
      auto const channel = row[k].is_pass() ? map_.of_input(row[k].as_pass()) : channel_map::none;
      if (channel == channel_map::none) continue;
      auto const from = beside(rank, map_.ends(channel).first);
      bool const is_forward = row[k].kind == instruction_kind::forward;
      auto const stage = row[k].stage + (is_forward ? -1 : 1);
      if (!has_come_to(from, find(from, is_forward, stage, row[k].microbatch), step))
        return wait(rank, from, describe(row[k]));
      does = "waits in " + describe(row[k]) + " for what " + name(from) + " has sent";
    }
  }

  // The first replica that has not given the gradients of a stage to their sum; nobody where that
  // is not what the instruction waits for.
  [[nodiscard]] int late_replica(int rank, instruction const& i, std::int64_t step) const {
    if (layout_ == nullptr || i.kind != instruction_kind::finish_reduction) return nobody;
    auto const start = find(rank, [&](instruction const& other) {
      return other.kind == instruction_kind::start_reduction && other.stage == i.stage;
    });
    for (int const replica : layout_->group(grid_axis::data, rank))
      if (replica != rank && !has_come_to(replica, start, step)) return replica;
    return nobody;
  }

  // To whom a rank sends; nobody where the instruction is no send.
  [[nodiscard]] int receiver(int rank, instruction const& i) const {
    auto const channel = i.is_send() ? map_.of(i) : channel_map::none;
    return channel == channel_map::none ? nobody : beside(rank, map_.ends(channel).second);
  }
  // A rank that cannot get rid of a message.
  void explain_sending(int rank, progress_report const& report) {
    auto const row = row_of(rank);
    for (auto const& i : row) {
      auto const to = receiver(rank, i);
      if (to == nobody) continue;
      auto const taker = find(to, i.moves_activation(), i.other_stage(), i.microbatch);
      bool const takes = is_in_pass(to) && position(to) == taker;
      if (!takes && !has_come_to(to, taker, report.step)) return wait(rank, to, describe(i));
    }
    does_[index(rank)] = "sends what is left";
  }

  // Where in its row a rank is: at what it told last. Nowhere where the row has no such thing.
  [[nodiscard]] std::size_t position(int rank) const {
    auto const& at = *reports_[index(rank)]->at;
    return find(rank, [&](instruction const& i) {
      return i.kind == at.kind && i.stage == at.stage && i.microbatch == at.microbatch;
    });
  }
  // The F of a stage and microbatch, or its B or BW.
  [[nodiscard]] std::size_t find(int rank, bool is_forward, int stage, int microbatch) const {
    return find(rank, [&](instruction const& i) {
      return i.is_pass() && i.stage == stage && i.microbatch == microbatch &&
             (is_forward ? i.kind == instruction_kind::forward
                         : i.as_pass().makes_input_gradient());
    });
  }
  template <class Is>
  [[nodiscard]] std::size_t find(int rank, Is const& is) const {
    auto const row = row_of(rank);
    auto const found = std::ranges::find_if(row, is);
    return found == row.end() ? nowhere : static_cast<std::size_t>(found - row.begin());
  }

  // How much of its row a rank has certainly run in its step, but for W, which may move.
  [[nodiscard]] std::size_t run_up_to(int rank) const {
    auto const& report = *reports_[index(rank)];
    if (!report.at) return 0;
    if (report.phase == progress_phase::outside) return row_of(rank).size();
    auto const& at = *report.at;
    if (at.kind == instruction_kind::backward_weight && report.phase != progress_phase::waiting)
      return find(rank, false, at.stage, at.microbatch) + 1;
    bool const waits = report.phase == progress_phase::waiting &&
                       report.wait.kind == wait_kind::instruction &&
                       report.wait.call == static_cast<std::uint8_t>(at.kind);
    bool const runs = report.phase == progress_phase::between && !at.is_pass();
    auto place = position(rank);
    if (place == nowhere || waits || runs || is_in_pass(rank)) return place == nowhere ? 0 : place;
    // Where the rank does not tell, it may be anywhere before its next pass.
    auto const row = row_of(rank);
    for (++place; report.wait.kind == wait_kind::none && place < row.size(); ++place)
      if (row[place].is_pass() || report.phase != progress_phase::waiting) break;
    return place;
  }
  [[nodiscard]] bool is_in_pass(int rank) const {
    auto const& report = reports_[index(rank)];
    return report && report->at && report->phase == progress_phase::in_pass;
  }
  // Whether a rank has run a pass of a step.
  [[nodiscard]] bool has_come_to(int rank, std::size_t pass, std::int64_t step) const {
    auto const& report = reports_[index(rank)];
    if (!report || pass == nowhere) return false;
    return report->step == step ? pass < run_up_to(rank) : report->step > step;
  }

  // The rank at the end of the waits of a rank; nobody where they lead into a cycle.
  [[nodiscard]] int end_of(int rank) const {
    for (int left = ranks(); left > 0 && next_[index(rank)] != nobody; --left)
      rank = next_[index(rank)];
    return next_[index(rank)] == nobody ? rank : nobody;
  }
  [[nodiscard]] bool is_waited_for(int rank) const { return !waiters_[index(rank)].empty(); }
  [[nodiscard]] bool is_in_step(int rank) const {
    auto const& report = reports_[index(rank)];
    return !report || is_silent(*report) || report->phase != progress_phase::outside;
  }

  // The rank that most wait for in the end; nobody where they wait in cycles alone.
  [[nodiscard]] int suspect() const {
    int found = nobody;
    auto const weight = [&](int rank) {
      return std::pair(waiters_[index(rank)].size(), is_in_step(rank));
    };
    for (int rank = 0; rank < ranks(); ++rank)
      if (next_[index(rank)] == nobody && (found == nobody || weight(rank) > weight(found)))
        found = rank;
    bool const is_away = found != nobody && !is_waited_for(found) && !is_in_step(found);
    return is_away && !in_cycle_.empty() ? nobody : found;
  }

  // Writes the waits from a rank on, to the last one or back to where the cycle begins. Of many it
  // leaves out those in the middle.
  [[nodiscard]] std::string chain(int first, int last) const {
    constexpr std::size_t most = 6;
    if (last == nobody)  // into the cycle
      for (int left = ranks(); left > 0; --left) first = next_[index(first)];
    std::vector<int> way{first};
    while (way.back() != last && (way.size() == 1 || way.back() != first))
      way.push_back(next_[index(way.back())]);
    auto text = name(first);
    for (std::size_t at = 0; at + 1 < way.size(); ++at) {
      auto const left_out = way.size() > most + 1 && at == most / 2 ? way.size() - most - 1 : 0;
      text += " " + (left_out == 0 ? does_[index(way[at])]
                                   : "waits through " + std::to_string(left_out) + " others");
      at += left_out;
      text +=
          " for " + name(way[at + 1]) + (at + 2 < way.size() || last != nobody ? ", which" : "");
    }
    if (last == nobody) return text + ": they wait for each other";
    return text + " waits for no rank: it " + does_[index(last)] + time_of(last);
  }
  [[nodiscard]] std::string time_of(int rank) const {
    auto const& report = reports_[index(rank)];
    if (!report) return {};
    auto const time = is_silent(*report) ? report->silence_ms : quiet_ms(*report);
    return " for " + seconds_text(std::chrono::milliseconds(time));
  }

  program const& program_;
  channel_map map_;
  state_map states_;
  std::int64_t limit_ms_;
  grid_layout const* layout_;
  std::vector<std::optional<progress_report>> reports_;
  std::vector<std::string> does_;          // of each rank, in words
  std::vector<int> next_;                  // for whom each rank waits
  std::vector<std::vector<int>> waiters_;  // by the rank at the end of their waits
  std::vector<int> in_cycle_;              // or on the way into one
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
  /// @return the rank or cycle that all wait for, if the step has stalled; only the first time
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
           ", rendezvous_settings::stall_deadline), and " +
           stall_report(program_, reports, limit_ms_, layout_.get()).text();
  }

 private:
  program program_;
  std::int64_t limit_ms_;
  std::shared_ptr<grid_layout const> layout_;  // null where all ranks are one pipeline
  bool is_told_ = false;
};

}  // namespace zbpp::asio::detail
