// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of models in parts: each entry has the name that its parameter has in the whole
// model, so that another split can load what one split saved.
#pragma once

#include <zbpp/checkpoint/stored_model.hpp>
#include <zbpp/runtime/group.hpp>
#include <zbpp/runtime/training.hpp>
#include <zbpp/torch/named_tensor.hpp>
#include <zbpp/torch/optimizer_state.hpp>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace zbpp::torch {

namespace detail {

/// Reads entries of a checkpoint, and keeps what is changed once all of them are read.
struct loading {
  checkpoint::stored_model from;
  std::set<std::string> known = {};  // what was asked for
  std::vector<std::function<void()>> changes = {};

  [[nodiscard]] bool has(std::string const& name) const { return from.arrays().contains(name); }
  /// @return whether an entry stands for a field that is undefined
  [[nodiscard]] bool is_undefined(std::string const& name) const;
  /// @throws error (bad_format) unless an entry has the type and sizes of `like`; (bad_argument)
  ///         when it was asked for before
  void require(std::string const& name, at::Tensor const& like);
  /// Reads an entry, as `require` does.
  [[nodiscard]] at::Tensor read(std::string const& name, at::Tensor const& like);
  /// Reads an entry, or gives an undefined tensor where it stands for one.
  [[nodiscard]] at::Tensor read_field(std::string const& name, at::Tensor const& like);
};

/// What an optimizer keeps for the parameters of a part.
struct saved_state {
  /// Adds undefined tensors for what other replicas keep.
  std::function<void(std::vector<named_tensor>& to)> save;
  std::function<void(loading& to)> load;
};

/// Adds to the name of a parameter that of a field.
[[nodiscard]] std::string state_name(std::string const& parameter, char const* field);
/// Stands for a field that is undefined.
[[nodiscard]] at::Tensor undefined_field();

/// @throws error (bad_argument) unless the layers of an optimizer of zbpp are those of the tensors
///         that are trained, in their order; others may be among them, which are frozen
template <has_moments Optimizer>
[[nodiscard]] saved_state state_of_moments(
    std::vector<named_tensor> const& entries, Optimizer& optimizer);

template <class Optimizer>
[[nodiscard]] saved_state state_of(std::vector<named_tensor> const& entries, Optimizer& optimizer);

}  // namespace detail

/// Says what a process loads of a checkpoint.
enum class coverage : std::uint8_t {
  whole,  ///< the whole model: an entry that none of its parts has is an error
  part,   ///< some parts of it: entries of others are left alone
};

/// What a checkpoint has of a part of a model: the parameters and buffers of a module, and what
/// an optimizer keeps for those that are trained, with their gradients. It refers to all of these.
class model_part {
 public:
  /// Takes the parameters and buffers of a module.
  /// @param prefix  what stands before their names in the whole model, such as `decoder.`
  template <module_pointer Module>
  explicit model_part(Module const& module, std::string const& prefix = {})
      : model_part(entries_of(module, prefix)) {}
  /// Takes an optimizer, too, which must outlive the part.
  /// @throws error (bad_argument) when one of zbpp steps other parameters, or in another order
  template <module_pointer Module, saved_optimizer Optimizer>
  model_part(Module const& module, Optimizer& optimizer, std::string const& prefix = {})
      : model_part(entries_of(module, prefix), optimizer) {}
  /// Takes tensors, such as those of a stage that is no module.
  explicit model_part(std::vector<named_tensor> entries) : entries_(std::move(entries)) {}
  /// Takes an optimizer, too, which must outlive the part.
  /// @throws error (bad_argument) when one of zbpp steps other tensors, or in another order
  template <saved_optimizer Optimizer>
  model_part(std::vector<named_tensor> entries, Optimizer& optimizer)
      : entries_(std::move(entries)), state_(detail::state_of(entries_, optimizer)) {}

 private:
  friend void save_checkpoint(
      std::filesystem::path const&, std::span<model_part const>, training_state const&, group*);
  friend training_state load_checkpoint(
      std::filesystem::path const&, std::span<model_part const>, coverage);

  template <class Module>
  [[nodiscard]] static std::vector<named_tensor> entries_of(
      Module const& module, std::string const& prefix) {
    std::vector<named_tensor> all;
    detail::append_named(all, module->named_parameters(), prefix);
    detail::append_named(all, module->named_buffers(), prefix);
    return all;
  }
  std::vector<named_tensor> entries_;  // parameters, then buffers
  detail::saved_state state_;          // empty functions without an optimizer
};

/// Saves parts of a model in a file of the format safetensors: those of a rank, or all.
///
/// The file appears whole or not at all, and is on the disk when this returns. Optimizers must have
/// done their step: as after `run` or `step`. Parameters that are not trained are saved, too; an
/// optimizer's settings are not. Gradients that wait for an optimizer step, because steps are
/// accumulated or the trainer adds them up, are saved with the optimizer; without one, only where
/// `state` says that some are pending.
///
/// Replicas call it together, between the same steps, each with all parts that it has and a file of
/// its own in one folder. What several have, the first of them saves. Nothing is written unless the
/// files have everything together.
/// @param path      of the file; end its name in `.safetensors`
/// @param state     `pipeline::state()`
/// @param replicas  those of the model, where there are several; `pipeline::grid()` has them
/// @throws error (io_failed) with the path; (bad_argument) when two entries have the same name, or
///         a tensor is not dense, or of a type that the format does not have; when a gradient is
///         sparse and not 0, which is saved when the optimizer has stepped; naming what another
///         replica keeps and does not save, or a gradient that waits, as each replica has another;
///         when two replicas write one file
void save_checkpoint(
    std::filesystem::path const& path,
    std::span<model_part const> parts,
    training_state const& state = {},
    group* replicas = nullptr);
/// Saves parts of the model that a pipeline trains, which may be one of several replicas.
template <class Pipeline>
  requires requires(Pipeline& pipe) { pipe.grid().data(); }
void save_checkpoint(
    std::filesystem::path const& path, std::span<model_part const> parts, Pipeline& pipe) {
  save_checkpoint(path, parts, pipe.state(), &pipe.grid().data());
}

/// Loads parts of a model from a file, or from all files of a folder whose names end in
/// `.safetensors`, whatever parts they were saved from. Nothing is changed unless all of it fits,
/// so a second copy of what is loaded is in memory for a while. A part without an optimizer leaves
/// alone what others saved of theirs. Gradients become those that were saved: where none were
/// pending, those of a part with an optimizer are cleared.
/// @return what `pipeline::resume` takes
/// @throws error (io_failed) with the path; (bad_format) naming a file that is damaged, or the
///         entry that is missing, unknown, there twice, or of another type or sizes; when files are
///         of different steps; (bad_argument) when two parts have an entry of the same name
training_state load_checkpoint(
    std::filesystem::path const& path,
    std::span<model_part const> parts,
    coverage extent = coverage::whole);

template <class Optimizer>
detail::saved_state detail::state_of(
    std::vector<named_tensor> const& entries, Optimizer& optimizer) {
  if constexpr (holds_optimizer<Optimizer>) {
    return state_of(entries, optimizer.libtorch());
  } else if constexpr (has_moments<Optimizer>) {
    return state_of_moments(entries, optimizer);
  } else {
    using fields = param_state<Optimizer>;
    using state = typename fields::type;
    using key = typename std::remove_cvref_t<decltype(optimizer.state())>::key_type;
    saved_state made;
    made.save = [&optimizer, entries](std::vector<named_tensor>& to) {
      std::set<at::TensorImpl const*> stepped;  // frozen ones, too
      for (auto const& group : optimizer.param_groups())
        for (auto const& each : group.params()) stepped.insert(each.unsafeGetTensorImpl());
      for (auto const& each : entries) {  // clang 14 captures no structured binding
        auto const& name = each.name;
        if (!each.value.defined()) continue;
        auto const found = optimizer.state().find(state_key<key>(each.value));
        bool const is_there = found != optimizer.state().end();
        bool const is_stepped = stepped.contains(each.value.unsafeGetTensorImpl());
        if (!is_there && !is_stepped && !each.value.requires_grad()) continue;
        to.push_back({state_name(name, "has_state"), at::scalar_tensor(is_there, at::kBool)});
        if (!is_there) continue;
        fields::visit(static_cast<state&>(*found->second), [&](char const* field, auto& value) {
          at::Tensor saved = undefined_field();
          if constexpr (is_number<decltype(value)>)
            saved = at::scalar_tensor(value, at::kLong);
          else if (value.defined())
            saved = value;
          to.push_back({state_name(name, field), saved});
        });
      }
    };
    made.load = [&optimizer, entries](loading& to) {
      for (auto const& each : entries) {
        if (!each.value.defined()) continue;
        auto const place = state_key<key>(each.value);
        auto const has_state = state_name(each.name, "has_state");
        // Older files say nothing of what was frozen.
        bool const is_told = each.value.requires_grad() || to.has(has_state);
        if (!is_told || !to.read(has_state, at::zeros({}, at::kBool)).template item<bool>()) {
          to.changes.push_back([&optimizer, place] { optimizer.state().erase(place); });
          continue;
        }
        state read;
        fields::visit(read, [&](char const* field, auto& value) {
          auto const name = state_name(each.name, field);
          if constexpr (is_number<decltype(value)>)
            value = to.read(name, at::zeros({}, at::kLong)).template item<std::int64_t>();
          else
            value = to.read_field(name, each.value);
        });
        to.changes.push_back([&optimizer, place, read] {
          optimizer.state()[place] = std::make_unique<state>(read);
        });
      }
    };
    return made;
  }
}

}  // namespace zbpp::torch

#include <zbpp/torch/impl/checkpoint.ipp>
