// SPDX-License-Identifier: Apache-2.0
//
// How the processes of a run get ready together: they agree on settings and on how to run a step,
// and make communicators.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/cuda/detail/step_graph.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/replay.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/nccl/communicator.hpp>
#include <zbpp/nccl/detail/channel_plan.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/nccl/device_needs.hpp>
#include <zbpp/nccl/error.hpp>
#include <zbpp/nccl/settings.hpp>
#include <zbpp/runtime/agreement.hpp>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// Holds plain values of each rank of a run, as all ranks get them.
template <class Value>
class gathered_values {
 public:
  /// Exchanges them; a collective call.
  /// @param own  in the order in which ranks take them
  /// @throws the failure of the run
  gathered_values(asio::control& run, std::span<Value const> own)
      : parts_(run.collect(asio::collective::all_gather, std::as_bytes(own))),
        next_(parts_.size(), 0) {}

  /// @return the next one of a rank
  /// @throws error (no_agreement) when there is none
  [[nodiscard]] Value take(int rank) {
    auto const& part = parts_[zbpp::detail::index(rank)];
    auto& at = next_[zbpp::detail::index(rank)];
    if (part.size() < at + sizeof(Value))
      throw error(errc::no_agreement) + "rank " + rank +
          " tells of too few channels or communicators; start all ranks with the same plan";
    Value value;
    std::memcpy(&value, part.data() + at, sizeof(Value));
    at += sizeof(Value);
    return value;
  }

 private:
  std::vector<asio::blob> parts_;
  std::vector<std::size_t> next_;
};

[[nodiscard]] inline channel_layout layout_of(ranks_settings const& settings) noexcept {
  return settings.adopted != nullptr ? channel_layout::one_per_rank : settings.layout;
}

/// @throws error (bad_argument)
inline void check_deadline(ranks_settings const& settings) {
  zbpp::detail::require(
      settings.init_deadline.count() > 0,
      "ranks_settings::init_deadline is 0 ms or less; set it above 0 ms");
}

[[nodiscard]] inline std::vector<agreement_item> agreement_of(ranks_settings const& settings) {
  std::string shapes;
  for (auto const& edge : settings.edges) {
    shapes += shapes.empty() ? "" : ", ";
    for (auto const part : edge) shapes += zbpp::detail::joined(part, " ");
  }
  return {
      make_item(
          "communicators",
          zbpp::detail::joined(settings.adopted != nullptr ? "adopted, " : "") +
              to_string(layout_of(settings))),
      make_item("edges", shapes.empty() ? "one buffer each" : shapes),
      make_item("most_ctas", std::to_string(settings.most_ctas)),
      make_item("replay", settings.replay == cuda::replay::step ? "step" : "none"),
      make_item("steps_at_once", std::to_string(settings.steps_at_once))};
}

/// Agrees with the other ranks on how all run the next training step of a program that is replayed,
/// which they do not know yet; a collective call.
/// @param turn  of the step among those at once
/// @throws the failure of the run
template <class Engines>
[[nodiscard]] step_way agree_on_step(
    asio::control& run, step_replay& steps, Engines const& engines, std::size_t turn) {
  auto least = steps.choose(engines, turn);
  gathered_values<step_way> proposed(run, std::span(&least, 1));
  for (int rank = 0; rank < run.ranks(); ++rank) least = std::min(least, proposed.take(rank));
  steps.settle(least, turn);
  return least;
}

/// Refuses settings with which the host has a part in every step, an adopted communicator, and a
/// program whose messages have no order that all ranks share.
/// @throws error (bad_argument); (refused_program)
inline void check_replay(
    ranks_settings const& settings, cuda::launch_settings const& launched, plan const& planned) {
  cuda::detail::refuse_to_replay(launched, planned);
  zbpp::detail::require(
      settings.adopted == nullptr,
      "replay is replay::step and a communicator is adopted, which a failure can only revoke: "
      "messages of a graph that begin after that wait for ever; let zbpp make its own");
  zbpp::detail::require(
      !reduces_gradients(planned.program()),
      "replay is replay::step and the plan adds gradients up over replicas, for optimizers in "
      "whose steps the host has a part; leave out replay::step");
  auto const need = hardware_queues(planned.program(), settings.layout);
  if (need.reason.empty()) return;
  auto const& cycle = need.reason.front();
  throw error(errc::refused_program, cycle.location) +
      "replay is replay::step, whose graph has the messages of a rank one behind the other, and "
      "the program can deadlock with that; lower the plan with .layout = "
      "channel_layout::one_per_rank: " +
      cycle.text;
}

/// Says on which GPU a rank is, as NCCL tells GPUs apart; a plain value, as ranks exchange it. All
/// parts of a GPU (MIG) have its bus id, so NCCL takes them for one.
/// @source NCCL, the check for duplicate GPUs in src/init.cc
struct gpu_identity {
  std::array<char, 32> bus_id{};  ///< such as 0000:07:00.0; empty: not to be compared
  std::array<char, 240> host{};   ///< the name that people know, a line end, and more

  [[nodiscard]] bool is_same(gpu_identity const& other) const noexcept {
    return bus_id == other.bus_id && host == other.host && bus_id.front() != '\0';
  }
  /// @return the host as people know it
  [[nodiscard]] std::string host_text() const {
    return {
        host.begin(), std::ranges::find_if(host, [](char c) { return c == '\0' || c == '\n'; })};
  }
};
static_assert(std::is_trivially_copyable_v<gpu_identity>);

/// @return what NCCL calls this host: the variable NCCL_HOSTID, or its name and what it got when it
///         was booted, so that containers of other names are other hosts
/// @source NCCL, getHostHash in src/misc/utils.cc
[[nodiscard]] inline std::string host_of_process() {
  if (char const* const stated = std::getenv("NCCL_HOSTID"); stated != nullptr) return stated;
  std::array<char, 65> name{};  // Linux has 64 characters at most
  ::gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return zbpp::detail::joined(name.data(), "\n", boot);
}

/// @return the GPU of this process; not to be compared where NCCL, by its variable
///         NCCL_MULTI_RANK_GPU_ENABLE, takes several ranks on one
/// @param nccl_version  that is loaded: older ones than 2.30 do not have the variable
/// @throws cuda_error
[[nodiscard]] inline gpu_identity identity_of(int device, int nccl_version) {
  gpu_identity result;
  char const* const shares = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (nccl_version >= 23000 && shares != nullptr && std::strtol(shares, nullptr, 0) != 0)
    return result;
  auto& id = result.bus_id;
  cuda::check(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), device));
  auto const host = host_of_process();
  std::ranges::copy(std::string_view(host).substr(0, result.host.size()), result.host.begin());
  return result;
}

/// Tells all ranks on which GPU each is; a collective call.
/// @throws cuda_error; nccl_error; the failure of the run
[[nodiscard]] inline std::vector<gpu_identity> exchange_gpus(asio::control& run, int device) {
  int version = 0;
  check(ncclGetVersion(&version));
  auto const own = identity_of(device, version);
  gathered_values<gpu_identity> of_ranks(run, std::span(&own, 1));
  std::vector<gpu_identity> all;
  for (int rank = 0; rank < run.ranks(); ++rank) all.push_back(of_ranks.take(rank));
  return all;
}

/// Refuses communicators of which NCCL would say no more than that they are wrong: those that have
/// two ranks on one GPU.
/// @param made  those of the run
/// @param gpus  by rank
/// @throws error (bad_argument), the same on all ranks
inline void check_gpus(communicator_map const& made, std::span<gpu_identity const> gpus) {
  for (auto const& one : made.communicators)
    for (int const a : one.ranks)
      for (int const b : one.ranks) {
        auto const& gpu = gpus[zbpp::detail::index(a)];
        if (a >= b || !gpu.is_same(gpus[zbpp::detail::index(b)])) continue;
        throw error(errc::bad_argument) + "ranks " + a + " and " + b +
            " share the GPU at PCI bus " + gpu.bus_id.data() + " of host " + gpu.host_text() +
            ", as a whole or in parts (MIG), and NCCL makes no communicator of both; give each "
            "rank a GPU of its own";
      }
}

/// @return a pause that throws the failure of the run, or error (no_rendezvous) after `limit`
[[nodiscard]] inline pause_call pause_in_run(
    asio::control& run, std::chrono::milliseconds limit, std::string text) {
  return [&run, limited = limited_pause(limit, std::move(text))](std::chrono::microseconds time) {
    if (run.loop().exclusively([&run] { return run.has_stopped(); })) run.check();
    limited(time);
  };
}

/// Tells all ranks the ids of their communicators; every rank makes those that it is the first of.
/// @throws error (no_agreement) when a rank has made too few; nccl_error; the failure of the run
[[nodiscard]] inline std::vector<ncclUniqueId> exchange_ids(
    asio::control& run, communicator_map const& map) {
  std::vector<ncclUniqueId> own;
  for (auto const& one : map.communicators)
    if (one.ranks.front() == run.rank()) check(ncclGetUniqueId(&own.emplace_back()));
  gathered_values<ncclUniqueId> made(run, own);
  std::vector<ncclUniqueId> ids;
  for (auto const& one : map.communicators) ids.push_back(made.take(one.ranks.front()));
  return ids;
}

/// Makes and connects the communicators of some channels with other ranks, or takes the caller's.
/// @param device  that of this rank
/// @param map     not used for the caller's
/// @throws error (bad_argument) when two ranks of a communicator are on one GPU; (no_rendezvous)
///         after `init_deadline`; as `communicator_set`; the failure of the run
[[nodiscard]] inline std::shared_ptr<communicator_set> make_communicators(
    asio::control& run,
    int device,
    std::vector<channel> const& channels,
    communicator_map map,
    ranks_settings const& settings) {
  auto const pause = pause_in_run(
      run,
      settings.init_deadline,
      "it was not made within ranks_settings::init_deadline; see whether all ranks have started, "
      "and set NCCL_DEBUG=INFO to see whether NCCL reaches them");
  local_rank const here{run.rank(), device};
  if (settings.adopted != nullptr)
    return std::make_shared<communicator_set>(channels, here, run.ranks(), settings.adopted, pause);
  check_gpus(map, exchange_gpus(run, device));
  auto const ids = exchange_ids(run, map);
  return std::make_shared<communicator_set>(
      channels, std::vector{here}, std::move(map), ids, cta_limit(settings.most_ctas), pause);
}

/// @return the groups of replicas that add up gradients of a program, the same list on all ranks
[[nodiscard]] inline std::vector<std::vector<int>> groups_of_sums(
    program const& code, grid_layout const* layout) {
  std::vector<std::vector<int>> groups;
  if (layout == nullptr || !reduces_gradients(code)) return groups;
  for (int rank = 0; rank < layout->ranks(); ++rank)
    if (auto ranks = layout->group(grid_axis::data, rank); ranks.front() == rank)
      groups.push_back(std::move(ranks));
  return groups;
}

/// Makes communicators for the channels of a pipeline's program, and for sums over replicas; a
/// collective call. Ranks differ in how many queues and multiprocessors they have, and need.
/// @param places   which ranks of the run are those of the pipeline
/// @param context  of this rank
/// @throws error (refused_program) when the program can deadlock on the hardware queues of a
///         device; (bad_argument) when messages could hold all SMs; as `make_communicators`
[[nodiscard]] inline std::shared_ptr<communicator_set> make_pipeline_communicators(
    asio::control& run,
    asio::pipeline_ranks const& places,
    cuda::device_context const& context,
    program const& code,
    traffic const& messages,
    ranks_settings const& settings) {
  auto const channels = places.in_run(messages.channels());
  auto const rank = run.rank();
  auto const own = places.in_pipeline(rank);
  auto map = map_communicators(channels, layout_of(settings));
  add_sums(map, groups_of_sums(code, places.layout().get()));
  check_hardware_queues(code, own, streams_of_rank(code, own, map.count_of(rank)), rank);
  if (settings.adopted == nullptr)
    check_multiprocessors(
        map.count_of(rank), rank, cta_limit(settings.most_ctas), context.sm_count());
  return make_communicators(run, context.device(), channels, std::move(map), settings);
}

}  // namespace zbpp::nccl::detail
