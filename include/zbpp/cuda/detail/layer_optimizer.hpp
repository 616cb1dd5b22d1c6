// SPDX-License-Identifier: Apache-2.0
//
// What the optimizers for GPUs share: their memory, and which kernel runs when. A step is one
// launch, whatever the number of layers; one by a schedule is another before it.
#pragma once

#include <zbpp/cuda/detail/layer_rows.hpp>
#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/error.hpp>
#include <zbpp/optim/layer.hpp>
#include <zbpp/optim/settings.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::cuda::detail {

/// Steps layers on the device that is current when it is made.
/// @tparam Rule  steps one weight; made of its settings and those of a step
/// @tparam Run   `Run::run(stream, rows, layers)` launches a row function, which may change the
///               weights and gradients of these layers
template <class Rule, class Run>
class layer_optimizer : public optimizer {
 public:
  using settings = typename Rule::settings;

  /// @param layers  in the memory of the device; what they refer to outlives the optimizer
  /// @throws error (bad_argument) when a layer has not as many gradients as weights, or a source,
  ///         tied layers differ in size, or a setting is out of bounds; cuda_error
  explicit layer_optimizer(std::vector<optim::layer> layers, settings by = {})
      : layers_(std::move(layers)),
        settings_(optim::detail::checked(by)),
        tied_weights_(optim::detail::tied_weights(layers_)),
        states_on_host_(layers_.size()) {
    std::int64_t tiles = 0;
    std::size_t tied = 0;
    for (auto const& l : layers_) {
      zbpp::detail::require(
          l.weights.size() == l.gradients.size(), "a layer has as many gradients as weights");
      zbpp::detail::require(
          l.source == nullptr,
          "an optimizer for GPUs got a layer with a source, which is memory of the host that may "
          "move; give it memory of the device that stays");
      tied += l.is_tied ? l.weights.size() : 0;
      count_ += static_cast<std::int64_t>(l.weights.size());
      tiles += tile_rows::rows_of(static_cast<std::int64_t>(l.weights.size()));
    }
    tiles_ = device_array<tile>(static_cast<std::size_t>(tiles));
    ends_ = device_array<std::int64_t>(layers_.size());
    sums_ = device_array<double>(tiles_.size());
    states_ = device_array<gradient_state>(layers_.size());
    auto const count = static_cast<std::size_t>(count_);
    moments_ = device_array<float>(Rule::moments * count);
    missed_ = device_array<std::int64_t>(layers_.size());
    if (tied > 0) tied_on_host_ = pinned<float>(tied);
    before_ = device_array<float>(keeps_copies() ? (1 + Rule::moments) * count : count);
    fill();
  }

  [[nodiscard]] int layers() const noexcept override { return static_cast<int>(layers_.size()); }

  /// Writes the states of the gradients; waits until the device has them. @throws cuda_error
  void measure(std::span<gradient_state> states, pass_context ctx) override {
    if (states.empty()) return;
    auto const on = stream_of(ctx);
    run(on, square_rows{tiles_.data(), tiles(), sums_.data()});
    run(on, state_rows{sums_.data(), ends_.data(), layers(), states_.data(), tiles()});
    check(cudaMemcpyAsync(
        states_on_host_.data(), states_.data(), states.size_bytes(), cudaMemcpyDeviceToHost, on));
    on.synchronize();
    std::copy_n(states_on_host_.data(), states.size(), states.begin());
  }
  /// Enqueues a step; unless it is final, keeps what `undo` needs. @throws cuda_error
  void step(step_settings const& current, pass_context ctx) override {
    last_step_ = current;
    if (current.is_final)
      step(ctx, given(), change::both, false);
    else
      step(ctx, given(), keeps_copies() ? change::both : change::weights, true);
  }
  /// Sets the learning rates of the steps that `step(ctx)` takes, in device memory, and waits until
  /// they are there. Call it while the device of the layers is current and no step is under way;
  /// steps that were captured before go by it, too.
  /// @param rates    of the steps from the first of the training on; the last goes on
  /// @param updates  steps taken before, as a checkpoint says
  /// @throws error (bad_argument) when there is no rate, or `updates` is negative; cuda_error
  void set_schedule(std::span<double const> rates, std::int64_t updates = 0) {
    zbpp::detail::require(
        !rates.empty() && updates >= 0,
        "a schedule needs a learning rate at least, and a number of steps from 0; give it both");
    if (schedule_.size() == 0) {
      schedule_ = device_array<schedule>(1);
      scheduled_rule_ = device_array<Rule>(1);
    }
    device_array<double> all(rates.size());
    stream const own(stream_priority::usual);
    for (std::size_t first = 0; first < rates.size(); first += rate_rows::most) {
      auto const part = rates.subspan(first, std::min(rate_rows::most, rates.size() - first));
      bool const is_last = first + part.size() == rates.size();
      rate_rows piece{
          .next = is_last ? schedule_.data() : nullptr,
          .value = {updates, all.data(), std::ssize(rates)},
          .to = all.data() + first,
          .count = std::ssize(part),
          .rates = {}};
      std::ranges::copy(part, piece.rates);
      Run::run(own.view(), piece, {});
    }
    own.view().synchronize();
    rates_ = std::move(all);
  }
  /// Enqueues a final step by what device memory has of the schedule, and moves that on by one: a
  /// graph that captures this takes the next step whenever it is launched. For `update(ctx)`.
  /// @throws error (bad_argument) before `set_schedule`; cuda_error
  void step(pass_context ctx) const {
    zbpp::detail::require(
        rates_.size() > 0,
        "step(ctx) is called without a schedule; call set_schedule() first, as in warm_up()");
    run(stream_of(ctx), schedule_rows<Rule>{settings_, schedule_.data(), scheduled_rule_.data()});
    step(ctx, rule_scheduled<Rule>{scheduled_rule_.data()}, change::both, false);
  }
  /// @return where device memory has the number of steps that `step(ctx)` has taken, for kernels of
  ///         passes, such as those that choose a batch; null before `set_schedule`
  [[nodiscard]] std::int64_t const* updates() const noexcept {
    return rates_.size() == 0 ? nullptr : &schedule_.data()->updates;
  }
  /// Enqueues what makes the last step final. @throws cuda_error
  void commit(pass_context ctx) override {
    keeps_copies() ? skip(ctx) : step(ctx, given(), change::moments, false);
  }
  /// Enqueues what takes the last step back. @throws cuda_error
  void undo(pass_context ctx) override {
    run(stream_of(ctx),
        restore_rows{tiles_.data(), tiles(), kept(), keeps_copies() ? Rule::moments : 0});
  }
  /// Enqueues what sets gradients to 0. @throws cuda_error
  void skip(pass_context ctx) override { run(stream_of(ctx), clear_rows{tiles_.data(), tiles()}); }

  [[nodiscard]] std::optional<std::span<float>> gradients(int layer) const noexcept override {
    return layers_[static_cast<std::size_t>(layer)].gradients;
  }
  [[nodiscard]] bool is_tied(int layer) const noexcept override {
    return layers_[static_cast<std::size_t>(layer)].is_tied;
  }
  [[nodiscard]] std::int64_t tied_weights() const noexcept override { return tied_weights_; }
  /// Copies the gradients of the tied layers to the host, one after another; blocks.
  /// @throws cuda_error
  void read_tied(std::span<float> copy, pass_context ctx) override {
    auto const on = stream_of(ctx);
    auto* to = tied_on_host_.data();
    for (auto const& l : layers_) {
      if (!l.is_tied) continue;
      check(cudaMemcpyAsync(
          to, l.gradients.data(), l.gradients.size_bytes(), cudaMemcpyDeviceToHost, on));
      to += l.gradients.size();
    }
    on.synchronize();
    std::copy_n(tied_on_host_.data(), copy.size(), copy.begin());
  }
  /// Enqueues what replaces the gradients of each tied layer. @throws cuda_error
  void write_tied(std::span<float const> sum, pass_context ctx) override {
    auto const on = stream_of(ctx);
    std::ranges::copy(sum, tied_on_host_.data());
    for (auto const& l : layers_)
      if (l.is_tied)
        check(cudaMemcpyAsync(
            l.gradients.data(),
            tied_on_host_.data(),
            sum.size_bytes(),
            cudaMemcpyHostToDevice,
            on));
  }

 protected:
  /// @return a moment of all weights, layer after layer, on the device
  [[nodiscard]] std::span<float> moment(int number) const noexcept {
    return {moments_.data() + number * count_, static_cast<std::size_t>(count_)};
  }
  [[nodiscard]] std::span<std::int64_t> missed() const noexcept {
    return {missed_.data(), missed_.size()};
  }

 private:
  [[nodiscard]] bool keeps_copies() const noexcept {
    return settings_.undo == optim::undo_method::copies;
  }
  [[nodiscard]] std::int64_t tiles() const noexcept {
    return static_cast<std::int64_t>(tiles_.size());
  }
  [[nodiscard]] kept_numbers kept() const noexcept {
    return {moments_.data(), before_.data(), count_, missed_.data(), layers()};
  }
  template <class Rows>
  void run(stream_ref on, Rows const& rows) const {
    Run::run(on, rows, layers_);
  }

  [[nodiscard]] rule_given<Rule> given() const { return {Rule(settings_, last_step_)}; }
  template <class From>
  void step(pass_context ctx, From const& from, change kind, bool is_early) const {
    run(stream_of(ctx),
        step_rows<From>{
            .tiles = tiles_.data(),
            .count = tiles(),
            .kept = kept(),
            .from = from,
            .kind = kind,
            .keeps_weights = is_early,
            .keeps_moments = is_early && keeps_copies(),
            .clears_gradients = !is_early});
  }

  void fill() const {
    stream const own(stream_priority::usual);
    // Kernels leave out what pads a state, and copies to the host do not.
    check(cudaMemsetAsync(
        states_.data(), 0, layers_.size() * sizeof(gradient_state), own.view().get()));
    std::int64_t first = 0;
    std::int64_t first_tile = 0;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      auto const& l = layers_[i];
      auto const size = static_cast<std::int64_t>(l.weights.size());
      auto const rows = tile_rows::rows_of(size);
      auto const number = static_cast<std::int64_t>(i);
      Run::run(
          own.view(),
          tile_rows{
              tiles_.data() + first_tile,
              {l.weights.data(), l.gradients.data(), first, size, l.decays, number},
              ends_.data() + i,
              first_tile + rows},
          {});
      first += size;
      first_tile += rows;
    }
    check(cudaMemsetAsync(missed_.data(), 0, missed().size_bytes(), own.view()));
    if (moments_.size() > 0)
      check(cudaMemsetAsync(moments_.data(), 0, moments_.size() * sizeof(float), own.view()));
    own.view().synchronize();
  }

  std::vector<optim::layer> layers_;
  settings settings_;
  step_settings last_step_;
  std::int64_t tied_weights_;
  std::int64_t count_ = 0;  // weights of all layers
  device_array<tile> tiles_;
  device_array<std::int64_t> ends_;
  device_array<double> sums_;  // by tile
  device_array<gradient_state> states_;
  device_array<float> moments_;
  device_array<std::int64_t> missed_;  // by layer
  device_array<float> before_;
  device_array<schedule> schedule_;  // where steps go by one, as are the two below
  device_array<Rule> scheduled_rule_;
  device_array<double> rates_;
  pinned<gradient_state> states_on_host_;
  pinned<float> tied_on_host_;
};

}  // namespace zbpp::cuda::detail
