// SPDX-License-Identifier: Apache-2.0
//
// Training as one rank of several processes that zbpp connects by TCP: every rank has its chunks of
// the model, its part of each checkpoint, and the same plan. Rank 0 measures, compares and tells.
#include "processes.hpp"

#include "meeting.hpp"
#include "phases.hpp"
#include <zbpp/asio/tcp.hpp>

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

/// What `measure` fills in of a stage; the rest is as it is made.
constexpr std::array measured_costs{
    &zbpp::stage_costs::forward,
    &zbpp::stage_costs::backward_input,
    &zbpp::stage_costs::backward_weight,
    &zbpp::stage_costs::activation,
    &zbpp::stage_costs::weight_gradient_input,
    &zbpp::stage_costs::edge,
    &zbpp::stage_costs::static_memory,
    &zbpp::stage_costs::workspace};

/// Gives every rank the problem that rank 0 measured.
/// @param mine  counts on rank 0
[[nodiscard]] zbpp::problem share_problem(
    zbpp::asio::rendezvous& meeting,
    zbpp::problem const* mine,
    zbpp::placement const& placement,
    int microbatches) {
  zbpp::asio::wire_writer to;
  if (mine != nullptr) {
    for (auto const& costs : mine->all_costs())
      for (auto const member : measured_costs) to.put(costs.*member);
    to.put(message_time(*mine));
  }
  auto const told = meeting.broadcast(to.bytes(), 0);
  zbpp::asio::wire_reader from(told);
  std::vector<zbpp::stage_costs> all(static_cast<std::size_t>(placement.stages()));
  for (auto& costs : all)
    for (auto const member : measured_costs) costs.*member = from.get<std::int64_t>();
  zbpp::transfer_costs const transfer(from.get<zbpp::ticks>());
  from.expect_end();
  return {placement, microbatches, std::move(all), transfer};
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
    std::int64_t first) {
  settings.push_back(
      {"--checkpoint and --every", o.checkpoint.empty() ? "none" : std::to_string(o.every)});
  settings.push_back({"steps in the newest checkpoint", std::to_string(first)});
  std::vector<zbpp::asio::agreement_item> items;
  for (auto& s : settings) items.push_back({std::move(s.name), {}, std::move(s.value)});
  meeting.agree(items);
}

/// Runs the stages of this rank, and shows on rank 0 how far the run is.
/// @param save  keeps checkpoints; null to keep none
[[nodiscard]] run_record run_rank(
    zbpp::asio::rendezvous& meeting,
    zbpp::plan const& planned,
    training const& how,
    std::vector<chunk_stage>& stages,
    std::int64_t first,
    saver_apart* save) {
  auto const steps = how.optimizer.steps;
  auto const& where = planned.problem().placement();
  auto const root = where.rank_of(where.stages() - 1);
  run_record record{planned.policy, first};
  zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting), stages);
  std::optional<progress> shown;
  if (meeting.rank() == 0)
    shown.emplace(planned.policy, first, steps, how.microbatches * how.model.tokens());
  std::size_t known = 0;
  while (record.done() < steps) {
    auto const start = std::chrono::steady_clock::now();
    record.losses.push_back(pipe.step().loss());
    std::chrono::duration<double, std::milli> const took = std::chrono::steady_clock::now() - start;
    record.milliseconds.push_back(took.count());
    auto const done = record.done();
    if (save != nullptr && (save->is_due(done) || done == steps)) {
      auto const note = save->save(done, stages);
      if (shown) shown->note(note);
    }
    // Rarely: it makes the ranks wait for each other.
    if (!progress::is_milestone(done, steps)) continue;
    share_losses(meeting, root, known, record.losses);
    known = record.losses.size();
    if (shown) shown->show(done, record.losses.back());
  }
  record.parameters = digest_of_all(meeting, stages);
  return record;
}

int train(zbpp::asio::rendezvous& meeting, options const& o) {
  bool const is_first = meeting.rank() == 0;
  auto const on = read(o);
  auto choices = choose_all(o);
  auto const policy = choices.front().policy;
  auto const where = *choices.front().where;
  auto const settings = settings_of(o.how, on, o.policies.front(), where);
  auto stages = make_stages(o.how, on, where, meeting.rank());
  std::optional<saver_apart> save;
  std::int64_t first = 0;
  if (!o.checkpoint.empty()) {
    save.emplace(o.checkpoint, settings, o.every, where, ranks_apart(meeting));
    first = save->begin(stages, o.resume);
  }
  agree(meeting, o, settings, first);

  std::optional<sequential_trainer> trainer;
  std::vector<contender> all(1);
  if (is_first) {
    if (o.reference) trainer.emplace(o.how, on);
    say(headline(o, on, trainer));
    if (o.resume) say(save->told() + "\n");
    all = plan_all(o, on, std::move(choices));
  }
  auto& one = all.front();
  auto const* const measured = one.plan ? &one.plan->problem() : nullptr;
  auto const problem = share_problem(meeting, measured, where, o.how.microbatches);
  if (!one.plan) one.plan = zbpp::make_plan(policy, problem);

  std::optional<run_record> sequential;
  if (trainer) sequential = run_sequential(*trainer, o.how);
  one.run = run_rank(meeting, *one.plan, o.how, stages, first, save ? &*save : nullptr);
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
