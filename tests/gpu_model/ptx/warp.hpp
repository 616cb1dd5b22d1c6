// SPDX-License-Identifier: Apache-2.0
//
// Shuffles and votes: the lanes of a warp that the mask names have to come to the same instruction,
// with the same mask, before any of them goes on.
#pragma once

#include <gpu_model/ptx/lane.hpp>
#include <gpu_model/ptx/program.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::test::ptx {

/// Is 32 lanes of a block, or fewer at its end.
class warp {
 public:
  static constexpr std::size_t size = 32;

  explicit warp(std::span<lane> lanes) : lanes_(lanes) {}

  /// Does one exchange for which all lanes are there.
  /// @return whether there was one
  /// @throws fault
  [[nodiscard]] bool exchange() const {
    for (auto const& each : lanes_) {
      if (!waits(each)) continue;
      auto const mask = mask_of(each);
      if (!are_there(each, mask)) continue;
      if (each.next().act < action::vote_any)
        shuffle(each.next(), mask);
      else
        vote(each.next(), mask);
      return true;
    }
    return false;
  }

 private:
  [[nodiscard]] static bool waits(lane const& of) {
    return !of.has_ended() && of.next().act >= action::shuffle_up;
  }
  [[nodiscard]] static std::uint32_t mask_of(lane const& of) {
    return static_cast<std::uint32_t>(of.value(of.next().from.back()));
  }
  [[noreturn]] static void refuse(instruction const& at, std::string const& why) {
    throw fault("line " + std::to_string(at.line) + ": " + why);
  }
  [[nodiscard]] static bool is_in(std::uint32_t mask, std::size_t place) {
    return ((mask >> place) & 1) != 0;
  }

  // Whether all lanes of the mask wait where one of them does.
  [[nodiscard]] bool are_there(lane const& first, std::uint32_t mask) const {
    if (!is_in(mask, static_cast<std::size_t>(first.number()) % size))
      refuse(first.next(), "lanes exchange values by a mask that leaves them out");
    for (std::size_t l = 0; l < size; ++l) {
      if (!is_in(mask, l)) continue;
      if (l >= lanes_.size() || lanes_[l].has_ended())
        refuse(first.next(), "the mask of an exchange names lanes that are not there");
      if (!waits(lanes_[l]) || &lanes_[l].next() != &first.next()) return false;
      if (mask_of(lanes_[l]) != mask)
        refuse(first.next(), "lanes of one exchange have different masks");
    }
    return true;
  }
  template <class Do>
  void for_each(std::uint32_t mask, Do act) const {
    for (std::size_t l = 0; l < size; ++l)
      if (is_in(mask, l)) act(lanes_[l], l);
  }

  // As the page of shfl.sync in NVIDIA's "PTX ISA" has it: lanes are cut in segments by the upper
  // half of the third operand, within which its lower half is the last lane to read from, or the
  // first for `up`; who would read from beyond reads its own value.
  void shuffle(instruction const& i, std::uint32_t mask) const {
    std::vector<std::pair<std::uint64_t, bool>> read(size);
    for_each(mask, [&](lane const& to, std::size_t l) {
      auto const by = to.value(i.from[1]) % size;
      auto const limits = to.value(i.from[2]);
      auto const segment = (limits >> 8U) % size;
      auto const first = l & segment;
      auto const last = first | (limits & ~segment & (size - 1));
      auto place = l;
      if (i.act == action::shuffle_up) place = l - by;
      if (i.act == action::shuffle_down) place = l + by;
      if (i.act == action::shuffle_xor) place = l ^ by;
      if (i.act == action::shuffle_index) place = first | (by & ~segment);
      bool const is_there = i.act == action::shuffle_up ? by <= l && place >= last : place <= last;
      if (!is_there) place = l;
      if (!is_in(mask, place)) refuse(i, "a shuffle reads from a lane that its mask leaves out");
      read[l] = {lanes_[place].value(i.from[0]), is_there};
    });
    for_each(mask, [&](lane& to, std::size_t l) {
      to.set(i.to[0], read[l].first);
      if (i.to.size() > 1) to.set(i.to[1], read[l].second ? 1 : 0);
      to.go_on();
    });
  }
  void vote(instruction const& i, std::uint32_t mask) const {
    std::uint32_t ballot = 0;
    for_each(mask, [&](lane const& of, std::size_t l) {
      if ((of.value(i.from[0]) & 1) != 0) ballot |= std::uint32_t{1} << l;
    });
    std::uint64_t result = ballot;
    if (i.act == action::vote_any) result = ballot != 0 ? 1 : 0;
    if (i.act == action::vote_all) result = ballot == mask ? 1 : 0;
    for_each(mask, [&](lane& to, std::size_t) {
      to.set(i.to[0], result);
      to.go_on();
    });
  }

  std::span<lane> lanes_;
};

}  // namespace zbpp::test::ptx
