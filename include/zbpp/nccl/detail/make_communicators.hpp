// SPDX-License-Identifier: Apache-2.0
//
// How the processes of a run make their communicators together.
#pragma once

#include <zbpp/asio/agreement.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/nccl/communicator.hpp>
#include <zbpp/nccl/detail/check_gpus.hpp>
#include <zbpp/nccl/detail/communicator_map.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/nccl/error.hpp>
#include <zbpp/nccl/settings.hpp>

#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// @return a pause that throws the failure of the run once there is one, and error (no_rendezvous)
///         with this text once `limit` has passed
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
    asio::control& run, communicator_map const& how) {
  std::vector<ncclUniqueId> mine;
  for (auto const& one : how.communicators)
    if (one.ranks.front() == run.rank()) check(ncclGetUniqueId(&mine.emplace_back()));
  auto const parts = run.collect(asio::collective::all_gather, std::as_bytes(std::span(mine)));
  std::vector<std::size_t> next(parts.size(), 0);
  std::vector<ncclUniqueId> ids;
  for (auto const& one : how.communicators) {
    auto const maker = zbpp::detail::index(one.ranks.front());
    auto& id = ids.emplace_back();
    if (parts[maker].size() < next[maker] + sizeof(id))
      throw error(
          errc::no_agreement,
          "rank " + std::to_string(maker) + " has made " +
              std::to_string(parts[maker].size() / sizeof(id)) +
              " ids of communicators, which are too few; start all ranks with the same plan");
    std::memcpy(&id, parts[maker].data() + next[maker], sizeof(id));
    next[maker] += sizeof(id);
  }
  return ids;
}

/// Makes and connects the communicators of some channels together with the other ranks, or takes
/// the caller's.
/// @param device  that of this rank
/// @param how     as `map_rest` gives it; not used for the caller's
/// @throws error (bad_argument) when NCCL is to carry messages between ranks on one GPU;
///         (no_rendezvous) after `init_deadline`; as `communicator_set`; the failure of the run
[[nodiscard]] inline std::shared_ptr<communicator_set> make_communicators(
    asio::control& run,
    int device,
    std::vector<channel> const& channels,
    communicator_map how,
    ranks_settings const& settings) {
  auto const pause = pause_in_run(
      run,
      settings.init_deadline,
      "it was not made within ranks_settings::init_deadline; see whether all ranks have started, "
      "and set NCCL_DEBUG=INFO to see whether NCCL reaches them");
  local_rank const here{run.rank(), device};
  if (settings.adopted != nullptr)
    return std::make_shared<communicator_set>(channels, here, run.ranks(), settings.adopted, pause);
  if (!how.communicators.empty()) check_gpus(how, exchange_gpus(run, device));
  auto const ids = exchange_ids(run, how);
  return std::make_shared<communicator_set>(
      channels, std::vector{here}, std::move(how), ids, settings.most_ctas, pause);
}

}  // namespace zbpp::nccl::detail
