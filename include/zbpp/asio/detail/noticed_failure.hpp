// SPDX-License-Identifier: Apache-2.0
//
// What a rank says of another one that it has lost, and how that is listed beside what ranks say of
// themselves.
#pragma once

#include <zbpp/asio/detail/limit_text.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

[[nodiscard]] inline std::string silence_text(std::chrono::milliseconds deadline) {
  return "has not been heard for " + seconds_text(deadline) +
         "; it is stopped, overloaded or cut off" + set_by("deadline");
}
[[nodiscard]] inline std::string broken_text(std::string const& reason) {
  return "its process has ended or its connection broke (" + reason + ")";
}

/// @param calls  who called what, of which the rank that has left is no part; may be empty
[[nodiscard]] inline std::string left_text(std::string const& calls) {
  return calls.empty() ? "left the run" : "left the run; " + calls;
}

/// @return the report for a peer failure seen here. If this process itself was suspended for at
///         least `deadline`, it reports that instead of blaming a peer.
[[nodiscard]] inline rank_failure as_noticed(
    rank_failure noticed,
    int rank,
    std::chrono::milliseconds suspension,
    std::chrono::milliseconds deadline) {
  bool const blames_others = noticed.code == errc::peer_failed && noticed.location.rank != rank;
  if (!blames_others || suspension < deadline) return noticed;
  return {
      {rank, -1, -1, -1},
      {},
      errc::peer_failed,
      "was suspended for " + seconds_text(suspension) + ", and the other ranks gave it up after " +
          seconds_text(deadline) + "; it was stopped or overloaded" + set_by("deadline")};
}

/// Adds a failure to those of a run. Hearsay, of one rank about another, says nothing new about a
/// rank that is known to have failed.
inline void attach(std::vector<rank_failure>& failures, rank_failure more, bool is_hearsay) {
  bool const is_known = std::any_of(failures.begin(), failures.end(), [&](auto const& known) {
    return known == more || (is_hearsay && more.code == errc::peer_failed &&
                             known.location.rank == more.location.rank);
  });
  if (!is_known) failures.push_back(std::move(more));
}

}  // namespace zbpp::asio::detail
