// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of a run by zbpp's `run_folder`: what has to be the same for a run to go on, what a
// stage has to save, and when the next one is due.
#pragma once

#include "options.hpp"
#include "stages.hpp"
#include "train_gpt/program.hpp"
#include <zbpp/io/checksum.hpp>

#ifdef GPT_HAS_CHECKPOINT
#include <zbpp/checkpoint/run_folder.hpp>
#endif

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpt::cuda {

/// Lists the options that decide the bits of a run, but for --step.
[[nodiscard]] inline std::vector<std::pair<std::string, std::string>> settings_of(
    options const& o, text const& on) {
  auto const number = [](auto value) { return std::to_string(value); };
  auto const& s = o.how.model;
  auto const& adam = o.how.optimizer;
  auto const sum = zbpp::checksum_of(std::as_bytes(on.bytes()));
  return {
      {"--text", number(on.bytes().size()) + " bytes, checksum " + zbpp::hex_text(sum)},
      {"--microbatches", number(o.how.microbatches)},
      {"--layers", number(s.layers)},
      {"--heads", number(s.heads)},
      {"--width", number(s.width)},
      {"--context", number(s.context)},
      {"--batch", number(s.sequences)},
      {"--steps", number(adam.base.steps)},
      {"--learning-rate", exact(adam.base.learning_rate)},
      {"--weight-decay", exact(adam.weight_decay)},
      {"--clip", exact(adam.base.clip)},
      {"--seed", number(o.how.seed)}};
}

#ifdef GPT_HAS_CHECKPOINT

/// Saves the stages of the ranks of this process now and then.
class saver {
 public:
  /// @param o        outlives the object, as do the stages
  /// @param stages   of `placement`, those that are here
  /// @param meeting  connects the ranks; null where all are here
  template <class Meeting>
  saver(
      options const& o,
      text const& on,
      zbpp::placement const& placement,
      std::vector<chunk_stage>& stages,
      Meeting* meeting)
      : o_(&o), placement_(placement), stages_(&stages) {
    zbpp::checkpoint::run_description run{
        .split =
            {{"--ranks", std::to_string(placement.ranks())},
             {"--policy", o.policies.front()},
             {"placement", placement.name()}},
        .ranks = placement.ranks()};
    for (auto const& [name, value] : settings_of(o, on)) run.settings.push_back({name, value});
    bool const checks = o.how.optimizer.base.needs_norm;
    run.settings.push_back({"norm of gradients", checks ? "checked" : "unchecked"});
    if constexpr (std::is_void_v<Meeting>)
      folder_.emplace(o.checkpoint, run);
    else
      folder_.emplace(
          o.checkpoint, run, std::make_unique<zbpp::checkpoint::ranks_apart<Meeting>>(*meeting));
  }

  /// Keeps the folder for this run, and begins a new one, or sets the stages to the newest
  /// checkpoint, where there is one, however it was split. They are on their devices.
  /// @return what the next step depends on, besides the stages
  /// @throws setting_error when the folder or what lies there cannot be used
  [[nodiscard]] zbpp::training_state begin() {
    zbpp::training_state state;
    try {
      if (!o_->resume) folder_->begin();
      if (!o_->resume) return state;
      auto values = read();
      state = folder_->resume(arrays_of(values, [](int) { return true; }));
      if (state.steps == 0) return state;
      for (std::size_t i = 0; i < values.size(); ++i) (*stages_)[i].write(values[i], state.updates);
    } catch (zbpp::error const& wrong) {
      using zbpp::errc;
      if (wrong.code() != errc::bad_argument && wrong.code() != errc::bad_format) throw;
      throw setting_error("--checkpoint " + std::string(wrong.what()));
    }
    return state;
  }

  /// @return what to tell of a run that resumes
  [[nodiscard]] std::string resumed_text() const {
    std::string text;
    for (auto const& skipped : folder_->skipped())
      text += "skipped: " + skipped.string() + " has no manifest; the next checkpoint removes it\n";
    if (folder_->last() > 0) return text + "resumed: " + folder_->path().string();
    return text + "resumed: there is no checkpoint in " + o_->checkpoint.string() + " yet";
  }
  /// @return how many steps after so many others a checkpoint is due
  [[nodiscard]] std::int64_t until_due(std::int64_t done) const {
    return o_->every - done % o_->every;
  }

  /// Writes a checkpoint; none where what training changes is no longer finite, so that the last
  /// good ones stay.
  /// @return what to tell about it
  /// @throws zbpp::error (io_failed) with the path; those before are as they were
  [[nodiscard]] std::string save(zbpp::training_state state) {
    // Where steps are replayed the pipeline counts no updates, and each step is one.
    if (o_->how.replays) state.updates = state.steps;
    auto values = read();
    bool const is_saved = folder_->save(state, [&](int rank) {
      return arrays_of(values, [&](int stage) { return placement_.rank_of(stage) == rank; });
    });
    auto const name = zbpp::checkpoint::run_folder::name(state.steps);
    return is_saved ? "checkpoint " + name
                    : "no checkpoint " + name + ": parameters are nan or infinite";
  }

 private:
  [[nodiscard]] std::vector<stage_values> read() const {
    std::vector<stage_values> all;
    for (auto const& s : *stages_) all.push_back(s.read());
    return all;
  }

  // Those of the stages for which `has` says so, by their names in the whole model.
  template <class Has>
  [[nodiscard]] std::vector<zbpp::checkpoint::array> arrays_of(
      std::vector<stage_values>& values, Has const& has) const {
    std::vector<zbpp::checkpoint::array> all;
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto const& stage = (*stages_)[i];
      if (!has(stage.stage())) continue;
      std::size_t first = 0;
      for (auto const& e : stage.model().parameters().entries()) {
        auto const size = static_cast<std::size_t>(e.at.size);
        auto const add = [&](char const* field, std::vector<float>& of, std::size_t at) {
          all.push_back(zbpp::checkpoint::array_of(
              std::to_string(e.part) + "/" + std::string(e.name) + field,
              std::span(of).subspan(at, size)));
        };
        add("", values[i].weights, static_cast<std::size_t>(e.at.offset));
        add("/mean", values[i].mean, first);
        add("/mean square", values[i].square, first);
        first += size;
      }
    }
    return all;
  }

  options const* o_;
  zbpp::placement placement_;
  std::vector<chunk_stage>* stages_;
  std::optional<zbpp::checkpoint::run_folder> folder_;
};

#else

/// Is nothing: this program was built without zbpp::checkpoint, and refuses --checkpoint.
struct saver {
  template <class... Any>
  explicit saver(Any const&...) {}
  static zbpp::training_state begin() { return {}; }
  static std::string resumed_text() { return {}; }
  static std::int64_t until_due(std::int64_t) { return 1; }
  static std::string save(zbpp::training_state const&) { return {}; }
};

#endif

}  // namespace gpt::cuda
