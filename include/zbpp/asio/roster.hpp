// SPDX-License-Identifier: Apache-2.0
//
// The ranks of a run and where their data connections go, a failure as every rank is told of it and
// what it calls then, and the kinds of collective calls.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp::asio {

/// Describes what went wrong on a rank, so that every rank can tell.
struct rank_failure {
  zbpp::location location;  ///< its `rank` is where it began; -1 when nobody in particular
  std::optional<zbpp::instruction> instruction;  ///< the one that was running there
  errc code = errc::peer_failed;
  std::string text;  ///< names neither the place nor the instruction

  friend bool operator==(rank_failure const&, rank_failure const&) = default;
};

[[nodiscard]] inline error to_error(rank_failure const& failure) {
  auto const running =
      failure.instruction ? "in " + to_string(*failure.instruction) + ": " : std::string();
  return error(failure.code, running + failure.text, failure.location);
}

/// Holds what a rank calls when the run fails. Either may be empty. They are called on the I/O
/// thread and must not throw.
struct failure_calls {
  /// Called with the first failure of the run; ends what runs here. When it has returned, this rank
  /// acknowledges the failure to rank 0, and `control::settle` follows.
  std::function<void(rank_failure const&)> on_failure = {};
  /// Called when every rank that can be reached knows of the failure. Only then may a rank give up
  /// messages: what it computes without them may reach other ranks, which then do not use it.
  std::function<void()> on_all_informed = {};
};

/// Names the data address of one rank.
struct roster_entry {
  std::string host;  ///< a name or an address; empty for rank 0: the host its control address has
  std::uint16_t port = 0;

  friend bool operator==(roster_entry const&, roster_entry const&) = default;
};

/// Names everybody in a run.
struct roster {
  std::array<std::byte, 16> run_id{};  ///< random; another for every run
  std::vector<roster_entry> ranks;

  friend bool operator==(roster const&, roster const&) = default;
};

/// Says what a collective call does.
enum class collective : std::uint8_t {
  all_gather,
  broadcast,
  barrier,
  maximum,  ///< of one byte of each rank; it blocks nobody
};

/// Names a collective call.
[[nodiscard]] constexpr std::string_view to_string(collective kind) noexcept {
  switch (kind) {
    case collective::all_gather: return "all_gather";
    case collective::broadcast: return "broadcast";
    case collective::barrier: return "barrier";
    case collective::maximum: return "maximum";
  }
  return "unknown";
}

}  // namespace zbpp::asio
