// SPDX-License-Identifier: Apache-2.0
//
// How collective calls are made of bytes between two members.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/number_bytes.hpp>
#include <zbpp/runtime/group.hpp>

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace zbpp {

ZBPP_INLINE std::string to_string(group_call const& made) {
  bool const is_of_stage = made.kind < call_of_group::comparison;
  auto text = std::string(is_of_stage ? "makes " : "comes to ").append(to_string(made.kind));
  if (made.count >= 0) text += detail::joined(" of ", made.count, " numbers");
  if (is_of_stage && made.place.kind < 0) text += " between steps";
  if (made.place.kind >= 0)
    text += " in " + to_string(instruction{
                         static_cast<instruction_kind>(made.place.kind),
                         made.place.stage,
                         made.place.microbatch});
  return detail::joined(text, " as its call ", made.number);
}

ZBPP_INLINE void group::begin(call_of_group kind, std::size_t count) {
  call_ = {kind, call_.number + 1, static_cast<std::int64_t>(count)};
  if (kind >= call_of_group::all_to_all) call_.count = -1;
  if (place_ != nullptr) call_.place = *place_;
}

ZBPP_INLINE void group::send(int to, std::span<std::byte const> body) {
  link_->send(to, std::as_bytes(std::span(&call_, 1)), body);
}

ZBPP_INLINE void group::send_to_all(std::span<std::byte const> body) {
  for (int to = 0; to < size(); ++to)
    if (to != place()) send(to, body);
}

ZBPP_INLINE std::span<std::byte const> group::receive(int from) {
  if (!link_->has_arrived(from)) link_->wait(from, call_);
  bytes_.resize(detail::index(size()));
  auto& taken = bytes_[detail::index(from)];
  link_->take(from, taken);
  group_call made;
  bool const is_whole = taken.size() >= sizeof made;
  if (is_whole) std::memcpy(&made, taken.data(), sizeof made);
  if (!is_whole || made != call_)
    throw error(errc::no_agreement) + "in the " + link_->name() + " " + name_of(place()) + " " +
        to_string(call_) + ", and " + name_of(from) + " " +
        (is_whole ? to_string(made) : "makes what is no collective call") +
        "; all members have to make the same calls in the same order";
  return std::span<std::byte const>(taken).subspan(sizeof made);
}

ZBPP_INLINE void group::receive(int from, std::span<std::byte> part) {
  auto const received = receive(from);
  detail::require(
      received.size() == part.size(), "a member of a group sends a part of another size");
  detail::copy_bytes(part, received);
}

// Adds up what all members have for this one, in the order of their places.
template <class Number>
void group::add_up(std::span<Number const> own, std::span<Number> sums) {
  for (int from = 0; from < size(); ++from) {
    auto const part = from == place() ? std::as_bytes(own) : receive(from);
    detail::require(
        part.size() == sums.size_bytes(), "a member of a group sends a part of another size");
    if (from == 0)
      detail::copy_bytes(std::as_writable_bytes(sums), part);
    else
      detail::add_bytes(sums, part);
  }
}

template <class Number>
void group::reduce(std::span<Number> values) {
  if (size() == 1) return;
  begin(call_of_group::all_reduce, values.size());
  auto const keep = [&](std::span<Number> part) {
    own_.assign(std::as_bytes(part).begin(), std::as_bytes(part).end());
    return std::span(reinterpret_cast<Number const*>(own_.data()), part.size());
  };
  // One exchange of everything where that is no more bytes, or so few that only their number
  // counts; else each member adds up a part, and gives it to all.
  constexpr std::size_t few = 8192;
  if (size() == 2 || values.size_bytes() <= few) {
    send_to_all(std::as_bytes(values));
    add_up(keep(values), values);
    return;
  }
  for (int to = 0; to < size(); ++to)
    if (to != place()) send(to, std::as_bytes(detail::part_of(values, to, size())));
  auto const sums = detail::part_of(values, place(), size());
  add_up(keep(sums), sums);
  send_to_all(std::as_bytes(sums));
  for (int from = 0; from < size(); ++from)
    if (from != place())
      receive(from, std::as_writable_bytes(detail::part_of(values, from, size())));
}

ZBPP_INLINE void group::all_reduce(std::span<float> values) { reduce(values); }

ZBPP_INLINE void group::all_reduce(std::span<double> values) { reduce(values); }

ZBPP_INLINE void group::reduce_scatter(std::span<float const> values, std::span<float> share) {
  detail::require(
      values.size() == share.size() * detail::index(size()),
      "reduce_scatter takes as many values as the shares of all members have");
  auto const own = detail::part_of(values, place(), size());
  if (size() == 1) return detail::copy_bytes(std::as_writable_bytes(share), std::as_bytes(own));
  begin(call_of_group::reduce_scatter, share.size());
  for (int to = 0; to < size(); ++to)
    if (to != place()) send(to, std::as_bytes(detail::part_of(values, to, size())));
  own_.assign(std::as_bytes(own).begin(), std::as_bytes(own).end());
  add_up(std::span(reinterpret_cast<float const*>(own_.data()), own.size()), share);
}

ZBPP_INLINE void group::all_gather(std::span<float const> share, std::span<float> all) {
  detail::require(
      all.size() == share.size() * detail::index(size()),
      "all_gather gives as many values as the shares of all members have");
  detail::copy_bytes(
      std::as_writable_bytes(detail::part_of(all, place(), size())), std::as_bytes(share));
  if (size() == 1) return;
  begin(call_of_group::all_gather, share.size());
  send_to_all(std::as_bytes(detail::part_of(all, place(), size())));
  for (int from = 0; from < size(); ++from)
    if (from != place()) receive(from, std::as_writable_bytes(detail::part_of(all, from, size())));
}

ZBPP_INLINE void group::broadcast(std::span<float> values, int root) {
  detail::require(root >= 0 && root < size(), "the root of a broadcast is a member of the group");
  if (size() == 1) return;
  begin(call_of_group::broadcast, values.size());
  if (root == place())
    send_to_all(std::as_bytes(values));
  else
    receive(root, std::as_writable_bytes(values));
}

ZBPP_INLINE void group::all_to_all(
    std::span<std::span<float const> const> sent, std::vector<std::vector<float>>& received) {
  detail::require(
      sent.size() == detail::index(size()), "all_to_all takes a part for each member of the group");
  received.resize(sent.size());
  auto const& own = sent[detail::index(place())];
  received[detail::index(place())].assign(own.begin(), own.end());
  if (size() == 1) return;
  begin(call_of_group::all_to_all, 0);
  for (int to = 0; to < size(); ++to)
    if (to != place()) send(to, std::as_bytes(sent[detail::index(to)]));
  for (int from = 0; from < size(); ++from) {
    if (from == place()) continue;
    auto const part = receive(from);
    auto& to = received[detail::index(from)];
    to.resize(part.size() / sizeof(float));
    detail::copy_bytes(std::as_writable_bytes(std::span(to)), part);
  }
}

ZBPP_INLINE void group::barrier() {
  if (size() == 1) return;
  begin(call_of_group::barrier, 0);
  send_to_all({});
  for (int from = 0; from < size(); ++from)
    if (from != place()) receive(from, {});
}

ZBPP_INLINE void group::exchange(
    call_of_group kind, std::span<std::byte const> own, std::vector<std::vector<std::byte>>& all) {
  all.resize(detail::index(size()));
  all[detail::index(place())].assign(own.begin(), own.end());
  if (size() == 1) return;
  begin(kind, 0);
  send_to_all(own);
  for (int from = 0; from < size(); ++from) {
    if (from == place()) continue;
    auto const part = receive(from);
    all[detail::index(from)].assign(part.begin(), part.end());
  }
}

ZBPP_INLINE void group::exchange(
    std::span<std::byte const> own, std::vector<std::vector<std::byte>>& all) {
  exchange(call_of_group::exchange, own, all);
}

ZBPP_INLINE void group::compare(
    std::span<std::byte const> own, std::vector<std::vector<std::byte>>& all) {
  exchange(call_of_group::comparison, own, all);
}

ZBPP_INLINE void group::end_step() {
  ended_ = 0;
  if (size() == 1) return;
  begin(call_of_group::end_of_step, 0);
  send_to_all({});
}

ZBPP_INLINE bool group::has_ended_step() {
  for (; ended_ < size(); ++ended_) {
    if (ended_ == place()) continue;
    if (!link_->has_arrived(ended_)) {
      link_->note_wait(ended_, call_);
      return false;
    }
    receive(ended_, {});
  }
  return true;
}

}  // namespace zbpp
