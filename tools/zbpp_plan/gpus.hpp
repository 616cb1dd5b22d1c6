// SPDX-License-Identifier: Apache-2.0
//
// What a plan needs of GPUs, in each of the ways that zbpp runs ranks on them.
#pragma once

#include "tables.hpp"
#include <zbpp/analysis/lower.hpp>
#include <zbpp/cuda/device_needs.hpp>
#include <zbpp/error.hpp>
#include <zbpp/json/json.hpp>
#include <zbpp/nccl/device_needs.hpp>

#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

namespace planning {

/// @return a table: all ranks on one GPU, a GPU for each rank of a process, and a process for each
///         rank
[[nodiscard]] inline std::string gpu_needs_of(zbpp::json::plan_report const& plan) {
  auto const code = zbpp::lower(plan.schedule);
  zbpp::text_table rows(
      {"backend",
       "rank",
       "streams",
       "hardware queues",
       "events",
       "waiting thread blocks",
       "bytes of slots"});
  auto const add = [&](std::string const& how, std::vector<zbpp::cuda::device_needs> const& all) {
    for (auto const& one : all) {
      auto const last = one.ranks.back();
      auto const first = std::to_string(one.ranks.front());
      rows.add(
          {how,
           one.ranks.size() == 1 ? first : first + "-" + std::to_string(last),
           std::to_string(one.streams),
           std::to_string(one.hardware_queues),
           std::to_string(one.events),
           std::to_string(one.waiting_ctas),
           std::to_string(one.slots)});
    }
  };
  std::vector<int> own(static_cast<std::size_t>(code.ranks()));
  std::iota(own.begin(), own.end(), 0);
  add("cuda::device, one GPU", zbpp::cuda::device_needs_of(code, plan.problem));
  add("cuda::device, one GPU per rank", zbpp::cuda::device_needs_of(code, plan.problem, own));
  add("nccl::ranks", zbpp::nccl::device_needs_of(code, plan.problem));
  return rows.text();
}

}  // namespace planning
