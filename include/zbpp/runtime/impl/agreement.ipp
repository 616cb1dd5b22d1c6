// SPDX-License-Identifier: Apache-2.0
//
// Makes the digests of a plan, compares two lists of them, and those of a group.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/checksum.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/agreement.hpp>
#include <zbpp/runtime/group.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace zbpp {

ZBPP_INLINE agreement_item make_item(std::string name, std::string value) {
  auto const digest = checksum_of(std::string_view(value));
  return {std::move(name), digest, std::move(value)};
}

namespace detail {

/// Sums up the numbers that a thing is made of.
class item_content {
 public:
  template <class Number>
  item_content& put(Number value) noexcept {
    sum_.add(std::as_bytes(std::span(&value, 1)));
    return *this;
  }
  [[nodiscard]] std::uint64_t digest() const noexcept { return sum_.value(); }

 private:
  checksum sum_;
};

[[nodiscard]] ZBPP_INLINE agreement_item
make_item(std::string name, item_content const& content, std::string value = {}) {
  return {std::move(name), content.digest(), std::move(value)};
}

/// Writes how many numbers there are, then each of them; -0.0, which equals 0.0, as that.
template <class Number>
void put_all(item_content& to, std::span<Number const> values) {
  to.put(static_cast<std::uint64_t>(values.size()));
  for (auto value : values) to.put(value + Number{0});
}

[[nodiscard]] ZBPP_INLINE agreement_item placement_item(placement const& placement) {
  item_content content;
  put_all(content, placement.rank_of_stages());
  return make_item(
      "placement", content, joined(placement.name(), " of ", placement.stages(), " stages"));
}

[[nodiscard]] ZBPP_INLINE agreement_item costs_item(int stage, stage_costs const& costs) {
  item_content content;
  for (auto const& field : cost_fields) {
    auto const value = field.of(costs);
    if (field.optional != nullptr) content.put(static_cast<std::uint8_t>(value.has_value()));
    content.put(value.value_or(0));
  }
  return make_item(joined("costs of stage ", stage), content);
}

[[nodiscard]] ZBPP_INLINE agreement_item transfer_item(transfer_costs const& transfer) {
  item_content content;
  content.put(static_cast<std::int32_t>(transfer.ranks()));
  put_all(content, transfer.latency());
  put_all(content, transfer.time_per_byte());
  return make_item(
      "transfers",
      content,
      transfer.ranks() == 0 ? std::to_string(transfer.latency().front()) + " ns" : "");
}

[[nodiscard]] ZBPP_INLINE agreement_item replicas_item(replica_costs const& replicas) {
  auto const& [count, latency, time_per_byte, shards] = replicas;
  item_content content;
  content.put(static_cast<std::int32_t>(count)).put(latency).put(time_per_byte);
  content.put(static_cast<std::uint8_t>(shards));
  return make_item("replicas", content, std::to_string(count));
}

[[nodiscard]] ZBPP_INLINE agreement_item factors_item(std::span<double const> factors) {
  item_content content;
  put_all(content, factors);
  return make_item("factors of microbatches", content);
}

[[nodiscard]] ZBPP_INLINE agreement_item limits_item(std::span<bytes const> limits) {
  item_content content;
  put_all(content, limits);
  std::string value;
  if (limits.empty()) value = "none";
  if (limits.size() == 1) value = joined(limits.front(), " bytes");
  return make_item("memory limits", content, std::move(value));
}

/// Writes what a pass or instruction is, and whether it is paired.
template <class Kind>
item_content& put_kind(item_content& to, Kind kind, bool is_paired) {
  return to.put(static_cast<std::uint8_t>(static_cast<int>(kind) + (is_paired ? 128 : 0)));
}

[[nodiscard]] ZBPP_INLINE agreement_item passes_item(int rank, std::span<pass const> passes) {
  item_content content;
  for (auto const& p : passes)
    put_kind(content, p.kind, p.is_paired).put(p.stage).put(p.microbatch);
  return make_item(joined("passes of rank ", rank), content);
}

[[nodiscard]] ZBPP_INLINE agreement_item program_item(program const& program) {
  item_content content;
  put_all(content, program.placement().rank_of_stages());
  content.put(static_cast<std::int32_t>(program.microbatches()));
  for (int rank = 0; rank < program.ranks(); ++rank) {
    auto const row = program.instructions(rank);
    content.put(static_cast<std::uint64_t>(row.size()));
    for (auto const& i : row) put_kind(content, i.kind, i.is_paired).put(i.stage).put(i.microbatch);
  }
  for (auto const& c : program.channels())
    for (int number : {c.from, c.to, c.slots, c.in_flight})
      content.put(static_cast<std::int32_t>(number));
  return make_item("program", content);
}

/// @return where two texts differ first, as far as both go
[[nodiscard]] ZBPP_INLINE std::size_t common_length(std::string_view a, std::string_view b) {
  std::size_t at = 0;
  while (at < std::min(a.size(), b.size()) && a[at] == b[at]) ++at;
  return at;
}

/// Makes text of somebody else fit for an error: without what is no plain character, and of a long
/// one only what stands around a place.
[[nodiscard]] ZBPP_INLINE std::string plain(std::string_view text, std::size_t around = 0) {
  constexpr std::size_t most = 64;
  auto const begin = around < most ? 0 : std::min(around - most / 2, text.size());
  std::string result(text.substr(begin, most));
  for (char& c : result)
    if (c < ' ' || c > '~') c = '?';
  if (begin > 0) result.insert(0, "... ");
  if (text.size() > begin + most) result += "...";
  return result.empty() ? "nothing" : result;
}

}  // namespace detail

ZBPP_INLINE std::vector<agreement_item> fingerprint(
    std::string_view policy,
    problem const& problem,
    schedule const& schedule,
    program const& program) {
  std::vector<agreement_item> items;
  items.push_back(make_item("version of zbpp", std::to_string(ZBPP_VERSION)));
  items.push_back(make_item("number of ranks", std::to_string(problem.ranks())));
  items.push_back(make_item("number of microbatches", std::to_string(problem.microbatches())));
  if (auto const factors = problem.microbatch_factors(); !factors.empty())
    items.push_back(detail::factors_item(factors));
  items.push_back(detail::placement_item(problem.placement()));
  for (int s = 0; s < problem.stages(); ++s)
    items.push_back(detail::costs_item(s, problem.costs(s)));
  items.push_back(detail::transfer_item(problem.transfer()));
  if (problem.replicas() != replica_costs())
    items.push_back(detail::replicas_item(problem.replicas()));
  items.push_back(detail::limits_item(problem.memory_limits()));
  items.push_back(make_item("policy", std::string(policy)));
  for (int rank = 0; rank < schedule.ranks(); ++rank)
    items.push_back(detail::passes_item(rank, schedule.passes(rank)));
  items.push_back(detail::program_item(program));
  return items;
}

ZBPP_INLINE std::vector<agreement_item> fingerprint(plan const& planned) {
  return fingerprint(planned.policy(), planned.problem(), planned.schedule(), planned.program());
}

ZBPP_INLINE bool is_of_costs(agreement_item const& item) {
  auto const& name = item.name;
  return name.starts_with("costs of stage ") || name == "transfers" || name == "memory limits" ||
         name == "factors of microbatches" || name == "policy";
}

ZBPP_INLINE std::string differences(
    std::span<agreement_item const> own,
    std::span<agreement_item const> others,
    std::string_view here,
    std::string_view there,
    std::size_t most) {
  auto const by_name = [](std::span<agreement_item const> items) {
    std::vector<agreement_item const*> sorted;
    for (auto const& item : items) sorted.push_back(&item);
    std::ranges::stable_sort(sorted, {}, [](auto const* i) { return std::string_view(i->name); });
    return sorted;
  };
  auto const own_sorted = by_name(own);
  auto const others_sorted = by_name(others);
  // Each with its place in its list, so that they are named in that order: first its own, then
  // those that only the other side has.
  std::vector<std::tuple<bool, std::ptrdiff_t, std::string>> found;
  auto const only = [](agreement_item const& item, std::string_view side) {
    return detail::plain(item.name).append(" (only ").append(side).append(")");
  };
  auto a = own_sorted.begin();
  auto b = others_sorted.begin();
  while (a != own_sorted.end() || b != others_sorted.end()) {
    if (b == others_sorted.end() || (a != own_sorted.end() && (*a)->name < (*b)->name)) {
      found.emplace_back(false, *a - own.data(), only(**a, here));
      ++a;
    } else if (a == own_sorted.end() || (*b)->name < (*a)->name) {
      found.emplace_back(true, *b - others.data(), only(**b, there));
      ++b;
    } else {
      if (**a != **b) {
        auto text = detail::plain((*a)->name);
        auto const at = detail::common_length((*a)->value, (*b)->value);
        if ((*a)->value != (*b)->value)
          text += detail::joined(" (") + detail::plain((*a)->value, at) + " " + here + ", " +
                  detail::plain((*b)->value, at) + " " + there + ")";
        found.emplace_back(false, *a - own.data(), std::move(text));
      }
      ++a;
      ++b;
    }
  }
  std::ranges::sort(found);
  std::string text;
  for (std::size_t i = 0; i < std::min(found.size(), most); ++i)
    text.append(i == 0 ? "" : ", ").append(std::get<std::string>(found[i]));
  if (found.size() > most) text += detail::joined(" and ", found.size() - most, " more");
  return text;
}

namespace detail {

/// Takes the text in front of a separator off a text.
[[nodiscard]] ZBPP_INLINE std::string_view take_text(std::string_view& text, char separator) {
  auto const found = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(text.size(), found.size() + 1));
  return found;
}

[[nodiscard]] ZBPP_INLINE std::string lines_of(std::span<agreement_item const> items) {
  std::string text;
  for (auto const& each : items)
    text.append(each.name + '\t' + hex_text(each.digest) + '\t' + each.value + '\n');
  return text;
}

[[nodiscard]] ZBPP_INLINE std::vector<agreement_item> items_of(std::span<std::byte const> lines) {
  std::string_view text(reinterpret_cast<char const*>(lines.data()), lines.size());
  std::vector<agreement_item> items;
  while (!text.empty()) {
    auto line = take_text(text, '\n');
    auto& item = items.emplace_back();
    item.name = take_text(line, '\t');
    auto const digest = take_text(line, '\t');
    std::from_chars(digest.data(), digest.data() + digest.size(), item.digest, 16);
    item.value = line;
  }
  return items;
}

}  // namespace detail

ZBPP_INLINE void agree(group& members, std::span<agreement_item const> own, std::string_view cure) {
  if (members.size() == 1) return;
  auto const lines = detail::lines_of(own);
  auto const sum = checksum_of(std::string_view(lines));
  std::vector<std::vector<std::byte>> all;
  members.compare(std::as_bytes(std::span(&sum, 1)), all);
  auto const differs = [&](auto const& others) { return others != all.front(); };
  if (std::ranges::none_of(all, differs)) return;
  members.compare(std::as_bytes(std::span(lines)), all);  // to say what differs
  auto const other = std::ranges::find_if(all, differs) - all.begin();
  throw error(errc::no_agreement) +
      differences(
          detail::items_of(all.front()),
          detail::items_of(all[detail::index(other)]),
          "on " + members.name_of(0),
          "on " + members.name_of(static_cast<int>(other))) +
      "; " + cure;
}

}  // namespace zbpp
