// SPDX-License-Identifier: Apache-2.0
//
// How gradients of replicas are exchanged and added up, and weights exchanged.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/gradient_reduction.hpp>
#include <zbpp/runtime/detail/number_bytes.hpp>
#include <zbpp/runtime/rank_grid.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::detail {

ZBPP_INLINE void refuse_collective_call(int replica) {
  throw error(errc::no_agreement) + "replica " + replica +
      " makes a collective call while gradients are added up; make those of the group of "
      "replicas between steps";
}

ZBPP_INLINE void refuse_rates(
    group_link const& replicas, double own_rate, int replica, double rate) {
  throw error(errc::no_agreement) + "training_options::learning_rate is " + number_text(own_rate) +
      " on " + replicas.name_of(replicas.place()) + " and " + number_text(rate) + " on " +
      replicas.name_of(replica) + "; give all ranks the same";
}

ZBPP_INLINE gradient_reduction::gradient_reduction(rank_setup const& setup)
    : replicas_(setup.grid.data().link()),
      is_sharded_(shards_optimizer(setup.program)),
      shares_states_(is_sharded_ && agrees_on_steps(setup.program)),
      left_(index(size()), 0),
      rates_(index(size())) {
  for (int s : setup.program.placement().stages_of(setup.rank)) {
    auto& own = chunks_.emplace_back();
    own.stage = s;
    own.optimizer = setup.stages[chunks_.size() - 1].optimizer();
    own.takes = setup.problem.reduction_time(s);
    own.gather_takes = setup.problem.gather_time(s);
    if (own.optimizer != nullptr) {
      own.gradients.resize(index(own.optimizer->gradient_count().value_or(0)));
      own.states.resize(index(own.optimizer->layers()));
    }
    for (auto& of_kind : own.received) of_kind.resize(index(size()));
    divide(own);
  }
  // What a replica sent changes places with these when it is taken, so all of them are as large.
  std::size_t most = 0;
  for (auto const& own : chunks_)
    most = std::max({most, own.gradients.size(), 4 * own.states.size()});
  share_.reserve(most);
  most = most * sizeof(float) + sizeof(header);
  bytes_.reserve(most);
  for (auto& own : chunks_)
    for (auto& of_kind : own.received)
      for (auto& each : of_kind) each.reserve(most);
  // A replica may be a step ahead with what it gives to the sums.
  replicas_->reserve(message_kinds * chunks_.size(), most);
}

ZBPP_INLINE std::size_t gradient_reduction::weights_of(chunk_sum const& own, int layer) {
  return index(own.optimizer->layer_size(layer).value_or(0));
}

// Divides a stage's gradients among replicas: evenly, or by layers, where each steps its own.
ZBPP_INLINE void gradient_reduction::divide(chunk_sum& own) const {
  auto const count = own.gradients.size();
  if (!is_sharded_) {
    for (int replica = 0; replica <= size(); ++replica)
      own.begins.push_back(count * index(replica) / index(size()));
    return;
  }
  auto const layers = static_cast<int>(own.states.size());
  int layer = 0;
  std::size_t at = 0;
  for (int replica = 0; replica <= size(); ++replica) {
    // A layer belongs to the share in which its middle lies.
    auto const end = replica == size() ? count : count * index(replica) / index(size());
    while (layer < layers) {
      auto const next = weights_of(own, layer);
      if (replica < size() && at + next / 2 >= end) break;
      at += next;
      ++layer;
    }
    own.begins.push_back(at);
    own.layers.push_back(layer);
  }
  if (own.optimizer != nullptr)
    own.optimizer->share(own.layers[index(place())], own.layers[index(place()) + 1]);
}

ZBPP_INLINE void gradient_reduction::begin_step() noexcept {
  busy_until_ = 0;
  awaited_ = none;
  asked_ = own_asked_ = after_step::go_on;
  has_asked_ = false;
  auto const rounds = is_sharded_ ? (shares_states_ ? 3 : 2) : size() == 2 ? 1 : 2;
  for (auto& left : left_) left = rounds * static_cast<int>(chunks_.size());
}

ZBPP_INLINE std::span<float> gradient_reduction::share_of(
    chunk_sum& own, int replica) const noexcept {
  auto const begin = own.begins[index(replica)];
  return std::span<float>(own.gradients).subspan(begin, own.begins[index(replica) + 1] - begin);
}

ZBPP_INLINE void gradient_reduction::send(
    chunk_sum const& own, int to, message_kind kind, std::span<std::byte const> part) {
  header const head{
      .stage = own.stage,
      .kind = kind,
      .asked = own_asked_,
      .rate = rate_,
      .count = static_cast<std::int64_t>(own.gradients.size())};
  replicas_->send(to, std::as_bytes(std::span(&head, 1)), part);
}

ZBPP_INLINE void gradient_reduction::send_to_all(
    chunk_sum const& own, message_kind kind, std::span<std::byte const> part) {
  for (int to = 0; to < size(); ++to)
    if (to != place()) send(own, to, kind, part);
}

ZBPP_INLINE void gradient_reduction::send_gradients(chunk_sum& own, pass_context ctx) {
  if (own.optimizer != nullptr) own.optimizer->read_gradients(own.gradients, ctx);
  for (int to = 0; to < size(); ++to)
    if (to != place())
      send(
          own,
          to,
          message_kind::parts,
          std::as_bytes(exchanges_all() ? std::span<float>(own.gradients) : share_of(own, to)));
  own.now = phase::parts;
  ++open_;
  advance(own);
  progress();
}

ZBPP_INLINE void gradient_reduction::send_weights(chunk_sum& own, pass_context ctx) {
  auto at = own.begins[index(place())];
  for (int layer = own.layers[index(place())]; layer < own.layers[index(place()) + 1]; ++layer) {
    auto const count = weights_of(own, layer);
    own.optimizer->read_weights(layer, std::span(own.gradients).subspan(at, count), ctx);
    at += count;
  }
  send_to_all(own, message_kind::weights, std::as_bytes(share_of(own, place())));
  own.now = phase::weights;
}

ZBPP_INLINE void gradient_reduction::progress() {
  for (int from = 0; from < size(); ++from) {
    if (from == place()) continue;
    auto& left = left_[index(from)];
    for (; left > 0 && replicas_->has_arrived(from); --left) accept(from);
  }
}

ZBPP_INLINE std::size_t gradient_reduction::expected_size(
    chunk_sum& own, message_kind kind, int from) const {
  switch (kind) {
    case message_kind::parts:
      return exchanges_all() ? own.gradients.size() * sizeof(float)
                             : share_of(own, place()).size_bytes();
    case message_kind::states:
      return index(own.layers[index(from) + 1] - own.layers[index(from)]) * 2 * sizeof(double);
    default: return share_of(own, from).size_bytes();
  }
}

// Keeps what a replica sent until this rank needs it.
ZBPP_INLINE void gradient_reduction::accept(int from) {
  replicas_->take(from, bytes_);
  auto const refuse = [&](std::string const& text) {
    throw error(errc::no_agreement) + "replica " + from + " " + text;
  };
  header head;
  bool const is_whole = bytes_.size() >= sizeof head;
  if (is_whole) std::memcpy(&head, bytes_.data(), sizeof head);
  if (!is_whole || head.mark != header::expected_mark) refuse_collective_call(from);
  auto const found =
      std::ranges::find_if(chunks_, [&](chunk_sum const& own) { return own.stage == head.stage; });
  auto const kind = static_cast<std::size_t>(head.kind);
  if (found == chunks_.end() || kind >= message_kinds ||
      (!is_sharded_ && head.kind > message_kind::sums))
    refuse(
        joined("sends gradients of stage ") + head.stage +
        ", which this rank does not have; give all replicas the same plan");
  if (head.count != static_cast<std::int64_t>(found->gradients.size()) ||
      bytes_.size() != sizeof head + expected_size(*found, head.kind, from))
    refuse(
        joined("adds up ") + head.count + " gradients of stage " + head.stage + ", and this one " +
        found->gradients.size() + "; give all replicas the same weights");
  asked_ = std::max(asked_, std::min(head.asked, after_step::stop));
  rates_[index(from)] = head.rate;
  auto& slot = found->received[kind][index(from)];
  if (!slot.empty())
    refuse(
        joined("sends gradients of stage ") + head.stage +
        " twice; let all replicas make the same calls in the same order");
  std::swap(slot, bytes_);
  // At once: a replica that has the sums may send the gradients of its next step.
  advance(*found);
}

// Finds the first replica that has not sent something.
ZBPP_INLINE int gradient_reduction::missing(
    chunk_sum const& own, message_kind kind) const noexcept {
  auto const& of_kind = own.received[static_cast<std::size_t>(kind)];
  for (int from = 0; from < size(); ++from)
    if (from != place() && of_kind[index(from)].empty()) return from;
  return none;
}

ZBPP_INLINE int gradient_reduction::awaited_replica() const noexcept {
  auto const& own = chunks_[index(awaited_)];
  switch (own.now) {
    case phase::parts: return missing(own, message_kind::parts);
    case phase::sums: return missing(own, message_kind::sums);
    case phase::states: return missing(own, message_kind::states);
    case phase::weights: return missing(own, message_kind::weights);
    default: return none;
  }
}

ZBPP_INLINE std::span<std::byte const> gradient_reduction::part_from(
    chunk_sum const& own, message_kind kind, int from) const {
  auto const& bytes = own.received[static_cast<std::size_t>(kind)][index(from)];
  return std::span<std::byte const>(bytes).subspan(sizeof(header));
}

// Goes as far with a sum as what has arrived allows.
ZBPP_INLINE void gradient_reduction::advance(chunk_sum& own) {
  if (own.now == phase::parts && has_all(own, message_kind::parts)) add_up(own);
  if (own.now == phase::sums && has_all(own, message_kind::sums)) {
    for (int from = 0; from < size(); ++from) {
      if (from == place()) continue;
      copy_bytes(
          std::as_writable_bytes(share_of(own, from)), part_from(own, message_kind::sums, from));
      own.received[static_cast<std::size_t>(message_kind::sums)][index(from)].clear();
    }
    own.now = phase::summed;
  }
  if (own.now == phase::states && has_all(own, message_kind::states)) {
    for (int from = 0; from < size(); ++from) {
      if (from == place()) continue;
      auto part = part_from(own, message_kind::states, from);
      for (int layer = own.layers[index(from)]; layer < own.layers[index(from) + 1]; ++layer) {
        std::array<double, 2> numbers;
        std::memcpy(numbers.data(), part.data(), sizeof numbers);
        own.states[index(layer)] = {numbers[0], numbers[1] != 0};
        part = part.subspan(sizeof numbers);
      }
      own.received[static_cast<std::size_t>(message_kind::states)][index(from)].clear();
    }
    own.now = phase::done;
  }
}

ZBPP_INLINE void gradient_reduction::check_rates() const {
  for (int from = 0; from < size(); ++from)
    if (from != place() && rates_[index(from)] != rate_)
      refuse_rates(*replicas_, rate_, from, rates_[index(from)]);
}

// Adds up the share of this rank, and gives it to all that need it.
ZBPP_INLINE void gradient_reduction::add_up(chunk_sum& own) {
  check_rates();
  auto const share = exchanges_all() ? std::span<float>(own.gradients) : share_of(own, place());
  share_.resize(share.size());
  for (int from = 0; from < size(); ++from) {
    auto const part =
        from == place() ? std::as_bytes(share) : part_from(own, message_kind::parts, from);
    if (from == 0)
      copy_bytes(std::as_writable_bytes(std::span(share_)), part);
    else
      add_bytes(std::span(share_), part);
    own.received[static_cast<std::size_t>(message_kind::parts)][index(from)].clear();
  }
  std::ranges::copy(share_, share.begin());
  bool const needs_others = !exchanges_all() && !is_sharded_;
  own.now = needs_others ? phase::sums : phase::summed;
  if (needs_others) send_to_all(own, message_kind::sums, std::as_bytes(share));
}

ZBPP_INLINE void gradient_reduction::write_sums(chunk_sum& own, pass_context ctx) {
  if (own.optimizer != nullptr) own.optimizer->write_gradients(own.gradients, ctx);
  own.now = shares_states_ ? phase::states : phase::done;
  if (!shares_states_) return;
  std::ranges::fill(own.states, gradient_state());
  if (own.optimizer != nullptr) own.optimizer->measure(own.states, ctx);
  numbers_.clear();
  for (int layer = own.layers[index(place())]; layer < own.layers[index(place()) + 1]; ++layer) {
    auto const& state = own.states[index(layer)];
    numbers_.push_back({state.sum_of_squares, state.is_finite ? 1.0 : 0.0});
  }
  send_to_all(own, message_kind::states, std::as_bytes(std::span(numbers_)));
  advance(own);
}

ZBPP_INLINE void gradient_reduction::write_weights(chunk_sum& own, pass_context ctx) {
  for (int from = 0; from < size(); ++from) {
    if (from == place()) continue;
    auto const share = share_of(own, from);
    copy_bytes(std::as_writable_bytes(share), part_from(own, message_kind::weights, from));
    own.received[static_cast<std::size_t>(message_kind::weights)][index(from)].clear();
    std::size_t at = 0;
    for (int layer = own.layers[index(from)]; layer < own.layers[index(from) + 1]; ++layer) {
      auto const count = weights_of(own, layer);
      own.optimizer->write_weights(layer, share.subspan(at, count), ctx);
      at += count;
    }
  }
}

}  // namespace zbpp::detail
