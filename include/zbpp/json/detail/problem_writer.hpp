// SPDX-License-Identifier: Apache-2.0
//
// How a problem, of stages or of layers, is written as JSON. Only `impl/*.ipp` include it.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/json/detail/number.hpp>
#include <zbpp/json/detail/problem_reader.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace zbpp::json::detail {

/// Writes a problem as an object, whose inner lines begin with `indent`.
class problem_writer {
 public:
  problem_writer(problem const& problem, time_unit unit, std::string indent)
      : placement_(problem.placement()),
        microbatches_(problem.microbatches()),
        costs_(problem.all_costs()),
        transfer_(problem.transfer()),
        memory_limits_(problem.memory_limits()),
        unit_(unit),
        indent_(std::move(indent)) {}
  problem_writer(layered_problem const& model, time_unit unit, std::string indent)
      : placement_(model.placement()),
        microbatches_(model.microbatches()),
        has_layers_(true),
        costs_(model.layers()),
        transfer_(model.transfer()),
        memory_limits_(model.memory_limits()),
        unit_(unit),
        indent_(std::move(indent)) {}

  [[nodiscard]] std::string write() {
    if (placement_.stages() > problem_limits::stages)
      throw error(
          errc::bad_argument,
          "a file holds at most " + std::to_string(problem_limits::stages) + " stages, not " +
              std::to_string(placement_.stages()));
    text_ = "{";
    key("ranks") += std::to_string(placement_.ranks());
    key("microbatches") += std::to_string(microbatches_);
    key("placement") += placement_text();
    if (placement_.name() == "looped")
      key("chunks") += std::to_string(placement_.stages() / placement_.ranks());
    key("time_unit").append("\"").append(to_string(unit_)).append("\"");
    key(has_layers_ ? "layers" : "stages") += has_layers_ ? layers_text() : stages_text();
    key("transfer") += transfer_text();
    key("memory_limit") += limits_text();
    return text_ + "\n" + indent_ + "}";
  }

 private:
  std::string& key(std::string_view name) {
    text_.append(text_.size() > 1 ? ",\n" : "\n").append(indent_);
    return text_.append("  \"").append(name).append("\": ");
  }

  [[nodiscard]] std::string placement_text() const {
    auto const name = placement_.name();
    if (name != "custom") return "\"" + name + "\"";
    return list(placement_.rank_of_stages(), [](int rank) { return std::to_string(rank); });
  }

  [[nodiscard]] std::string stages_text() const {
    auto all = costs_;
    if (std::equal(all.begin() + 1, all.end(), all.begin())) all = all.first(1);
    std::string text = "[";
    for (auto const& costs : all)
      text.append(text.size() > 1 ? ",\n" : "\n")
          .append(indent_ + "    ")
          .append(costs_text(costs));
    return text + "\n" + indent_ + "  ]";
  }

  // Equal layers one after another are one entry with their count.
  [[nodiscard]] std::string layers_text() const {
    std::string text = "[";
    for (auto left = costs_; !left.empty();) {
      auto const next = std::find_if_not(left.begin(), left.end(), [&](layer_costs const& costs) {
        return costs == left.front();
      });
      auto const count = next - left.begin();
      text.append(text.size() > 1 ? ",\n" : "\n")
          .append(indent_ + "    ")
          .append(costs_text(left.front(), count));
      left = left.subspan(zbpp::detail::index(count));
    }
    return text + "\n" + indent_ + "  ]";
  }

  [[nodiscard]] std::string costs_text(stage_costs const& costs, std::int64_t count = 1) const {
    std::string text;
    auto add = [&text](std::string_view name, std::string const& number) {
      text.append(text.empty() ? "{\"" : ", \"").append(name).append("\": ").append(number);
    };
    auto add_size = [&](std::string_view name, bytes number) {
      if (number != 0) add(name, std::to_string(number));
    };
    if (count > 1) add("count", std::to_string(count));
    add("forward", number_text(costs.forward, unit_));
    add("backward_input", number_text(costs.backward_input, unit_));
    add("backward_weight", number_text(costs.backward_weight, unit_));
    if (costs.backward_fused) add("backward_fused", number_text(*costs.backward_fused, unit_));
    if (costs.recompute) add("recompute", number_text(*costs.recompute, unit_));
    if (costs.overlapped) add("overlapped", number_text(*costs.overlapped, unit_));
    if (costs.norm != 0) add("norm", number_text(costs.norm, unit_));
    if (costs.optimizer_step != 0) add("optimizer_step", number_text(costs.optimizer_step, unit_));
    add("activation", std::to_string(costs.activation));
    add("weight_gradient_input", std::to_string(costs.weight_gradient_input));
    add_size("output_gradient", costs.output_gradient);
    add_size("recompute_input", costs.recompute_input);
    add_size("edge", costs.edge);
    add_size("static", costs.static_memory);
    add_size("workspace", costs.workspace);
    add_size("tied", costs.tied);
    return text + "}";
  }

  [[nodiscard]] std::string transfer_text() const {
    auto const& hops = transfer_;
    auto const time_of = [this](ticks latency) { return number_text(latency, unit_); };
    if (hops.ranks() == 0) return time_of(hops.latency().front());
    auto const latency = table(hops.latency(), time_of);
    if (hops.time_per_byte().empty()) return latency;
    return "{\"latency\": " + latency + ", \"time_per_size\": " +
           table(
               hops.time_per_byte(),
               [this](double rate) { return scaled_text(rate, power_of(unit_)); }) +
           "}";
  }

  [[nodiscard]] std::string limits_text() const {
    auto const limits = memory_limits_;
    if (limits.empty()) return "null";
    if (limits.size() == 1) return std::to_string(limits.front());
    return list(limits, [](bytes limit) { return std::to_string(limit); });
  }

  template <class Number, class Text>
  [[nodiscard]] static std::string list(std::span<Number const> numbers, Text text_of) {
    std::string text = "[";
    for (auto number : numbers) text.append(text.size() > 1 ? ", " : "").append(text_of(number));
    return text + "]";
  }

  template <class Number, class Text>
  [[nodiscard]] std::string table(std::span<Number const> numbers, Text text_of) const {
    auto const row = zbpp::detail::index(placement_.ranks());
    std::string text = "[";
    for (; !numbers.empty(); numbers = numbers.subspan(row))
      text.append(text.size() > 1 ? ", " : "").append(list(numbers.first(row), text_of));
    return text + "]";
  }

  placement const& placement_;
  int microbatches_;
  bool has_layers_ = false;
  std::span<stage_costs const> costs_;
  transfer_costs const& transfer_;
  std::span<bytes const> memory_limits_;
  time_unit unit_;
  std::string indent_;
  std::string text_;
};

}  // namespace zbpp::json::detail
