// SPDX-License-Identifier: Apache-2.0
//
// What ranks tell rank 0 and rank 0 tells them, as values and as bytes: who is there, what went
// wrong, what they collect. Readers check every value and bound every size before they take memory.
#pragma once

#include <zbpp/asio/rank_call.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/run_options.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp::asio::detail {

/// Says what a frame of a control connection holds.
enum class control_kind : std::uint8_t {
  join,       ///< to rank 0: join_request, the first frame
  heartbeat,  ///< to rank 0: progress_report; to others: nothing
  call,       ///< to rank 0: collective_call
  report,     ///< to rank 0: rank_failure
  told,       ///< to rank 0: nothing; what runs here knows of the failure, and ends
  ended,      ///< to rank 0: nothing; this rank has stopped
  bye,        ///< to rank 0: nothing; to others: how many calls rank 0 made (64 bits); the sender
              ///< leaves, which is no failure
  refuse,     ///< rank_failure: you, or all of you, will not run
  welcome,    ///< roster
  outcome,    ///< collective_outcome: what a collective call gives
  stop,       ///< rank_failure: the first of the run
  all_told,   ///< nothing; every rank knows of the failure, as far as it can be reached
  verdict,    ///< failures: all of the run, the first one first
  propose,    ///< to rank 0: after_step, what the rank asks for behind a step
  decide,     ///< after_step: the most that a rank has asked for
  begin,      ///< to rank 0: rank_call of a pipeline that begins to run
  leave,      ///< to rank 0: number of a pipeline (32 bits); the sender has destroyed it
  query,      ///< nothing; has this rank told all that has happened to it?
  reply,      ///< to rank 0: nothing; what happened before the query was told before this
};
inline constexpr auto last_control_kind = control_kind::reply;

/// @return what to throw for a frame that is not for who received it
[[nodiscard]] inline error wrong_kind(control_kind kind, char const* why) {
  return error(
      errc::bad_format,
      "a frame of kind " + std::to_string(static_cast<int>(kind)) + ", which " + why);
}

/// Asks rank 0 to take a rank in.
struct join_request {
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
  std::uint32_t version = ZBPP_VERSION;
  roster_entry data;  ///< host empty: where the connection comes from

  friend bool operator==(join_request const&, join_request const&) = default;
};

/// One rank's part of a collective.
struct collective_call {
  std::uint64_t sequence = 0;  ///< how many calls the rank made before
  collective kind = collective::barrier;
  std::int32_t root = 0;  ///< 0 unless it is a broadcast
  blob part;
  rank_call by = {};  ///< the call of the user that makes this one

  /// @return the call of the user, as in "broadcast from rank 2"
  [[nodiscard]] std::string name() const { return by.name(); }
};

/// What all ranks get from a collective.
struct collective_outcome {
  std::uint64_t sequence = 0;
  std::vector<blob> parts;

  friend bool operator==(collective_outcome const&, collective_outcome const&) = default;
};

inline constexpr std::size_t most_text = 64 * 1024;  // of a failure; more is cut off
inline constexpr std::size_t most_failures = 4;      // of a rank that a verdict tells, on average
inline constexpr std::size_t most_host = 255;        // of a name in the DNS
inline constexpr std::size_t most_join = 1024;       // bytes of a join_request are fewer

/// @return the most bytes of a frame that one of `ranks` ranks gives
[[nodiscard]] inline std::size_t most_frame(std::size_t ranks, std::size_t largest_blob) {
  constexpr std::size_t most = std::numeric_limits<std::uint32_t>::max();
  auto const each = std::max(largest_blob, most_failures * most_text) + 128 + most_call;
  return std::min(most, ranks * each);
}

// What is written can be read: `read_x(bytes of write(x)) == x`, except for a text that was cut.

inline void put(wire_writer& to, rank_failure const& f) {
  to.put(f.location.rank).put(f.location.position).put(f.location.stage).put(f.location.microbatch);
  to.put(static_cast<std::uint8_t>(f.instruction ? 1 : 0));
  if (f.instruction)
    to.put(static_cast<std::uint8_t>(f.instruction->kind))
        .put(f.instruction->stage)
        .put(f.instruction->microbatch);
  to.put(static_cast<std::uint8_t>(f.code)).put(std::string_view(f.text).substr(0, most_text));
}

[[nodiscard]] inline std::uint8_t get_below(wire_reader& from, std::uint8_t end, char const* what) {
  auto const value = from.get<std::uint8_t>();
  if (value >= end)
    throw error(
        errc::bad_format,
        std::string(what) + " " + std::to_string(value) + "; it must be below " +
            std::to_string(end));
  return value;
}

[[nodiscard]] inline rank_failure get_failure(wire_reader& from) {
  rank_failure f;
  f.location.rank = from.get<int>();
  f.location.position = from.get<std::int64_t>();
  f.location.stage = from.get<int>();
  f.location.microbatch = from.get<int>();
  if (get_below(from, 2, "the mark of an instruction is") == 1) {
    f.instruction.emplace();
    f.instruction->kind = static_cast<instruction_kind>(
        get_below(from, instruction_kinds, "the kind of an instruction is"));
    f.instruction->stage = from.get<std::int32_t>();
    f.instruction->microbatch = from.get<std::int32_t>();
  }
  auto const codes = static_cast<std::uint8_t>(errc::pass_failed) + 1;
  f.code =
      static_cast<errc>(get_below(from, static_cast<std::uint8_t>(codes), "the error code is"));
  f.text = from.get_text(most_text);
  return f;
}

[[nodiscard]] inline blob write(rank_failure const& failure) {
  wire_writer to;
  put(to, failure);
  return to.take();
}

[[nodiscard]] inline blob write(std::vector<rank_failure> const& failures) {
  wire_writer to;
  to.put(static_cast<std::uint32_t>(failures.size()));
  for (auto const& f : failures) put(to, f);
  return to.take();
}

[[nodiscard]] inline blob write(join_request const& request) {
  wire_writer to;
  to.put(request.rank).put(request.ranks).put(request.version);
  to.put(request.data.host).put(request.data.port);
  return to.take();
}

[[nodiscard]] inline blob write(roster const& all) {
  wire_writer to;
  to.append(all.run_id).put(static_cast<std::uint32_t>(all.ranks.size()));
  for (auto const& entry : all.ranks) to.put(entry.host).put(entry.port);
  return to.take();
}

[[nodiscard]] inline blob write(collective_call const& call) {
  wire_writer to;
  to.put(call.sequence).put(static_cast<std::uint8_t>(call.kind)).put(call.root).put(call.part);
  put(to, call.by);
  return to.take();
}

[[nodiscard]] inline blob write(collective_outcome const& outcome) {
  wire_writer to;
  to.put(outcome.sequence).put(static_cast<std::uint32_t>(outcome.parts.size()));
  for (auto const& part : outcome.parts) to.put(part);
  return to.take();
}

[[nodiscard]] inline blob write(after_step next) {
  wire_writer to;
  to.put(static_cast<std::uint8_t>(next));
  return to.take();
}

// Readers of a whole frame.
// @throws error (bad_format)

[[nodiscard]] inline rank_failure read_failure(std::span<std::byte const> bytes) {
  wire_reader from(bytes);
  auto failure = get_failure(from);
  from.expect_end();
  return failure;
}

/// Reads as many items as the frame says, none of which is empty: so a wrong number runs out of
/// bytes before it costs memory.
template <class Get>
[[nodiscard]] auto get_list(wire_reader& from, Get get_item) {
  std::vector<decltype(get_item())> items;
  for (auto left = from.get<std::uint32_t>(); left > 0; --left) items.push_back(get_item());
  from.expect_end();
  return items;
}

/// @return at least one failure
[[nodiscard]] inline std::vector<rank_failure> read_failures(std::span<std::byte const> bytes) {
  wire_reader from(bytes);
  auto failures = get_list(from, [&] { return get_failure(from); });
  if (failures.empty()) throw error(errc::bad_format, "a verdict without a failure");
  return failures;
}

[[nodiscard]] inline join_request read_join(std::span<std::byte const> bytes) {
  wire_reader from(bytes);
  join_request request;
  request.rank = from.get<std::int32_t>();
  request.ranks = from.get<std::int32_t>();
  request.version = from.get<std::uint32_t>();
  request.data.host = from.get_text(most_host);
  request.data.port = from.get<std::uint16_t>();
  from.expect_end();
  return request;
}

[[nodiscard]] inline roster read_roster(std::span<std::byte const> bytes) {
  wire_reader from(bytes);
  roster all;
  auto const id = from.take(all.run_id.size());
  std::copy(id.begin(), id.end(), all.run_id.begin());
  all.ranks = get_list(from, [&] {
    auto host = from.get_text(most_host);
    return roster_entry{std::move(host), from.get<std::uint16_t>()};
  });
  return all;
}

[[nodiscard]] inline after_step read_next(std::span<std::byte const> bytes) {
  wire_reader from(bytes);
  auto const end = static_cast<std::uint8_t>(after_step::stop) + 1;
  auto const next = static_cast<after_step>(
      get_below(from, static_cast<std::uint8_t>(end), "what comes after a step is"));
  from.expect_end();
  return next;
}

[[nodiscard]] inline collective_call read_call(
    std::span<std::byte const> bytes, std::size_t largest_part) {
  wire_reader from(bytes);
  collective_call call;
  call.sequence = from.get<std::uint64_t>();
  call.kind = static_cast<collective>(get_below(from, 3, "the kind of a collective is"));
  call.root = from.get<std::int32_t>();
  call.part = from.get_blob(largest_part);
  call.by = get_rank_call(from);
  from.expect_end();
  return call;
}

[[nodiscard]] inline rank_call read_rank_call(std::span<std::byte const> bytes) {
  wire_reader from(bytes);
  auto const call = get_rank_call(from);
  from.expect_end();
  return call;
}

/// Reads a frame that is one number.
template <class Number>
[[nodiscard]] Number read_number(std::span<std::byte const> bytes) {
  wire_reader from(bytes);
  auto const number = from.get<Number>();
  from.expect_end();
  return number;
}

[[nodiscard]] inline collective_outcome read_outcome(
    std::span<std::byte const> bytes, std::size_t largest_part) {
  wire_reader from(bytes);
  collective_outcome outcome;
  outcome.sequence = from.get<std::uint64_t>();
  outcome.parts = get_list(from, [&] { return from.get_blob(largest_part); });
  return outcome;
}

}  // namespace zbpp::asio::detail
