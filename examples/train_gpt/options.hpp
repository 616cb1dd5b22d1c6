// SPDX-License-Identifier: Apache-2.0
//
// What the user chose.
#pragma once

#include "sequential.hpp"
#include "step_kinds.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace gpt {

/// Says where ranks are and what carries their messages.
enum class transport { threads, tcp };

/// Holds what the command line says.
struct options {
  training how;
  transport by = transport::threads;
  std::string bind = "127.0.0.1";  ///< where a process listens
  std::string advertise;           ///< where others reach it; empty: what `bind` says
  int join_seconds = 60;           ///< that processes have to find each other
  int ranks = 2;
  bool names_ranks = false;  ///< whether the user chose their number
  std::vector<zbpp::step_kind> kinds = {
      zbpp::step_kind::unchecked};  ///< each policy runs with each
  std::vector<std::string> policies = {"one_f_one_b", "zb_h1", "zb_h2", "zb_v"};
  bool names_policies = false;  ///< whether the user chose them: then each has to work
  std::filesystem::path text;   ///< empty: the repository's own
  std::filesystem::path out = ".";
  std::filesystem::path checkpoint;  ///< folder for checkpoints; empty: none are kept
  std::int64_t every = 50;           ///< steps from one checkpoint to the next
  bool resume = false;               ///< go on from the newest checkpoint
  bool reference = true;             ///< run the sequential reference, too
};

/// Refuses more ranks than layers.
/// @throws setting_error
inline void check_ranks(options const& o) {
  if (o.ranks > o.how.model.layers)
    throw setting_error(
        "--ranks is " + std::to_string(o.ranks) + " and --layers is " +
        std::to_string(o.how.model.layers) + "; each rank needs a layer at least");
}

}  // namespace gpt
