// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of a run: when they are due, and going on from the newest one; for ranks that are all
// in this process, or apart.
#pragma once

#include "checkpoint.hpp"
#include "divergence.hpp"
#include "folder_lock.hpp"
#include "stages.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Stands for ranks that are all in this process.
struct ranks_together {
  /// @return those of `ranks` ranks that are in this process
  [[nodiscard]] std::vector<int> here(int ranks) const {
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  /// Does what one rank does for all; the others wait for it.
  template <class Work>
  void on_first(Work const& work) const {
    work();
  }
  /// @return whether something holds for all ranks
  /// @param own  whether it does for those here
  [[nodiscard]] bool all(bool own) const { return own; }
  /// Called now and then while this process works long; throws when another one has failed.
  void check() const {}
  /// @param own  those of the ranks here
  /// @return those of all ranks
  [[nodiscard]] std::vector<file_record> gather(std::vector<file_record> own) const { return own; }
};

/// Saves the stages of all ranks now and then. Ranks that are apart call it at the same time.
/// @tparam Ranks  says which ranks are here and how they work together, as `ranks_together`
template <class Ranks>
class basic_saver {
 public:
  /// @param folder  exists, and is the same for all ranks
  /// @param every   steps from one checkpoint to the next
  /// @param policy  of the run, to be told
  basic_saver(
      std::filesystem::path const& folder,
      std::vector<run_setting> settings,
      std::int64_t every,
      std::string policy,
      zbpp::placement const& placement,
      Ranks ranks = {})
      : folder_(folder),
        split_(split_of(std::move(policy), placement)),
        to_(folder, std::move(settings), split_),
        every_(every),
        where_(placement),
        ranks_(std::move(ranks)) {}

  /// @return the step of the newest checkpoint; 0 where there is none
  [[nodiscard]] std::int64_t last() const { return last_; }
  /// @return where the newest checkpoint lies; empty where there is none
  [[nodiscard]] std::filesystem::path path() const {
    return last_ == 0 ? std::filesystem::path() : to_.path(last_);
  }
  /// @return how many steps after so many others a checkpoint is due
  [[nodiscard]] std::int64_t until_due(std::int64_t done) const { return every_ - done % every_; }

  /// Keeps the folder for this run, and begins a new one, or goes on with one as `resume` does.
  /// @return what the next step depends on, besides the stages
  /// @throws setting_error when another run holds the folder, or something lies there that no run
  ///         leaves
  /// @throws setting_error when there are checkpoints of another run: they would be mixed with
  ///         those of a new run, and go
  [[nodiscard]] zbpp::training_state begin(std::vector<chunk_stage>& stages, bool resumes) {
    ranks_.on_first([&] { lock_.emplace(folder_); });
    to_.check();
    if (resumes) return resume(stages);
    auto const all = to_.finished();
    if (!all.empty())
      throw setting_error(
          "--checkpoint " + folder_.string() + " has " + checkpoints::name(all.back()) +
          "; give --resume to go on from there, or another folder to begin anew");
    return {};
  }

  /// Sets the stages that are here to the newest checkpoint, where there is one, however it was
  /// split.
  /// @return what the next step depends on, besides the stages
  /// @throws setting_error when it cannot be used: none is skipped, and no stage is changed
  [[nodiscard]] zbpp::training_state resume(std::vector<chunk_stage>& stages) {
    auto const all = to_.finished();
    if (all.empty()) return {};
    auto newest = to_.read_manifest(all.back());
    to_.read(newest, arrays_of(stages, [](int) { return true; }));
    last_ = newest.state.steps;
    was_ = std::move(newest.split);
    return newest.state;
  }

  /// Writes a checkpoint, after more steps than at the last one; none where what training changes
  /// is no longer finite, so that the last good ones stay.
  /// @param state  of the pipeline that trained the stages
  /// @return what to tell about it
  /// @throws zbpp::error (io_failed) with the path; those before are as they were
  [[nodiscard]] std::string save(
      zbpp::training_state const& state, std::vector<chunk_stage>& stages) {
    auto const done = state.steps;
    if (!ranks_.all(std::all_of(stages.begin(), stages.end(), is_finite)))
      return "no checkpoint " + checkpoints::name(done) + ": parameters are nan or infinite";
    ranks_.on_first([&] { to_.begin(done); });
    std::vector<file_record> own;
    for (int const rank : ranks_.here(where_.ranks())) {
      auto const arrays = arrays_of(stages, [&](int s) { return where_.rank_of(s) == rank; });
      own.push_back(to_.write(done, rank, arrays, [&] { ranks_.check(); }));
    }
    auto const files = ranks_.gather(std::move(own));
    ranks_.on_first([&] { to_.finish(state, files); });
    last_ = done;
    return "checkpoint " + checkpoints::name(done);
  }

  /// @return what to tell after `resume`
  [[nodiscard]] std::string told() const {
    if (last_ == 0) return "resumed: there is no checkpoint in " + folder_.string() + " yet";
    auto const resumed = "resumed: " + path().string();
    if (was_ == split_) return resumed;
    return resumed + ", of --ranks " + std::to_string(was_.ranks) + " --policy " + was_.policy;
  }

 private:
  [[nodiscard]] static bool is_finite(chunk_stage& of) {
    auto const all = of.state();
    return are_finite(all.parameters) && are_finite(all.mean) && are_finite(all.square);
  }

  std::filesystem::path folder_;
  std::optional<folder_lock> lock_;  // of the first rank
  run_split split_;
  run_split was_;  // of the checkpoint that the run goes on from
  checkpoints to_;
  std::int64_t every_;
  zbpp::placement where_;
  Ranks ranks_;
  std::int64_t last_ = 0;
};

/// Saves the stages of ranks that are all in this process.
using saver = basic_saver<ranks_together>;

}  // namespace gpt
