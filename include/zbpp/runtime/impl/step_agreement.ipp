// SPDX-License-Identifier: Apache-2.0
//
// How a rank takes its part in an optimizer step.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/detail/step_agreement.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace zbpp::detail {

ZBPP_INLINE step_agreement::step_agreement(
    int rank,
    state_map const& links,
    validation validates,
    bool tells_next_step,
    std::vector<stage_optimizer> chunks,
    training_options const& options,
    training_state const& state)
    : rank_(rank),
      from_previous_(links.between(rank - 1, rank)),
      to_previous_(links.between(rank, rank - 1)),
      from_next_(links.between(rank + 1, rank)),
      to_next_(links.between(rank, rank + 1)),
      validates_(validates),
      tells_next_step_(tells_next_step),
      chunks_(std::move(chunks)),
      options_(options) {
  resume(state);
}

ZBPP_INLINE void step_agreement::join(group& members) {
  std::size_t layers = 0;
  for (auto const& chunk : chunks_)
    if (chunk.optimizer != nullptr) layers += index(chunk.optimizer->layers());
  members_.join(members, layers);
}

ZBPP_INLINE void step_agreement::resume(training_state const& state) {
  forget_step();
  report_ = {};
  ruled_step_ = -1;
  next_ = coming_ = request_ = after_step::go_on;
  state_ = state;
  has_rate_ = false;
  if (state_.loss_scale == 0) state_.loss_scale = options_.scaling.initial;
}

ZBPP_INLINE void step_agreement::complete_gradients(int chunk, pass_context ctx) const {
  if (!options_.on_gradients_ready || accumulates()) return;
  auto const stage = chunks_[index(chunk)].stage;
  named_call("on_gradients_ready", {.rank = rank_, .stage = stage}, [&] {
    options_.on_gradients_ready(stage, ctx);
  });
}

ZBPP_INLINE int step_agreement::awaited(instruction_kind kind) const noexcept {
  if (kind == instruction_kind::validate) return awaits_verdict() ? from_next_ : state_map::none;
  if (phase_ == phase::measure) return state_map::none;
  return phase_ == phase::prefix ? from_previous_ : from_next_;
}

ZBPP_INLINE agreement_progress
step_agreement::run(instruction_kind kind, state_link& link, pass_context ctx, ticks arrival) {
  if (kind == instruction_kind::validate) {
    if (!awaits_verdict()) return agreement_progress::done;
    if (!is_last())
      receive_ruling(link, arrival);
    else if (is_late())
      send_ruling(link, arrival);
    if (!is_late()) return agreement_progress::done;
    return follow_ruling(ctx) ? agreement_progress::goes_back : agreement_progress::done;
  }
  switch (phase_) {
    case phase::measure:
      measure(ctx);
      if (is_unagreed_) return agreement_progress::done;
      if (!is_first()) {
        phase_ = phase::prefix;
        return agreement_progress::waits;
      }
      break;
    case phase::prefix: absorb(link); break;
    case phase::verdict:
      receive_ruling(link, arrival);
      phase_ = phase::measure;
      return agreement_progress::done;
  }
  hand_on(link, arrival);
  bool const needs_verdict = is_late() && waits_ && !is_last();
  phase_ = needs_verdict ? phase::verdict : phase::measure;
  return needs_verdict ? agreement_progress::waits : agreement_progress::done;
}

// Every rank has the same history here, so all that may have to go back decide alike.
ZBPP_INLINE bool step_agreement::must_wait() const noexcept {
  if (!is_late() || is_last_step_ || next_ != after_step::go_on) return true;
  if (!may_go_back()) return false;
  auto const length = std::clamp(options_.window.steps, 0, 64);
  auto const window = length == 0 ? 0 : ~std::uint64_t{0} >> (64 - length);
  return std::popcount(state_.amended & window) > options_.window.most_amended;
}

ZBPP_INLINE void step_agreement::measure(pass_context ctx) {
  is_unagreed_ = options_.agreement.every > 1 && state_.unagreed > 0;
  waits_ = is_unagreed_ || must_wait();
  will_step_early_ = false;
  known_.assign(1, {0, 0, 0});
  own_.clear();
  asked_ = members_.is_alone() ? after_step::go_on
                               : members_.agree(terms(), asked_alike_.value_or(request_));
  if (accumulates()) return;
  layers_.clear();
  for (auto const& chunk : chunks_) {
    if (chunk.optimizer == nullptr) continue;
    states_.assign(index(chunk.optimizer->layers()), {});
    if (states_.empty()) continue;
    if (chunk.states != nullptr)
      states_ = *chunk.states;
    else
      chunk.optimizer->measure(states_, ctx);
    std::int32_t layer = 0;
    for (auto const& s : states_) {
      layers_.push_back(
          {.sum_of_squares = s.sum_of_squares,
           .stage = chunk.stage,
           .layer = layer,
           .is_finite = s.is_finite && std::isfinite(s.sum_of_squares) ? 1 : 0,
           .is_replicated = chunk.optimizer->is_replicated(layer).value_or(false) ? 1 : 0});
      ++layer;
    }
  }
  members_.combine(layers_);
  auto left = std::span<layer_gradients const>(layers_);
  for (auto& chunk : chunks_) {
    chunk.is_finite = true;
    bool counts_tied = chunk.counts_tied;
    for (; !left.empty() && left.front().stage == chunk.stage; left = left.subspan(1)) {
      auto const& [sum, stage, layer, is_finite, is_replicated] = left.front();
      chunk.is_finite = chunk.is_finite && is_finite != 0;
      bool const is_tied = chunk.optimizer->is_tied(layer);
      if (!is_tied || std::exchange(counts_tied, false))
        own_.push_back(
            {is_finite != 0 ? sum : std::numeric_limits<double>::infinity(), stage, layer});
    }
  }
}

ZBPP_INLINE double step_agreement::rate() {
  if (has_rate_) return rate_;
  rate_ = named_call(
      "learning_rate", {.rank = rank_}, [&] { return options_.learning_rate(state_.updates); });
  if (!std::isfinite(rate_))
    throw error(errc::bad_argument, {.rank = rank_}) + "learning_rate gave " + rate_ + " behind " +
        state_.updates + " updates; it gives a number for each";
  has_rate_ = true;
  return rate_;
}

ZBPP_INLINE step_terms step_agreement::terms() {
  return terms_of(options_, state_, accumulates() ? 0 : rate());
}

ZBPP_INLINE void step_agreement::absorb(state_link& link) {
  link.take(from_previous_, bytes_);
  step_terms received;
  if (bytes_.size() < sizeof received + sizeof(entry) ||
      (bytes_.size() - sizeof received) % sizeof(entry) != 0)
    throw error(errc::bad_format, {.rank = rank_}) + "rank " + (rank_ - 1) +
        " tells of its gradients in " + bytes_.size() +
        " bytes; build all ranks with the same zbpp";
  std::memcpy(&received, bytes_.data(), sizeof received);
  auto const text = difference(received, rank_ - 1, terms(), rank_);
  if (!text.empty())
    throw error(errc::no_agreement, {.rank = rank_}) + text + "; give all ranks the same";
  known_.resize((bytes_.size() - sizeof received) / sizeof(entry));
  std::memcpy(known_.data(), bytes_.data() + sizeof received, known_.size() * sizeof(entry));
}

ZBPP_INLINE void step_agreement::hand_on(state_link& link, ticks arrival) {
  known_.insert(known_.end(), own_.begin(), own_.end());
  auto& waiting = known_.front().layer;
  auto& next = known_.front().stage;
  // Members of a tensor group say it when they measure, so that it is the same on all.
  auto const asked = members_.is_alone() ? asked_alike_.value_or(request_) : asked_;
  next = std::max(next, static_cast<std::int32_t>(asked));
  auto const known = judge_known();
  will_step_early_ = !waits_ && (known.is_plain() || !may_go_back());
  if (!waits_ && !will_step_early_) ++waiting;
  if (!is_last()) {
    auto const own = terms();
    auto const entries = std::as_bytes(std::span(known_));
    bytes_.resize(sizeof own + entries.size());
    std::memcpy(bytes_.data(), &own, sizeof own);
    std::memcpy(bytes_.data() + sizeof own, entries.data(), entries.size());
    link.send(to_next_, bytes_, arrival);
    return;
  }
  ruling_ = {known, static_cast<after_step>(next), waiting == 0};
  ruled_step_ = state_.steps;
  // Validated afterwards, it is told in the next step, still ahead of the first gradient there:
  // each link then carries what belongs to one step.
  if (!is_late() || waits_) send_ruling(link, arrival);
}

ZBPP_INLINE void step_agreement::receive_ruling(state_link& link, ticks arrival) {
  link.take(from_next_, bytes_);
  std::memcpy(&ruling_, bytes_.data(), sizeof ruling_);
  ruled_step_ = state_.steps;
  send_ruling(link, arrival);
}

// Each link carries what belongs to a step: a rank that goes on takes the verdict in its next.
ZBPP_INLINE void step_agreement::send_ruling(state_link& link, ticks arrival) {
  if (is_first()) return;
  holds_verdict_ = tells_next_step_ && !is_last_step_;
  if (holds_verdict_) return;
  link.send(to_previous_, std::as_bytes(std::span(&ruling_, 1)), arrival);
}

ZBPP_INLINE void step_agreement::tell_held_verdict(state_link& link, ticks arrival) {
  holds_verdict_ = false;
  link.send(to_previous_, std::as_bytes(std::span(&ruling_, 1)), arrival);
}

// In the order of the model, so that the sum has the same bits wherever the layers are.
ZBPP_INLINE gradient_verdict step_agreement::judge_known() {
  std::sort(known_.begin() + 1, known_.end(), [](entry const& a, entry const& b) {
    return std::tie(a.stage, a.layer) < std::tie(b.stage, b.layer);
  });
  states_.clear();
  for (auto const& e : std::span(known_).subspan(1))
    states_.push_back({e.sum_of_squares, std::isfinite(e.sum_of_squares)});
  return judge(states_, options_.clip, state_.loss_scale);
}

ZBPP_INLINE void step_agreement::step(int chunk, pass_context ctx) {
  auto& own = chunks_[index(chunk)];
  if (waits_ || own.steps_at_once) {
    take_final_step(own, ctx);
  } else if (own.optimizer == nullptr || accumulates()) {
    return;
  } else if (will_step_early_) {
    own.step = progress::early;
    own.optimizer->step(settings({}, false), ctx);
  } else {
    own.step = progress::held;  // before it, so that a failure in it is taken back
    if (!own.optimizer->hold(ctx)) own.step = progress::none;
  }
}

ZBPP_INLINE void step_agreement::end_step() {
  if (waits_)
    close(false);
  else
    is_pending_ = true;
}

ZBPP_INLINE bool step_agreement::follow_ruling(pass_context ctx) {
  bool const holds =
      waits_ || !may_go_back() || (ruling_.verdict.is_plain() && ruling_.nobody_deferred);
  for (auto& chunk : chunks_) {
    if (chunk.step == progress::early) {
      holds ? chunk.optimizer->commit(ctx) : chunk.optimizer->undo(ctx);
      chunk.step = holds ? progress::final : progress::none;
    }
    if (chunk.step != progress::final) take_final_step(chunk, ctx);
  }
  close(!holds);
  return !holds;
}

ZBPP_INLINE void step_agreement::settle(step_decision const* ruling, pass_context ctx) {
  if (ruling != nullptr) {
    ruling_ = *ruling;
    ruled_step_ = state_.steps;
    follow_ruling(ctx);
    return;
  }
  for (auto& chunk : chunks_)
    if (chunk.step == progress::early || chunk.step == progress::held) chunk.optimizer->undo(ctx);
  forget_step();
}

ZBPP_INLINE void step_agreement::forget_step() noexcept {
  forget_progress();
  has_rate_ = holds_verdict_ = false;
  if (ruled_step_ == state_.steps) ruled_step_ = -1;
}

ZBPP_INLINE void step_agreement::forget_progress() noexcept {
  for (auto& chunk : chunks_) chunk.step = progress::none;
  phase_ = phase::measure;
  is_unagreed_ = is_pending_ = false;
}

ZBPP_INLINE step_settings step_agreement::settings(gradient_verdict const& verdict, bool is_final) {
  return {
      .updates = state_.updates,
      .learning_rate = rate(),
      .coefficient = verdict.coefficient,
      .gradient_scale = state_.loss_scale,
      .is_final = is_final};
}

ZBPP_INLINE void step_agreement::take_final_step(stage_optimizer& chunk, pass_context ctx) {
  chunk.step = progress::final;
  if (chunk.optimizer == nullptr || accumulates()) return;
  bool const is_alone = is_unagreed_ || chunk.steps_at_once;
  auto const verdict = is_alone ? gradient_verdict{.is_finite = chunk.is_finite} : ruling_.verdict;
  if (verdict.is_finite)
    chunk.optimizer->step(settings(verdict, true), ctx);
  else
    chunk.optimizer->skip(ctx);
}

ZBPP_INLINE bool step_agreement::may_skip_agreement(
    gradient_verdict const& verdict) const noexcept {
  return verdict.is_finite && verdict.norm < options_.agreement.share * options_.clip;
}

// Writes the report of the step, and what the next one depends on.
ZBPP_INLINE void step_agreement::close(bool was_amended) {
  was_unagreed_ = is_unagreed_;
  forget_progress();
  bool const is_update = !accumulates();
  auto const verdict = was_unagreed_ ? gradient_verdict{} : ruling_.verdict;
  report_ = {
      .step = state_.steps,
      .norm = verdict.norm,
      .coefficient = verdict.coefficient,
      .loss_scale = state_.loss_scale,
      .learning_rate = is_update ? rate() : 0,
      .is_update = is_update,
      .is_agreed = is_update && !was_unagreed_,
      .is_skipped = !verdict.is_finite,
      .is_post_validated = may_go_back() && !waits_,
      .is_amended = was_amended};
  has_rate_ = false;
  ++state_.steps;
  auto const asked = was_unagreed_ ? after_step::go_on : ruling_.next;
  if (request_ <= asked) request_ = after_step::go_on;
  next_ = std::max(next_, std::exchange(coming_, after_step::go_on));
  // Ranks that have gone on run one more step before they learn of it.
  if (validates_ == validation::own_step_behind_others && !is_last_step_)
    coming_ = asked;
  else
    next_ = std::max(next_, asked);
  state_.accumulated = is_update ? 0 : state_.accumulated + 1;
  if (!is_update) return;
  bool const is_plain = was_unagreed_ || (verdict.is_plain() && ruling_.nobody_deferred);
  state_.amended = state_.amended << 1 | (is_plain ? 0 : 1);
  if (verdict.is_finite) ++state_.updates;
  if (was_unagreed_) {
    --state_.unagreed;
    return;
  }
  auto const scale = state_.loss_scale;
  scale_loss(verdict.is_finite);
  // After another loss scale ranks look at the gradients again.
  bool const is_quiet = may_skip_agreement(verdict) && state_.loss_scale == scale;
  state_.unagreed = is_quiet ? options_.agreement.every - 1 : 0;
}

ZBPP_INLINE void step_agreement::scale_loss(bool was_finite) {
  auto const& scaling = options_.scaling;
  if (!was_finite) {
    state_.loss_scale = std::max(scaling.smallest, state_.loss_scale / 2);
    state_.finite_steps = 0;
    return;
  }
  if (++state_.finite_steps != scaling.growth_interval) return;
  state_.loss_scale = std::min(scaling.largest, state_.loss_scale * 2);
  state_.finite_steps = 0;
}

}  // namespace zbpp::detail
