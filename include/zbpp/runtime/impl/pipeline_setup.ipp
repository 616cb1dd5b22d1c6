// SPDX-License-Identifier: Apache-2.0
//
// How a pipeline checks what it is given.
#pragma once

#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/pipeline_setup.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// @return how many gradients of an optimizer a backend adds up, in memory of the device or of the
///         host; none where it cannot
[[nodiscard]] ZBPP_INLINE std::optional<std::int64_t> summed_gradients(
    optimizer const& given, bool in_place) {
  if (!in_place) return given.gradient_count();
  std::int64_t count = 0;
  for (int layer = 0; layer < given.layers(); ++layer) {
    auto const found = given.gradients(layer);
    if (!found) return {};
    count += std::ssize(*found);
  }
  return count;
}

/// @return how many weights an optimizer can read; none where it cannot read those of all layers
[[nodiscard]] ZBPP_INLINE std::optional<std::int64_t> readable_weights(optimizer const& given) {
  std::int64_t count = 0;
  for (int layer = 0; layer < given.layers(); ++layer) {
    auto const found = given.layer_size(layer);
    if (!found) return {};
    count += *found;
  }
  return count;
}

ZBPP_INLINE void check_replicas(
    plan const& planned,
    int rank,
    std::span<stage_ref const> stages,
    rank_grid& grid,
    bool in_place) {
  auto const& problem = planned.problem();
  auto const& all = planned.program().instructions().all();
  bool const reduces = reduces_gradients(planned.program());
  bool const steps = std::ranges::any_of(all, [](instruction const& i) { return i.is_step(); }) &&
                     std::ranges::any_of(stages, [](stage_ref const& stage) {
                       return stage.has_update() || stage.optimizer() != nullptr;
                     });
  auto const stated = reduces ? problem.replicas().count : 1;
  auto const found = grid.data().size();
  if (stated != found && (reduces || steps))
    throw error(errc::bad_argument, {.rank = rank}) + "the plan adds gradients up over " + stated +
        (stated == 1 ? " replica" : " replicas") + ", and the grid of the backend has " + found +
        "; plan with_replicas(problem, {.count = " + found + "}), or give the backend such a grid";
  if (grid.expert().size() > 1 && agrees_on_steps(planned.program()))
    throw error(errc::bad_argument, {.rank = rank}) +
        "replicas have different experts, so the norm that ranks agree on would be another one on "
        "each of them; lower the plan with step_kind::unchecked";
  if (!reduces) return;
  auto const own = problem.placement().stages_of(rank);
  for (std::size_t chunk = 0; chunk < stages.size(); ++chunk) {
    auto const s = own[chunk];
    auto const* const optimizer = stages[chunk].optimizer();
    auto const refuse = [&](std::string const& text) {
      throw error(errc::bad_argument, text, {.stage = s});
    };
    auto const gradients =
        optimizer == nullptr ? std::int64_t{0} : summed_gradients(*optimizer, in_place);
    if (stages[chunk].has_update() || !gradients)
      refuse(
          joined("its gradients cannot be added up over replicas; give it optimizer() with ") +
          (in_place ? "gradients(), which says where in memory of the device they lie"
                    : "gradient_count(), read_gradients() and write_gradients()"));
    bool const is_shared = shards_optimizer(planned.program());
    if (in_place && is_shared)
      refuse("replicas cannot share its optimizer on GPUs; plan without shards_optimizer");
    if (optimizer != nullptr && is_shared) {
      auto const weights = readable_weights(*optimizer);
      if (!weights || !optimizer->can_share())
        refuse("its optimizer cannot step some of its layers alone; give it layer_size(), "
               "can_share(), share(), read_weights() and write_weights(), or plan without "
               "shards_optimizer");
      if (weights != gradients)
        refuse(
            joined("the layers of its optimizer have ") + *weights + " weights, and it has " +
            *gradients + " gradients; give both the same");
    }
    auto const size = *gradients * static_cast<bytes>(sizeof(float));
    // An optimizer may add a number for each layer, which says whether there are gradients.
    auto const layers = optimizer == nullptr ? 0 : optimizer->layers();
    auto const least = size - layers * static_cast<bytes>(sizeof(float));
    auto const stated_size = problem.costs(s).gradients;
    if (stated_size > 0 && (stated_size < least || stated_size > size))
      refuse(
          joined("its optimizer has ") + size + " bytes of gradients, and its problem states " +
          stated_size + "; give both the same");
  }
}

ZBPP_INLINE after_step most_asked(group& replicas, after_step asked) {
  std::array<float, 2> counts{
      asked == after_step::pause ? 1.0F : 0.0F, asked == after_step::stop ? 1.0F : 0.0F};
  replicas.all_reduce(counts);
  if (counts[1] > 0) return after_step::stop;
  return counts[0] > 0 ? after_step::pause : after_step::go_on;
}

ZBPP_INLINE plan const& verified(plan const& planned, std::span<int const> devices) {
  verify_or_throw(
      planned.program(), planned.problem(), channel_layout::one_per_directed_pair, devices);
  return planned;
}

ZBPP_INLINE std::vector<stage_ref> by_rank(
    std::vector<stage_ref> const& given, placement const& placement, std::span<int const> ranks) {
  std::vector<int> here;  // the stages of this process, in the order of the model
  for (int rank : ranks)
    for (int s : placement.stages_of(rank)) here.push_back(s);
  std::sort(here.begin(), here.end());
  if (given.size() != here.size())
    throw error(errc::bad_argument) + "the pipeline got " + given.size() +
        " stages; its placement has " + here.size() +
        (ranks.size() == index(placement.ranks()) ? "" : " in this process");
  std::vector<stage_ref> result;
  for (int rank : ranks)
    for (int s : placement.stages_of(rank))
      result.push_back(given[index(std::lower_bound(here.begin(), here.end(), s) - here.begin())]);
  return result;
}

ZBPP_INLINE void reserve_peaks(
    plan const& planned,
    std::span<int const> devices,
    std::span<int const> ranks,
    std::span<rank_memory> memory) {
  auto const sizes = arena_sizes(planned.program(), planned.problem(), devices);
  for (std::size_t here = 0; here < memory.size(); ++here)
    memory[here].buffers.reserve(sizes[index(ranks[here])]);
}

}  // namespace zbpp::detail
