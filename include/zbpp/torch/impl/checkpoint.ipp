// SPDX-License-Identifier: Apache-2.0
//
// How parts of models are found in files, checked and copied.
#pragma once

#include <zbpp/checkpoint/detail/together.hpp>
#include <zbpp/checkpoint/metadata.hpp>
#include <zbpp/checkpoint/safetensors.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/durable.hpp>
#include <zbpp/torch/checkpoint.hpp>
#include <zbpp/torch/parameters.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::torch {

namespace detail {

inline constexpr char const* state_prefix = "optimizer/";

/// The types of LibTorch, in the order of `checkpoint::number_type`; undefined where it has none.
inline constexpr std::array<at::ScalarType, 13> scalar_types{
    at::kDouble,
    at::kLong,
    at::ScalarType::Undefined,
    at::kFloat,
    at::kInt,
    at::ScalarType::Undefined,
    at::kHalf,
    at::kBFloat16,
    at::kShort,
    at::ScalarType::Undefined,
    at::kChar,
    at::kByte,
    at::kBool};

/// Describes a tensor as a file has it, without its bytes.
[[nodiscard]] inline checkpoint::array array_of(named_tensor const& of) {
  auto const* const found = std::ranges::find(scalar_types, of.value.scalar_type());
  if (found == scalar_types.end() || of.value.layout() != at::kStrided)
    throw error(errc::bad_argument) + "'" + of.name +
        "' is not a dense tensor of a type that a checkpoint can have: it is a " +
        of.value.toString() + "; save what it is made of";
  return {
      of.name,
      static_cast<checkpoint::number_type>(found - scalar_types.begin()),
      of.value.sizes().vec(),
      {}};
}

/// Writes a file and puts its name on the disk, too.
inline void write_tensors(
    std::filesystem::path const& path,
    std::vector<named_tensor> const& tensors,
    training_state const& state) {
  std::vector<at::Tensor> plain;  // outlives the arrays
  std::vector<checkpoint::array> arrays;
  for (auto const& each : tensors) {
    auto& made = arrays.emplace_back(array_of(each));
    auto const& here = plain.emplace_back(each.value.detach().cpu().contiguous());
    made.bytes = {static_cast<std::byte*>(here.data_ptr()), here.nbytes()};
  }
  checkpoint::write_arrays(
      path, arrays, {{"format", "pt"}, {checkpoint::training_key, checkpoint::to_text(state)}});
  sync_folder(path.parent_path());
}

inline std::string state_name(std::string const& parameter, char const* field) {
  return state_prefix + parameter + '/' + field;
}

// A field of no parameter: such have no bytes of their own.
inline at::Tensor undefined_field() { return at::empty({0}, at::kByte); }

inline bool loading::is_undefined(std::string const& name) const {
  auto const found = from.arrays().find(name);
  return found != from.arrays().end() && found->second.type == checkpoint::number_type::u8 &&
         found->second.shape == std::vector<std::int64_t>{0};
}

inline void loading::require(std::string const& name, at::Tensor const& like) {
  if (!known.insert(name).second) checkpoint::detail::check_names({name, name});
  from.require(array_of({name, like}));
}

inline at::Tensor loading::read(std::string const& name, at::Tensor const& like) {
  require(name, like);
  auto bytes = from.read(array_of({name, like}));
  auto const made = at::empty_like(like.detach());
  return made.copy_(at::from_blob(bytes.data(), like.sizes(), like.scalar_type()));
}

inline at::Tensor loading::read_field(std::string const& name, at::Tensor const& like) {
  if (!is_undefined(name)) return read(name, like);
  require(name, undefined_field());
  return {};
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
  made.load = [stepped, &optimizer](loading& to) {
    for (int layer = 0; layer < std::ssize(stepped); ++layer) {
      auto const& [name, parameter] = stepped[static_cast<std::size_t>(layer)];
      bool const is_own = optimizer.is_own(layer);
      if (auto* const missed = missed_steps(optimizer, layer); missed != nullptr) {
        auto const entry = state_name(name, "missed_steps");
        std::int64_t count = 0;  // as in older files, and where it has taken all steps
        if (to.has(entry)) count = to.read(entry, at::zeros({}, at::kLong)).item<std::int64_t>();
        to.changes.push_back([missed, count] { *missed = count; });
      }
      auto const fields = moments_of(optimizer);
      auto const first = state_name(name, fields.front().name);
      // Older files say nothing of what was frozen.
      bool const is_told = to.has(first) || parameter.requires_grad();
      bool const has_some = is_told && !to.is_undefined(first);
      auto const right = has_some ? parameter : undefined_field();
      tensors read;
      for (auto const& each : fields) {
        auto const entry = state_name(name, each.name);
        if (is_told && is_own) read.push_back(to.read(entry, right));
        if (is_told && !is_own) to.require(entry, right);
      }
      if (!is_own) continue;
      to.changes.push_back([&optimizer, layer, read, has_some] {
        optimizer.keep_moments(layer, has_some);
        auto const moments = moments_at(optimizer, layer);
        for (std::size_t i = 0; has_some && i < read.size(); ++i)
          at::from_blob(moments[i].values.data(), read[i].sizes(), at::kFloat).copy_(read[i]);
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
inline void load_gradient(named_tensor const& of, bool has_optimizer, loading& to) {
  auto const name = state_name(of.name, "gradient");
  auto const& tensor = of.value;
  bool const is_there = to.has(name);
  if (!has_optimizer && (!is_there || to.from.training().state.accumulated == 0)) return;
  if (!is_there && !gradient_of(tensor).defined()) return;
  auto const read = is_there ? to.read_field(name, tensor) : at::Tensor();
  bool const is_zero = is_there && !read.defined();
  to.changes.push_back([tensor, read, is_zero] {
    tensor.mutable_grad() = is_zero ? at::zeros_like(tensor.detach()) : read;
  });
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
  auto const gather = [&](std::span<std::byte const> own) {
    std::vector<std::vector<std::byte>> gathered;
    among.exchange(own, gathered);
    return gathered;
  };
  std::vector<named_tensor> all;
  auto const answers = checkpoint::detail::together(gather, [&](std::string& answer) {
    for (auto const& part : parts) {
      bool const has_optimizer = static_cast<bool>(part.state_.save);
      for (auto const& each : part.entries_)
        if (each.value.defined()) all.push_back(each);
      if (has_optimizer) part.state_.save(all);
      if (!has_optimizer && state.accumulated == 0) continue;
      for (auto const& each : part.entries_)
        detail::save_gradient(each, has_optimizer, among.size() == 1, all);
    }
    std::vector<std::string> names;
    answer += path.string() + '\0';
    for (auto const& [name, value] : all) {
      names.push_back(name);
      answer += (value.defined() ? '+' : '-') + name + '\0';
    }
    checkpoint::detail::check_names(std::move(names));
  });
  detail::divide_entries(among, answers, all);
  auto const is_of_file = [own = path.string() + '\0'](std::string const& answer) {
    return answer.starts_with(own);
  };
  checkpoint::detail::together(gather, [&](std::string&) {
    if (!all.empty() || among.size() == 1)
      detail::write_tensors(path, all, state);
    else if (std::ranges::count_if(answers, is_of_file) == 1)
      std::filesystem::remove(path);  // of an earlier step, which would not fit the files of others
  });
}

inline training_state load_checkpoint(
    std::filesystem::path const& path, std::span<model_part const> parts, coverage extent) {
  c10::AutoGradMode const off(false);
  detail::loading to{checkpoint::stored_model(path)};
  std::set<std::string> with_state;
  std::set<std::string> without_state;
  for (auto const& part : parts) {
    bool const has_optimizer = static_cast<bool>(part.state_.load);
    for (auto const& [name, value] : part.entries_) {
      if (!value.defined()) continue;
      to.changes.push_back([value = value, read = to.read(name, value)] { value.copy_(read); });
      (has_optimizer ? with_state : without_state).insert(name);
    }
    if (has_optimizer) part.state_.load(to);
    if (!to.from.training().has_gradients) continue;
    for (auto const& each : part.entries_)
      if (each.value.defined()) detail::load_gradient(each, has_optimizer, to);
  }
  for (auto const& [name, array] : to.from.arrays()) {
    auto const parameter = detail::parameter_of(name);
    if (to.known.contains(name) || without_state.contains(parameter)) continue;
    if (extent == coverage::part && !with_state.contains(parameter)) continue;
    throw error(errc::bad_format) + path.string() + ": has '" + name +
        "', which matches nothing in the model; give load_checkpoint all parts of the model, or "
        "coverage::part";
  }
  for (auto const& change : to.changes) change();
  return to.from.training().state;
}

}  // namespace zbpp::torch
