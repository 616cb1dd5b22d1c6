// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/model/costs.hpp>

#include <support/catch.hpp>
#include <support/plan_grid.hpp>
#include <support/policy_grid.hpp>
#include <support/thinned.hpp>

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace test_cuda_transfer_order {

using namespace zbpp::test;
using zbpp::channel_map;
using zbpp::instruction_kind;
using zbpp::plan;
using zbpp::problem;
using zbpp::traffic;

namespace {

// The same question asked of a graph: everything that happens is a node, and what must come first
// an edge. A wait is needed unless the node of the copy is reached without it.
class happens_before {
 public:
  using waits = std::vector<std::vector<zbpp::cuda::transfer_waits>>;

  happens_before(zbpp::program const& code, traffic const& messages, waits const& kept) {
    for (int rank = 0; rank < code.ranks(); ++rank) {
      for (std::size_t at = 0; at < code.instructions(rank).size(); ++at) {
        auto const& i = code.instructions(rank)[at];
        auto const& note = messages.notes(rank)[at];
        if (note.channel != channel_map::none && i.is_send())
          sent_at[{note.channel, note.sequence}] = work_of(rank);
        if (note.channel != channel_map::none && i.is_receive())
          opened_at[{note.channel, note.sequence}] = work_of(rank);
        if (note.channel != channel_map::none && i.is_pass()) {
          auto const m = std::pair(note.channel, note.sequence);
          taken[note.channel].push_back(m);
          before[next(rank)].push_back(copy_of(m));
        }
        if (i.is_pass() || i.kind == instruction_kind::optimizer_step) {
          auto const mine = next(rank);
          if (done_[rank] > 0) before[mine].push_back(work_of(rank));
          ++done_[rank];
        }
      }
    }
    for (auto const& [channel, order] : taken)
      for (std::size_t k = 0; k < order.size(); ++k) {
        auto const copy = copy_of(order[k]);
        if (k > 0) before[copy].push_back(copy_of(order[k - 1]));
        auto const& w =
            kept[static_cast<std::size_t>(channel)][static_cast<std::size_t>(order[k].second)];
        if (w.for_sender) before[copy].push_back(sent_at[order[k]]);
        if (w.for_slot) before[copy].push_back(opened_at[order[k]]);
      }
  }

  using message = std::pair<int, std::int32_t>;
  // A rank's work by number; a copy by channel and number, below zero.
  using node = std::pair<int, std::int32_t>;
  static node copy_of(message const& m) { return {-1 - m.first, m.second}; }

  // Whether one node comes after another, or after nothing.
  bool is_after(node const& late, node const& early) const {
    if (early.second < 0) return true;
    std::set<node> seen{late};
    std::vector<node> open{late};
    while (!open.empty()) {
      auto const n = open.back();
      open.pop_back();
      if (n == early) return true;
      if (auto const found = before.find(n); found != before.end())
        for (auto const& b : found->second)
          if (seen.insert(b).second) open.push_back(b);
    }
    return false;
  }

  std::map<message, node> sent_at;
  std::map<message, node> opened_at;
  std::map<int, std::vector<message>> taken;

 private:
  node next(int rank) { return {rank, done_[rank]}; }
  node work_of(int rank) { return {rank, done_[rank] - 1}; }

  std::map<node, std::vector<node>> before;
  std::map<int, std::int32_t> done_;
};

}  // namespace

TEST_CASE("copies wait for all they need, and for nothing that is known", "[transfer_order]") {
  std::size_t left_out = 0;
  for (int p : thinned<std::vector<int>>({2, 3, 4}, {2, 3}))
    for (int ahead : {0, 2})
      for (auto const& where : placements_to_run(p))
        for_each_plan_of(
            problem(where, 2 * p + 1, uneven_costs(), 87),
            {.receive_ahead = ahead},
            [&](std::string const& name, plan const& planned) {
              INFO(name << ", receives " << ahead << " ahead");
              traffic const messages(planned.program());
              auto const waits = zbpp::cuda::transfer_waits_of(planned.program(), messages);
              happens_before const order(planned.program(), messages, waits);
              bool has_all = true;
              bool has_no_more = true;
              for (auto const& [channel, taken] : order.taken)
                for (auto const& m : taken) {
                  auto const copy = happens_before::copy_of(m);
                  has_all = has_all && order.is_after(copy, order.sent_at.at(m)) &&
                            order.is_after(copy, order.opened_at.at(m));
                  for (bool of_sender : {true, false}) {
                    auto fewer = waits;
                    auto& w = fewer[static_cast<std::size_t>(channel)]
                                   [static_cast<std::size_t>(m.second)];
                    auto& one = of_sender ? w.for_sender : w.for_slot;
                    if (!one) {
                      ++left_out;
                      continue;
                    }
                    one = false;
                    happens_before const without(planned.program(), messages, fewer);
                    has_no_more = has_no_more &&
                                  !without.is_after(
                                      copy, (of_sender ? order.sent_at : order.opened_at).at(m));
                  }
                }
              CHECK(has_all);
              CHECK(has_no_more);
            });
  CHECK(left_out > 0);
}

}  // namespace test_cuda_transfer_order
