// SPDX-License-Identifier: Apache-2.0
//
// What the user chose.
#pragma once

#include "sequential.hpp"
#include "train_gpt/step_kinds.hpp"
#include <zbpp/analysis/deadlock.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace gpt::cuda {

/// Says what carries the messages: copies between the ranks of one process, or NCCL between
/// processes, one per rank.
enum class transport { peer, nccl };

/// Holds what the command line says.
struct options {
  training how;
  transport by = transport::peer;
  std::string bind = "127.0.0.1";  ///< where a process listens
  std::string advertise;           ///< where others reach it; empty: what `bind` says
  std::optional<int> device;       ///< of the rank of a process; none: by its local rank
  int ranks = 2;
  bool names_ranks = false;      ///< whether the user chose their number
  bool one_device_each = false;  ///< else all ranks are on one device, each on its part
  bool partitions = false;       ///< whether the user said so
  std::vector<zbpp::step_kind> kinds = {
      zbpp::step_kind::unchecked};  ///< each policy runs with each
  std::vector<std::string> policies = {"one_f_one_b", "zb_h1", "zb_v", "greedy_auto"};
  bool names_policies = false;       ///< whether the user chose them: then each has to work
  std::optional<int> receive_ahead;  ///< passes; none: what suits the transport
  std::filesystem::path text;        ///< empty: the repository's own
  bool check = false;                ///< run sequentially too, and compare
  bool measure = false;              ///< plan by measured times
  std::filesystem::path trace;       ///< empty: none is written
  std::uint64_t interleaving = 1;    ///< under the model of CUDA: its seed
};

/// @return how many passes before its consumer a message's slot is opened: copies between GPUs wait
///         without a multiprocessor, NCCL with one; within a GPU nothing is opened
[[nodiscard]] inline int receive_ahead_of(options const& o) {
  return o.receive_ahead.value_or(o.by == transport::peer ? 1 : 0);
}

/// @return which orders of messages a plan is made for: over NCCL a replayed step has one for all
[[nodiscard]] inline zbpp::channel_layout layout_of(options const& o) {
  bool const replays = o.by == transport::nccl && o.how.replay == replay_kind::step;
  return replays ? zbpp::channel_layout::one_per_rank : zbpp::channel_layout::one_per_directed_pair;
}

/// Refuses more ranks than layers.
/// @throws setting_error
inline void check_ranks(options const& o) {
  if (o.ranks > o.how.model.layers)
    throw setting_error(
        "--ranks is " + std::to_string(o.ranks) + " and --layers is " +
        std::to_string(o.how.model.layers) + "; each rank needs a layer at least");
}

}  // namespace gpt::cuda
