// SPDX-License-Identifier: Apache-2.0
//
// Takes the part of a rank in sums over replicas that its backend enqueues: says when, and tells
// the replicas what each asks for after a step, which no gradient carries.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/gradient_reduction.hpp>
#include <zbpp/runtime/detail/rank_setup.hpp>
#include <zbpp/runtime/gradient_sums.hpp>
#include <zbpp/runtime/group_link.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/run_options.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Stands in the place of `gradient_reduction`, with what an engine asks of that.
///
/// Where ranks agree on steps, the first sum of a step tells the other replicas what this one asks
/// for, and the first that is awaited waits for what they ask for. The host waits nowhere else: it
/// is about to wait for the device there, to measure the gradients.
class enqueued_reduction {
 public:
  /// @param setup  of a rank whose grid has replicas
  /// @param sums   outlives this
  enqueued_reduction(rank_setup const& setup, gradient_sums& sums)
      : replicas_(setup.grid.data().link()),
        sums_(&sums),
        is_agreed_(agrees_on_steps(setup.program)) {
    auto const own = setup.program.placement().stages_of(setup.rank);
    for (std::size_t chunk = 0; chunk < setup.stages.size(); ++chunk) {
      auto const* const optimizer = setup.stages[chunk].optimizer();
      std::vector<std::span<float>> layers;
      for (int layer = 0; optimizer != nullptr && layer < optimizer->layers(); ++layer)
        layers.push_back(optimizer->gradients(layer).value());
      sums.add_stage(own[chunk], std::move(layers));
    }
    bytes_.reserve(sizeof(request));
    replicas_->reserve(2, sizeof(request));  // a replica may be a step ahead
  }

  /// Begins a step.
  void begin_step() noexcept {
    asked_ = after_step::go_on;
    has_told_ = is_awaited_ = false;
    next_replica_ = 0;
  }
  /// Begins the sum of a stage.
  /// @param asked  what this rank asks for after the step
  template <class PassObserver>
  void start(int chunk, after_step asked, double rate, PassObserver const&, pass_context) {
    if (is_agreed_ && !has_told_) tell(asked, rate);
    has_told_ = true;
    sums_->start(chunk);
  }
  /// @return false: the host has no part in sums that are begun
  [[nodiscard]] static constexpr bool is_open() noexcept { return false; }
  /// Does nothing, as there is nothing to take up.
  static constexpr void progress() noexcept {}
  /// Gives a stage its sum.
  /// @return false while the rank waits for what a replica asks for
  /// @throws error (no_agreement) when a replica makes a collective call; the failure of the run
  template <class PassObserver>
  bool finish(int chunk, PassObserver&, pass_context) {
    is_awaited_ = is_agreed_ && !take_requests();
    if (!is_awaited_) sums_->finish(chunk);
    return !is_awaited_;
  }

  /// @return what this rank and its replicas ask for after this step, once all sums are there
  [[nodiscard]] after_step asked() const noexcept { return asked_; }
  [[nodiscard]] bool is_awaited() const noexcept { return is_awaited_; }
  [[nodiscard]] int awaited_replica() const noexcept { return next_replica_; }
  [[nodiscard]] static constexpr ticks awaited_until(ticks not_yet) noexcept { return not_yet; }

 private:
  struct request {
    std::uint32_t mark = expected_mark;
    after_step asked = after_step::go_on;
    double rate = 0;

    static constexpr std::uint32_t expected_mark = 0x41534b44U;  // no collective call begins so
  };

  void tell(after_step asked, double rate) {
    asked_ = asked;
    rate_ = rate;
    request const own{.asked = asked, .rate = rate};
    for (int to = 0; to < replicas_->size(); ++to)
      if (to != replicas_->place()) replicas_->send(to, std::as_bytes(std::span(&own, 1)), {});
  }
  // @return whether all have told
  bool take_requests() {
    for (; next_replica_ < replicas_->size(); ++next_replica_) {
      if (next_replica_ == replicas_->place()) continue;
      if (!replicas_->has_arrived(next_replica_)) return false;
      replicas_->take(next_replica_, bytes_);
      request other;
      if (bytes_.size() == sizeof other) std::memcpy(&other, bytes_.data(), sizeof other);
      if (bytes_.size() != sizeof other || other.mark != request::expected_mark)
        refuse_collective_call(next_replica_);
      if (other.rate != rate_) refuse_rates(*replicas_, rate_, next_replica_, other.rate);
      asked_ = std::max(asked_, std::min(other.asked, after_step::stop));
    }
    return true;
  }

  group_link* replicas_;
  gradient_sums* sums_;
  bool is_agreed_;  // whether ranks agree on steps
  after_step asked_ = after_step::go_on;
  double rate_ = 0;  // of the step
  bool has_told_ = false;
  bool is_awaited_ = false;
  int next_replica_ = 0;          // replicas, in their order
  std::vector<std::byte> bytes_;  // received last
};

}  // namespace zbpp::detail
