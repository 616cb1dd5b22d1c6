// SPDX-License-Identifier: Apache-2.0
//
// How the members of a tensor group agree on an optimizer step.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/detail/member_agreement.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace zbpp::detail {

ZBPP_INLINE void member_agreement::join(group& members, std::size_t layers) {
  if (members.size() == 1) return;
  members_ = &members;
  // As every call waits for all members, none is more than one call ahead of another.
  constexpr std::size_t head = 64;  // at least what a group puts in front
  members.link()->reserve(2, head + std::max(sizeof(statement), layers * sizeof(layer_gradients)));
}

ZBPP_INLINE after_step member_agreement::agree(step_terms const& own, after_step request) {
  statement const stated{own, static_cast<std::int64_t>(request)};
  members_->compare(std::as_bytes(std::span(&stated, 1)), all_);
  auto most = stated.request;
  for (std::size_t member = 0; member < all_.size(); ++member) {
    statement other;
    require(
        all_[member].size() == sizeof other,
        "a member of a tensor group tells of its step in another size; build all with the same "
        "zbpp");
    std::memcpy(&other, all_[member].data(), sizeof other);
    most = std::max(most, other.request);
    if (own == other.terms) continue;
    auto const place = static_cast<std::size_t>(members_->place());
    auto const name_of = [&](std::size_t of) { return members_->name_of(static_cast<int>(of)); };
    bool const is_first = place < member;
    throw error(errc::no_agreement) +
        difference(
            is_first ? own : other.terms,
            name_of(std::min(place, member)),
            is_first ? other.terms : own,
            name_of(std::max(place, member))) +
        "; give all ranks the same";
  }
  return static_cast<after_step>(most);
}

ZBPP_INLINE void member_agreement::combine(std::span<layer_gradients> own) {
  if (is_alone()) return;
  members_->compare(std::as_bytes(std::span<layer_gradients const>(own)), all_);
  auto const read = [&](std::size_t member, std::vector<layer_gradients>& to) {
    to.resize(all_[member].size() / sizeof(layer_gradients));
    if (!to.empty()) std::memcpy(to.data(), all_[member].data(), to.size() * sizeof to.front());
  };
  read(0, first_);
  for (std::size_t member = 1; member < all_.size(); ++member) {
    read(member, other_);
    check(static_cast<int>(member));
    for (std::size_t i = 0; i < first_.size(); ++i) {
      auto& sum = first_[i];
      auto const& more = other_[i];
      sum.is_finite &= more.is_finite;
      if (sum.is_replicated == 0) sum.sum_of_squares += more.sum_of_squares;
    }
  }
  std::ranges::copy(first_, own.begin());
}

ZBPP_INLINE void member_agreement::check(int member) const {
  auto const refuse = [](std::string const& text) {
    throw error(errc::no_agreement) + "of a tensor group, " + text;
  };
  auto const name_of = [](layer_gradients const& of) -> std::string {
    return joined("layer ", of.layer, " of stage ", of.stage);
  };
  auto const number = [&] { return std::to_string(member); };
  if (first_.size() != other_.size())
    refuse(
        joined("member 0 has ") + first_.size() + " layers on a rank and member " + member +
        " has " + other_.size() + "; give all members the same layers");
  for (std::size_t i = 0; i < first_.size(); ++i) {
    auto const& a = first_[i];
    auto const& b = other_[i];
    if (a.stage != b.stage || a.layer != b.layer)
      refuse(
          "member 0 has " + name_of(a) + " where member " + number() + " has " + name_of(b) +
          "; give all members the same layers");
    if (a.is_replicated != b.is_replicated)
      refuse(
          name_of(a) + " is replicated on member " + (a.is_replicated != 0 ? "0" : number()) +
          " and not on member " + (a.is_replicated != 0 ? number() : "0") +
          "; say the same of it on all members");
    // What is not finite skips the step; what is has to be the same.
    if (a.is_replicated != 0 && a.is_finite != 0 && b.is_finite != 0 &&
        a.sum_of_squares != b.sum_of_squares)
      refuse(
          name_of(a) + " is replicated, and its gradients on member 0 and on member " + number() +
          " differ; compute them from the same values on all members, or add them up by "
          "all_reduce");
  }
}

}  // namespace zbpp::detail
