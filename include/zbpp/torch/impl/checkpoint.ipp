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

inline bool has_state(checkpoint::stored_model const& from, std::string const& parameter) {
  auto const name = state_name(parameter, "has_state");
  return from.read({name, checkpoint::number_type::boolean, {}, {}}).front() != std::byte{0};
}

// A field of no parameter: such have no bytes of their own.
inline at::Tensor undefined_field() { return at::empty({0}, at::kByte); }

inline bool is_undefined(checkpoint::stored_model const& from, std::string const& name) {
  auto const found = from.arrays().find(name);
  return found != from.arrays().end() && found->second.type == checkpoint::number_type::u8 &&
         found->second.shape == std::vector<std::int64_t>{0};
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
  made.load = [stepped, &optimizer](checkpoint::stored_model const& from, loading& to) {
    for (int layer = 0; layer < std::ssize(stepped); ++layer) {
      auto const& [name, parameter] = stepped[static_cast<std::size_t>(layer)];
      auto& checked = optimizer.is_own(layer) ? to.entries : to.of_others;
      if (auto* const missed = missed_steps(optimizer, layer); missed != nullptr) {
        auto const value = at::from_blob(missed, {}, at::kLong);
        if (auto const entry = state_name(name, "missed_steps"); from.arrays().contains(entry))
          checked.push_back({entry, value});
        else  // as in older files, and where it has taken all steps
          to.afterwards.push_back([value] { value.zero_(); });
      }
      auto const fields = moments_of(optimizer);
      auto const first = state_name(name, fields.front().name);
      bool const has_none = is_undefined(from, first);
      // Older files say nothing of what was frozen.
      bool const is_told = from.arrays().contains(first) || parameter.requires_grad();
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
    named_tensor const& of, bool has_optimizer, checkpoint::stored_model const& from, loading& to) {
  auto const name = state_name(of.name, "gradient");
  auto const& tensor = of.value;
  bool const is_there = from.arrays().contains(name);
  if (!has_optimizer && (!is_there || from.training().state.accumulated == 0)) return;
  if (!is_there) {
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

[[nodiscard]] inline std::vector<std::string> names_of(std::vector<named_tensor> const& entries) {
  std::vector<std::string> names;
  for (auto const& each : entries) names.push_back(each.name);
  return names;
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
    checkpoint::detail::check_names(detail::names_of(all));
    answer += path.string() + '\0';
    for (auto const& each : all) answer += (each.value.defined() ? '+' : '-') + each.name + '\0';
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
  checkpoint::stored_model const from(path);
  detail::loading to;
  std::set<std::string> with_state;
  std::set<std::string> without_state;
  for (auto const& part : parts) {
    bool const has_optimizer = static_cast<bool>(part.state_.load);
    for (auto const& each : part.entries_) {
      if (!each.value.defined()) continue;
      to.entries.push_back(each);
      (has_optimizer ? with_state : without_state).insert(each.name);
    }
    if (has_optimizer) part.state_.load(from, to);
    if (!from.training().has_gradients) continue;
    for (auto const& each : part.entries_)
      if (each.value.defined()) detail::load_gradient(each, has_optimizer, from, to);
  }
  checkpoint::detail::check_names(detail::names_of(to.entries));
  std::set<std::string> known;
  for (auto const& each : to.of_others) {
    from.require(detail::array_of(each));
    known.insert(each.name);
  }
  std::vector<std::vector<std::byte>> read;  // all of it, before anything is changed
  for (auto const& each : to.entries) {
    read.push_back(from.read(detail::array_of(each)));
    known.insert(each.name);
  }
  for (auto const& [name, array] : from.arrays()) {
    auto const parameter = detail::parameter_of(name);
    if (known.contains(name) || without_state.contains(parameter)) continue;
    if (extent == coverage::part && !with_state.contains(parameter)) continue;
    throw error(errc::bad_format) + path.string() + ": has '" + name +
        "', which matches nothing in the model; give load_checkpoint all parts of the model, or "
        "coverage::part";
  }
  for (std::size_t i = 0; i < read.size(); ++i) {
    auto const& value = to.entries[i].value;
    value.copy_(at::from_blob(read[i].data(), value.sizes(), value.scalar_type()));
    read[i] = {};
  }
  for (auto const& each : to.afterwards) each();
  return from.training().state;
}

}  // namespace zbpp::torch
