// SPDX-License-Identifier: Apache-2.0
//
// What executors share that run one rank in this process, and whose other ranks are processes of
// their own, for authors of backends. Ranks meet, agree, fail and end by a rendezvous, whatever
// carries their messages. `process_executor` is one of them, for a wait on the host.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/socket_states.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/runtime/agreement.hpp>
#include <zbpp/runtime/executor.hpp>
#include <zbpp/runtime/run_options.hpp>

#include <chrono>
#include <exception>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace zbpp {

class plan;

namespace asio {

/// Reads the time since the step began, and notes how far the rank is: a `pass_observer` for passes
/// that run on the calling thread.
class progress_observer {
 public:
  progress_observer() = default;
  /// Begins now.
  explicit progress_observer(progress_board& board) noexcept
      : epoch_(std::chrono::steady_clock::now()), board_(&board) {}

  [[nodiscard]] ticks start(ticks, pass const& begun) const noexcept {
    board_->enter(progress_phase::in_pass, to_instruction(begun));
    return now();
  }
  [[nodiscard]] ticks finish(ticks) const noexcept {
    board_->enter(progress_phase::between);
    return now();
  }
  /// Notes what the rank is about to do that is neither a pass nor about a message.
  void begin(instruction const& next) const noexcept {
    board_->enter(progress_phase::between, next);
  }
  /// Notes that a step of a run begins, the next one or the same one again.
  void begin_step(bool is_next) const noexcept { board_->begin_attempt(is_next); }
  [[nodiscard]] ticks reach(ticks) const noexcept { return now(); }
  /// @return when something was, since the step began; below 0 before
  [[nodiscard]] ticks time_of(std::chrono::steady_clock::time_point when) const noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(when - epoch_).count();
  }
  /// @return 0: a message has arrived once it is here
  [[nodiscard]] static constexpr ticks arrival_of_send(ticks) noexcept { return 0; }
  [[nodiscard]] static constexpr bool has_arrived(ticks) noexcept { return true; }

 private:
  [[nodiscard]] ticks now() const noexcept { return time_of(std::chrono::steady_clock::now()); }

  std::chrono::steady_clock::time_point epoch_;
  progress_board* board_ = nullptr;
};

/// @return in what an engine waits that is at an instruction, and for whom
template <class Engine>
[[nodiscard]] progress_wait wait_of(Engine const& engine) {
  auto const peer = engine.waits_for_replicas() ? engine.awaited_replica() : engine.blocked_by();
  return {peer, wait_kind::instruction, static_cast<std::uint8_t>(engine.at()->kind)};
}

/// The base of an executor with one rank in this process. An executor adds a transport, `wakeup_of`
/// and `run`, around whose loop it calls `supervisor()`: `begin` and `announce`, then `report` and
/// `end`; `process_executor` is the one to read.
class one_rank : public executor {
 public:
  [[nodiscard]] std::span<int const> ranks() const noexcept override { return supervisor_.ranks(); }
  [[nodiscard]] bool has_other_processes() const noexcept override { return true; }
  /// Does nothing: a clock starts when it is made.
  static constexpr void start_run() noexcept {}
  /// @return a clock that starts now, unless an executor has another one
  [[nodiscard]] progress_observer observer_of(int) const noexcept {
    return progress_observer(supervisor_.channel().board());
  }
  /// Lets the stages of the rank get ready.
  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    warm_up_after({}, engines);
  }

  /// Ends the run, since the pipeline cannot be made here.
  /// @throws the first failure of the run: the reason, unless there is one already
  void refuse(std::exception_ptr const& reason) override {
    prepare([&] { std::rethrow_exception(reason); });
  }

  [[nodiscard]] bool shares_losses() const noexcept override { return shares_losses_; }
  /// Gives them to all ranks; blocks until those of the last stage's rank are here.
  void share_losses(std::span<double> losses, int from) override {
    supervisor_.share(losses, from);
  }
  /// Tells all ranks what this one asks for after a step; does not block.
  void propose(after_step next) override { supervisor_.channel().propose(next); }
  after_step decision() override { return supervisor_.channel().decision(); }
  /// Blocks until all ranks know all failures, and adds those of the others.
  void settle(std::vector<failure>& failures) override { supervisor_.settle(failures); }
  /// Tells the others that the pipeline is destroyed here.
  void leave() override { supervisor_.leave(); }

 protected:
  /// Checks with all ranks that they have the same plan.
  /// @param run            outlives the pipeline
  /// @param calls          made when the run fails while a step runs
  /// @param shares_losses  whether all ranks get the losses of a step; all need the same
  /// @param more           what all have to agree on besides
  /// @param ranks          which ranks of the run are those of the plan
  /// @throws as the constructor of `step_supervisor`
  one_rank(
      rendezvous& run,
      plan const& planned,
      failure_calls calls,
      bool shares_losses = false,
      std::vector<agreement_item> more = {},
      pipeline_ranks ranks = {})
      : supervisor_(
            run.control_channel(),
            planned,
            std::move(calls),
            with_losses(std::move(more), shares_losses),
            std::move(ranks)),
        shares_losses_(shares_losses) {}
  ~one_rank() override = default;
  [[nodiscard]] step_supervisor& supervisor() noexcept { return supervisor_; }
  [[nodiscard]] control& control_channel() const noexcept { return supervisor_.channel(); }
  /// Lets the stages of the rank get ready, after a call that the user wants on their thread.
  /// @param on_thread_start  may be empty
  template <class Engine>
  void warm_up_after(
      std::function<void(std::span<int const> ranks)> const& on_thread_start,
      std::vector<Engine>& engines) {
    prepare([&] {
      if (on_thread_start)
        zbpp::detail::named_call("on_thread_start", {}, [&] { on_thread_start(ranks()); });
      engines.front().warm_up();
    });
  }
  /// Notes that an engine goes no further, and for whom it waits.
  template <class Engine>
  void note_wait(Engine const& engine) const {
    auto& board = control_channel().board();
    auto const at = engine.at();
    if (!at) {
      if (!engine.is_ending()) board.wait({});  // else its groups have noted for whom it waits
      return board.enter(progress_phase::sending);
    }
    board.wait(wait_of(engine));
    board.enter(progress_phase::waiting, *at);
  }
  /// Does a part of making the pipeline. If it throws, ends the run: no rank waits for this one.
  /// @throws the first failure of the run
  template <class Work>
  void prepare(Work const& work) {
    call_name const named(control_channel(), supervisor_.making());
    supervisor_.or_fail(work);
  }

 private:
  [[nodiscard]] static std::vector<agreement_item> with_losses(
      std::vector<agreement_item> items, bool shares_losses) {
    items.push_back(make_item("share_losses", shares_losses ? "true" : "false"));
    return items;
  }

  step_supervisor supervisor_;
  bool shares_losses_;
};

}  // namespace asio
}  // namespace zbpp
