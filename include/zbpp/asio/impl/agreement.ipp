// SPDX-License-Identifier: Apache-2.0
//
// Makes the digests of a plan, and compares two lists of them.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/agreement.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <openssl/evp.h>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace zbpp::asio {

ZBPP_INLINE void agreement_item::put(wire_writer& to) const {
  to.put(std::string_view(name).substr(0, longest_text)).append(digest);
  to.put(std::string_view(value).substr(0, longest_text));
}

ZBPP_INLINE agreement_item agreement_item::get(wire_reader& from) {
  agreement_item item;
  item.name = from.get_text(longest_text);
  std::ranges::copy(from.take(item.digest.size()), item.digest.begin());
  item.value = from.get_text(longest_text);
  return item;
}

namespace detail {

/// Computes SHA-256.
/// @throws error (io_failed) when OpenSSL cannot
[[nodiscard]] ZBPP_INLINE std::array<std::byte, 32> sha256(std::span<std::byte const> bytes) {
  std::array<std::byte, 32> digest{};
  unsigned size = 0;
  auto* const out = reinterpret_cast<unsigned char*>(digest.data());
  if (EVP_Digest(bytes.data(), bytes.size(), out, &size, EVP_sha256(), nullptr) != 1 ||
      size != digest.size())
    throw error(
        errc::io_failed, "OpenSSL cannot compute SHA-256; a provider that has it is needed");
  return digest;
}

}  // namespace detail

ZBPP_INLINE agreement_item
make_item(std::string name, wire_writer const& content, std::string value) {
  return {std::move(name), detail::sha256(content.bytes()), std::move(value)};
}

ZBPP_INLINE agreement_item make_item(std::string name, std::string value) {
  auto const digest = detail::sha256(std::as_bytes(std::span(value.data(), value.size())));
  return {std::move(name), digest, std::move(value)};
}

namespace detail {

/// Writes how many numbers there are, then each of them; -0.0, which equals 0.0, as that.
template <class Number>
void put_all(wire_writer& to, std::span<Number const> values) {
  to.put(static_cast<std::uint64_t>(values.size()));
  for (auto value : values) to.put(value + Number{0});
}

[[nodiscard]] ZBPP_INLINE agreement_item placement_item(placement const& placement) {
  wire_writer content;
  put_all(content, placement.rank_of_stages());
  return make_item(
      "placement",
      content,
      placement.name() + " of " + std::to_string(placement.stages()) + " stages");
}

[[nodiscard]] ZBPP_INLINE agreement_item costs_item(int stage, stage_costs const& costs) {
  // Names all members, so that a new one does not compile until it is written here.
  auto const& [f, b, w, fused, again, beside, beside_fused, norm, step, kept, for_w, added, for_r, edge, fixed, extra, tied, gradients, state] =
      costs;
  wire_writer content;
  content.put(f).put(b).put(w);
  for (auto const& time : {fused, again, beside, beside_fused})
    content.put(static_cast<std::uint8_t>(time.has_value())).put(time.value_or(0));
  content.put(norm).put(step);
  content.put(kept).put(for_w).put(added).put(for_r).put(edge).put(fixed).put(extra).put(tied);
  content.put(gradients).put(state);
  return make_item("costs of stage " + std::to_string(stage), content);
}

[[nodiscard]] ZBPP_INLINE agreement_item transfer_item(transfer_costs const& transfer) {
  wire_writer content;
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
  wire_writer content;
  content.put(static_cast<std::int32_t>(count)).put(latency).put(time_per_byte);
  content.put(static_cast<std::uint8_t>(shards));
  return make_item("replicas", content, std::to_string(count));
}

[[nodiscard]] ZBPP_INLINE agreement_item factors_item(std::span<double const> factors) {
  wire_writer content;
  put_all(content, factors);
  return make_item("factors of microbatches", content);
}

[[nodiscard]] ZBPP_INLINE agreement_item limits_item(std::span<bytes const> limits) {
  wire_writer content;
  put_all(content, limits);
  std::string value;
  if (limits.empty()) value = "none";
  if (limits.size() == 1) value = std::to_string(limits.front()) + " bytes";
  return make_item("memory limits", content, std::move(value));
}

/// Writes what a pass or instruction is, and whether it is paired.
template <class Kind>
wire_writer& put_kind(wire_writer& to, Kind kind, bool is_paired) {
  return to.put(static_cast<std::uint8_t>(static_cast<int>(kind) + (is_paired ? 128 : 0)));
}

[[nodiscard]] ZBPP_INLINE agreement_item passes_item(int rank, std::span<pass const> passes) {
  wire_writer content;
  for (auto const& p : passes)
    put_kind(content, p.kind, p.is_paired).put(p.stage).put(p.microbatch);
  return make_item("passes of rank " + std::to_string(rank), content);
}

[[nodiscard]] ZBPP_INLINE agreement_item program_item(program const& program) {
  wire_writer content;
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

/// Makes text of somebody else fit for an error: cut, and without what is no plain character.
[[nodiscard]] ZBPP_INLINE std::string plain(std::string_view text) {
  std::string result(text.substr(0, 64));
  for (char& c : result)
    if (c < ' ' || c > '~') c = '?';
  if (text.size() > result.size()) result += "...";
  return result.empty() ? "nothing" : result;
}

}  // namespace detail

ZBPP_INLINE std::vector<agreement_item> fingerprint(
    std::string_view policy,
    problem const& problem,
    schedule const& schedule,
    program const& program) {
  std::vector<agreement_item> items;
  items.push_back(make_item("version of zbpp", detail::version_text(ZBPP_VERSION)));
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
        if ((*a)->value != (*b)->value)
          text.append(" (" + detail::plain((*a)->value) + " ")
              .append(here)
              .append(", " + detail::plain((*b)->value) + " ")
              .append(there)
              .append(")");
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
  if (found.size() > most) text += " and " + std::to_string(found.size() - most) + " more";
  return text;
}

}  // namespace zbpp::asio
