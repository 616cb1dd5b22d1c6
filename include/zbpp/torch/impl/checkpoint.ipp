// SPDX-License-Identifier: Apache-2.0
//
// How parts of models are found in files, checked and copied.
#pragma once

#include <zbpp/checkpoint/metadata.hpp>
#include <zbpp/checkpoint/safetensors.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/durable.hpp>
#include <zbpp/torch/checkpoint.hpp>
#include <zbpp/torch/parameters.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace zbpp::torch {

namespace detail {

inline constexpr char const* state_prefix = "optimizer/";
using checkpoint::saved_training;
using checkpoint::training_key;

/// Pairs a type of a file with that of LibTorch.
struct type_pair {
  checkpoint::number_type stored;
  at::ScalarType type;
};
inline constexpr std::array type_pairs{
    type_pair{checkpoint::number_type::f64, at::kDouble},
    type_pair{checkpoint::number_type::i64, at::kLong},
    type_pair{checkpoint::number_type::f32, at::kFloat},
    type_pair{checkpoint::number_type::i32, at::kInt},
    type_pair{checkpoint::number_type::f16, at::kHalf},
    type_pair{checkpoint::number_type::bf16, at::kBFloat16},
    type_pair{checkpoint::number_type::i16, at::kShort},
    type_pair{checkpoint::number_type::i8, at::kChar},
    type_pair{checkpoint::number_type::u8, at::kByte},
    type_pair{checkpoint::number_type::boolean, at::kBool}};

/// @return the pair of a type of LibTorch; null where the format has none
[[nodiscard]] inline type_pair const* find_type(at::ScalarType type) {
  auto const* const found = std::ranges::find(type_pairs, type, &type_pair::type);
  return found == type_pairs.end() ? nullptr : found;
}

[[nodiscard]] inline std::string describe(at::Tensor const& tensor) {
  auto const* const found = find_type(tensor.scalar_type());
  return checkpoint::describe(
      found != nullptr ? to_string(found->stored) : c10::toString(tensor.scalar_type()),
      {tensor.sizes().data(), tensor.sizes().size()});
}

[[nodiscard]] inline std::string describe(checkpoint::stored_array const& stored) {
  return checkpoint::describe(to_string(stored.type), stored.shape);
}

[[nodiscard]] inline bool is_like(checkpoint::stored_array const& stored, at::Tensor const& other) {
  auto const* const found = find_type(other.scalar_type());
  return found != nullptr && found->stored == stored.type &&
         at::IntArrayRef(stored.shape) == other.sizes();
}

/// Reads a tensor into memory of the host.
[[nodiscard]] inline at::Tensor read_tensor(
    checkpoint::stored_file const& from,
    checkpoint::stored_array const& stored,
    at::ScalarType type) {
  auto const made = at::empty(stored.shape, type);
  from.read(stored, {static_cast<std::byte*>(made.data_ptr()), made.nbytes()});
  return made;
}

/// Writes a file and puts its name on the disk, too.
inline void write_tensors(
    std::filesystem::path const& path,
    std::vector<named_tensor> const& tensors,
    std::map<std::string, std::string> const& metadata) {
  std::vector<at::Tensor> plain;  // outlives the arrays
  std::vector<checkpoint::array> arrays;
  for (auto const& [name, value] : tensors) {
    auto const* const found = find_type(value.scalar_type());
    if (found == nullptr || value.layout() != at::kStrided)
      throw error(errc::bad_argument) + "'" + name +
          "' is not a dense tensor of a type that a checkpoint can have: it is " + describe(value);
    auto const& each = plain.emplace_back(value.detach().cpu().contiguous());
    arrays.push_back(
        {name,
         found->stored,
         value.sizes().vec(),
         {static_cast<std::byte*>(each.data_ptr()), each.nbytes()}});
  }
  checkpoint::write_arrays(path, arrays, metadata);
  sync_folder(path.parent_path());
}

class stored_entries {
 public:
  struct place {
    checkpoint::stored_file const* file;
    checkpoint::stored_array const* array;
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
      if (reason) throw error(errc::io_failed) + name_ + ": cannot be read: " + reason.message();
      if (paths.empty())
        throw error(errc::io_failed) + name_ + ": has no file whose name ends in .safetensors";
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
    auto const right = describe(expected);
    auto const* const found = find(name);
    if (found == nullptr)
      throw error(errc::bad_format) + name_ + ": has no entry '" + name +
          "'; the model has it as " + right +
          ": load what was saved of all parts, under the same names";
    if (!is_like(*found->array, expected))
      throw error(errc::bad_format) + found->file->path().string() + ": the entry '" + name +
          "' is " + describe(*found->array) + "; the model has " + right;
    return *found;
  }
  [[nodiscard]] std::map<std::string, place> const& all() const noexcept { return places_; }
  [[nodiscard]] saved_training const& training() const noexcept { return *training_; }

 private:
  void add(std::filesystem::path const& path) {
    auto const& file = files_.emplace_back(path);
    for (auto const& [name, array] : file.header().arrays) {
      auto const [other, is_new] = places_.emplace(name, place{&file, &array});
      if (!is_new)
        throw error(errc::bad_format) + path.string() + ": the entry '" + name + "' is in " +
            other->second.file->path().string() +
            ", too; leave the files of one checkpoint alone in its folder";
    }
    auto const state = training_of(file);
    if (training_ && *training_ != state) {
      auto const& other = files_.front().path().string();
      bool const same_step = training_->state.steps == state.state.steps;
      auto const differs = same_step ? ": has the training_state '" +
                                           checkpoint::to_text(state.state) + "', and " + other +
                                           " has '" + checkpoint::to_text(training_->state) + "'"
                                     : zbpp::detail::joined(": is of step ") + state.state.steps +
                                           ", and " + other + " of step " + training_->state.steps;
      throw error(errc::bad_format) + path.string() + differs +
          "; load files that were saved at the same time" +
          (same_step ? ", with the state of a rank that has an optimizer" : "");
    }
    training_ = state;
  }

  [[nodiscard]] static saved_training training_of(checkpoint::stored_file const& file) {
    auto const& metadata = file.header().metadata;
    auto const found = metadata.find(training_key);
    if (found == metadata.end()) return {};
    if (auto const read = checkpoint::to_training(found->second)) return *read;
    throw error(errc::bad_format) + file.path().string() + ": its training_state is '" +
        found->second + "', which is not five or six numbers; take another copy of it";
  }

  std::string name_;
  std::deque<checkpoint::stored_file> files_;  // whose headers stay where they are
  std::map<std::string, place> places_;
  std::optional<saved_training> training_;
};

inline std::string state_name(std::string const& parameter, char const* field) {
  return state_prefix + parameter + '/' + field;
}

inline bool has_state(stored_entries& from, std::string const& parameter) {
  auto const name = state_name(parameter, "has_state");
  auto const& key = from.at(name, at::scalar_tensor(false, at::kBool));
  return read_tensor(*key.file, *key.array, at::kBool).item<bool>();
}

inline bool has_entry(stored_entries const& from, std::string const& name) {
  return from.find(name) != nullptr;
}

// A field of no parameter: such have no bytes of their own.
inline at::Tensor undefined_field() { return at::empty({0}, at::kByte); }

inline bool is_undefined(stored_entries const& from, std::string const& name) {
  auto const* const found = from.find(name);
  return found != nullptr && is_like(*found->array, undefined_field());
}

[[nodiscard]] inline bool is_of(optim::layer const& layer, at::Tensor const& tensor) {
  if (auto const* const source = dynamic_cast<tensor_source const*>(layer.source.get()))
    return source->parameter().is_same(tensor);
  return tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.device().is_cpu() &&
         tensor.data_ptr() == layer.weights.data() && tensor.numel() == std::ssize(layer.weights);
}

/// @return the moments of a layer; none of a layer that has none
template <has_moments Optimizer>
[[nodiscard]] auto moments_at(Optimizer& optimizer, int layer) {
  auto all = moments_of(optimizer);
  auto const count = optimizer.has_moments(layer) ? optimizer.at(layer).weights.size() : 0;
  for (auto& each : all) each.values = each.values.subspan(optimizer.first_moment(layer), count);
  return all;
}

/// @return the steps of the run that a layer has missed; null where they are not counted
template <has_moments Optimizer>
[[nodiscard]] std::int64_t* missed_steps(Optimizer& optimizer, int layer) {
  if constexpr (requires { optimizer.missed_steps(); })
    return optimizer.missed_steps().data() + layer;
  else
    return nullptr;
}

template <has_moments Optimizer>
saved_state state_of_moments(std::vector<named_tensor> const& entries, Optimizer& optimizer) {
  auto const layers = static_cast<std::size_t>(optimizer.layers());
  std::vector<named_tensor> stepped;  // by layer
  for (auto const& each : entries) {
    auto const next = static_cast<int>(stepped.size());
    if (stepped.size() < layers && is_of(optimizer.at(next), each.value))
      stepped.push_back(each);
    else if (each.value.defined() && each.value.requires_grad())
      stepped.resize(layers + 1);
  }
  zbpp::detail::require(
      stepped.size() == layers,
      "the optimizer of a model_part steps other weights than those of the part that are trained, "
      "or in another order; make it of layers_of(module->parameters())");
  saved_state made;
  made.save = [stepped, &optimizer](std::vector<named_tensor>& to) {
    for (int layer = 0; layer < std::ssize(stepped); ++layer) {
      auto const& [name, parameter] = stepped[static_cast<std::size_t>(layer)];
      auto const missed = optimizer.is_own(layer) ? missed_steps(optimizer, layer) : nullptr;
      if (missed != nullptr && *missed != 0)
        to.push_back({state_name(name, "missed_steps"), at::scalar_tensor(*missed, at::kLong)});
      for (auto const& [field, values] : moments_at(optimizer, layer)) {
        auto value = optimizer.is_own(layer) ? undefined_field() : at::Tensor();
        if (optimizer.has_moments(layer))
          value = at::from_blob(values.data(), parameter.sizes(), at::kFloat);
        to.push_back({state_name(name, field), value});
      }
    }
  };
  made.load = [stepped, &optimizer](stored_entries& from, loading& to) {
    for (int layer = 0; layer < std::ssize(stepped); ++layer) {
      auto const& [name, parameter] = stepped[static_cast<std::size_t>(layer)];
      auto& checked = optimizer.is_own(layer) ? to.entries : to.of_others;
      if (auto* const missed = missed_steps(optimizer, layer); missed != nullptr) {
        auto const value = at::from_blob(missed, {}, at::kLong);
        if (auto const entry = state_name(name, "missed_steps"); has_entry(from, entry))
          checked.push_back({entry, value});
        else  // as in older files, and where it has taken all steps
          to.afterwards.push_back([value] { value.zero_(); });
      }
      auto const fields = moments_of(optimizer);
      auto const first = state_name(name, fields.front().name);
      bool const has_none = is_undefined(from, first);
      // Older files say nothing of what was frozen.
      bool const is_told = has_entry(from, first) || parameter.requires_grad();
      tensors read;
      for (auto const& each : fields) {
        if (!is_told) break;
        read.push_back(has_none ? undefined_field() : at::empty(parameter.sizes(), at::kFloat));
        checked.push_back({state_name(name, each.name), read.back()});
      }
      if (!optimizer.is_own(layer)) continue;
      to.afterwards.push_back([&optimizer, layer, read, has_some = is_told && !has_none] {
        optimizer.keep_moments(layer, has_some);
        auto const moments = moments_at(optimizer, layer);
        for (std::size_t i = 0; has_some && i < read.size(); ++i)
          std::copy_n(read[i].data_ptr<float>(), read[i].numel(), moments[i].values.begin());
      });
    }
  };
  return made;
}

/// @return the gradient of a tensor; undefined where it has none
[[nodiscard]] inline at::Tensor gradient_of(at::Tensor const& tensor) {
  return tensor.defined() && tensor.is_leaf() ? tensor.grad() : at::Tensor();
}

[[nodiscard]] inline bool is_zero(at::Tensor const& gradient) {
  if (at::count_nonzero(gradient).item<std::int64_t>() > 0) return false;
  return !gradient.is_floating_point() || !at::signbit(gradient).any().item<bool>();
}

/// Adds the gradient of a tensor, if it has one: with an optimizer also that it is 0, because
/// optimizers of LibTorch leave alone what has none.
inline void save_gradient(
    named_tensor const& of, bool has_optimizer, bool is_alone, std::vector<named_tensor>& to) {
  auto gradient = gradient_of(of.value);
  if (!gradient.defined()) return;
  bool const is_sparse = gradient.is_sparse();
  bool const is_pending = is_sparse ? gradient._nnz() > 0 : !is_zero(gradient);
  char const* const reason = is_sparse ? "' is sparse, which a checkpoint cannot have"
                                       : "' waits for a step, and each replica has another";
  if (is_pending && (is_sparse || !is_alone))
    throw error(errc::bad_argument) + "the gradient of '" + of.name + reason +
        "; save when the optimizer has stepped and its gradients are cleared";
  if (is_sparse) return;
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
    tensor.mutable_grad() = is_pending ? read : at::zeros_like(tensor.detach());
  });
}

/// Refuses what a name stands for twice.
inline void require_names(std::vector<named_tensor> const& entries) {
  std::set<std::string_view> names;
  for (auto const& each : entries) {
    if (each.name == "__metadata__")
      throw error(errc::bad_argument) + "an entry of a checkpoint is '__metadata__', which the "
                                        "format has for itself; give it another name";
    if (!names.insert(each.name).second)
      throw error(errc::bad_argument) + "two entries of a checkpoint are '" + each.name +
          "'; name the modules of each part as in the whole model, or give it a prefix";
  }
}

/// Does a part of saving, and gives what the replicas tell each other of it. Where it fails on one,
/// it throws on all, so that none goes on alone.
/// @param work  gives what this replica tells
template <class Work>
[[nodiscard]] std::vector<std::string> save_together(group& replicas, Work const& work) {
  std::string own;
  std::exception_ptr thrown;
  try {
    own = zbpp::detail::joined("save_checkpoint", '\0', work());
  } catch (...) {
    thrown = std::current_exception();
    own = zbpp::detail::joined("save_checkpoint failed", '\0', zbpp::detail::text_of(thrown));
  }
  std::vector<std::vector<std::byte>> all;
  replicas.exchange(std::as_bytes(std::span(own)), all);
  if (thrown) std::rethrow_exception(thrown);
  std::vector<std::string> answers;
  for (auto const& bytes : all) {
    std::string text(reinterpret_cast<char const*>(bytes.data()), bytes.size());
    std::string const replica = zbpp::detail::joined("replica ", answers.size());
    auto const call = text.substr(0, text.find('\0'));
    text.erase(0, call.size() + 1);
    if (call == "save_checkpoint failed") throw error(errc::peer_failed) + replica + ": " + text;
    if (call != "save_checkpoint")
      throw error(errc::no_agreement) + replica +
          " makes another call; let all save behind one step";
    answers.push_back(std::move(text));
  }
  return answers;
}

/// Leaves what this replica saves: what no replica before it has. Undefined values, which another
/// one keeps, go.
/// @param all  of each replica, its file and the names of its entries
inline void divide_entries(
    group const& replicas,
    std::vector<std::string> const& all,
    std::vector<named_tensor>& entries) {
  std::map<std::string, std::size_t> saves;  // by name, which replica
  std::map<std::string, std::size_t> files;
  for (std::size_t n = 0; n < all.size(); ++n) {
    std::istringstream texts(all[n]);
    std::string path, name;
    for (std::getline(texts, path, '\0'); std::getline(texts, name, '\0');) {
      auto& by = saves.emplace(name.substr(1), all.size()).first->second;
      if (name.front() == '-' || by < all.size()) continue;
      by = n;
      if (files.emplace(path, n).first->second != n)
        throw error(errc::bad_argument) + path +
            ": two replicas write it; give each a file of its own";
    }
  }
  for (auto const& [name, by] : saves)
    if (by == all.size())
      throw error(errc::bad_argument) + "another replica keeps '" + name +
          "' and does not save it; call save_checkpoint(path, parts, pipe) on all replicas, "
          "with all parts and their optimizers";
  auto const place = static_cast<std::size_t>(replicas.place());
  std::erase_if(entries, [&](auto const& each) { return saves.at(each.name) != place; });
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
    training_state const& state,
    group* replicas) {
  c10::AutoGradMode const off(false);
  group alone;
  auto& among = replicas == nullptr ? alone : *replicas;
  std::vector<named_tensor> all;
  auto const answers = detail::save_together(among, [&] {
    for (auto const& part : parts) {
      bool const has_optimizer = static_cast<bool>(part.state_.save);
      for (auto const& each : part.entries_)
        if (each.value.defined()) all.push_back(each);
      if (has_optimizer) part.state_.save(all);
      if (!has_optimizer && state.accumulated == 0) continue;
      for (auto const& each : part.entries_)
        detail::save_gradient(each, has_optimizer, among.size() == 1, all);
    }
    detail::require_names(all);
    auto text = path.string() + '\0';
    for (auto const& each : all) text += (each.value.defined() ? '+' : '-') + each.name + '\0';
    return text;
  });
  detail::divide_entries(among, answers, all);
  auto const is_of_file = [own = path.string() + '\0'](std::string const& answer) {
    return answer.starts_with(own);
  };
  static_cast<void>(detail::save_together(among, [&] {
    if (!all.empty() || among.size() == 1)
      detail::write_tensors(
          path, all, {{"format", "pt"}, {checkpoint::training_key, checkpoint::to_text(state)}});
    else if (std::ranges::count_if(answers, is_of_file) == 1)
      std::filesystem::remove(path);  // of an earlier step, which would not fit the files of others
    return std::string();
  }));
}

inline training_state load_checkpoint(
    std::filesystem::path const& path, std::span<model_part const> parts, coverage extent) {
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
  for (auto const* const list : {&to.entries, &to.of_others})
    for (auto const& each : *list) {
      static_cast<void>(from.at(each.name, each.value));
      known.insert(each.name);
    }
  for (auto const& [name, place] : from.all()) {
    auto const parameter = detail::parameter_of(name);
    if (known.contains(name) || without_state.contains(parameter)) continue;
    if (extent == coverage::part && !with_state.contains(parameter)) continue;
    throw error(errc::bad_format) + place.file->path().string() + ": the entry '" + name +
        "' matches nothing in the model; give load_checkpoint all parts of the model, or "
        "coverage::part";
  }
  std::vector<at::Tensor> read;  // all of it, before anything is changed
  for (auto const& [name, value] : to.entries) {
    auto const& [file, array] = from.at(name, value);
    read.push_back(detail::read_tensor(*file, *array, value.scalar_type()));
  }
  for (std::size_t i = 0; i < read.size(); ++i)
    to.entries[i].value.copy_(std::exchange(read[i], at::Tensor()));
  for (auto const& each : to.afterwards) each();
  return from.training().state;
}

}  // namespace zbpp::torch
