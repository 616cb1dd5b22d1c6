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
#include <span>
#include <string_view>
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
    bool is_tied = false;  ///< has the values of all other tied pieces of the model
  };

  /// Starts an empty set whose random numbers come from `seed`.
  explicit parameter_set(std::uint64_t seed) : seed_(seed) {}

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

  /// @return the values and gradients of each part, tied pieces apart, in order: the layers of an
  ///         optimizer
  [[nodiscard]] std::vector<zbpp::optim::layer> layers() {
    std::vector<zbpp::optim::layer> all;
    for (auto first = entries_.begin(); first != entries_.end();) {
      auto const next = std::find_if(first, entries_.end(), [&](entry const& e) {
        return e.part != first->part || e.is_tied != first->is_tied;
      });
      auto const begin = static_cast<std::size_t>(first->at.offset);
      auto const end =
          next == entries_.end() ? values_.size() : static_cast<std::size_t>(next->at.offset);
      all.push_back(
          {values().subspan(begin, end - begin),
           gradients().subspan(begin, end - begin),
           first->is_tied});
      first = next;
    }
    return all;
  }

 private:
  // What the values of a piece are a function of, besides the seed.
  struct origin {
    index part;
    std::string_view name;
    index first = 0;  // element
  };

  parameter add(
      origin from, index part, std::string_view name, index size, float mean, float deviation) {
    parameter const at{static_cast<index>(values_.size()), size};
    std::uint64_t word = 0;
    for (char const letter : from.name) word = word * 257U + static_cast<unsigned char>(letter);
    for (index i = 0; i < size; ++i) {
      auto const bits = random_bits(seed_, from.part, word, from.first + i);
      values_.push_back(deviation > 0.0F ? mean + deviation * normal(bits) : mean);
    }
    // Pieces start on cache lines, for speed alone.
    values_.resize(static_cast<std::size_t>(at.offset + whole_lines(size)), 0.0F);
    gradients_.resize(values_.size(), 0.0F);
    entries_.push_back({part, name, at});
    return at;
  }

  std::uint64_t seed_;
  std::vector<float> values_;
  std::vector<float> gradients_;
  std::vector<entry> entries_;
};

/// Digests parameters. Digests of the chunks of a model add up to that of the whole, wherever it is
/// cut and in whatever order they are added.
[[nodiscard]] inline std::uint64_t digest(parameter_set const& of) {
  std::uint64_t total = 0;
  for (auto const& e : of.entries()) {
    zbpp::checksum sum;
    sum.add(std::as_bytes(std::span(&e.part, 1)));
    sum.add(e.name);
    sum.add(std::as_bytes(std::span(of.value(e.at), static_cast<std::size_t>(e.at.size))));
    total += scramble(sum.value());
  }
  return total;
}

}  // namespace gpt
