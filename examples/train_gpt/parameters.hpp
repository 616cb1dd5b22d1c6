// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a few parts of a model as one flat array, with the array of their gradients
// beside it: what an optimizer steps over, and a comparison compares.
#pragma once

#include "random.hpp"
#include "settings.hpp"
#include <zbpp/io/checksum.hpp>
#include <zbpp/optim/layer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace gpt {

/// @return a number of floats rounded up to whole cache lines
[[nodiscard]] constexpr index whole_lines(index count) { return (count + 15) / 16 * 16; }

/// Names a piece of a flat array of parameters.
struct parameter {
  index offset = 0;
  index size = 0;
};

/// Holds parameters, their gradients, and what each piece is.
class parameter_set {
 public:
  /// Says what a piece is: the part of the model it belongs to, counted from the input, and its
  /// place in that part.
  struct entry {
    index part;
    std::string_view name;
    parameter at;
    bool is_tied = false;           ///< has the values of all other tied pieces of the model
    bool is_replicated = false;     ///< each member of a tensor group has it
    index member = 0;               ///< that has this part of a piece, where members divide it
    std::vector<index> shape = {};  ///< of what is here, where members can divide it
    index axis = 0;                 ///< along which they do
    index first = 0;                ///< of the whole piece along the axis
    index whole = 0;                ///< elements of the whole piece along the axis
  };

  /// Starts an empty set whose random numbers come from `seed`.
  /// @param is_shared  among members of a tensor group, each of which has what they do not divide
  explicit parameter_set(std::uint64_t seed, bool is_shared = false)
      : seed_(seed), is_shared_(is_shared) {}

  /// Adds a piece of normal numbers with this mean and deviation, a function of the seed, the part
  /// and the name alone: where the model is cut does not change it. Gradients are 0.
  /// @param name  lives as long as the set
  parameter add(index part, std::string_view name, index size, float mean, float deviation) {
    return add({part, name}, part, name, size, mean, deviation);
  }
  /// Adds elements of a piece of normal numbers with mean 0, from `first` on: where that is divided
  /// does not change their values.
  /// @param part   of these elements
  /// @param whole  part of the undivided piece
  parameter add_elements(
      index part, index whole, std::string_view name, index first, index size, float deviation) {
    return add({whole, name, first}, part, name, size, 0.0F, deviation);
  }
  /// Adds what a member of a tensor group has of a piece of normal numbers with mean 0. In the
  /// whole piece its elements have the same values.
  /// @param shape   of the whole piece
  /// @param axis    along which members divide it
  /// @param own     of this member, along the axis
  parameter add_share(
      index part,
      std::string_view name,
      std::vector<index> shape,
      index axis,
      range own,
      index member,
      float deviation) {
    auto const whole = std::exchange(shape[static_cast<std::size_t>(axis)], own.last - own.first);
    index size = 1;
    index inner = 1;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      size *= shape[i];
      inner *= static_cast<index>(i) > axis ? shape[i] : 1;
    }
    auto const length = own.last - own.first;
    auto const place_of = [=](index i) {
      return ((i / inner / length) * whole + own.first + i / inner % length) * inner + i % inner;
    };
    auto const at = add({part, name}, part, name, size, 0.0F, deviation, place_of);
    auto& added = entries_.back();
    added.is_replicated = false;
    added.member = member;
    added.shape = std::move(shape);
    added.axis = axis;
    added.first = own.first;
    added.whole = whole;
    return at;
  }
  /// Adds a piece with the values of all others that are added so.
  parameter add_tied(index part, std::string_view name, index size, float deviation) {
    auto const at = add({0, "tied"}, part, name, size, 0.0F, deviation);
    entries_.back().is_tied = true;
    return at;
  }

  [[nodiscard]] float const* value(parameter p) const { return values_.data() + p.offset; }
  [[nodiscard]] float* gradient(parameter p) { return gradients_.data() + p.offset; }

  /// @return all values; what lies between pieces is 0 and stays so
  [[nodiscard]] std::span<float> values() { return values_; }
  [[nodiscard]] std::span<float const> values() const { return values_; }
  /// @return all gradients
  [[nodiscard]] std::span<float> gradients() { return gradients_; }
  [[nodiscard]] std::span<float const> gradients() const { return gradients_; }
  /// @return every piece, in order
  [[nodiscard]] std::span<entry const> entries() const { return entries_; }

  /// @return the values and gradients of each part, in order: the layers of an optimizer. Tied
  ///         pieces are layers of their own, and so is what each member has
  [[nodiscard]] std::vector<zbpp::optim::layer> layers() {
    std::vector<zbpp::optim::layer> all;
    for_each_layer([&](entry const& first, std::size_t begin, std::size_t end) {
      all.push_back(
          {.weights = values().subspan(begin, end - begin),
           .gradients = gradients().subspan(begin, end - begin),
           .is_tied = first.is_tied,
           .is_replicated = first.is_replicated});
    });
    return all;
  }
  /// @return by layer, which one has the share of the first member here
  [[nodiscard]] std::vector<std::size_t> first_shares() const {
    std::vector<std::size_t> all;
    index part = -1;
    for_each_layer([&](entry const& first, std::size_t, std::size_t) {
      bool const is_more = first.whole > 0 && first.part == part;
      part = first.whole > 0 ? first.part : -1;
      all.push_back(is_more ? all.back() : all.size());
    });
    return all;
  }

 private:
  // What the values of a piece are a function of, besides the seed.
  struct origin {
    index part;
    std::string_view name;
    index first = 0;  // element
  };

  template <class PlaceOf = std::identity>
  parameter add(
      origin from,
      index part,
      std::string_view name,
      index size,
      float mean,
      float deviation,
      PlaceOf const& place_of = {}) {
    parameter const at{static_cast<index>(values_.size()), size};
    std::uint64_t word = 0;
    for (char const letter : from.name) word = word * 257U + static_cast<unsigned char>(letter);
    for (index i = 0; i < size; ++i) {
      auto const bits = random_bits(seed_, from.part, word, from.first + place_of(i));
      values_.push_back(deviation > 0.0F ? mean + deviation * normal(bits) : mean);
    }
    // Pieces start on cache lines, for speed alone.
    values_.resize(static_cast<std::size_t>(at.offset + whole_lines(size)), 0.0F);
    gradients_.resize(values_.size(), 0.0F);
    entries_.push_back({.part = part, .name = name, .at = at, .is_replicated = is_shared_});
    return at;
  }
  // Calls `work` with the first entry of each layer, and where the layer lies.
  template <class Work>
  void for_each_layer(Work const& work) const {
    for (auto first = entries_.begin(); first != entries_.end();) {
      auto const next = std::find_if(first, entries_.end(), [&](entry const& e) {
        return e.part != first->part || e.is_tied != first->is_tied ||
               e.is_replicated != first->is_replicated || e.member != first->member;
      });
      auto const end =
          next == entries_.end() ? values_.size() : static_cast<std::size_t>(next->at.offset);
      work(*first, static_cast<std::size_t>(first->at.offset), end);
      first = next;
    }
  }

  std::uint64_t seed_;
  bool is_shared_;
  std::vector<float> values_;
  std::vector<float> gradients_;
  std::vector<entry> entries_;
};

/// Digests parameters. Digests of the chunks of a model add up to that of the whole, wherever it is
/// cut and in whatever order they are added.
/// @param counts_replicated  whether to digest what each member of a tensor group has
[[nodiscard]] inline std::uint64_t digest(parameter_set const& of, bool counts_replicated = true) {
  std::uint64_t total = 0;
  for (auto const& e : of.entries()) {
    if (e.is_replicated && !counts_replicated) continue;
    zbpp::checksum sum;
    sum.add(std::as_bytes(std::span(&e.part, 1)));
    sum.add(e.name);
    sum.add(std::as_bytes(std::span(of.value(e.at), static_cast<std::size_t>(e.at.size))));
    total += scramble(sum.value());
  }
  return total;
}

}  // namespace gpt
