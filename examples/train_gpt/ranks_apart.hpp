// SPDX-License-Identifier: Apache-2.0
//
// Training as one rank of several processes: every rank has its chunks of the model, its part of
// each checkpoint, and the same plan. Rank 0 compares and tells.
#pragma once

#include "meeting.hpp"
#include "training.hpp"
#include <zbpp/asio/measure.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Shows on rank 0 how far the run is. Now and then, for it makes the ranks wait for each other,
/// all learn the losses, which the rank of the last stage has.
class shared_display final : public run_display {
 public:
  shared_display(
      zbpp::asio::rendezvous& meeting,
      int root,
      run_record& record,
      training const& how,
      std::int64_t steps)
      : run_display(record, how, steps),
        meeting_(&meeting),
        root_(root),
        record_(&record),
        steps_(steps),
        alarm_("train_gpt: rank " + std::to_string(meeting.rank()), record.name) {}

  void note_step() override {
    if (meeting_->rank() == root_) alarm_.note(record_->done(), record_->losses.back());
  }
  [[nodiscard]] std::int64_t until_stop() override {
    auto const left = zbpp::run_progress::until_milestone(record_->done(), steps_);
    milestone_ = record_->done() + left;
    return left;
  }
  void note_stop() override {
    if (record_->done() < milestone_) return;
    share_losses(*meeting_, root_, known_, record_->losses);
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
  zbpp::asio::rendezvous* meeting_;
  int root_;
  run_record* record_;
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
  /// @param explains  whether rank 0 is to know a typical step of all ranks
  ranks_apart(Rendezvous& meeting, bool explains) : meeting_(&meeting), explains_(explains) {}

  [[nodiscard]] bool has_first() const override { return meeting_->rank() == 0; }

  /// @throws zbpp::error (no_agreement) that names the options that differ
  void agree(
      options const& o,
      std::vector<setting> const& settings,
      zbpp::placement const& placement) override {
    std::vector<zbpp::asio::agreement_item> items;
    auto const add = [&](setting const& s) { items.push_back({s.name, {}, s.value}); };
    std::ranges::for_each(settings, add);
    std::ranges::for_each(split_of(o.policies.front(), placement, 1), add);
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
    return gpt::make_stages(how, on, placement, meeting_->rank());
  }

  /// Measures the stages of every rank on that rank, all at a time, and gives all ranks the same
  /// numbers.
  [[nodiscard]] std::vector<zbpp::problem> measure(
      options const& o, text const& on, std::vector<choice> const& choices) override {
    auto const& [policy, where, why_not] = choices.front();
    auto stages = make_stages(o.how, on, *where);
    auto const own = sizes_of(stages);
    zbpp::problem const sizes(
        *where, o.how.microbatches, zbpp::asio::gather_costs(*meeting_, *where, own));
    zbpp::pipeline pipe(plan_to_measure(policy(sizes), sizes), Backend(*meeting_), stages);
    return {zbpp::asio::measure(*meeting_, pipe)};
  }

  [[nodiscard]] run_record run(
      zbpp::plan const& planned,
      zbpp::step_kind,
      options const& o,
      text const&,
      std::vector<chunk_stage>& stages,
      zbpp::training_state const& state,
      saver* save) override {
    auto const& how = o.how;
    zbpp::pipeline pipe(
        planned,
        Backend(*meeting_, {.records_messages = explains_}),
        stages,
        options_of(how.optimizer));
    pipe.resume(state);
    run_record record{.name = planned.policy(), .first = state.steps, .keeps_times = explains_};
    auto const steps = how.optimizer.steps;
    auto const& where = planned.problem().placement();
    shared_display display(*meeting_, where.rank_of(where.stages() - 1), record, how, steps);
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
    auto all = zbpp::asio::gather_step(*meeting_, planned, typical);
    record.typical_step = std::move(all.measured);
    record.typical_messages = std::move(all.messages);
    record.clocks = std::move(all.clocks);
    record.timelines.clear();  // those of one rank make no picture
    record.updates.clear();
  }

  Rendezvous* meeting_;
  bool explains_;
};

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
