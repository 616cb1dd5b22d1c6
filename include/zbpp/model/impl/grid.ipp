// SPDX-License-Identifier: Apache-2.0
//
// What model/grid.hpp declares. A rank is the sum of its coordinates, each times the stride of its
// axis, so the ranks of a group are evenly apart.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/grid.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

[[noreturn]] ZBPP_INLINE void refuse_grid(std::string const& text) {
  throw error(errc::bad_argument) + "the grid: " + text;
}

[[nodiscard]] ZBPP_INLINE std::string grid_product(grid const& sizes) {
  return joined("pipeline ", sizes.pipeline, " x data ", sizes.data, " x tensor ", sizes.tensor);
}

/// Checks the sizes of a grid, and fills in the number of replicas where it is 0.
ZBPP_INLINE void check_sizes(grid& sizes, int ranks) {
  if (ranks < 1) refuse_grid(joined("the run has ", ranks, " ranks; it needs 1 or more"));
  auto const check = [](char const* name, int size, int least) {
    if (size < least) refuse_grid(joined(name, " is ", size, "; it must be ", least, " or more"));
  };
  check("pipeline", sizes.pipeline, 1);
  check("data", sizes.data, 0);
  check("tensor", sizes.tensor, 1);
  check("expert", sizes.expert, 1);
  auto const replica = std::int64_t{sizes.pipeline} * sizes.tensor;
  if (ranks % replica != 0)
    refuse_grid(
        joined("a replica has ") + replica + " ranks, pipeline " + sizes.pipeline + " x tensor " +
        sizes.tensor + ", which do not divide the " + ranks + " ranks of the run");
  auto const replicas = static_cast<int>(ranks / replica);
  if (sizes.data == 0) sizes.data = replicas;
  if (sizes.data != replicas)
    refuse_grid(
        joined(grid_product(sizes)) + " are " + (replica * sizes.data) + " ranks; the run has " +
        ranks + ", so set data to " + replicas + ", or to 0");
  if (sizes.data % sizes.expert != 0)
    refuse_grid(
        joined("expert is ", sizes.expert, "; it must divide the ", sizes.data, " replicas"));
}

/// Says how large an axis is, by its name in `grid::order`; 0 for a name that is none.
[[nodiscard]] ZBPP_INLINE int size_by_name(grid const& sizes, std::string_view name) noexcept {
  if (name == "tp") return sizes.tensor;
  if (name == "cp") return 1;
  if (name == "ep") return sizes.expert;
  if (name == "dp") return sizes.data;
  if (name == "pp") return sizes.pipeline;
  return 0;
}

/// Splits an order into the names of axes.
/// @throws error (bad_argument) for a name that is none or comes twice, or a missing one
[[nodiscard]] ZBPP_INLINE std::vector<std::string_view> axes_of(grid const& stated) {
  auto const refuse = [&](std::string const& text) {
    refuse_grid("order is '" + stated.order + "'; " + text);
  };
  std::vector<std::string_view> names;
  for (std::string_view left = stated.order;;) {
    auto const end = left.find('-');
    auto const name = left.substr(0, end);
    if (size_by_name(stated, name) == 0)
      refuse(joined("'", name, "' is no axis; they are tp, cp, ep, dp and pp, with - between"));
    if (std::ranges::find(names, name) != names.end()) refuse(joined(name, " stands there twice"));
    names.push_back(name);
    if (end == std::string_view::npos) break;
    left.remove_prefix(end + 1);
  }
  for (std::string_view name : {"tp", "dp", "pp", "ep"})
    if (size_by_name(stated, name) > 1 && std::ranges::find(names, name) == names.end())
      refuse(joined(name, " is missing, whose size is ", size_by_name(stated, name)));
  return names;
}

/// Says how far apart replicas are that share experts, in replicas.
/// @throws error (bad_argument) where another axis lies between those of experts and of data
[[nodiscard]] ZBPP_INLINE int stride_of_experts(
    grid const& stated, std::vector<std::string_view> const& names) {
  if (stated.expert == 1) return 1;
  auto const expert = std::ranges::find(names, "ep");
  auto const data = std::ranges::find(names, "dp");
  for (auto at = std::min(expert, data) + 1; at < std::max(expert, data); ++at)
    if (size_by_name(stated, *at) > 1)
      refuse_grid(
          joined("order is '") + stated.order + "'; " + *at +
          " lies between ep and dp, but experts are spread over replicas, so put ep beside dp");
  return expert < data ? 1 : stated.data / stated.expert;
}

}  // namespace detail

ZBPP_INLINE std::string_view to_string(grid_axis axis) noexcept {
  switch (axis) {
    case grid_axis::pipeline: return "pipeline";
    case grid_axis::data: return "data";
    case grid_axis::tensor: return "tensor";
    case grid_axis::expert: return "expert";
    case grid_axis::expert_data: return "expert data";
  }
  return "unknown";
}

ZBPP_INLINE grid_layout::grid_layout(grid const& stated, int ranks) : stated_(stated) {
  detail::check_sizes(stated_, ranks);
  auto const names = detail::axes_of(stated_);
  expert_stride_ = detail::stride_of_experts(stated_, names);
  sizes_ = {stated_.pipeline, stated_.data, stated_.tensor};
  int apart = 1;
  strides_ = {1, 1, 1};
  for (auto const name : names) {
    auto const axis = name == "pp" ? 0 : name == "dp" ? 1 : name == "tp" ? 2 : -1;
    if (axis < 0 || sizes_[detail::index(axis)] == 1) continue;
    strides_[detail::index(axis)] = apart;
    apart *= sizes_[detail::index(axis)];
  }
}

ZBPP_INLINE int grid_layout::ranks() const noexcept { return sizes_[0] * sizes_[1] * sizes_[2]; }

ZBPP_INLINE grid_layout::line grid_layout::line_of(grid_axis axis) const noexcept {
  auto const replicas = sizes_[1];
  auto const sharing = stated_.expert;
  switch (axis) {
    case grid_axis::pipeline: return {sizes_[0], strides_[0]};
    case grid_axis::data: break;
    case grid_axis::tensor: return {sizes_[2], strides_[2]};
    case grid_axis::expert: return {sharing, strides_[1] * expert_stride_};
    case grid_axis::expert_data:
      return {replicas / sharing, strides_[1] * (expert_stride_ == 1 ? sharing : 1)};
  }
  return {replicas, strides_[1]};
}

ZBPP_INLINE int grid_layout::size(grid_axis axis) const noexcept { return line_of(axis).size; }

ZBPP_INLINE void grid_layout::check_rank(int rank) const {
  if (rank < 0 || rank >= ranks())
    throw error(errc::bad_argument) + "rank " + rank + " is not in the grid; it has ranks 0 to " +
        (ranks() - 1);
}

ZBPP_INLINE grid_coordinates grid_layout::coordinates(int rank) const {
  check_rank(rank);
  auto const along = [&](std::size_t axis) { return rank / strides_[axis] % sizes_[axis]; };
  return {along(0), along(1), along(2)};
}

ZBPP_INLINE int grid_layout::rank_of(grid_coordinates const& at) const {
  std::array<int, 3> const places{at.pipeline, at.data, at.tensor};
  constexpr std::array<char const*, 3> names{"pipeline", "data", "tensor"};
  int rank = 0;
  for (std::size_t axis = 0; axis < places.size(); ++axis) {
    if (places[axis] < 0 || places[axis] >= sizes_[axis])
      throw error(errc::bad_argument) + "the coordinate " + names[axis] + " is " + places[axis] +
          "; in this grid it is 0 to " + (sizes_[axis] - 1);
    rank += places[axis] * strides_[axis];
  }
  return rank;
}

ZBPP_INLINE int grid_layout::place_in_group(grid_axis axis, int rank) const {
  check_rank(rank);
  auto const along = line_of(axis);
  return rank / along.stride % along.size;
}

ZBPP_INLINE std::vector<int> grid_layout::group(grid_axis axis, int rank) const {
  auto const along = line_of(axis);
  auto const first = rank - place_in_group(axis, rank) * along.stride;
  std::vector<int> members;
  for (int i = 0; i < along.size; ++i) members.push_back(first + i * along.stride);
  return members;
}

ZBPP_INLINE std::vector<std::vector<int>> grid_layout::groups(grid_axis axis) const {
  std::vector<std::vector<int>> all;
  for (int rank = 0; rank < ranks(); ++rank)
    if (place_in_group(axis, rank) == 0) all.push_back(group(axis, rank));
  return all;
}

ZBPP_INLINE std::vector<int> grid_layout::replica(int data) const {
  std::vector<int> members;
  for (int p = 0; p < sizes_[0]; ++p)
    for (int t = 0; t < sizes_[2]; ++t)
      members.push_back(rank_of({.pipeline = p, .data = data, .tensor = t}));
  std::ranges::sort(members);
  return members;
}

ZBPP_INLINE std::string to_string(grid_layout const& layout) {
  auto const& stated = layout.stated();
  std::string text =
      detail::joined(layout.ranks(), " ranks, ", stated.order, ": ", detail::grid_product(stated));
  if (stated.expert > 1) text += detail::joined(", experts over ", stated.expert, " replicas");
  std::string sum;
  std::vector<std::pair<int, std::string>> terms;
  for (auto axis : {grid_axis::tensor, grid_axis::data, grid_axis::pipeline}) {
    if (layout.size(axis) == 1) continue;
    auto const stride = layout.group(axis, 0)[1];
    terms.emplace_back(
        stride, detail::joined(stride == 1 ? "" : std::to_string(stride) + " ", to_string(axis)));
  }
  std::ranges::sort(terms);
  for (auto const& term : terms) sum += (sum.empty() ? "" : " + ") + term.second;
  return text + "; rank = " + (sum.empty() ? "0" : sum);
}

ZBPP_INLINE std::string coordinates_text(grid_layout const& layout, int rank) {
  auto const at = layout.coordinates(rank);
  std::string text;
  auto const add = [&](grid_axis axis, char const* name, int coordinate) {
    if (layout.size(axis) == 1) return;
    text += detail::joined(text.empty() ? "" : ", ", name, " ", coordinate);
  };
  add(grid_axis::pipeline, "pipeline", at.pipeline);
  add(grid_axis::data, "replica", at.data);
  add(grid_axis::tensor, "tensor", at.tensor);
  return text;
}

ZBPP_INLINE std::vector<std::string> names_in_grid(
    grid_layout const& layout, std::span<int const> ranks) {
  std::vector<std::string> names;
  for (int const rank : ranks)
    names.push_back(detail::joined("rank ", rank, " (", coordinates_text(layout, rank), ")"));
  return names;
}

ZBPP_INLINE std::string tensor_groups_across_hosts(
    grid_layout const& layout, std::span<std::string const> hosts) {
  if (hosts.size() != detail::index(layout.ranks()))
    throw error(errc::bad_argument) + hosts.size() + " hosts are named for " + layout.ranks() +
        " ranks; name the host of each rank";
  auto const all = layout.groups(grid_axis::tensor);
  // The first rank of a group on another host than that of the group's first one.
  auto const on_another_host = [&](std::vector<int> const& group) {
    return std::ranges::find_if(group, [&](int rank) {
      return hosts[detail::index(rank)] != hosts[detail::index(group.front())];
    });
  };
  auto const spans_hosts = [&](std::vector<int> const& group) {
    return on_another_host(group) != group.end();
  };
  auto const first = std::ranges::find_if(all, spans_hosts);
  if (first == all.end()) return {};
  auto const place = [&](int rank) -> std::string {
    return detail::joined("rank ", rank, " on ", hosts[detail::index(rank)]);
  };
  return detail::joined(std::ranges::count_if(all, spans_hosts)) + " of " + all.size() +
         " tensor groups lie on several hosts, such as " + place(first->front()) + " and " +
         place(*on_another_host(*first)) +
         "; put tp first in the order, and as many ranks on each host as tensor divides";
}

}  // namespace zbpp
