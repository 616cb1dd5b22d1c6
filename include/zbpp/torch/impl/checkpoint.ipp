// SPDX-License-Identifier: Apache-2.0
//
// How parts of models are found in files, checked and copied.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/torch/checkpoint.hpp>
#include <zbpp/torch/parameters.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <system_error>

namespace zbpp::torch {

namespace detail {

inline constexpr char const* state_prefix = "optimizer/";
inline constexpr char const* training_key = "zbpp.training_state";

/// Writes the numbers of a state, with blanks between them.
[[nodiscard]] inline std::string to_text(training_state const& state) {
  std::array<char, 160> text{};
  auto* at = text.data();
  auto const add = [&](auto value) {
    if (at != text.data()) *at++ = ' ';
    at = std::to_chars(at, text.data() + text.size(), value).ptr;
  };
  add(state.steps);
  add(state.updates);
  add(state.loss_scale);
  add(state.finite_steps);
  add(state.amended);
  add(state.accumulated);
  return {text.data(), at};
}

/// Is what a file says of the run.
struct saved_training {
  training_state state;
  bool has_gradients = false;  ///< what was pending, if anything; older files say nothing of it

  friend bool operator==(saved_training const&, saved_training const&) = default;
};

/// Reads what `to_text` wrote, or five numbers as it was before. @return nothing where it is
/// something else
[[nodiscard]] inline std::optional<saved_training> to_training(std::string_view text) {
  saved_training read;
  auto& made = read.state;
  bool is_right = true;
  auto const next = [&](auto& value) {
    auto const [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    is_right = is_right && fault == std::errc();
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.starts_with(' ')) text.remove_prefix(1);
  };
  next(made.steps);
  next(made.updates);
  next(made.loss_scale);
  next(made.finite_steps);
  next(made.amended);
  read.has_gradients = !text.empty();
  if (read.has_gradients) next(made.accumulated);
  if (!is_right || !text.empty()) return std::nullopt;
  return read;
}

class stored_entries {
 public:
  struct place {
    stored_file* file;
    stored_tensor const* tensor;
  };

  /// Opens a file, or all of a folder.
  explicit stored_entries(std::filesystem::path const& path) : name_(path.string()) {
    std::error_code reason;
    std::vector<std::filesystem::path> paths;
    if (!std::filesystem::is_directory(path, reason)) {
      paths.push_back(path);
    } else {
      for (std::filesystem::directory_iterator at(path, reason), end; !reason && at != end;
           at.increment(reason))
        if (at->path().extension() == ".safetensors") paths.push_back(at->path());
      if (reason) throw error(errc::io_failed, name_ + ": cannot be read: " + reason.message());
      if (paths.empty())
        throw error(errc::io_failed, name_ + ": has no file whose name ends in .safetensors");
    }
    std::ranges::sort(paths);
    for (auto const& each : paths) add(each);
  }

  /// @return where an entry is; null where it is not
  [[nodiscard]] place const* find(std::string const& name) const {
    auto const found = places_.find(name);
    return found == places_.end() ? nullptr : &found->second;
  }
  /// @return where an entry is that has to be like `expected`
  [[nodiscard]] place const& at(std::string const& name, at::Tensor const& expected) const {
    auto const right = describe(expected.scalar_type(), expected.sizes());
    auto const* const found = find(name);
    if (found == nullptr)
      throw error(
          errc::bad_format,
          name_ + ": has no entry '" + name + "'; the model has it as " + right +
              ": load what was saved of all parts, under the same names");
    auto const& [type, sizes, begin, end] = *found->tensor;
    if (type != expected.scalar_type() || at::IntArrayRef(sizes) != expected.sizes())
      throw error(
          errc::bad_format,
          found->file->path().string() + ": the entry '" + name + "' is " + describe(type, sizes) +
              "; the model has " + right);
    return *found;
  }
  [[nodiscard]] std::map<std::string, place> const& all() const noexcept { return places_; }
  [[nodiscard]] saved_training const& training() const noexcept { return *training_; }

 private:
  void add(std::filesystem::path const& path) {
    auto& file = *files_.emplace_back(std::make_unique<stored_file>(path));
    for (auto const& [name, tensor] : file.header().tensors) {
      auto const [other, is_new] = places_.emplace(name, place{&file, &tensor});
      if (!is_new)
        throw error(
            errc::bad_format,
            path.string() + ": the entry '" + name + "' is in " +
                other->second.file->path().string() +
                ", too; leave the files of one checkpoint alone in its folder");
    }
    auto const state = training_of(file);
    if (training_ && *training_ != state)
      throw error(
          errc::bad_format,
          path.string() + ": is of step " + std::to_string(state.state.steps) + ", and " +
              files_.front()->path().string() + " of step " +
              std::to_string(training_->state.steps) +
              "; load files that were saved at the same time");
    training_ = state;
  }

  [[nodiscard]] static saved_training training_of(stored_file const& file) {
    auto const& metadata = file.header().metadata;
    auto const found = metadata.find(training_key);
    if (found == metadata.end()) return {};
    if (auto const read = to_training(found->second)) return *read;
    throw error(
        errc::bad_format,
        file.path().string() + ": its training_state is '" + found->second +
            "', which is not five or six numbers; take another copy of it");
  }

  std::string name_;
  std::vector<std::unique_ptr<stored_file>> files_;
  std::map<std::string, place> places_;
  std::optional<saved_training> training_;
};

inline std::string state_name(std::string const& parameter, char const* field) {
  return state_prefix + parameter + '/' + field;
}

inline bool has_state(stored_entries& from, std::string const& parameter) {
  auto const name = state_name(parameter, "has_state");
  auto const& where = from.at(name, at::scalar_tensor(false, at::kBool));
  return where.file->read(*where.tensor).item<bool>();
}

inline bool has_entry(stored_entries const& from, std::string const& name) {
  return from.find(name) != nullptr;
}

// A field of no parameter: such have no bytes of their own.
inline at::Tensor undefined_field() { return at::empty({0}, at::kByte); }

inline bool is_undefined(stored_entries const& from, std::string const& name) {
  auto const* const found = from.find(name);
  return found != nullptr && found->tensor->type == at::kByte &&
         found->tensor->sizes == std::vector<std::int64_t>{0};
}

/// @return whether a layer is that of a tensor
[[nodiscard]] inline bool is_of(optim::layer const& layer, at::Tensor const& tensor) {
  if (auto const* const source = dynamic_cast<tensor_source const*>(layer.source.get()))
    return source->parameter().is_same(tensor);
  return tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.device().is_cpu() &&
         tensor.data_ptr() == layer.weights.data() && tensor.numel() == std::ssize(layer.weights);
}

inline saved_state state_of_moments(
    std::vector<named_tensor> const& entries, kept_moments const& moments) {
  std::vector<named_tensor> stepped;  // by layer
  for (auto const& each : entries) {
    if (stepped.size() < moments.layers.size() && is_of(moments.layers[stepped.size()], each.value))
      stepped.push_back(each);
    else if (each.value.defined() && each.value.requires_grad())
      stepped.resize(moments.layers.size() + 1);
  }
  if (stepped.size() != moments.layers.size())
    throw error(
        errc::bad_argument,
        "the optimizer of a model_part steps other weights than those of the part that are "
        "trained, or in another order; make it of layers_of(module->parameters())");
  saved_state made;
  made.save = [stepped, moments](std::vector<named_tensor>& to) {
    for (int layer = 0; layer < std::ssize(stepped); ++layer) {
      auto const& [name, parameter] = stepped[static_cast<std::size_t>(layer)];
      bool const has_some = moments.has(layer);
      auto const values = has_some ? moments.of(layer) : std::vector<std::span<float>>();
      for (std::size_t i = 0; i < moments.names.size(); ++i)
        to.push_back(
            {state_name(name, moments.names[i].c_str()),
             has_some ? at::from_blob(values[i].data(), parameter.sizes(), at::kFloat)
                      : undefined_field()});
    }
  };
  made.load = [stepped, moments](stored_entries& from, loading& to) {
    for (int layer = 0; layer < std::ssize(stepped); ++layer) {
      auto const& [name, parameter] = stepped[static_cast<std::size_t>(layer)];
      auto const first = state_name(name, moments.names.front().c_str());
      bool const has_none = is_undefined(from, first);
      // Older files say nothing of what was frozen.
      if (!has_none && !has_entry(from, first) && !parameter.requires_grad()) {
        to.afterwards.push_back([moments, layer] { moments.keep(layer, false); });
        continue;
      }
      tensors read;
      for (std::size_t i = 0; i < moments.names.size(); ++i) {
        read.push_back(
            has_none ? undefined_field()
            : moments.has(layer)
                ? at::from_blob(moments.of(layer)[i].data(), parameter.sizes(), at::kFloat)
                : at::empty(parameter.sizes(), at::kFloat));
        to.entries.push_back({state_name(name, moments.names[i].c_str()), read.back()});
      }
      if (has_none)
        to.afterwards.push_back([moments, layer] { moments.keep(layer, false); });
      else if (!moments.has(layer))
        to.afterwards.push_back([moments, layer, read] {
          moments.keep(layer, true);
          auto const values = moments.of(layer);
          for (std::size_t i = 0; i < values.size(); ++i)
            std::copy_n(read[i].data_ptr<float>(), values[i].size(), values[i].begin());
        });
    }
  };
  return made;
}

/// @return the gradient of a tensor; undefined where it has none
[[nodiscard]] inline at::Tensor gradient_of(at::Tensor const& tensor) {
  return tensor.defined() && tensor.is_leaf() ? tensor.grad() : at::Tensor();
}

/// @return whether all bits are those of 0
[[nodiscard]] inline bool is_zero(at::Tensor const& gradient) {
  if (at::count_nonzero(gradient).item<std::int64_t>() > 0) return false;
  return !gradient.is_floating_point() || !at::signbit(gradient).any().item<bool>();
}

/// Adds the gradient of a tensor, if it has one: with an optimizer also that it is 0, because
/// optimizers of LibTorch leave alone what has none.
inline void save_gradient(
    named_tensor const& of, bool has_optimizer, std::vector<named_tensor>& to) {
  auto gradient = gradient_of(of.value);
  if (!gradient.defined()) return;
  if (gradient.is_sparse()) {
    if (gradient._nnz() > 0)
      throw error(
          errc::bad_argument,
          "the gradient of '" + of.name +
              "' is sparse, which a checkpoint cannot have; save when the optimizer has stepped "
              "and its gradients are cleared");
    return;
  }
  bool const is_pending = !is_zero(gradient);
  if (is_pending || has_optimizer)
    to.push_back({state_name(of.name, "gradient"), is_pending ? gradient : undefined_field()});
}

/// Prepares that the gradient of a tensor becomes the one that was saved.
inline void load_gradient(
    named_tensor const& of, bool has_optimizer, stored_entries const& from, loading& to) {
  auto const name = state_name(of.name, "gradient");
  auto const& tensor = of.value;
  if (!has_optimizer && (!has_entry(from, name) || from.training().state.accumulated == 0)) return;
  if (!has_entry(from, name)) {
    if (gradient_of(tensor).defined())
      to.afterwards.push_back([tensor] { tensor.mutable_grad().reset(); });
    return;
  }
  bool const is_pending = !is_undefined(from, name);
  auto const read = is_pending ? at::empty_like(tensor.detach()) : undefined_field();
  to.entries.push_back({name, read});
  to.afterwards.push_back([tensor, is_pending, read] {
    auto& gradient = tensor.mutable_grad();
    if (is_pending)
      gradient = read;
    else if (!gradient.defined() || gradient.is_sparse())
      gradient = at::zeros_like(tensor.detach());
    else
      gradient.zero_();
  });
}

/// Refuses what a name stands for twice.
inline void require_names(std::vector<named_tensor> const& entries) {
  std::set<std::string_view> names;
  for (auto const& each : entries) {
    if (each.name == "__metadata__")
      throw error(
          errc::bad_argument,
          "an entry of a checkpoint is '__metadata__', which the format has for itself; give it "
          "another name");
    if (!names.insert(each.name).second)
      throw error(
          errc::bad_argument,
          "two entries of a checkpoint are '" + each.name +
              "'; name the modules of each part as in the whole model, or give it a prefix");
  }
}

/// @return the parameter of whose state a name is; empty where it is of none
[[nodiscard]] inline std::string parameter_of(std::string const& name) {
  auto const begin = std::string_view(state_prefix).size();
  auto const end = name.rfind('/');
  return name.starts_with(state_prefix) && end > begin ? name.substr(begin, end - begin)
                                                       : std::string();
}

}  // namespace detail

inline void save_checkpoint(
    std::filesystem::path const& path,
    std::span<model_part const> parts,
    training_state const& state) {
  c10::AutoGradMode const off(false);
  std::vector<named_tensor> all;
  for (auto const& part : parts) {
    bool const has_optimizer = static_cast<bool>(part.state_.save);
    for (auto const& each : part.entries_)
      if (each.value.defined()) all.push_back(each);
    if (has_optimizer) part.state_.save(all);
    if (!has_optimizer && state.accumulated == 0) continue;
    for (auto const& each : part.entries_) detail::save_gradient(each, has_optimizer, all);
  }
  detail::require_names(all);
  detail::write_tensors(
      path, all, {{"format", "pt"}, {detail::training_key, detail::to_text(state)}});
}

inline training_state load_checkpoint(
    std::filesystem::path const& path, std::span<model_part const> parts, coverage what) {
  c10::AutoGradMode const off(false);
  detail::stored_entries from(path);
  detail::loading to;
  std::set<std::string> with_state;
  std::set<std::string> without_state;
  for (auto const& part : parts) {
    for (auto const& each : part.entries_) {
      if (!each.value.defined()) continue;
      to.entries.push_back(each);
      (part.state_.load ? with_state : without_state).insert(each.name);
    }
    bool const has_optimizer = static_cast<bool>(part.state_.load);
    if (has_optimizer) part.state_.load(from, to);
    if (!from.training().has_gradients) continue;
    for (auto const& each : part.entries_)
      if (each.value.defined()) detail::load_gradient(each, has_optimizer, from, to);
  }
  detail::require_names(to.entries);
  std::set<std::string_view> known;
  for (auto const& each : to.entries) {
    static_cast<void>(from.at(each.name, each.value));
    known.insert(each.name);
  }
  for (auto const& [name, place] : from.all()) {
    auto const parameter = detail::parameter_of(name);
    if (known.contains(name) || without_state.contains(parameter)) continue;
    if (what == coverage::part && !with_state.contains(parameter)) continue;
    throw error(
        errc::bad_format,
        place.file->path().string() + ": the entry '" + name +
            "' matches nothing in the model; give load_checkpoint all parts of the model, or "
            "coverage::part");
  }
  std::vector<at::Tensor> read;  // all of it, before anything is changed
  for (auto const& [name, value] : to.entries) {
    auto const& [file, tensor] = from.at(name, value);
    read.push_back(file->read(*tensor));
  }
  for (std::size_t i = 0; i < read.size(); ++i)
    to.entries[i].value.copy_(std::exchange(read[i], at::Tensor()));
  for (auto const& each : to.afterwards) each();
  return from.training().state;
}

}  // namespace zbpp::torch
