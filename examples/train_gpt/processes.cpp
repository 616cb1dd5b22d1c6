// SPDX-License-Identifier: Apache-2.0
//
// Training as one rank of several processes that zbpp connects by TCP: every rank has its chunks of
// the model, its part of each checkpoint, and the same plan. Rank 0 measures, compares and tells.
#include "processes.hpp"

#include "doing.hpp"
#include "gathered_timeline.hpp"
#include "meeting.hpp"
#include "phases.hpp"
#include <zbpp/asio/tcp.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpt {
namespace {

/// Says how large the stages of all ranks are, and what their optimizer steps take; each rank knows
/// its own.
/// @param own  they take some steps
[[nodiscard]] zbpp::problem gather_sizes(
    zbpp::asio::rendezvous& meeting,
    std::vector<chunk_stage>& own,
    zbpp::placement const& placement,
    int microbatches) {
  constexpr std::array members{
      &zbpp::stage_costs::activation,
      &zbpp::stage_costs::weight_gradient_input,
      &zbpp::stage_costs::output_gradient,
      &zbpp::stage_costs::edge,
      &zbpp::stage_costs::static_memory,
      &zbpp::stage_costs::workspace,
      &zbpp::stage_costs::tied,
      &zbpp::stage_costs::norm,
      &zbpp::stage_costs::optimizer_step};
  zbpp::asio::wire_writer to;
  for (auto& s : own) {
    auto costs = s.sizes();
    s.measure_update(costs);
    for (auto const member : members) to.put(costs.*member);
  }
  auto const parts = meeting.all_gather(to.bytes());
  std::vector<zbpp::stage_costs> all(static_cast<std::size_t>(placement.stages()));
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    zbpp::asio::wire_reader from(parts[static_cast<std::size_t>(rank)]);
    for (int const s : placement.stages_of(rank))
      for (auto const member : members)
        all[static_cast<std::size_t>(s)].*member = from.get<zbpp::bytes>();
    from.expect_end();
  }
  return {placement, microbatches, std::move(all)};
}

/// Measures the stages of every rank on that rank, all at a time, and gives all ranks the same
/// numbers.
[[nodiscard]] zbpp::problem measure_apart(
    zbpp::asio::rendezvous& meeting, options const& o, text const& on, choice const& of) {
  auto stages = make_stages(o.how, on, *of.where, meeting.rank());
  auto const sizes = gather_sizes(meeting, stages, *of.where, o.how.microbatches);
  return measure(
      sizes,
      of.policy,
      zbpp::asio::tcp(meeting),
      std::move(stages),
      [&](zbpp::schedule const& order, zbpp::timeline const& own) {
        return gather_timeline(meeting, order, own);
      });
}

/// Adds up the digests of all ranks, which gives that of the whole model.
[[nodiscard]] std::uint64_t digest_of_all(
    zbpp::asio::rendezvous& meeting, std::vector<chunk_stage> const& stages) {
  std::uint64_t own = 0;
  for (auto const& s : stages) own += digest(s.model().parameters());
  std::uint64_t sum = 0;
  for (auto const& part : meeting.all_gather(zbpp::asio::wire_writer().put(own).bytes()))
    sum += zbpp::asio::wire_reader(part).get<std::uint64_t>();
  return sum;
}

/// Stands for ranks that are processes; this one has one of them.
class ranks_apart {
 public:
  /// @param meeting  outlives the object
  explicit ranks_apart(zbpp::asio::rendezvous& meeting) : meeting_(&meeting) {}

  [[nodiscard]] std::vector<int> here(int) const { return {meeting_->rank()}; }
  template <class Work>
  void on_first(Work const& work) const {
    if (meeting_->rank() == 0) work();
    meeting_->barrier();
  }
  [[nodiscard]] bool all(bool own) const {
    auto const parts =
        meeting_->all_gather(zbpp::asio::wire_writer().put(static_cast<std::uint8_t>(own)).bytes());
    return std::all_of(parts.begin(), parts.end(), [](auto const& part) {
      return zbpp::asio::wire_reader(part).template get<std::uint8_t>() != 0;
    });
  }
  void check() const { meeting_->check(); }
  [[nodiscard]] std::vector<file_record> gather(std::vector<file_record> const& own) const {
    zbpp::asio::wire_writer to;
    for (auto const& record : own) to.put(record.size).put(record.sum);
    std::vector<file_record> all;
    for (auto const& part : meeting_->all_gather(to.bytes())) {
      zbpp::asio::wire_reader from(part);
      auto const size = from.get<std::uint64_t>();
      all.push_back({size, from.get<std::uint64_t>()});
    }
    return all;
  }

 private:
  zbpp::asio::rendezvous* meeting_;
};

using saver_apart = basic_saver<ranks_apart>;

/// Checks that all ranks were started alike.
/// @throws zbpp::error (no_agreement) that names the options that differ
void agree(
    zbpp::asio::rendezvous& meeting,
    options const& o,
    std::vector<run_setting> settings,
    run_split const& split) {
  for (auto& of_split : settings_of(split)) settings.push_back(std::move(of_split));
  settings.push_back({"--step", name_of(o.kinds.front())});
  settings.push_back(
      {"--checkpoint and --every", o.checkpoint.empty() ? "none" : std::to_string(o.every)});
  std::vector<zbpp::asio::agreement_item> items;
  for (auto& s : settings) items.push_back({std::move(s.name), {}, std::move(s.value)});
  meeting.agree(items);
}

/// Checks that all ranks found the same newest checkpoint.
/// @param first  the step of that of this rank; 0 where there is none
/// @throws setting_error, the same on all ranks
void agree_on_checkpoint(zbpp::asio::rendezvous& meeting, options const& o, std::int64_t first) {
  auto const parts = meeting.all_gather(zbpp::asio::wire_writer().put(first).bytes());
  auto const found = [&](std::size_t rank) {
    auto const step = zbpp::asio::wire_reader(parts[rank]).get<std::int64_t>();
    return step == 0 ? std::string("no checkpoint") : checkpoints::name(step);
  };
  for (std::size_t rank = 1; rank < parts.size(); ++rank)
    if (found(rank) != found(0))
      throw setting_error(
          "--checkpoint " + o.checkpoint.string() + " has " + found(0) + " at rank 0 and " +
          found(rank) + " at rank " + std::to_string(rank) +
          "; name a folder that all machines share, such as one of a network file system");
}

/// Runs the stages of this rank, and shows on rank 0 how far the run is.
/// @param save  keeps checkpoints; null to keep none
[[nodiscard]] run_record run_rank(
    zbpp::asio::rendezvous& meeting,
    zbpp::plan const& planned,
    training const& how,
    std::vector<chunk_stage>& stages,
    zbpp::training_state const& state,
    saver_apart* save) {
  auto const steps = how.optimizer.steps;
  auto const& where = planned.problem().placement();
  auto const root = where.rank_of(where.stages() - 1);
  auto const first = state.steps;
  run_record record{planned.policy(), first};
  zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting), stages, options_of(how.optimizer));
  pipe.resume(state);
  std::optional<progress> shown;
  if (meeting.rank() == 0)
    shown.emplace(planned.policy(), first, steps, how.microbatches * how.model.tokens());
  divergence_alarm alarm("train_gpt: rank " + std::to_string(meeting.rank()), planned.policy());
  std::size_t known = 0;
  auto const most = steps_between_stops(planned);
  step_clock clock;
  while (record.done() < steps) {
    auto const before = record.done();
    auto const until_saved =
        save != nullptr ? std::min(save->until_due(before), steps - before) : steps;
    auto const until_shared = progress::until_milestone(before, steps);
    clock.start();
    pipe.run(std::min({most, until_saved, until_shared}), [&](zbpp::step_result const& step) {
      record.add(step, clock.lap());
      if (meeting.rank() == root) alarm.note(record.done(), record.losses.back());
    });
    auto const done = record.done();
    if (save != nullptr && done == before + until_saved) {
      auto const note = save->save(pipe.state(), stages);
      if (shown) shown->note(note);
    }
    // Rarely: it makes the ranks wait for each other.
    if (done < before + until_shared) continue;
    share_losses(meeting, root, known, record.losses);
    // Rank 0 tells it, too: of some launchers only its lines are seen.
    for (; known < record.losses.size(); ++known)
      if (shown) alarm.note(first + static_cast<std::int64_t>(known) + 1, record.losses[known]);
    if (shown) shown->show(done, record.losses.back());
  }
  record.parameters = digest_of_all(meeting, stages);
  return record;
}

int train(zbpp::asio::rendezvous& meeting, options const& o) {
  bool const is_first = meeting.rank() == 0;
  auto const on = read(o);
  auto choices = choose_all(o);
  auto const where = *choices.front().where;
  auto const settings = settings_of(o.how, on);
  agree(meeting, o, settings, split_of(o.policies.front(), where));
  auto stages =
      doing("making the stages", [&] { return make_stages(o.how, on, where, meeting.rank()); });
  std::optional<saver_apart> save;
  zbpp::training_state state;
  if (!o.checkpoint.empty()) {
    save.emplace(o.checkpoint, settings, o.every, o.policies.front(), where, ranks_apart(meeting));
    state = doing("reading the checkpoint", [&] { return save->begin(stages, o.resume); });
    agree_on_checkpoint(meeting, o, state.steps);
  }

  std::optional<sequential_trainer> trainer;
  if (is_first) {
    if (o.reference) doing("making the reference", [&] { trainer.emplace(o.how, on); });
    say(headline(o, on, trainer));
    if (o.resume) say(save->told() + "\n");
  }
  std::vector<zbpp::problem> const measured{
      doing("measuring", [&] { return measure_apart(meeting, o, on, choices.front()); })};
  auto all = plan_all(o, choices, measured);
  if (is_first) tell_plans(o, measured, all);

  auto& one = all.front();
  std::optional<run_record> sequential;
  if (trainer)
    sequential = doing("running the reference", [&] {
      // The others wait meanwhile; when one of them fails, so does this.
      return run_sequential(*trainer, o.how, [&] { meeting.check(); });
    });
  one.run = doing("running the pipeline", [&] {
    return run_rank(meeting, *one.plan, o.how, stages, state, save ? &*save : nullptr);
  });
  if (sequential)
    one.run->is_identical =
        same_losses(*one.run, *sequential) && one.run->parameters == sequential->parameters;

  std::int32_t status = 0;
  auto const newest = save ? save->path() : std::filesystem::path();
  if (is_first) status = conclude(o, on, sequential, all, *one.run, newest);
  auto const told = meeting.broadcast(zbpp::asio::wire_writer().put(status).bytes(), 0);
  return zbpp::asio::wire_reader(told).get<std::int32_t>();
}

}  // namespace

int train_in_processes(options o) {
  auto const start = find_launch("tcp", o.names_ranks ? std::optional(o.ranks) : std::nullopt);
  o.ranks = start.ranks;
  check_ranks(o);
  zbpp::asio::rendezvous_settings settings;
  settings.bind = o.bind;
  settings.advertise = o.advertise;
  settings.join_deadline = std::chrono::seconds(o.join_seconds);
  // The others wait while rank 0 runs the reference; who dies meanwhile is noticed all the same.
  settings.collective_deadline = std::chrono::hours(1000);
  return status_of("train_gpt", start.rank, [&] {
    auto meeting = meet(start, settings);
    return take_part(meeting, [&] { return train(meeting, o); });
  });
}

}  // namespace gpt
