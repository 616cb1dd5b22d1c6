// SPDX-License-Identifier: Apache-2.0
//
// An id with which the ranks of a run make a communicator.
#pragma once

#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/nccl/error.hpp>

#include <nccl.h>

#include <cstring>
#include <span>

namespace zbpp::bench {

/// @return a new id
/// @throws nccl_error
[[nodiscard]] inline ncclUniqueId new_id() {
  ncclUniqueId id;
  nccl::check(ncclGetUniqueId(&id));
  return id;
}

/// @return an id that rank 0 makes; a collective call
/// @throws nccl_error; the failure of the run
[[nodiscard]] inline ncclUniqueId shared_id(asio::rendezvous& run) {
  ncclUniqueId id{};
  if (run.rank() == 0) id = new_id();
  auto const told = run.broadcast(std::as_bytes(std::span(&id, 1)), 0);
  std::memcpy(&id, told.data(), sizeof id);
  return id;
}

}  // namespace zbpp::bench
