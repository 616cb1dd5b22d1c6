// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of a run by zbpp's `run_folder`: what a stage has to save, what has to be the same
// for a run to go on, and when the next one is due.
#pragma once

#include "program.hpp"
#include "stages.hpp"
#include <zbpp/checkpoint/run_folder.hpp>
#include <zbpp/io/checksum.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

using setting = zbpp::checkpoint::setting;

/// Lists what decides the bits of a run; by the name of its option, where it has one.
[[nodiscard]] inline std::vector<setting> settings_of(training const& how, text const& on) {
  auto const number = [](auto value) { return std::to_string(value); };
  auto const sum = zbpp::checksum_of(std::as_bytes(on.bytes()));
  return {
      {"--text", number(on.bytes().size()) + " bytes, checksum " + zbpp::hex_text(sum)},
      {"--microbatches", number(how.microbatches)},
      {"--steps", number(how.optimizer.steps)},
      {"--layers", number(how.model.layers)},
      {"--width", number(how.model.width)},
      {"--context", number(how.model.context)},
      {"--sequences", number(how.model.sequences)},
      {"--vocabulary", number(how.model.words)},
      {"--vocabulary-parallel", how.model.shards > 1 ? number(how.model.shards) + " shards" : "no"},
      {"--tied", how.model.is_tied ? "yes" : "no"},
      {"--optimizer", how.optimizer.kind == optimizer_kind::adam ? "adam" : "sgd"},
      {"--learning-rate", exact(how.optimizer.learning_rate)},
      {"norm of gradients", how.optimizer.needs_norm ? "checked" : "unchecked"},
      {"--clip", exact(how.optimizer.clip)},
      {"--seed", number(how.seed)}};
}

/// Lists how a run is split, which decides no bits.
[[nodiscard]] inline std::vector<setting> split_of(
    training const& how, std::string const& policy, zbpp::placement const& placement) {
  std::vector<setting> split{
      {"--ranks", std::to_string(placement.ranks())},
      {"--policy", policy},
      {"placement", placement.name()}};
  if (how.replicas > 1) split.push_back({"--data", std::to_string(how.replicas)});
  if (how.model.members > 1) split.push_back({"--tensor", std::to_string(how.model.members)});
  return split;
}

/// Describes a piece of the parameters by its name in the whole model, and its part of that.
[[nodiscard]] inline zbpp::checkpoint::array array_of(
    parameter_set::entry const& e, char const* field, std::span<float> values) {
  auto name = std::to_string(e.part) + "/" + std::string(e.name) + field;
  if (e.shape.empty()) return zbpp::checkpoint::array_of(std::move(name), values);
  return zbpp::checkpoint::array_of(
      std::move(name),
      values,
      {e.shape.begin(), e.shape.end()},
      {.axis = static_cast<int>(e.axis), .first = e.first, .whole = e.whole});
}

/// Lists what training changes in those stages for which `has` says so: parameters, and what the
/// optimizer keeps of them.
/// @param has_replicated  whether a stage has what each member of its tensor group has
template <class Has, class HasReplicated>
[[nodiscard]] std::vector<zbpp::checkpoint::array> arrays_of(
    std::vector<chunk_stage>& stages, Has const& has, HasReplicated const& has_replicated) {
  std::vector<zbpp::checkpoint::array> all;
  for (auto& s : stages) {
    if (!has(s)) continue;
    auto const state = s.state();
    for (auto const& e : state.entries) {
      if (e.is_replicated && !has_replicated(s)) continue;
      auto const add = [&](char const* field, std::span<float> values) {
        if (values.empty()) return;
        auto const own = values.subspan(
            static_cast<std::size_t>(e.at.offset), static_cast<std::size_t>(e.at.size));
        all.push_back(array_of(e, field, own));
      };
      add("", state.parameters);
      add("/mean", state.mean);
      add("/mean square", state.square);
    }
  }
  return all;
}

/// Saves the stages of the ranks that are in this process now and then.
class saver {
 public:
  using process_group = zbpp::checkpoint::process_group;

  /// @param folder     the same for all ranks
  /// @param every      steps from one checkpoint to the next
  /// @param policy     of the run, to be told
  /// @param processes  connects the ranks, where they are apart
  saver(
      std::filesystem::path const& folder,
      training const& how,
      std::vector<setting> settings,
      std::int64_t every,
      std::string const& policy,
      zbpp::placement const& placement,
      std::unique_ptr<process_group> processes = std::make_unique<process_group>())
      : path_(folder),
        split_(split_of(how, policy, placement)),
        layout_(how.layout_of(placement.ranks())),
        folder_(
            folder,
            {.settings = std::move(settings), .split = split_, .ranks = layout_.ranks()},
            std::move(processes)),
        every_(every),
        placement_(placement) {}

  /// @return the step of the newest checkpoint; 0 where there is none
  [[nodiscard]] std::int64_t last() const { return folder_.last(); }
  /// @return where the newest checkpoint lies; empty where there is none
  [[nodiscard]] std::filesystem::path path() const { return folder_.path(); }
  /// @return how many steps after so many others a checkpoint is due
  [[nodiscard]] std::int64_t until_due(std::int64_t done) const { return every_ - done % every_; }

  /// Keeps the folder for this run, and begins a new one, or sets the stages that are here to the
  /// newest checkpoint, where there is one, however it was split.
  /// @return what the next step depends on, besides the stages
  /// @throws setting_error when the folder or what lies there cannot be used
  [[nodiscard]] zbpp::training_state begin(std::vector<chunk_stage>& stages, bool resumes) {
    try {
      auto const all = [](chunk_stage const&) { return true; };
      if (resumes) return folder_.resume(arrays_of(stages, all, all));
      folder_.begin();
      return {};
    } catch (zbpp::error const& wrong) {
      using zbpp::errc;
      if (wrong.code() == errc::io_failed || wrong.code() == errc::peer_failed) throw;
      throw setting_error("--checkpoint " + std::string(wrong.what()));
    }
  }

  /// Writes a checkpoint, after more steps than at the last one; none where what training changes
  /// is no longer finite, so that the last good ones stay.
  /// @return what to tell about it
  /// @throws zbpp::error (io_failed) with the path; those before are as they were
  [[nodiscard]] std::string save(
      zbpp::training_state const& state, std::vector<chunk_stage>& stages) {
    auto const name = zbpp::checkpoint::run_folder::name(state.steps);
    bool const is_saved = folder_.save(state, [&](int rank) {
      return arrays_of(
          stages,
          [&](chunk_stage const& s) {  // other replicas have the same
            auto const in_pipeline = placement_.rank_of(s.stage());
            return s.replica() == 0 &&
                   layout_.rank_of({.pipeline = in_pipeline, .tensor = s.member()}) == rank;
          },
          [](chunk_stage const& s) { return s.member() == 0; });
    });
    return is_saved ? "checkpoint " + name
                    : "no checkpoint " + name + ": parameters are nan or infinite";
  }

  /// @return what to tell of the beginning of a run that resumes
  [[nodiscard]] std::string resumed_text() const {
    std::string text;
    for (auto const& skipped : folder_.skipped())
      text += "skipped: " + skipped.string() + " has no manifest; the next checkpoint removes it\n";
    if (last() == 0) return text + "resumed: there is no checkpoint in " + path_.string() + " yet";
    text += "resumed: " + path().string();
    if (folder_.split() == split_) return text;
    char const* comma = ", of ";
    for (auto const& [name, value] : folder_.split())
      if (name.starts_with("--")) text += std::exchange(comma, " ") + name + " " + value;
    return text;
  }

 private:
  std::filesystem::path path_;
  std::vector<setting> split_;
  zbpp::grid_layout layout_;
  zbpp::checkpoint::run_folder folder_;
  std::int64_t every_;
  zbpp::placement placement_;
};

}  // namespace gpt
