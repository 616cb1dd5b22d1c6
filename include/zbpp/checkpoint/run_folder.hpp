// SPDX-License-Identifier: Apache-2.0
//
// A folder of checkpoints of one run, FOLDER/step-000020/{rank-0.safetensors, ..., manifest.txt}.
// Whenever a process or the machine dies, the newest one with a manifest is whole; what has none
// does not count. Runs of any other split over ranks go on from it.
#pragma once

#include <zbpp/checkpoint/detail/files.hpp>
#include <zbpp/checkpoint/metadata.hpp>
#include <zbpp/checkpoint/safetensors.hpp>
#include <zbpp/checkpoint/stored_model.hpp>
#include <zbpp/runtime/training.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace zbpp::checkpoint {

/// Describes the run that a folder belongs to.
struct run_description {
  std::vector<setting> settings = {};  ///< decide the bits of a run, so they have to stay the same
  std::vector<setting> split = {};     ///< of the model over ranks: kept for people, and may change
  int ranks = 1;
  int keep = 2;  ///< checkpoints that stay when the next one is whole; 1 at least
};

/// Connects the processes of a run. This one stands for a run in one process; others override all.
class process_group {
 public:
  process_group() = default;
  process_group(process_group const&) = delete;
  process_group& operator=(process_group const&) = delete;
  virtual ~process_group() = default;

  /// @return those of `ranks` ranks that this process has, ascending
  [[nodiscard]] virtual std::vector<int> own_ranks(int ranks) const;
  /// @return what each process gave, in the same order everywhere
  [[nodiscard]] virtual std::vector<std::vector<std::byte>> all_gather(
      std::span<std::byte const> own);
  /// Called between pieces of long work; throws when another process has failed.
  virtual void check() {}
};

/// Connects processes of one rank each by a rendezvous such as `zbpp::asio::rendezvous`.
template <class Rendezvous>
class ranks_apart final : public process_group {
 public:
  /// @param meeting  outlives the object
  explicit ranks_apart(Rendezvous& meeting) : meeting_(&meeting) {}

  [[nodiscard]] std::vector<int> own_ranks(int) const override { return {meeting_->rank()}; }
  [[nodiscard]] std::vector<std::vector<std::byte>> all_gather(
      std::span<std::byte const> own) override {
    return meeting_->all_gather(own);
  }
  void check() override { meeting_->check(); }

 private:
  Rendezvous* meeting_;
};

/// Writes and reads the checkpoints of one run. All its processes make one, and call it at the same
/// time; but for `load`, what fails in one of them is thrown in all.
class run_folder {
 public:
  /// @param folder  the same for all processes; the first makes it, where there is none
  /// @throws error (bad_argument) naming a setting that is no line
  run_folder(
      std::filesystem::path folder,
      run_description run,
      std::unique_ptr<process_group> processes = std::make_unique<process_group>());

  /// Locks the folder for this run, which is a new one.
  /// @throws error (bad_argument) when there are checkpoints, which would go when the next are
  ///         whole; when another run holds the folder; (bad_argument) or when something lies there
  ///         that no run leaves, such as a pipe; (no_agreement) naming what processes do not
  ///         describe alike, or ranks that are not in one process each; (io_failed)
  void begin();

  /// Locks the folder for this run, and sets arrays to those of the newest checkpoint, if any.
  /// @return what `pipeline::resume` takes
  /// @throws error as `begin` and `load` do; (no_agreement) when the processes see other folders
  [[nodiscard]] training_state resume(std::span<array const> arrays);

  /// Sets arrays to those of the newest checkpoint, where there is one, whichever ranks saved them,
  /// whole or in other parts. None is changed unless all of them are right, so a second copy is in
  /// memory for a while.
  /// @return what `pipeline::resume` takes
  /// @throws error (bad_format) that names the file, and says which folder to remove: when it is
  ///         torn, altered, missing, or of another run, step or rank, or an array is missing, there
  ///         twice, or of another type or shape; none that has a manifest is skipped;
  ///         (bad_argument) naming an array that is no part of its whole
  [[nodiscard]] training_state load(std::span<array const> arrays);

  /// Writes a checkpoint. Older ones go when it is whole and `load` would take it, but for the
  /// newest of them; where a number is not finite, nothing is written, and the good ones stay.
  /// @param state      of the pipeline, after more steps than at the last one
  /// @param arrays_of  gives what a rank of this process saves; what is alike, one rank saves
  /// @return whether it was written
  /// @throws error (io_failed) with the path; (bad_argument) naming an array that is no part of its
  ///         whole, or that a file cannot have; (bad_format) as `load` does, naming one whose parts
  ///         are missing, there twice, or do not fit each other; (no_agreement) when the processes
  ///         do not save one step, or have not each rank once; those before are as they were
  [[nodiscard]] bool save(
      training_state const& state, std::function<std::vector<array>(int rank)> const& arrays_of);

  /// @return the step of the checkpoint that was loaded or saved last; 0 where there is none
  [[nodiscard]] std::int64_t last() const noexcept { return last_; }
  /// @return the folder of that checkpoint; empty where there is none
  [[nodiscard]] std::filesystem::path path() const;
  [[nodiscard]] std::vector<setting> const& split() const noexcept { return split_; }
  /// @return the folders of newer ones that do not count, as they have no manifest: a program died
  ///         before they were whole, or the file is lost; `save` removes them
  [[nodiscard]] std::vector<std::filesystem::path> skipped() const;

  /// @return the name of the checkpoint of a step, such as `step-000020`
  [[nodiscard]] static std::string name(std::int64_t step);

 private:
  void hold();
  std::vector<std::string> together(std::function<void(std::string& answer)> const& work);
  void on_first(std::function<void()> const& work);
  std::vector<file_record> by_rank(std::function<file_record(int rank)> const& work);
  void require_alike(std::string const& text);

  void refuse_strangers() const;
  void refuse_since(std::int64_t step) const;
  [[nodiscard]] std::vector<std::int64_t> steps() const;
  [[nodiscard]] std::vector<std::int64_t> list(bool finished) const;
  void remove(std::int64_t step) const;
  void make_room(std::int64_t step) const;
  [[nodiscard]] file_record write(
      training_state const& state, int rank, std::span<array const> arrays);
  void finish(training_state const& state, std::vector<file_record> files) const;

  [[nodiscard]] detail::manifest read_manifest(
      std::filesystem::path const& of, std::int64_t step, std::string& differences) const;
  [[nodiscard]] stored_model open_all(detail::manifest const& of) const;

  std::filesystem::path folder_;
  run_description run_;
  std::unique_ptr<process_group> processes_;
  int first_rank_ = 0;                       // of this process
  std::optional<detail::folder_lock> lock_;  // of the first process
  std::int64_t last_ = 0;
  std::vector<setting> split_;
};

}  // namespace zbpp::checkpoint

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/checkpoint/impl/run_folder.ipp>
#endif
