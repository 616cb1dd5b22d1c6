// SPDX-License-Identifier: Apache-2.0
//
// Runs a pipeline on the GPUs of this process: `zbpp::pipeline pipe{plan, zbpp::cuda::device{},
// stages}`. Passes are enqueued on one stream per rank. Messages between ranks of a GPU are handed
// over, those between GPUs are copied on one stream per channel, and events order all of them.
// Within a step the host allocates nothing and, with default
// settings, waits for the device only at the end and for norms that ranks agree on.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/cuda/detail/p2p_transport.hpp>
#include <zbpp/cuda/detail/peer_access.hpp>
#include <zbpp/cuda/detail/step_graph.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/launcher.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/pass_observer.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/cuda/replay.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::cuda {

/// Runs ranks on GPUs.
///
/// The step's measured timeline holds what the plan says unless `traces` is set. State the sizes of
/// all edges in the costs. A kernel's fault ends the step with CUDA's error on all ranks; when CUDA
/// cannot continue after it, every later call fails with the same error.
struct device {
  using transport_type = detail::p2p_transport;
  using pass_observer = cuda::pass_observer;
  /// Whether arenas take their planned size from the device when the pipeline is made.
  static constexpr bool reserves_memory = true;

  std::vector<rank_device> devices = {};  ///< one per rank; none: all on the current device
  std::vector<message_shape> edges =
      {};               ///< one per edge; none: one buffer of the stated size each
  int run_ahead = 0;    ///< passes that the host may issue ahead of a rank; 0: the whole step
  bool traces = false;  ///< whether passes are timed on the device, by two events per pass
  /// Whether the host waits after each pass, so that an error names the pass; for debugging.
  bool synchronizes = false;
  /// Whether steps after the first ones are replayed, in which flows do not run: all that differs
  /// from step to step is then in device memory. One thread issues the passes of all devices.
  cuda::replay replay = cuda::replay::none;
  /// How many steps `pipeline::step_async` lets be under way, one issued while others run.
  int steps_at_once = 1;
  /// Where arenas take their memory from; the source outlives all buffers.
  memory_source (*memory)(int device) = device_memory;
  /// Called with a line that says which devices' copies go by way of the host although they reach
  /// each other, and why; on the thread that makes the pipeline.
  std::function<void(std::string const& line)> on_fallback = {};

  /// @return the device of each rank, as numbers; without `devices`, the same one for all
  [[nodiscard]] std::vector<int> devices_of(int ranks) const {
    if (devices.empty()) return std::vector<int>(zbpp::detail::index(ranks), 0);
    std::vector<int> numbers;
    for (auto const& each : devices) numbers.push_back(each.device);
    numbers.resize(zbpp::detail::index(ranks), -1);  // the launcher refuses too few
    return numbers;
  }

  class executor;
};

/// Owns the streams and events of a pipeline's ranks.
class device::executor : public one_process {
 public:
  /// @throws error (bad_argument) when a setting does not fit the plan or the machine; cuda_error
  executor(device settings, plan const& planned)
      : one_process(planned),
        devices_(settings.devices_of(planned.problem().ranks())),
        shapes_(shapes_of(planned.problem(), settings.edges)),
        memory_(settings.memory),
        access_(std::move(settings.on_fallback)),
        launcher_(std::move(settings.devices), ranks(), planned, launched_by(settings)),
        steps_at_once_(settings.steps_at_once) {
    if (settings.replay == replay::step) {
      detail::refuse_to_replay(launched_by(settings), planned);
      graph_.emplace(contexts(), zbpp::detail::index(settings.steps_at_once));
    }
  }

  [[nodiscard]] arena make_memory(int rank) override {
    return arena(memory_(launcher_.at(rank).device()));
  }
  [[nodiscard]] pass_context context_of(int rank, arena& buffers) noexcept override {
    return pass_context(buffers, backend_kind::cuda, &launcher_.at(rank));
  }
  /// Makes the device of a rank current. @return what makes the one before current again
  [[nodiscard]] std::shared_ptr<void> enter(int rank) override {
    return std::make_shared<device_guard>(launcher_.at(rank).device());
  }
  [[nodiscard]] std::unique_ptr<detail::p2p_transport> make_transport(
      program const& program, traffic const& messages, problem const& /*problem*/) {
    for (auto const& each : messages.channels())
      access_.open(
          devices_[zbpp::detail::index(each.from)], devices_[zbpp::detail::index(each.to)]);
    return std::make_unique<detail::p2p_transport>(
        contexts(),
        needs_of(program, messages, shapes_, fillings_of(messages, devices_)),
        state_map(program));
  }
  /// Sends a message through every channel.
  static void connect(detail::p2p_transport& transport) { transport.warm_up(); }
  [[nodiscard]] wakeup* wakeup_of(int rank) { return launcher_.wakeup_of(rank); }
  /// Gets all ranks ready for a run of steps.
  /// @param turn  of the step among those at once
  void start_run(std::size_t turn = 0) { launcher_.start_run(turn); }
  [[nodiscard]] int steps_at_once() const noexcept override { return steps_at_once_; }
  [[nodiscard]] pass_observer observer_of(int rank) noexcept { return launcher_.observer_of(rank); }
  /// Lets the stages of every rank get ready.
  /// @throws error (bad_argument) when one has an optimizer and steps are replayed
  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    if (graph_)
      for (auto const& e : engines) detail::refuse_optimizer(e.rank(), e.has_optimizer());
    launcher_.warm_up(engines);
  }

  /// Issues the steps of a run, or replays one, and blocks until the devices are done with them.
  template <class Engine>
  void run(
      std::vector<Engine>& engines, detail::p2p_transport& transport, step_status const& status) {
    auto const way = choose(engines, 0);
    if (way == detail::step_way::issue)
      issue(engines, status);
    else
      try_for(engines.front(), [&] {
        launch_graph(way, engines, transport, status, 0);
        if (!status.has_failed()) order_->wait(0);
      });
    if (!status.has_failed()) try_for(engines.front(), [&] { launcher_.collect(engines); });
    if (status.has_failed()) synchronize(transport);
  }
  /// Issues a step, or replays it, after those that are under way, and returns.
  /// @param turn  of the step among those at once
  template <class Engine>
  void start(
      std::vector<Engine>& engines,
      detail::p2p_transport& transport,
      step_status const& status,
      std::size_t turn) {
    auto const way = choose(engines, turn);
    try_for(engines.front(), [&] {
      if (way == detail::step_way::issue)
        order().run(turn, [&] {
          launcher_.issue_in_order(engines);
          return !status.has_failed();
        });
      else
        launch_graph(way, engines, transport, status, turn);
      if (!status.has_failed()) order().hold_callers(turn);
    });
    if (status.has_failed()) synchronize(transport);
  }
  /// Blocks until a step that was started is done, and reads its losses; or until the devices are
  /// done with all steps, when one has failed.
  /// @param failures  gets in front what failed
  /// @return whether the step is whole
  [[nodiscard]] bool finish(
      detail::p2p_transport& transport, std::size_t turn, std::vector<failure>& failures) {
    try {
      order_->wait(turn);
    } catch (...) {
      synchronize(transport);
      failures.insert(failures.begin(), {{.rank = ranks().front()}, {}, std::current_exception()});
      return false;
    }
    launcher_.collect_losses(turn);
    return true;
  }
  /// Waits for what a failure had optimizers take back.
  void settle(std::vector<failure>&) noexcept override { launcher_.synchronize(); }

 private:
  [[nodiscard]] static launch_settings launched_by(device const& settings) {
    return {
        .run_ahead = settings.run_ahead,
        .traces = settings.traces,
        .synchronizes = settings.synchronizes,
        .one_thread = settings.replay == replay::step,
        .steps_at_once = detail::checked_steps_at_once(settings.steps_at_once, settings.traces)};
  }
  [[nodiscard]] std::vector<device_context*> contexts() {
    std::vector<device_context*> all;
    for (int const rank : ranks()) all.push_back(&launcher_.at(rank));
    return all;
  }
  // Made for the first step that needs it, since it takes a stream.
  [[nodiscard]] detail::step_order& order() {
    return order_ ? *order_ : order_.emplace(contexts(), zbpp::detail::index(steps_at_once_));
  }
  // What is thrown is a failure of the engine's rank.
  template <class Engine, class Work>
  static void try_for(Engine& engine, Work const& work) {
    try {
      work();
    } catch (...) {
      engine.fail(std::current_exception());
    }
  }
  template <class Engine>
  void issue(std::vector<Engine>& engines, step_status const& status) {
    launcher_.issue(engines);
    if (status.has_failed()) return;
    for (auto& e : engines) try_for(e, [&] { launcher_.at(e.rank()).end().synchronize(); });
  }
  // Launches the graph of a step, which is captured first unless the step is a replay.
  template <class Engine>
  void launch_graph(
      detail::step_way way,
      std::vector<Engine>& engines,
      detail::p2p_transport& transport,
      step_status const& status,
      std::size_t turn) {
    graph_->start(way, engines, order(), turn, [&] {
      launcher_.issue_in_order(engines);
      transport.drain();
      return !status.has_failed();
    });
  }
  template <class Engine>
  [[nodiscard]] detail::step_way choose(std::vector<Engine> const& engines, std::size_t turn) {
    bool const may_replay = graph_ && engines.front().is_training();
    return may_replay ? graph_->choose(engines, turn) : detail::step_way::issue;
  }
  void synchronize(detail::p2p_transport& transport) noexcept {
    launcher_.synchronize();
    transport.synchronize();
    if (order_) order_->synchronize();
  }

  std::vector<int> devices_;  // by rank
  std::vector<message_shape> shapes_;
  memory_source (*memory_)(int device);
  detail::peer_access access_;
  launcher launcher_;
  std::optional<detail::step_order> order_;  // where steps are started or replayed
  int steps_at_once_;
  std::optional<detail::step_graph> graph_;  // where steps are replayed
};

}  // namespace zbpp::cuda
