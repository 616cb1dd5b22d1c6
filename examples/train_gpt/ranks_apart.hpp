// SPDX-License-Identifier: Apache-2.0
//
// Training as one rank of several processes: every rank has its chunks of the model, its part of
// each checkpoint, and the same plan. Rank 0 compares and tells.
#pragma once

#include "meeting.hpp"
#include "training.hpp"
#include <zbpp/asio/measure.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/model/grid.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Shows on rank 0 how far the run is. Now and then, for it makes the ranks wait for each other,
/// all learn the losses, which the ranks of the last stage have.
class shared_display final : public run_display {
 public:
  /// @param roots  by replica, the rank that knows its losses
  shared_display(
      zbpp::asio::rendezvous& meeting,
      std::vector<int> roots,
      run_record& record,
      training const& how,
      std::int64_t steps)
      : run_display(record, how, steps),
        meeting_(&meeting),
        roots_(std::move(roots)),
        record_(&record),
        microbatches_(how.microbatches),
        steps_(steps),
        alarm_("train_gpt: rank " + std::to_string(meeting.rank()), record.name) {}

  void note_step() override {
    if (meeting_->rank() == roots_.front()) alarm_.note(record_->done(), record_->losses.back());
  }
  [[nodiscard]] std::int64_t until_stop() override {
    auto const left = zbpp::run_progress::until_milestone(record_->done(), steps_);
    milestone_ = record_->done() + left;
    return left;
  }
  void note_stop() override {
    if (record_->done() < milestone_) return;
    share_losses();
    auto const before = std::exchange(known_, record_->losses.size());
    if (meeting_->rank() != 0) return;
    // Rank 0 tells it, too: of some launchers only its lines are seen.
    for (auto i = before; i < known_; ++i)
      alarm_.note(record_->first + static_cast<std::int64_t>(i) + 1, record_->losses[i]);
    show();
  }
  void note(std::string const& text) override {
    if (meeting_->rank() == 0) run_display::note(text);
  }

 private:
  // Gives every rank the mean of the losses of all replicas, for each step that is not known yet.
  void share_losses() {
    auto const own = std::exchange(record_->own_losses, {});
    auto const all = meeting_->all_gather(std::as_bytes(std::span(own)));
    std::vector<zbpp::asio::wire_reader> from;
    for (int const root : roots_) from.emplace_back(all[static_cast<std::size_t>(root)]);
    auto const of_replica = microbatches_ / static_cast<int>(roots_.size());
    for (auto& loss : std::span(record_->losses).subspan(known_)) {
      double sum = 0.0;
      for (auto& replica : from)
        for (int i = 0; i < of_replica; ++i) sum += replica.get<double>();
      loss = sum / microbatches_;
    }
  }

  zbpp::asio::rendezvous* meeting_;
  std::vector<int> roots_;
  run_record* record_;
  int microbatches_;
  std::int64_t steps_;
  divergence_alarm alarm_;
  std::int64_t milestone_ = 0;
  std::size_t known_ = 0;  // losses
};

/// Is one rank of several, each a process.
/// @tparam Backend     what carries their messages
/// @tparam Rendezvous  what that takes, an `asio::rendezvous`
template <class Backend, class Rendezvous>
class ranks_apart final : public ranks_here {
 public:
  ranks_apart(Rendezvous& meeting, options const& o)
      : meeting_(&meeting),
        layout_(o.how.layout_of(o.ranks)),
        at_(layout_.coordinates(meeting.rank())),
        explains_(o.explains) {
    if (layout_.ranks() > o.ranks) first_ = {layout_, 0, layout_.ranks()};
  }

  [[nodiscard]] bool has_first() const override { return meeting_->rank() == 0; }

  /// @throws zbpp::error (no_agreement) that names the options that differ
  void agree(
      options const& o,
      std::vector<setting> const& settings,
      zbpp::placement const& placement) override {
    std::vector<zbpp::agreement_item> items;
    auto const add = [&](setting const& s) { items.push_back({s.name, {}, s.value}); };
    std::ranges::for_each(settings, add);
    std::ranges::for_each(split_of(o.how, o.policies.front(), placement), add);
    add({"--step", name_of(o.kinds.front())});
    add({"--explain", o.explains ? "yes" : "no"});
    add({"--checkpoint and --every", o.checkpoint.empty() ? "none" : std::to_string(o.every)});
    meeting_->agree(items);
  }

  [[nodiscard]] std::unique_ptr<zbpp::checkpoint::process_group> processes() override {
    return std::make_unique<zbpp::checkpoint::ranks_apart<zbpp::asio::rendezvous>>(*meeting_);
  }

  [[nodiscard]] std::vector<chunk_stage> make_stages(
      training const& how, text const& on, zbpp::placement const& placement) override {
    return gpt::make_stages(how, on, placement, at_);
  }

  /// Measures the stages of every rank on that rank, all at a time, and gives all ranks the numbers
  /// of the first pipeline. Sums over replicas travel as its messages do.
  [[nodiscard]] std::vector<zbpp::problem> measure(
      options const& o, text const& on, std::vector<choice> const& choices) override {
    auto const& [policy, where, why_not] = choices.front();
    auto stages = make_stages(o.how, on, *where);
    auto const own = sizes_of(stages);
    zbpp::problem const alone(
        *where, o.how.own_microbatches(), zbpp::asio::gather_costs(*meeting_, *where, own, first_));
    auto const sizes = with_replicas(alone, {.count = o.how.replicas});
    zbpp::pipeline pipe(plan_to_measure(policy(sizes), sizes), backend(false), stages);
    auto measured = zbpp::asio::measure(*meeting_, pipe, {}, first_);
    if (o.how.replicas == 1 || o.ranks == 1) return {std::move(measured)};
    auto const edge = static_cast<double>(measured.costs(0).edge);
    auto const time_per_byte = static_cast<double>(message_time(measured)) / edge;
    return {with_replicas(
        std::move(measured), {.count = o.how.replicas, .time_per_byte = time_per_byte})};
  }

  [[nodiscard]] run_record run(
      zbpp::plan const& planned,
      options const& o,
      text const&,
      std::vector<chunk_stage>& stages,
      zbpp::training_state const& state,
      saver* save) override {
    auto const& how = o.how;
    zbpp::pipeline pipe(planned, backend(explains_), stages, options_of(how.optimizer));
    pipe.resume(state);
    run_record record{
        .name = planned.policy(),
        .first = state.steps,
        .keeps_own_losses = true,
        .keeps_times = explains_};
    auto const steps = how.optimizer.steps;
    auto const& where = planned.problem().placement();
    std::vector<int> roots;
    for (int replica = 0; replica < how.replicas; ++replica)
      roots.push_back(
          layout_.rank_of({.pipeline = where.rank_of(where.stages() - 1), .data = replica}));
    shared_display display(*meeting_, std::move(roots), record, how, steps);
    take_steps(pipe, record, display, steps, steps_between_stops(planned), stages, save);
    // Digests of chunks add up to that of the whole model.
    auto const own = zbpp::asio::wire_writer().put(digest(stages)).take();
    for (auto const& part : meeting_->all_gather(own))
      record.parameters += zbpp::asio::wire_reader(part).get<std::uint64_t>();
    if (explains_ && !record.losses.empty()) share_typical_step(planned, record);
    return record;
  }

  void check() override { meeting_->check(); }

  [[nodiscard]] int share(int status) override {
    auto const own = zbpp::asio::wire_writer().put(std::int32_t{status}).take();
    return zbpp::asio::wire_reader(meeting_->broadcast(own, 0)).get<std::int32_t>();
  }

 private:
  // Each rank has a clock, by which another step may be typical: that of rank 0 decides.
  void share_typical_step(zbpp::plan const& planned, run_record& record) {
    auto const own =
        zbpp::asio::wire_writer().put(static_cast<std::uint64_t>(record.typical())).take();
    auto const step = zbpp::asio::wire_reader(meeting_->broadcast(own, 0)).get<std::uint64_t>();
    zbpp::step_result typical;
    typical.measured = record.timelines[static_cast<std::size_t>(step)];
    typical.messages = record.messages[static_cast<std::size_t>(step)];
    auto all = zbpp::asio::gather_step(*meeting_, planned, typical, first_);
    record.typical_step = std::move(all.measured);
    record.typical_messages = std::move(all.messages);
    record.clocks = std::move(all.clocks);
    record.timelines.clear();  // those of one rank make no picture
    record.updates.clear();
  }

  [[nodiscard]] Backend backend(bool records_messages) const {
    if (first_.layout() == nullptr)
      return Backend(*meeting_, {.records_messages = records_messages});
    return Backend(*meeting_, layout_, {.records_messages = records_messages});
  }

  Rendezvous* meeting_;
  zbpp::grid_layout layout_;
  zbpp::grid_coordinates at_;
  zbpp::asio::pipeline_ranks first_;  // of the pipeline of rank 0, in a grid of several
  bool explains_;
};

/// Finds out how many ranks each pipeline has.
/// @throws setting_error when that is not what the user said, or not the same number for all
[[nodiscard]] inline int ranks_of_pipeline(options const& o, zbpp::asio::launch const& start) {
  auto const members = static_cast<int>(o.how.model.members);
  auto const pipelines = o.how.replicas * members;
  if (pipelines == 1) {
    if (o.names_ranks) check_ranks(o.ranks, start);
    return start.ranks;
  }
  auto const ranks = o.names_ranks ? o.ranks : std::max(start.ranks / pipelines, 1);
  if (ranks * pipelines != start.ranks)
    throw setting_error(
        "--data is " + std::to_string(o.how.replicas) + ", --tensor is " + std::to_string(members) +
        (o.names_ranks ? ", --ranks is " + std::to_string(ranks) : "") + ", and " + start.source +
        " started " + std::to_string(start.ranks) +
        " ranks; start as many as these make together, such as " +
        std::to_string(ranks * pipelines));
  return ranks;
}

/// @return how the ranks of a run meet
[[nodiscard]] inline zbpp::asio::rendezvous_settings meeting_settings(options const& o) {
  zbpp::asio::rendezvous_settings settings;
  settings.bind = o.bind;
  settings.advertise = o.advertise;
  settings.join_deadline = std::chrono::seconds(o.join_seconds);
  // The others wait while rank 0 runs the reference; who dies meanwhile is noticed all the same.
  settings.collective_deadline = std::chrono::hours(1000);
  return settings;
}

}  // namespace gpt
