// SPDX-License-Identifier: Apache-2.0
//
// What the user chose. Includes little, so that `run demo` refuses what is wrong before it builds
// the rest.
#pragma once

#include "settings.hpp"
#include <zbpp/analysis/lower.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace gpt {

/// Says where ranks are and what carries their messages.
enum class transport { threads, tcp, mpi };

/// Holds what the command line says.
struct options {
  training how;
  transport by = transport::threads;
  std::string bind = "127.0.0.1";  ///< where a process listens
  std::string advertise;           ///< where others reach it; empty: what `bind` says
  int join_seconds = 60;           ///< that processes have to find each other
  int ranks = 2;
  bool names_ranks = false;         ///< whether the user chose their number
  bool divides_vocabulary = false;  ///< into a shard of the head for each rank
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
  bool explains = false;             ///< tell where the time of a typical step went
  bool adapts = false;               ///< plan again while it trains, and let blocks change ranks
  slow_rank slow = {};               ///< a rank that takes longer than measured
  bool searches = false;             ///< which takes zbpp's planner
};

/// Settles what depends on the number of ranks, once it is known.
/// @throws setting_error when the model has too few layers for them
inline void settle_ranks(options& o) {
  if (o.ranks > o.how.model.layers)
    throw setting_error(
        "--ranks is " + std::to_string(o.ranks) + " and --layers is " +
        std::to_string(o.how.model.layers) + "; each rank needs a layer at least");
  if (!o.divides_vocabulary) return;
  if (o.ranks == 1)
    throw setting_error("--vocabulary-parallel divides the head among ranks; --ranks is 1");
  o.how.model.shards = o.ranks;
}

/// Reads the command line, and makes the folder that files are written to.
/// @return nothing when it asks for help, which is then printed
/// @throws setting_error
[[nodiscard]] std::optional<options> read_options(int argc, char const* const* argv);

}  // namespace gpt
