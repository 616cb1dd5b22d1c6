// SPDX-License-Identifier: Apache-2.0
//
// Sums the gradients of tied weights. Each rank gets those of all stages that have the weights and
// adds them up itself, lowest stage first, so that all have the same bits.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/detail/rank_setup.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/pass_observer.hpp>
#include <zbpp/runtime/state_link.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Takes the part of one rank in the sums of a step.
class tied_gradients {
 public:
  explicit tied_gradients(rank_setup const& setup);

  /// Begins a step.
  void begin_step() noexcept {
    next_ = 0;
    awaited_ = state_map::none;
  }

  /// Copies the gradients of a stage, and sends them to the other ranks that have its weights.
  /// @return false while the rank has to wait for messages
  template <class PassObserver>
  bool send(int chunk, state_link& link, PassObserver& observer, pass_context ctx) {
    // Reading waits for a device, and so for what its passes wait for.
    if constexpr (awaits_messages<PassObserver>)
      if (!observer.await_messages()) return false;
    auto const gradients = read(chunk, ctx);
    for (auto const& to : receivers_)
      link.send(to.channel, gradients, observer.arrival_of_send(to.transfer));
    return true;
  }

  /// Gives a stage the sum, once it is known; after `send` for all stages of the rank.
  /// @return false while the rank waits for the gradients of `awaited()`
  /// @throws error (no_agreement) when another rank sends what is not the gradients of some layers
  template <class PassObserver>
  bool finish(int chunk, state_link& link, PassObserver& observer, pass_context ctx) {
    for (; next_ < sources_.size(); ++next_) {
      auto const& from = sources_[next_];
      if (from.channel == state_map::none) {
        add(std::as_bytes(std::span(own_[index(from.chunk)])));
        continue;
      }
      auto const arrival = link.arrival(from.channel);
      awaited_ = from.channel;
      if (arrival == state_link::not_yet || !observer.has_arrived(arrival)) return false;
      awaited_ = state_map::none;
      static_cast<void>(observer.reach(arrival));
      link.take(from.channel, received_);
      add(received_);
    }
    write(chunk, ctx);
    return true;
  }

  /// @return the channel by which gradients are awaited; none where they are not
  [[nodiscard]] int awaited() const noexcept { return awaited_; }

 private:
  // One of the stages, in ascending order.
  struct source {
    int chunk;    // of this rank
    int channel;  // from the rank that has it; none where that is this one
  };
  struct receiver {
    int channel;
    ticks transfer;
  };

  [[nodiscard]] std::span<std::byte const> read(int chunk, pass_context ctx);
  // Adds those of the next source, layer after layer.
  void add(std::span<std::byte const> gradients);
  void write(int chunk, pass_context ctx) const;

  std::vector<optimizer*> optimizers_;  // by chunk; null where it is frozen
  std::vector<source> sources_;
  std::vector<receiver> receivers_;
  std::size_t weights_ = 0;  // of a layer
  std::size_t next_ = 0;     // of the sources
  int awaited_ = state_map::none;
  std::vector<std::vector<float>> own_;  // by chunk
  std::vector<std::byte> received_;
  std::vector<float> sum_;
};

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/tied_gradients.ipp>
#endif
