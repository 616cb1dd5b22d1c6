// SPDX-License-Identifier: Apache-2.0
//
// Every way to spoil a small program by one change: nothing is sampled.
#pragma once

#include <zbpp/model/program.hpp>

#include <support/independent_check.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Says which change was made.
enum class change { dropped, repeated, other_kind, other_stage, other_microbatch, swapped, moved };

[[nodiscard]] inline std::string to_string(change kind) {
  switch (kind) {
    case change::dropped: return "dropped";
    case change::repeated: return "repeated";
    case change::other_kind: return "other kind";
    case change::other_stage: return "other stage";
    case change::other_microbatch: return "other microbatch";
    case change::swapped: return "swapped";
    case change::moved: return "moved";
  }
  return "?";
}

/// Holds one spoilt program.
struct mutant {
  change kind;
  std::string text;
  nested_rows rows;
  bool crosses_dependence = false;  ///< swapped or moved over something that it depends on
  bool changes_optional = false;    ///< what was changed need not be so: an R, an only step, when
                                    ///< a stage steps
};

/// Tells which instructions of a correct program depend on which, also by way of other ranks: what
/// an instruction needs on its own rank, what a pass needs from another rank, and the order of the
/// messages at each end of a channel.
class dependence {
 public:
  explicit dependence(independent_check const& program) {
    auto const& rows = program.all();
    std::map<instruction, std::size_t> node;
    for (auto const& row : rows) {
      first_.push_back(node.size());
      for (auto const& i : row) node.emplace(i, node.size());
    }
    reaches_.assign(node.size(), std::vector<bool>(node.size(), false));
    auto const add = [&](instruction const& from, instruction const& to) {
      if (node.count(from) != 0 && from != to) reaches_[node.at(from)][node.at(to)] = true;
    };
    for (auto const& row : rows) {
      std::map<rank_pair, instruction> previous;
      for (auto const& i : row) {
        for (auto const& needed : program.needs_of(i)) add(needed, i);
        add(program.input_of(i), i);
        if (!program.is_send(i) && !program.is_receive(i)) continue;
        auto const channel = program.channel_of(i);
        if (previous.count(channel) != 0) add(previous.at(channel), i);
        previous[channel] = i;
      }
    }
    for (std::size_t k = 0; k < reaches_.size(); ++k)
      for (auto& from : reaches_)
        if (from[k])
          for (std::size_t to = 0; to < from.size(); ++to) from[to] = from[to] || reaches_[k][to];
  }

  /// Whether the instruction at `later` depends on the one at `earlier` of the same rank.
  [[nodiscard]] bool operator()(std::size_t rank, std::size_t earlier, std::size_t later) const {
    return reaches_[first_[rank] + earlier][first_[rank] + later];
  }

 private:
  std::vector<std::size_t> first_;
  std::vector<std::vector<bool>> reaches_;
};

/// Calls `visit(mutant)` for every single change of a correct program: each instruction dropped,
/// repeated at every place of its rank, given every other kind, every other stage and microbatch
/// from -1 to one too many, swapped with every other of its rank, and moved to every other place
/// there. Neighbours are swapped, not moved, so that no program comes twice.
template <class Visit>
void for_each_mutant(
    placement const& placement, int microbatches, nested_rows const& rows, Visit visit) {
  dependence const depends(independent_check(placement, microbatches, rows));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    auto const n = rows[r].size();
    bool optional = false;
    auto const edit = [&](change kind, std::string const& text, bool crosses, auto act) {
      mutant spoilt{kind, "rank " + std::to_string(r) + ": " + text, rows, crosses, optional};
      act(spoilt.rows[r]);
      visit(spoilt);
    };
    auto const offset = [](std::size_t i) { return static_cast<std::ptrdiff_t>(i); };
    for (std::size_t i = 0; i < n; ++i) {
      auto const& own = rows[r][i];
      auto const name = to_string(own);
      optional = own.kind == instruction_kind::recompute ||
                 (own.kind == instruction_kind::optimizer_step && placement.stages() == 1);
      edit(change::dropped, name, false, [&](auto& row) { row.erase(row.begin() + offset(i)); });
      for (std::size_t to = 0; to <= n; ++to)
        if (to != i)  // in front of itself is the same as behind itself
          edit(change::repeated, name + " at " + std::to_string(to), false, [&](auto& row) {
            row.insert(row.begin() + offset(to), own);
          });
      auto const replace = [&](change change_made, instruction const& by) {
        if (by != own)
          edit(change_made, name + " by " + to_string(by), false, [&](auto& row) { row[i] = by; });
      };
      for (int k = 0; k <= instruction_kinds; ++k) {
        instruction const by{static_cast<instruction_kind>(k), own.stage, own.microbatch};
        auto const was_optional =
            std::exchange(optional, optional || (own.is_step() && by.is_step()));
        replace(change::other_kind, by);
        optional = was_optional;
      }
      for (int s = -1; s <= placement.stages(); ++s)
        replace(change::other_stage, {own.kind, s, own.microbatch});
      for (int m = -1; m <= microbatches; ++m)
        replace(change::other_microbatch, {own.kind, own.stage, m});
      for (std::size_t j = i + 1; j < n; ++j) {
        bool crosses = false;
        for (std::size_t k = i; k <= j; ++k)
          crosses = crosses || depends(r, i, k) || depends(r, k, j);
        edit(change::swapped, name + " and " + to_string(rows[r][j]), crosses, [&](auto& row) {
          std::swap(row[i], row[j]);
        });
      }
      for (std::size_t to = 0; to < n; ++to) {
        if (to + 1 >= i && to <= i + 1) continue;
        bool crosses = false;
        for (std::size_t k = to; k < i; ++k) crosses = crosses || depends(r, k, i);
        for (std::size_t k = i + 1; k <= to; ++k) crosses = crosses || depends(r, i, k);
        edit(change::moved, name + " to " + std::to_string(to), crosses, [&](auto& row) {
          if (to < i)
            std::rotate(
                row.begin() + offset(to), row.begin() + offset(i), row.begin() + offset(i) + 1);
          else
            std::rotate(
                row.begin() + offset(i), row.begin() + offset(i) + 1, row.begin() + offset(to) + 1);
        });
      }
    }
  }
}

}  // namespace zbpp::test
