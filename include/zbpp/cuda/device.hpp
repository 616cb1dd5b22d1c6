// SPDX-License-Identifier: Apache-2.0
//
// A backend that runs ranks on the GPUs of this process: passes are enqueued on a stream a rank,
// messages are copied on a stream a channel, and events say who waits for whom. Nothing is
// allocated and nobody waits on the host between the start of a step and its end.
#pragma once

#include <zbpp/analysis/transfer_order.hpp>
#include <zbpp/cuda/clock.hpp>
#include <zbpp/cuda/issuer.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/peer.hpp>
#include <zbpp/cuda/site.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/planner/plan.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/crew.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/where.hpp>

#include <exception>
#include <list>
#include <memory>
#include <vector>

namespace zbpp::cuda {

/// Runs ranks on GPUs.
///
/// The step's measured timeline holds what the plan says unless `traces` is set. Sizes of all edges
/// have to be stated in the costs. A kernel's fault ends the step with CUDA's error on all ranks,
/// and where CUDA cannot go on, every later call fails with the same.
struct device {
  using carrier = peer;
  using clock = cuda::clock;
  /// Whether arenas take their planned size from the device when the pipeline is made.
  static constexpr bool reserves_memory = true;

  std::vector<site> sites = {};           ///< one a rank; none: all on the current device
  std::vector<message_shape> edges = {};  ///< one an edge; none: one buffer of the stated size each
  int run_ahead = 0;    ///< passes that the host may issue ahead of a rank; 0: the whole step
  bool traces = false;  ///< whether passes are timed on the device; costs two events each
  /// Whether the host waits after each pass, so that an error names the pass; for debugging.
  bool synchronizes = false;
  /// Where arenas take their memory from; what it names outlives all buffers.
  memory_source (*memory)(int device) = device_memory;

  class crew;
};

/// Owns the streams and events of a pipeline's ranks.
class device::crew : public one_process {
 public:
  /// @throws error (bad_argument) when a setting does not fit the plan or the machine; cuda_error
  crew(device settings, plan const& planned)
      : one_process(planned),
        shapes_(detail::shapes_of(planned.what, settings.edges)),
        memory_(settings.memory),
        issuer_(
            std::move(settings.sites),
            ranks(),
            planned,
            {settings.run_ahead, settings.traces, settings.synchronizes}) {}

  /// @return the memory of a rank, on its device
  [[nodiscard]] arena make_memory(int rank) { return arena(memory_(issuer_.at(rank).device())); }
  /// @return where the passes of a rank run
  [[nodiscard]] where place_of(int rank, arena& buffers) noexcept {
    return where(buffers, backend_kind::cuda, &issuer_.at(rank));
  }
  /// @return what carries messages between the ranks
  [[nodiscard]] std::unique_ptr<peer> make_carrier(
      program const& code, traffic const& messages, problem const& what) {
    std::vector<place*> places;
    for (int rank = 0; rank < what.ranks(); ++rank) places.push_back(&issuer_.at(rank));
    return std::make_unique<peer>(
        std::move(places), detail::needs_of(code, messages, shapes_, slot_filling::by_copies));
  }
  /// Sends a message through every channel.
  static void connect(peer& carrier) { carrier.warm_up(); }
  /// @return what rings when a message for a rank was issued
  [[nodiscard]] bell* bell_of(int rank) { return issuer_.bell_of(rank); }
  /// Starts the clocks of all ranks.
  void start_step() { issuer_.start_step(); }
  /// @return the clock of a rank
  [[nodiscard]] clock clock_of(int rank) noexcept { return issuer_.clock_of(rank); }
  /// Lets the stages of every rank get ready.
  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    issuer_.warm_up(engines);
  }

  /// Issues the step and blocks until the devices are done with it.
  template <class Engine>
  void run(std::vector<Engine>& engines, peer& carrier, step_status const& status) {
    issuer_.issue(engines);
    if (!status.has_failed()) {
      for (auto& e : engines) {
        try {
          issuer_.at(e.rank()).end().synchronize();
        } catch (...) {
          e.fail(std::current_exception());
        }
      }
    }
    if (!status.has_failed()) {
      try {
        issuer_.collect(engines);
      } catch (...) {
        engines.front().fail(std::current_exception());
      }
    }
    if (status.has_failed()) {
      issuer_.settle();
      carrier.synchronize();
    }
  }

 private:
  std::vector<message_shape> shapes_;
  memory_source (*memory_)(int device);
  issuer issuer_;
};

}  // namespace zbpp::cuda
