// SPDX-License-Identifier: Apache-2.0
//
// Joins a run, makes its collective calls, and ends it.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/agreement_wire.hpp>
#include <zbpp/asio/detail/checked_settings.hpp>
#include <zbpp/asio/detail/client.hpp>
#include <zbpp/asio/detail/control_connection.hpp>
#include <zbpp/asio/detail/control_parts.hpp>
#include <zbpp/asio/detail/io_parts.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio {

ZBPP_INLINE control::control(launch start, rendezvous_settings settings, run_token token)
    : start_(detail::checked(std::move(start))),
      settings_(detail::checked(std::move(settings))),
      token_(std::move(token)),
      parts_(std::make_unique<detail::control_parts>(loop_, start_, settings_)) {
  try {
    join();
  } catch (...) {
    shut();
    throw;
  }
}

ZBPP_INLINE control::~control() { leave(); }

ZBPP_INLINE void control::leave() noexcept {
  try {
    settle();  // if something failed, all have to know it first
    if (!is_shut_) {
      detail::run_for(loop_, settings_.deadline, [&] { return !parts_->is_sending(); });
      auto const linger = detail::linger_of(settings_);
      loop_.exclusively([&] { parts_->member().say_bye(linger); });
      detail::run_for(loop_, linger, [&] { return !parts_->is_connected(); });
    }
  } catch (...) {
    // A rank that needs this one finds its connection closed.
  }
  shut();
}

ZBPP_INLINE roster const& control::everybody() const noexcept {
  return parts_->member().everybody();
}

ZBPP_INLINE detail::listener const& control::data_listener() const noexcept {
  return parts_->data_listener();
}

ZBPP_INLINE progress_board& control::board() noexcept { return parts_->member().board(); }

ZBPP_INLINE void control::on_failure(failure_calls calls) {
  parts_->member().on_failure(std::move(calls));
}

ZBPP_INLINE void control::on_data_connection(connection_call call) {
  loop_.exclusively([&] { parts_->on_data_connection(std::move(call)); });
}

ZBPP_INLINE void control::watch(watchdog call, void const* owner) {
  watcher_ = owner;
  if (auto* const coordinator = parts_->rank_0())
    loop_.exclusively([&] { coordinator->watch(std::move(call)); });
}

ZBPP_INLINE void control::report(rank_failure failure) {
  parts_->member().report(std::move(failure));
}

ZBPP_INLINE bool control::has_stopped() const noexcept { return parts_->has_stopped(); }

ZBPP_INLINE bool control::are_all_informed() const noexcept {
  return parts_->member().are_all_informed();
}

ZBPP_INLINE std::vector<rank_failure> control::settle(std::optional<rank_failure> own) {
  auto& member = parts_->member();
  if (is_shut_) return failures();
  bool const goes_on = loop_.exclusively([&] {
    if (own)
      member.report(std::move(*own));
    else if (!has_stopped())
      return true;
    member.settle();
    return false;
  });
  if (goes_on) return {};
  detail::run_for(loop_, settings_.deadline, [&] { return parts_->is_over(); });
  loop_.exclusively([&] {
    member.end_alone(
        {0, -1, -1, -1},
        "does not say why the run failed within " + seconds_text(settings_.deadline) +
            detail::set_by("deadline"));
  });
  if (parts_->rank_0() != nullptr) drain();
  shut();
  return failures();
}

// Says where in the grid the rank of a failure is.
ZBPP_INLINE rank_failure control::placed(rank_failure failure) const {
  auto const rank = failure.location.rank;
  if (layout_ != nullptr && rank >= 0 && rank < layout_->ranks())
    failure.text +=
        zbpp::detail::joined(" (rank ", rank, " is ", coordinates_text(*layout_, rank), ")");
  return failure;
}

ZBPP_INLINE std::vector<rank_failure> control::failures() const {
  std::vector<rank_failure> all;
  for (auto const& each : parts_->member().failures()) all.push_back(placed(each));
  return all;
}

ZBPP_INLINE rank_failure control::first_failure() const {
  return placed(parts_->member().first_failure());
}

ZBPP_INLINE bool control::is_told_of_failure() const noexcept {
  return parts_->member().is_told_of_failure();
}

ZBPP_INLINE void control::check() {
  auto const failures = settle();
  if (!failures.empty()) throw to_error(failures.front());
}

ZBPP_INLINE void control::begin_run(rank_call const& call) {
  loop_.exclusively([&] { parts_->member().begin_run(call); });
}

ZBPP_INLINE void control::end_run() {
  loop_.exclusively([&] { parts_->member().end_run(); });
}

ZBPP_INLINE void control::leave_pipeline(std::int32_t number) {
  if (!is_shut_) loop_.exclusively([&] { parts_->member().leave_pipeline(number); });
}

ZBPP_INLINE std::vector<blob> control::collect(
    collective kind, std::span<std::byte const> part, int root) {
  if (part.size() > settings_.largest_blob)
    throw error(errc::bad_argument) + to_string(kind) + " of " + part.size() +
        " bytes; rendezvous_settings::largest_blob allows " + settings_.largest_blob;
  if (root < 0 || root >= ranks())
    throw error(errc::bad_argument) + to_string(kind) + " from rank " + root +
        "; ranks go from 0 to " + (ranks() - 1);
  check();
  auto& member = parts_->member();
  auto const by = call_.value_or(rank_call::of(kind, root));
  board().wait({root, wait_kind::run, static_cast<std::uint8_t>(by.kind)});
  loop_.exclusively([&] { member.call(kind, root, part, by); });
  auto const limit = settings_.collective_deadline + settings_.deadline;
  detail::run_for(loop_, limit, [&] { return member.has_outcome() || has_stopped(); });
  std::optional<std::vector<blob>> outcome;
  loop_.exclusively([&] {
    if (member.has_outcome())
      outcome = member.take_outcome();
    else if (!has_stopped())
      member.end_alone(
          {0, -1, -1, -1},
          "has not answered a call of " + by.name() + " within " + seconds_text(limit) +
              detail::set_by("collective_deadline"));
  });
  board().wait({});
  if (!outcome) check();
  return std::move(*outcome);
}

ZBPP_INLINE void control::propose(after_step next) {
  check();
  loop_.exclusively([&] { parts_->member().propose(next); });
}

// Without a limit of its own: the watchdog looks at ranks that wait here.
ZBPP_INLINE after_step control::decision() {
  auto const& member = parts_->member();
  board().wait({.kind = wait_kind::decision});
  board().enter(progress_phase::waiting);
  loop_.run_until([&] { return member.decision() || has_stopped(); });
  board().enter(progress_phase::outside);
  board().wait({});
  auto const decided = loop_.exclusively([&] { return member.decision(); });
  if (!decided) check();
  return *decided;
}

namespace detail {

/// What a rank gives to be compared.
struct agreement_part {
  std::vector<agreement_item> items;    ///< all ranks agree on
  std::vector<agreement_item> of_some;  ///< the ranks of a group agree on
  std::int32_t first = 0;               ///< rank of the group
};

/// Names what its bytes are.
template <class Wire>
void fields(Wire& wire, wire_value<Wire, agreement_part>& part) {
  auto const each = [&](auto& item) { fields(wire, item); };
  wire.number(part.first).list(part.items, each).list(part.of_some, each);
}

}  // namespace detail

ZBPP_INLINE void control::agree(
    std::span<agreement_item const> own, std::span<agreement_item const> of_some, int first) {
  detail::agreement_part const given{
      {own.begin(), own.end()}, {of_some.begin(), of_some.end()}, first};
  call_name const named(*this, call_.value_or(rank_call{.kind = call_kind::agree}));
  auto const parts = collect(collective::all_gather, detail::write(given));
  std::vector<detail::agreement_part> all;
  for (auto const& part : parts) all.push_back(detail::read<detail::agreement_part>(part));
  std::string text;
  auto const compare = [&](auto const& items, int rank, int other) {
    std::string const name = zbpp::detail::joined("rank ", rank);
    std::string const other_name = zbpp::detail::joined("rank ", other);
    auto const found = differences(
        all[zbpp::detail::index(rank)].*items,
        all[zbpp::detail::index(other)].*items,
        "at " + name,
        "at " + other_name);
    if (found.empty()) return true;
    text += (text.empty() ? "" : "; ") + name + " differs from " + other_name + " in: " + found;
    return false;
  };
  for (int rank = 1; rank < ranks(); ++rank) {
    auto const other = all[zbpp::detail::index(rank)].first;
    if (compare(&detail::agreement_part::items, rank, 0) && other >= 0 && other < ranks())
      compare(&detail::agreement_part::of_some, rank, other);
  }
  bool const is_grid =
      std::ranges::find(all.front().items, detail::grid_item, &agreement_item::name) !=
      all.front().items.end();
  if (!text.empty())
    throw error(errc::no_agreement) + text + "; start all ranks with the same " +
        (is_grid ? "grid_layout, problem and plan" : "problem and plan");
}

ZBPP_INLINE void control::join() {
  loop_.exclusively([&] { parts_->open(start_, settings_, token_); });
  auto const* const coordinator = parts_->rank_0();
  auto const* const way = parts_->way_to_rank_0();
  if (coordinator != nullptr && settings_.on_listening) settings_.on_listening(coordinator->port());
  auto const has_ended = [&] { return !parts_->is_joining(); };
  auto const further = settings_.join_deadline + settings_.deadline;
  detail::run_for(loop_, coordinator != nullptr ? further : settings_.join_deadline, has_ended);
  // Rank 0 may have started later than this one, and knows more about who is missing.
  if (way != nullptr)
    detail::run_for(loop_, further, [&] { return has_ended() || !way->has_asked(); });
  if (coordinator != nullptr && loop_.exclusively([&] { return parts_->is_refused(); })) drain();
  loop_.exclusively([&] {
    if (parts_->is_refused()) throw to_error(parts_->member().failures().front());
    if (has_ended()) return;
    throw error(errc::no_rendezvous, way->text(settings_.join_deadline), {start_.rank, -1, -1, -1});
  });
}

// A socket that is closed too early takes back what is under way, such as a verdict.
ZBPP_INLINE void control::drain() {
  detail::run_for(loop_, std::chrono::seconds(1), [&] { return !parts_->is_connected(); });
}

// Closes everything; nothing runs in the io_loop afterwards.
ZBPP_INLINE void control::shut() noexcept {
  if (is_shut_) return;
  is_shut_ = true;
  loop_.exclusively([&] { parts_->close(); });
  loop_.stop();
}

}  // namespace zbpp::asio
