// SPDX-License-Identifier: Apache-2.0
//
// How parts of models are found in files, checked and copied.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/torch/checkpoint.hpp>

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
  std::array<char, 128> text{};
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
  return {text.data(), at};
}

/// Reads what `to_text` wrote. @return nothing where it is something else
[[nodiscard]] inline std::optional<training_state> to_state(std::string_view text) {
  training_state made;
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
  if (!is_right || !text.empty()) return std::nullopt;
  return made;
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
  [[nodiscard]] training_state const& training() const noexcept { return *training_; }

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
          path.string() + ": is of step " + std::to_string(state.steps) + ", and " +
              files_.front()->path().string() + " of step " + std::to_string(training_->steps) +
              "; load files that were saved at the same time");
    training_ = state;
  }

  [[nodiscard]] static training_state training_of(stored_file const& file) {
    auto const& metadata = file.header().metadata;
    auto const found = metadata.find(training_key);
    if (found == metadata.end()) return {};
    if (auto const state = to_state(found->second)) return *state;
    throw error(
        errc::bad_format,
        file.path().string() + ": its training_state is '" + found->second +
            "', which is not five numbers; take another copy of it");
  }

  std::string name_;
  std::vector<std::unique_ptr<stored_file>> files_;
  std::map<std::string, place> places_;
  std::optional<training_state> training_;
};

inline std::string state_name(std::string const& parameter, char const* field) {
  return state_prefix + parameter + '/' + field;
}

inline bool has_state(stored_entries& from, std::string const& parameter) {
  auto const name = state_name(parameter, "has_state");
  auto const& where = from.at(name, at::scalar_tensor(false, at::kBool));
  return where.file->read(*where.tensor).item<bool>();
}

// A field of no parameter: such have no bytes of their own.
inline at::Tensor undefined_field() { return at::empty({0}, at::kByte); }

inline bool is_undefined(stored_entries const& from, std::string const& name) {
  auto const* const found = from.find(name);
  return found != nullptr && found->tensor->type == at::kByte &&
         found->tensor->sizes == std::vector<std::int64_t>{0};
}

inline saved_state state_of_moments(
    std::vector<named_tensor> trained,
    std::vector<std::span<float const>> const& stepped,
    std::function<std::vector<named_moment>()> moments) {
  auto const is_of = [](named_tensor const& parameter, std::span<float const> weights) {
    return parameter.value.data_ptr() == weights.data() &&
           parameter.value.numel() == std::ssize(weights);
  };
  if (!std::ranges::equal(trained, stepped, is_of))
    throw error(
        errc::bad_argument,
        "the optimizer of a model_part steps other weights than those of the part that are "
        "trained, or in another order; make it of layers_of(module->parameters())");
  auto const entries = [trained = std::move(trained), moments = std::move(moments)] {
    std::vector<named_tensor> all;
    for (auto const& [moment, values] : moments()) {
      auto* at = values.data();
      for (auto const& [name, parameter] : trained) {
        all.push_back({state_name(name, moment), at::from_blob(at, parameter.sizes(), at::kFloat)});
        at += parameter.numel();
      }
    }
    return all;
  };
  return {
      .save =
          [entries](std::vector<named_tensor>& to) {
            auto const all = entries();
            to.insert(to.end(), all.begin(), all.end());
          },
      .load =
          [entries](stored_entries&, loading& to) {
            auto const all = entries();
            to.entries.insert(to.entries.end(), all.begin(), all.end());
          }};
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

inline std::vector<named_tensor> model_part::trained() const {
  std::vector<named_tensor> all;
  for (auto const& each : entries_)
    if (each.value.defined() && each.value.requires_grad()) all.push_back(each);
  return all;
}

inline void save_checkpoint(
    std::filesystem::path const& path,
    std::span<model_part const> parts,
    training_state const& state) {
  std::vector<named_tensor> all;
  for (auto const& part : parts) {
    for (auto const& each : part.entries_)
      if (each.value.defined()) all.push_back(each);
    if (part.state_.save) part.state_.save(all);
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
    if (part.state_.load) part.state_.load(from, to);
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
  return from.training();
}

}  // namespace zbpp::torch
