// SPDX-License-Identifier: Apache-2.0
//
// The training: on threads, or as one rank of several processes.
#pragma once

#include "options.hpp"
#include "planning.hpp"
#include "runs.hpp"

#include <memory>
#include <vector>

namespace gpt {

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
  /// @param on    the text to learn
  [[nodiscard]] virtual run_record run(
      zbpp::plan const& planned,
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

}  // namespace gpt
