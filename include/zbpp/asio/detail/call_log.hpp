// SPDX-License-Identifier: Apache-2.0
//
// The calls of all ranks as rank 0 learns them: whether all make the same ones in the same order,
// and who waits for a rank that will make no more of them.
#pragma once

#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/rank_call.hpp>
#include <zbpp/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zbpp::asio::detail {

/// Compares the calls of ranks one by one, each with the first that came. Ranks may be apart: what
/// is kept are the calls that some rank has not made yet. Allocates nothing once ranks were as far
/// apart as they get.
class call_log {
 public:
  explicit call_log(int ranks)
      : made_(zbpp::detail::index(ranks), 0), last_(made_.size()), left_(made_.size()) {}

  /// Notes the next call of a rank.
  /// @return what is wrong with it, in the words of an error; empty where nothing is
  [[nodiscard]] std::string note(int rank, rank_call const& call) {
    auto const r = zbpp::detail::index(rank);
    auto const number = made_[r]++;
    last_[r] = call;
    auto const at = static_cast<std::size_t>(number - first_);
    if (at == open_.size()) {
      open_.push_back({call, rank, 1});
    } else {
      auto const wrong = compare(open_[at], number, rank, call);
      if (!wrong.empty()) return wrong;
      ++open_[at].ranks;
      // What others are compared with, too: not all ranks have terms.
      if (call.steps.terms && !open_[at].call.steps.terms) {
        open_[at].call = call;
        open_[at].first_rank = rank;
      }
    }
    while (!open_.empty() && open_.front().ranks == made_.size()) {
      open_.erase(open_.begin());
      ++first_;
    }
    return {};
  }

  /// Notes that a rank has destroyed a pipeline.
  void leave(int rank, std::int32_t pipeline) {
    left_[zbpp::detail::index(rank)].push_back(pipeline);
    if (!std::ranges::all_of(left_, [&](auto const& all) { return contains(all, pipeline); }))
      return;
    for (auto& all : left_) std::erase(all, pipeline);
  }

  /// @return how many calls a rank has made
  [[nodiscard]] std::uint64_t calls_of(int rank) const noexcept {
    return made_[zbpp::detail::index(rank)];
  }
  /// @return who has made a call that a rank will not make, and which: "rank 0 called step() for
  ///         step 3"; empty where nobody has
  /// @param has_left  whether that rank makes no calls at all any more, rather than none of the
  ///                  pipelines that it has destroyed
  [[nodiscard]] std::string missed_by(int rank, bool has_left) const {
    auto const r = zbpp::detail::index(rank);
    if (!has_left && left_[r].empty()) return {};
    std::vector<int> who;
    for (std::size_t other = 0; other < made_.size(); ++other) {
      if (made_[other] <= made_[r]) continue;
      bool const is_of_destroyed =
          last_[other].kind == call_kind::run && contains(left_[r], last_[other].pipeline);
      if (!has_left && !is_of_destroyed) continue;
      auto const name = last_[other].name();
      if (who.empty() || name == last_[zbpp::detail::index(who.front())].name())
        who.push_back(static_cast<int>(other));
    }
    return who.empty() ? std::string() : said_by(who, last_[zbpp::detail::index(who.front())]);
  }
  /// @return what a rank called last: "rank 0 called step() for step 3"; empty where nothing
  [[nodiscard]] std::string last_of(int rank) const {
    int const who[] = {rank};
    return calls_of(rank) == 0 ? std::string() : said_by(who, last_[zbpp::detail::index(rank)]);
  }
  /// @return whether a rank has destroyed the pipeline that another one used last
  [[nodiscard]] bool has_left_pipeline_of(int other, int rank) const noexcept {
    auto const& call = last_[zbpp::detail::index(other)];
    return call.kind == call_kind::run && contains(left_[zbpp::detail::index(rank)], call.pipeline);
  }

 private:
  struct entry {
    rank_call call;
    int first_rank;     // that made it
    std::size_t ranks;  // that have made it
  };

  [[nodiscard]] static bool contains(
      std::vector<std::int32_t> const& all, std::int32_t one) noexcept {
    return std::ranges::find(all, one) != all.end();
  }
  [[nodiscard]] static std::string said_by(std::span<int const> who, rank_call const& call) {
    return ranks_text(who) + " called " + call.name();
  }

  [[nodiscard]] std::string compare(
      entry const& before, std::uint64_t number, int rank, rank_call const& call) const {
    // Who made the call is put into words only where somebody reads them.
    if (mismatch(before.call, {}, before.first_rank, call, rank).empty()) return {};
    std::vector<int> others;
    for (int r = 0; r < static_cast<int>(made_.size()); ++r)
      if (r != rank && calls_of(r) > number) others.push_back(r);
    return mismatch(before.call, ranks_text(others), others.front(), call, rank);
  }

  std::vector<std::uint64_t> made_;              // by rank: how many calls
  std::vector<rank_call> last_;                  // by rank
  std::vector<std::vector<std::int32_t>> left_;  // by rank: pipelines that it has destroyed
  std::vector<entry> open_;                      // calls that some rank has not made
  std::uint64_t first_ = 0;                      // number of the first of them
};

}  // namespace zbpp::asio::detail
