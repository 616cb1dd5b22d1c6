// SPDX-License-Identifier: Apache-2.0
//
// One collective call as rank 0 collects it: who has come, whether all call the same, and what all
// get.
#pragma once

#include <zbpp/asio/detail/control_message.hpp>
#include <zbpp/asio/detail/limit_text.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

/// Collects the calls of all ranks, one collective after the other.
class collective_round {
 public:
  explicit collective_round(int ranks) : calls_(zbpp::detail::index(ranks)) {}

  /// Takes a rank's call. @return whether it is the first of its collective
  /// @throws error (bad_format) when the rank has called already, or names a root that is no rank
  [[nodiscard]] bool add(int rank, collective_call call) {
    if (has(rank) || call.sequence != number_)
      throw error(errc::bad_format, "a collective call out of turn");
    if (call.root < 0 || zbpp::detail::index(call.root) >= calls_.size())
      throw error(
          errc::bad_format,
          "a call from root " + std::to_string(call.root) + " of " + std::to_string(calls_.size()) +
              " ranks");
    calls_[zbpp::detail::index(rank)] = std::move(call);
    return ++count_ == 1;
  }

  [[nodiscard]] bool has(int rank) const noexcept {
    return calls_[zbpp::detail::index(rank)].has_value();
  }
  [[nodiscard]] bool is_empty() const noexcept { return count_ == 0; }
  [[nodiscard]] bool is_complete() const noexcept { return count_ == calls_.size(); }

  /// @return who made which collective call within the same call of the user, when these are not
  /// the
  ///         same; else empty
  [[nodiscard]] std::string mismatch() const {
    std::string text;
    std::optional<std::pair<collective, int>> first;
    bool differs = false;
    for (std::size_t rank = 0; rank < calls_.size(); ++rank) {
      if (!calls_[rank]) continue;
      auto const& call = *calls_[rank];
      if (!first) first = {call.kind, call.root};
      differs = differs || *first != std::pair{call.kind, call.root};
      text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " called " +
              std::string(to_string(call.kind)) + " in " + call.name();
    }
    return differs ? text + "; all ranks have to make the same calls in the same order" : "";
  }
  /// @return who called what: "ranks 0 and 1 called barrier, rank 2 called all_gather"
  [[nodiscard]] std::string who_text() const {
    std::string text;
    for (auto const& name : names_of_calls()) {
      std::vector<int> callers;
      for (int rank = 0; rank < static_cast<int>(calls_.size()); ++rank)
        if (has(rank) && calls_[zbpp::detail::index(rank)]->name() == name) callers.push_back(rank);
      text += (text.empty() ? "" : ", ") + ranks_text(callers) + " called " + name;
    }
    return text;
  }
  /// @return who did not come
  [[nodiscard]] std::string late_text(std::chrono::milliseconds deadline) const {
    std::vector<int> missing;
    for (int rank = 0; rank < static_cast<int>(calls_.size()); ++rank)
      if (!has(rank)) missing.push_back(rank);
    return ranks_text(missing) + " did not come within " + seconds_text(deadline) + ": " +
           who_text() + set_by("collective_deadline");
  }
  /// @return what is wrong when the parts together do not fit into one frame; else empty
  [[nodiscard]] std::string too_large() const {
    std::size_t size = 64;
    for (auto const& call : calls_) size += call->part.size() + sizeof(std::uint32_t);
    constexpr std::size_t most = std::numeric_limits<std::uint32_t>::max();
    if (size <= most) return {};
    return "the parts of " + calls_.front()->name() + " are " + std::to_string(size) +
           " bytes together; at most " + std::to_string(most) + " fit";
  }

  /// Ends a collective that all have called. @return what all ranks get
  [[nodiscard]] collective_outcome finish() {
    collective_outcome outcome{number_, {}};
    auto const kind = calls_.front()->kind;
    auto const root = zbpp::detail::index(calls_.front()->root);
    if (kind == collective::broadcast) outcome.parts.push_back(std::move(calls_[root]->part));
    if (kind == collective::all_gather)
      for (auto& call : calls_) outcome.parts.push_back(std::move(call->part));
    std::fill(calls_.begin(), calls_.end(), std::nullopt);
    count_ = 0;
    ++number_;
    return outcome;
  }

 private:
  [[nodiscard]] std::vector<std::string> names_of_calls() const {
    std::vector<std::string> names;
    for (auto const& call : calls_)
      if (call && std::find(names.begin(), names.end(), call->name()) == names.end())
        names.push_back(call->name());
    return names;
  }

  std::vector<std::optional<collective_call>> calls_;
  std::size_t count_ = 0;
  std::uint64_t number_ = 0;
};

}  // namespace zbpp::asio::detail
