// SPDX-License-Identifier: Apache-2.0
//
// How gradients of replicas are exchanged and added up.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/detail/gradient_reduction.hpp>
#include <zbpp/runtime/detail/number_bytes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::detail {

ZBPP_INLINE gradient_reduction::gradient_reduction(
    int rank,
    program const& program,
    problem const& problem,
    std::span<stage_ref const> stages,
    group_link& replicas)
    : replicas_(&replicas), left_(index(replicas.size()), 0) {
  for (int s : program.placement().stages_of(rank)) {
    auto& own = chunks_.emplace_back();
    own.stage = s;
    own.optimizer = stages[chunks_.size() - 1].optimizer();
    own.takes = problem.reduction_time(s);
    own.gradients.resize(index(own.optimizer.gradient_count()));
    own.parts.resize(index(replicas.size()));
    own.sums.resize(index(replicas.size()));
  }
  // What a replica sent changes places with these when it is taken, so all of them are as large.
  std::size_t most = 0;
  for (auto const& own : chunks_) most = std::max(most, own.gradients.size());
  share_.reserve(most);
  most = most * sizeof(float) + sizeof(header);
  bytes_.reserve(most);
  for (auto& own : chunks_)
    for (auto* const all : {&own.parts, &own.sums})
      for (auto& each : *all) each.reserve(most);
  // A replica may be a step ahead with what it gives to the sums.
  replicas.reserve(3 * chunks_.size(), most);
}

ZBPP_INLINE void gradient_reduction::send(
    chunk_sum const& own, int to, bool are_sums, std::span<float const> part) {
  header const head{
      .stage = own.stage,
      .are_sums = are_sums ? 1 : 0,
      .count = static_cast<std::int64_t>(own.gradients.size())};
  replicas_->send(to, std::as_bytes(std::span(&head, 1)), std::as_bytes(part));
}

ZBPP_INLINE void gradient_reduction::send(chunk_sum& own, pass_context ctx) {
  own.optimizer.read_gradients(own.gradients, ctx);
  auto const all = std::span<float const>(own.gradients);
  auto const size = replicas_->size();
  for (int to = 0; to < size; ++to)
    if (to != replicas_->place()) send(own, to, false, size == 2 ? all : part_of(all, to, size));
  own.now = phase::parts;
  ++open_;
  add_up(own);
  progress();
}

ZBPP_INLINE void gradient_reduction::progress() {
  for (int from = 0; from < replicas_->size(); ++from) {
    if (from == replicas_->place()) continue;
    auto& left = left_[index(from)];
    for (; left > 0 && replicas_->has_arrived(from); --left) accept(from);
  }
}

// Keeps what a replica sent until this rank needs it.
ZBPP_INLINE void gradient_reduction::accept(int from) {
  replicas_->take(from, bytes_);
  auto const refuse = [&](std::string const& text) {
    throw error(errc::no_agreement, "replica " + std::to_string(from) + " " + text);
  };
  header head;
  bool const is_whole = bytes_.size() >= sizeof head;
  if (is_whole) std::memcpy(&head, bytes_.data(), sizeof head);
  if (!is_whole || head.mark != header::expected_mark)
    refuse("makes a collective call while gradients are added up; make those of the group of "
           "replicas between steps");
  auto const found =
      std::ranges::find_if(chunks_, [&](chunk_sum const& own) { return own.stage == head.stage; });
  if (found == chunks_.end())
    refuse(
        "sends gradients of stage " + std::to_string(head.stage) +
        ", which this rank does not have; give all replicas the same plan");
  auto const size = replicas_->size();
  auto const all = std::span<float const>(found->gradients);
  auto const expected =
      size == 2 ? all.size()
                : part_of(all, head.are_sums == 0 ? replicas_->place() : from, size).size();
  if (head.count != static_cast<std::int64_t>(all.size()) ||
      bytes_.size() != sizeof head + expected * sizeof(float))
    refuse(
        "adds up " + std::to_string(head.count) + " gradients of stage " +
        std::to_string(head.stage) + ", and this one " + std::to_string(all.size()) +
        "; give all replicas the same weights");
  auto& place = (head.are_sums == 0 ? found->parts : found->sums)[index(from)];
  if (!place.empty())
    refuse(
        "sends gradients of stage " + std::to_string(head.stage) +
        " twice; let all replicas make the same calls in the same order");
  std::swap(place, bytes_);
  // At once: a replica that has the sums may send the gradients of its next step.
  add_up(*found);
  gather(*found);
}

// Adds up the share of this rank, once the parts of all replicas are here, and gives it to all.
ZBPP_INLINE void gradient_reduction::add_up(chunk_sum& own) {
  if (own.now != phase::parts) return;
  auto const size = replicas_->size();
  auto const place = replicas_->place();
  for (int from = 0; from < size; ++from)
    if (from != place && own.parts[index(from)].empty()) return;
  auto const share = size == 2 ? std::span<float>(own.gradients)
                               : part_of(std::span<float>(own.gradients), place, size);
  share_.resize(share.size());
  for (int from = 0; from < size; ++from) {
    auto const part =
        from == place ? std::as_bytes(share)
                      : std::span<std::byte const>(own.parts[index(from)]).subspan(sizeof(header));
    if (from == 0)
      copy_bytes(std::as_writable_bytes(std::span(share_)), part);
    else
      add_bytes(std::span(share_), part);
    own.parts[index(from)].clear();
  }
  std::ranges::copy(share_, share.begin());
  own.now = size == 2 ? phase::done : phase::sums;
  for (int to = 0; size > 2 && to < size; ++to)
    if (to != place) send(own, to, true, share);
}

ZBPP_INLINE void gradient_reduction::gather(chunk_sum& own) {
  if (own.now != phase::sums) return;
  auto const size = replicas_->size();
  auto const place = replicas_->place();
  for (int from = 0; from < size; ++from)
    if (from != place && own.sums[index(from)].empty()) return;
  for (int from = 0; from < size; ++from) {
    if (from == place) continue;
    copy_bytes(
        std::as_writable_bytes(part_of(std::span<float>(own.gradients), from, size)),
        std::span<std::byte const>(own.sums[index(from)]).subspan(sizeof(header)));
    own.sums[index(from)].clear();
  }
  own.now = phase::done;
}

ZBPP_INLINE void gradient_reduction::write(chunk_sum& own, pass_context ctx) {
  own.optimizer.write_gradients(own.gradients, ctx);
  own.now = phase::closed;
  --open_;
}

}  // namespace zbpp::detail
