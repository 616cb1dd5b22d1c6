// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/model/costs.hpp>

#include <support/catch.hpp>
#include <support/plan_grid.hpp>
#include <support/policy_grid.hpp>
#include <support/random_pairs.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
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
using zbpp::cuda::slot_filling;

namespace {

// The same question asked of a graph: everything that happens is a node, and what must come first
// an edge. A wait is needed unless the node of the copy is reached without it.
class happens_before {
 public:
  using waits = std::vector<std::vector<zbpp::cuda::transfer_waits>>;
  using fillings = std::vector<slot_filling>;

  happens_before(
      zbpp::program const& code,
      traffic const& messages,
      fillings const& filling,
      waits const& kept) {
    for (int rank = 0; rank < code.ranks(); ++rank) {
      for (std::size_t at = 0; at < code.instructions(rank).size(); ++at) {
        auto const& i = code.instructions(rank)[at];
        auto const& note = messages.notes(rank)[at];
        if (note.channel != channel_map::none && i.is_send())
          sent_at[{note.channel, note.sequence}] = work_of(rank);
        if (note.channel != channel_map::none && i.is_receive())
          opened_at[{note.channel, note.sequence}] = work_of(rank);
        // A pair begins when the messages of both passes are there.
        auto const row = code.instructions(rank);
        std::size_t const together = zbpp::detail::next_is_paired(row, at) ? 2 : 1;
        for (std::size_t k = at; i.is_pass() && !i.is_paired && k < at + together; ++k) {
          auto const& each = messages.notes(rank)[k];
          if (each.channel == channel_map::none) continue;
          auto const m = std::pair(each.channel, each.sequence);
          taken[each.channel].push_back(m);
          before[next(rank)].push_back(copy_of(m));
          ordered[m] = is_handed_over(filling, each.channel) ? next(rank) : copy_of(m);
          // What is handed over waits on the receiver's stream.
          if (is_handed_over(filling, each.channel)) before[copy_of(m)].push_back(work_of(rank));
        }
        if (i.is_pass() || i.kind == instruction_kind::optimizer_step) {
          auto const transfer = next(rank);
          if (done_[rank] > 0) before[transfer].push_back(work_of(rank));
          ++done_[rank];
        }
      }
    }
    for (auto const& [channel, order] : taken)
      for (std::size_t k = 0; k < order.size(); ++k) {
        auto const copy = copy_of(order[k]);
        if (k > 0 && !is_handed_over(filling, channel))
          before[copy].push_back(copy_of(order[k - 1]));
        auto const& w =
            kept[static_cast<std::size_t>(channel)][static_cast<std::size_t>(order[k].second)];
        if (w.for_sender) before[copy].push_back(sent_at[order[k]]);
        if (w.for_slot) before[copy].push_back(opened_at[order[k]]);
      }
  }

  using message = std::pair<int, std::int32_t>;
  // A rank's work by number; a copy by channel and number, below zero.
  using node = std::pair<int, std::int32_t>;
  static bool is_handed_over(fillings const& filling, int channel) {
    return filling[static_cast<std::size_t>(channel)] == slot_filling::handed_over;
  }
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
  std::map<message, node> ordered;  // what has to wait: the copy, or the passes that get the memory
  std::map<int, std::vector<message>> taken;

 private:
  node next(int rank) { return {rank, done_[rank]}; }
  node work_of(int rank) { return {rank, done_[rank] - 1}; }

  std::map<node, std::vector<node>> before;
  std::map<int, std::int32_t> done_;
};

}  // namespace

TEST_CASE(
    "messages wait for all they need, and for nothing that is known", "[transfer_order][long]") {
  std::size_t left_out = 0;
  std::size_t n = 0;
  auto const check = [&](plan const& planned, std::vector<int> const& devices) {
    traffic const messages(planned.program());
    auto const filling = zbpp::cuda::fillings_of(messages, devices);
    auto const waits = zbpp::cuda::transfer_waits_of(planned.program(), messages, filling);
    happens_before const order(planned.program(), messages, filling, waits);
    bool has_all = true;
    bool has_no_more = true;
    for (auto const& [channel, taken] : order.taken)
      for (auto const& m : taken) {
        auto const late = order.ordered.at(m);
        bool const has_slot = !happens_before::is_handed_over(filling, channel);
        has_all = has_all && order.is_after(late, order.sent_at.at(m)) &&
                  (!has_slot || order.is_after(late, order.opened_at.at(m)));
        for (bool of_sender : {true, false}) {
          auto fewer = waits;
          auto& w = fewer[static_cast<std::size_t>(channel)][static_cast<std::size_t>(m.second)];
          auto& one = of_sender ? w.for_sender : w.for_slot;
          if (!one) {
            left_out += has_slot ? 1U : 0U;
            continue;
          }
          one = false;
          happens_before const without(planned.program(), messages, filling, fewer);
          has_no_more =
              has_no_more && (of_sender || has_slot) &&
              !without.is_after(late, (of_sender ? order.sent_at : order.opened_at).at(m));
        }
      }
    CHECK(has_all);
    CHECK(has_no_more);
  };
  for (int p : thinned<std::vector<int>>({2, 3, 4}, {2, 3}))
    for (int ahead : {0, 2})
      for (auto const& placement : placements_to_run(p))
        for_each_plan_of(
            problem(placement, thinned(2 * p + 1, p + 1), uneven_costs(), 87),
            {.receive_ahead = ahead},
            [&](std::string const& name, plan const& planned) {
              INFO(name << ", receives " << ahead << " ahead");
              std::vector<int> each;
              std::vector<int> pairs;
              for (int rank = 0; rank < p; ++rank) {
                each.push_back(rank);
                pairs.push_back(rank / 2);
              }
              ZBPP_SEEDED(random, p);
              auto const order = pair_at_random(planned.schedule(), planned.problem(), random, 0.8);
              auto const with_pairs =
                  make_plan("pairs", order, planned.problem(), {.receive_ahead = ahead});
              std::vector<int> const all_on_one(each.size(), 0);
              for (auto const& devices : {each, pairs, all_on_one}) check(planned, devices);
              check(with_pairs, std::array{each, pairs, all_on_one}.at(++n % 3));
            });
  CHECK(left_out > 0);
}

// Those that are filled in the order of their numbers.
TEST_CASE("of the messages of a channel only the latest is waited for", "[transfer_order]") {
  std::size_t pairs_of_one_channel = 0;
  std::size_t sent_together = 0;
  auto const check = [&](zbpp::program const& code) {
    traffic const messages(code);
    std::vector const filling(messages.channels().size(), slot_filling::by_receives);
    auto const waits = zbpp::cuda::transfer_waits_of(code, messages, filling);
    bool is_right = true;
    for (int rank = 0; rank < code.ranks(); ++rank) {
      auto const row = code.instructions(rank);
      std::map<int, std::int32_t> latest;  // that was consumed, by channel
      std::map<int, bool> has_sent;        // since the last pass, by channel
      for (std::size_t at = 0; at < row.size(); ++at) {
        auto const& note = messages.notes(rank)[at];
        if (row[at].is_send() && note.channel != channel_map::none) {
          auto const& w =
              waits.at(zbpp::detail::index(note.channel)).at(zbpp::detail::index(note.sequence));
          if (std::exchange(has_sent[note.channel], true)) {
            is_right = is_right && !w.for_sender;
            ++sent_together;
          }
        }
        if (!row[at].is_pass()) continue;
        has_sent.clear();
        if (row[at].is_paired) continue;
        std::size_t const together = zbpp::detail::next_is_paired(row, at) ? 2 : 1;
        auto const taken = messages.notes(rank).subspan(at, together);
        auto const before = latest;
        for (auto const& each : taken)
          if (each.channel != channel_map::none)
            latest[each.channel] =
                std::max(each.sequence, latest.emplace(each.channel, -1).first->second);
        for (auto const& each : taken) {
          if (each.channel == channel_map::none) continue;
          auto const known = before.find(each.channel);
          bool const is_latest = each.sequence == latest.at(each.channel) &&
                                 (known == before.end() || each.sequence > known->second);
          is_right = is_right && waits.at(zbpp::detail::index(each.channel))
                                         .at(zbpp::detail::index(each.sequence))
                                         .by_receiver == is_latest;
        }
        if (together == 2 && taken[0].channel == taken[1].channel &&
            taken[0].channel != channel_map::none)
          ++pairs_of_one_channel;
      }
    }
    CHECK(is_right);
  };
  for (int p : {2, 3})
    for (auto const& placement : placements_to_run(p))
      for_each_plan_of(
          problem(placement, 2 * p + 1, uneven_costs(), 87),
          {},
          [&](std::string const& name, plan const& plain) {
            INFO(name);
            ZBPP_SEEDED(random, p);
            auto const code =
                zbpp::lower(pair_at_random(plain.schedule(), plain.problem(), random, 0.8));
            check(plain.program());
            check(code);
          });
  CHECK(pairs_of_one_channel > 0);
  CHECK(sent_together > 0);
}

TEST_CASE("a message that a later one implies is handed over without a wait", "[transfer_order]") {
  using enum zbpp::pass_kind;
  zbpp::rows<zbpp::pass> order;
  for (int s : {0, 1}) {
    for (int i : {0, 1}) order.push({forward, s, s == 0 ? i : 1 - i});  // the later one first
    for (int i : {0, 1}) order.push({backward, s, i});
    order.end_row();
  }
  problem const problem(zbpp::placement::linear(2), 2, uneven_costs());
  auto const code = zbpp::lower(zbpp::schedule(problem.placement(), 2, order));
  traffic const messages(code);
  std::vector const filling(2, slot_filling::handed_over);
  auto const waits = zbpp::cuda::transfer_waits_of(code, messages, filling);
  CHECK_FALSE(waits[0][0].for_sender);
  CHECK(waits[0][1].for_sender);
  CHECK(waits[1][0].for_sender);
  CHECK(waits[1][1].for_sender);
}

}  // namespace test_cuda_transfer_order
