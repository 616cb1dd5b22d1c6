// SPDX-License-Identifier: Apache-2.0
//
// What the user chose, and the training: on threads, or as one rank of several processes.
#pragma once

#include "planning.hpp"
#include "runs.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
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

/// Says where the stages of a run are whose policy takes a placement.
[[nodiscard]] inline zbpp::placement placement_of_stages(
    options const& o, zbpp::placement const& where) {
  return o.adapts ? blocks_of(where, o.how.model) : where;
}

/// Is where the ranks of a run are: on threads of this process. Ranks that are elsewhere override
/// all of it.
class ranks_here {
 public:
  ranks_here() = default;
  ranks_here(ranks_here const&) = delete;
  ranks_here& operator=(ranks_here const&) = delete;
  virtual ~ranks_here() = default;

  /// @return whether this process has rank 0, which runs the reference, tells and writes
  [[nodiscard]] virtual bool has_first() const { return true; }
  /// Checks that all ranks were started alike.
  virtual void agree(options const&, std::vector<setting> const&, zbpp::placement const&) {}
  /// @return what connects the processes of a checkpoint
  [[nodiscard]] virtual std::unique_ptr<zbpp::checkpoint::process_group> processes();
  /// @return the stages of the ranks in this process
  [[nodiscard]] virtual std::vector<chunk_stage> make_stages(
      training const& how, text const& on, zbpp::placement const& placement);
  /// @return the problem of every placement, once
  [[nodiscard]] virtual std::vector<zbpp::problem> measure(
      options const& o, text const& on, std::vector<choice> const& choices);
  /// Runs a plan to its end.
  /// @param kind  of its steps
  /// @param on    the text to learn
  [[nodiscard]] virtual run_record run(
      zbpp::plan const& planned,
      zbpp::step_kind kind,
      options const& o,
      text const& on,
      std::vector<chunk_stage>& stages,
      zbpp::training_state const& state,
      saver* save);
  /// Is called while other ranks wait; throws when one of them has failed.
  virtual void check() {}
  /// @return the exit status that the process of rank 0 found
  [[nodiscard]] virtual int share(int status) { return status; }
};

/// Reads, measures, plans, trains by the plain loop and through pipelines, compares, and tells.
/// @return the exit status
/// @throws setting_error, zbpp::error, std::runtime_error
[[nodiscard]] int train(options const& o, ranks_here& ranks);

#ifdef GPT_HAS_ASIO

/// Trains as the rank that the launcher says this process is. What goes wrong is told on standard
/// error, on every rank.
/// @return the exit status
[[nodiscard]] int train_in_processes(options o);

#else

/// Refuses: the library was built without processes.
/// @throws setting_error
[[noreturn]] inline int train_in_processes(options const&) {
  throw setting_error(
      "--transport tcp: this program was built without zbpp::asio, which needs Boost 1.81 and "
      "OpenSSL 3.0 (Debian and Ubuntu: libboost1.81-dev, libssl-dev); configure again with them");
}

#endif
#ifdef GPT_HAS_MPI

/// As `train_in_processes`, as the rank that MPI says this process is.
/// @throws setting_error, zbpp::error where it cannot meet the others
[[nodiscard]] int train_over_mpi(options o);

#else

/// Refuses: the library was built without MPI.
/// @throws setting_error
[[noreturn]] inline int train_over_mpi(options const&) {
  throw setting_error(
      "--transport mpi: this program was built without zbpp::mpi, which needs zbpp::asio and Open "
      "MPI or MPICH (Debian and Ubuntu: openmpi-bin and libopenmpi-dev, or libmpich-dev); "
      "configure again with them");
}

#endif

}  // namespace gpt
