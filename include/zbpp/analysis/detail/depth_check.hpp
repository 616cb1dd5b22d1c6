// SPDX-License-Identifier: Apache-2.0
//
// Checks that the channels of a program are stated as deep as its order needs them, or a message
// would overwrite one still in use.
#pragma once

#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Compares stated depths with needed ones.
class depth_check {
 public:
  depth_check(program const& program, traffic const& messages)
      : program_(program), messages_(messages), map_(messages.map()) {}

  /// @return the first instruction that needs more, of each channel that is stated too shallow
  [[nodiscard]] std::vector<diagnostic> run() {
    std::vector<channel> stated(messages_.channels().size());
    for (auto const& c : program_.channels())
      if (auto const id = map_.between(c.from, c.to); id != channel_map::none)
        stated[index(id)] = c;
    for (int c = 0; c < map_.size(); ++c) {
      auto const& needed = messages_.channels()[index(c)];
      if (stated[index(c)].slots < needed.slots) find_slot_too_many(c, stated[index(c)].slots);
      if (stated[index(c)].in_flight < needed.in_flight)
        find_send_too_many(c, stated[index(c)].in_flight);
    }
    return std::move(found_);
  }

 private:
  void find_slot_too_many(int c, int stated) {
    auto const rank = map_.ends(c).second;
    auto const notes = messages_.notes(rank);
    int open = 0;
    for (std::size_t i = 0; i < notes.size(); ++i) {
      if (notes[i].channel != c) continue;
      open += program_.instructions(rank)[i].is_receive() ? 1 : -1;
      if (open > stated) return add(c, rank, i, "slots");
    }
  }

  void find_send_too_many(int c, int stated) {
    auto const rank = map_.ends(c).first;
    auto const notes = messages_.notes(rank);
    int retired = 0;
    for (std::size_t i = 0; i < notes.size(); ++i) {
      if (notes[i].channel == map_.reverse(c)) retired = std::max(retired, notes[i].retired);
      if (notes[i].channel == c && notes[i].sequence + 1 - retired > stated)
        return add(c, rank, i, "messages in flight");
    }
  }

  void add(int c, int rank, std::size_t position, std::string const& text) {
    auto const& needed = messages_.channels()[index(c)];
    found_.push_back(make_diagnostic(
        program_,
        fault::channel_depth,
        rank,
        static_cast<std::int64_t>(position),
        joined("here channel ") + needed.from + "->" + needed.to + " has more " + text +
            " than the program states; it needs " + needed.slots + " slots and " +
            needed.in_flight + " messages in flight"));
  }

  program const& program_;
  traffic const& messages_;
  channel_map const& map_;
  std::vector<diagnostic> found_;
};

}  // namespace zbpp::detail
