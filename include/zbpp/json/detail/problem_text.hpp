// SPDX-License-Identifier: Apache-2.0
//
// How a problem, or one of layers, is read from the tree of a file, and written as one; and what a
// plan must satisfy so that it can be written and checked.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/json/detail/document.hpp>
#include <zbpp/json/detail/fields.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace zbpp::json {
struct plan_report;
}

namespace zbpp::json::detail {

using zbpp::detail::cost_fields;
using zbpp::detail::required_costs;

/// Refuses a plan that the reader would refuse.
/// @throws error (bad_argument)
void check_writable(plan_report const& from);

/// @return whether a list can be the first layer of each stage
[[nodiscard]] bool are_first_layers(std::vector<int> const& list, int stages);

/// Says how large the problem of a file may be; the model itself takes more. A text of a line names
/// any size, and must not fill the memory.
struct problem_limits {
  static constexpr int stages = 1 << 16;
  static constexpr int layers = 4096;  // as the model
  static constexpr int ranks_of_a_spread_table = 1 << 10;
};

/// Reads a problem from the object that states it.
class problem_reader {
 public:
  explicit problem_reader(value const& object) : object_(object) {}

  /// @return whether it states layers instead of stages
  [[nodiscard]] bool has_layers() const { return object_.has("layers"); }

  [[nodiscard]] problem read() {
    if (has_layers())
      object_.refuse(
          "the key 'layers'", "'stages' in its place: only a plan for layers takes layers");
    if (object_.has("rank_speeds"))
      object_.refuse("the key 'rank_speeds'", "stages with what they take on their ranks");
    auto alike = read_as<problem>("stages", [&](value const& stages, placement const& layout) {
      return read_stages(stages, layout.stages());
    });
    return as_format_error(
        object_, [&] { return with_microbatch_factors(std::move(alike), std::move(factors_)); });
  }

  [[nodiscard]] layered_problem read_layered() {
    if (object_.has("stages"))
      object_.refuse("the key 'stages'", "'layers' in its place, which are cut into stages");
    if (object_.has("microbatch_factors"))
      object_.refuse(
          "the key 'microbatch_factors'",
          "microbatches of one size: only a problem of stages takes factors");
    return read_as<layered_problem>(
        "layers", [&](value const& layers, placement const&) { return read_layers(layers); });
  }

  /// @return the unit of the file's times, once it has been read
  [[nodiscard]] time_unit unit() const noexcept { return unit_; }

 private:
  // Reads all keys; `read_costs_of` reads those of stages or layers, whose key is `name`.
  template <class Problem, class ReadCosts>
  [[nodiscard]] Problem read_as(std::string_view name, ReadCosts read_costs_of) {
    std::array<std::string_view, 11> const names{
        "ranks",
        "microbatches",
        name,
        "placement",
        "chunks",
        "time_unit",
        "transfer",
        "memory_limit",
        "rank_speeds",
        "microbatch_factors",
        "replicas"};
    auto const
        [ranks,
         microbatches,
         entries,
         form,
         chunks,
         unit,
         transfer,
         limit,
         speed,
         factors,
         replicas] = object_.members(names, 3);
    if (unit) unit_ = read_unit(unit);
    auto layout = read_placement(ranks, form, chunks);
    auto const count = static_cast<int>(whole(microbatches, 1, 1 << 27));
    auto costs = read_costs_of(entries, layout);
    auto hops = transfer ? read_transfer(transfer, layout.ranks()) : transfer_costs{};
    auto limits = limit ? read_limits(limit, layout.ranks()) : std::vector<bytes>{};
    auto const speeds =
        speed ? read_list_of("speed", "rank", speed, layout.ranks()) : std::vector<double>{};
    if (factors) factors_ = read_list_of("factor", "microbatch", factors, count);
    auto const others = replicas ? read_replicas(replicas) : replica_costs{};
    return as_format_error(object_, [&] {
      auto const alone = [&] {
        if constexpr (std::is_same_v<Problem, layered_problem>)
          return Problem{
              std::move(layout),
              count,
              std::move(costs),
              std::move(hops),
              std::move(limits),
              speeds};
        else
          return Problem{
              std::move(layout), count, std::move(costs), std::move(hops), std::move(limits)};
      };
      return with_replicas(alone(), others);
    });
  }

  [[nodiscard]] static time_unit read_unit(value const& name) {
    for (auto unit :
         {time_unit::nanoseconds,
          time_unit::microseconds,
          time_unit::milliseconds,
          time_unit::seconds})
      if (name.is(value_kind::string) && name.text() == to_string(unit)) return unit;
    name.refuse("'ns', 'us', 'ms' or 's'");
  }

  [[nodiscard]] static placement read_placement(
      value const& ranks, value const& form, value const& chunks) {
    auto const p = static_cast<int>(whole(ranks, 1, problem_limits::stages));
    auto read_chunks = [&](int low, int high) {
      return chunks ? static_cast<int>(whole(chunks, low, high)) : low;
    };
    if (form && form.is(value_kind::array)) {
      if (chunks) chunks.refuse("no chunks beside a list of ranks");
      return read_list(form, ranks, p);
    }
    if (!form || is_word(form, "linear")) {
      static_cast<void>(read_chunks(1, 1));
      return placement::linear(p);
    }
    if (is_word(form, "looped")) {
      if (!chunks) form.refuse("chunks, the number of chunks per rank, beside 'looped'");
      return placement::looped(p, read_chunks(1, problem_limits::stages / p));
    }
    if (!is_word(form, "v")) form.refuse("'linear', 'looped', 'v' or the rank of every stage");
    static_cast<void>(read_chunks(2, 2));
    if (p > problem_limits::stages / 2)
      ranks.refuse("at most " + std::to_string(problem_limits::stages / 2) + " for a v-shape");
    return placement::v_shape(p);
  }

  [[nodiscard]] static placement read_list(value const& list, value const& ranks, int p) {
    if (list.size() > problem_limits::stages)
      list.refuse("at most " + std::to_string(problem_limits::stages) + " stages");
    std::vector<int> rank_of;
    list.for_each(
        [&](value const& rank) { rank_of.push_back(static_cast<int>(whole(rank, 0, p - 1))); });
    auto const placement =
        as_format_error(list, [&] { return placement::custom(std::move(rank_of)); });
    if (placement.ranks() != p)
      ranks.refuse(std::to_string(placement.ranks()) + ", as in placement");
    return placement;
  }

  [[nodiscard]] std::vector<stage_costs> read_stages(value const& list, int stages) const {
    if (!list.is(value_kind::array) ||
        (list.size() != 1 && list.size() != zbpp::detail::index(stages)))
      list.refuse(
          "an array of 1 for all stages, or of " + std::to_string(stages) + ", one for each");
    std::vector<stage_costs> costs;
    list.for_each([&](value const& stage) {
      costs.push_back(read_costs(stage.members(names_, required_costs)));
    });
    if (costs.size() == 1) costs.resize(zbpp::detail::index(stages), costs.front());
    return costs;
  }

  [[nodiscard]] std::vector<layer_costs> read_layers(value const& list) const {
    if (!list.is(value_kind::array) || list.size() == 0)
      list.refuse("an array of layers from the input on, each with its costs");
    std::array<std::string_view, names_.size() + 1> names{};
    std::copy(names_.begin(), names_.end(), names.begin());
    names.back() = "count";
    std::vector<layer_costs> costs;
    list.for_each([&](value const& layer) {
      auto const found = layer.members(names, required_costs);
      std::array<value, names_.size()> parts;
      std::copy(found.begin(), found.end() - 1, parts.begin());
      auto const& count = found.back();
      auto const equal = count ? whole(count, 1, problem_limits::layers) : 1;
      if (static_cast<std::int64_t>(costs.size()) + equal > problem_limits::layers)
        list.refuse(
            "more than " + std::to_string(problem_limits::layers) + " layers", "at most that many");
      costs.insert(costs.end(), zbpp::detail::index(equal), read_costs(parts));
    });
    return costs;
  }

  // The keys of a stage or layer.
  static constexpr auto names_ = [] {
    std::array<std::string_view, cost_fields.size() + 2> names{};
    for (auto const& field : cost_fields) names[field.place] = field.key();
    names[cost_fields.size()] = "offload";
    names[cost_fields.size() + 1] = "reload";
    return names;
  }();

  [[nodiscard]] stage_costs read_costs(std::array<value, names_.size()> const& found) const {
    for (auto const& host : std::span(found).last(2))
      if (host) host.refuse(not_offloaded);
    stage_costs costs;
    for (auto const& field : cost_fields)
      if (auto const& from = found[field.place])
        field.set(costs, field.is_time() ? time(from, unit_) : size(from));
    return costs;
  }

  [[nodiscard]] transfer_costs read_transfer(value const& from, int ranks) const {
    value latency = from;
    value rate;
    if (from.is(value_kind::object)) {
      constexpr std::array<std::string_view, 2> names{"latency", "time_per_size"};
      auto const parts = from.members(names, 1);
      latency = parts[0];
      rate = parts[1];
    }
    auto const read_latency = [this](value const& entry) { return time(entry, unit_); };
    auto const read_rate = [this](value const& entry) {
      return real(entry, power_of(unit_), "a time per size");
    };
    return as_format_error(from, [&]() -> transfer_costs {
      if (!rate && !latency.is(value_kind::array)) return read_latency(latency);
      if (!rate) return {ranks, read_table<ticks>(latency, ranks, read_latency)};
      return {
          ranks,
          read_table<ticks>(latency, ranks, read_latency),
          read_table<double>(rate, ranks, read_rate)};
    });
  }

  [[nodiscard]] static bool is_true(value const& from) {
    if (!from.is(value_kind::boolean)) from.refuse("true or false");
    return from.text() == "true";
  }

  [[nodiscard]] replica_costs read_replicas(value const& from) const {
    constexpr std::array<std::string_view, 4> names{
        "count", "latency", "time_per_size", "shards_optimizer"};
    auto const [count, latency, rate, shards] = from.members(names, 1);
    return {
        .count = static_cast<int>(whole(count, 1, 1 << 20)),
        .latency = latency ? time(latency, unit_) : 0,
        .time_per_byte = rate ? real(rate, power_of(unit_), "a time per size") : 0,
        .shards_optimizer = shards && is_true(shards)};
  }

  // A table [from][to], row by row; from a number where all pairs are the same.
  template <class Number, class Read>
  [[nodiscard]] static std::vector<Number> read_table(value const& from, int ranks, Read read) {
    auto const p = zbpp::detail::index(ranks);
    if (!from.is(value_kind::array)) {
      if (ranks > problem_limits::ranks_of_a_spread_table)
        from.refuse("an array for each rank; one number stands for 1024 ranks at most");
      return std::vector<Number>(p * p, read(from));
    }
    auto check_length = [&](value const& list, char const* of) {
      if (!list.is(value_kind::array) || list.size() != p)
        list.refuse("an array of " + std::to_string(p) + of);
    };
    check_length(from, " arrays, one for each sending rank");
    std::vector<Number> table;
    from.for_each([&](value const& row) {
      check_length(row, ", one for each receiving rank");
      row.for_each([&](value const& entry) { table.push_back(read(entry)); });
    });
    return table;
  }

  [[nodiscard]] static std::vector<bytes> read_limits(value const& from, int ranks) {
    if (from.is(value_kind::null)) return {};
    if (!from.is(value_kind::array)) return {size(from)};
    if (from.size() != zbpp::detail::index(ranks))
      from.refuse("an array of " + std::to_string(ranks) + ", one number for each rank");
    std::vector<bytes> limits;
    from.for_each([&](value const& limit) { limits.push_back(size(limit)); });
    return limits;
  }

  // Numbers such as a speed for each rank.
  [[nodiscard]] static std::vector<double> read_list_of(
      std::string const& numbered, std::string const& each, value const& from, int count) {
    if (!from.is(value_kind::array) || from.size() != zbpp::detail::index(count))
      from.refuse(
          "an array of " + std::to_string(count) + ", one " + numbered + " for each " + each);
    std::vector<double> numbers;
    from.for_each(
        [&](value const& number) { numbers.push_back(real(number, 0, "a " + numbered)); });
    return numbers;
  }

  value object_;
  time_unit unit_ = time_unit::milliseconds;
  std::vector<double> factors_;  // of the microbatches
};

/// Writes a problem as an object, whose inner lines begin with `indent`.
class problem_writer {
 public:
  problem_writer(problem const& problem, time_unit unit, std::string indent)
      : placement_(problem.placement()),
        microbatches_(problem.microbatches()),
        costs_(problem.all_costs()),
        transfer_(problem.transfer()),
        memory_limits_(problem.memory_limits()),
        factors_(problem.microbatch_factors()),
        replicas_(problem.replicas()),
        unit_(unit),
        indent_(std::move(indent)) {}
  problem_writer(layered_problem const& model, time_unit unit, std::string indent)
      : placement_(model.placement()),
        microbatches_(model.microbatches()),
        has_layers_(true),
        costs_(model.layers()),
        transfer_(model.transfer()),
        memory_limits_(model.memory_limits()),
        rank_speeds_(model.rank_speeds()),
        replicas_(model.replicas()),
        unit_(unit),
        indent_(std::move(indent)) {}

  [[nodiscard]] std::string write() {
    if (placement_.stages() > problem_limits::stages)
      throw error(errc::bad_argument) + "a file holds at most " + problem_limits::stages +
          " stages, not " + placement_.stages();
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
    auto const add_list = [&](std::string_view name, std::span<double const> numbers) {
      if (!numbers.empty())
        key(name) += list(numbers, [](double number) { return scaled_text(number, 0); });
    };
    add_list("rank_speeds", rank_speeds_);
    add_list("microbatch_factors", factors_);
    if (replicas_ != replica_costs()) key("replicas") += replicas_text();
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
    if (count > 1) add("count", std::to_string(count));
    for (auto const& field : cost_fields) {
      auto const number = field.of(costs);
      bool const is_usual =
          number == 0 && field.optional == nullptr && field.place >= required_costs;
      if (number && !is_usual)
        add(field.key(), field.is_time() ? number_text(*number, unit_) : std::to_string(*number));
    }
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

  [[nodiscard]] std::string replicas_text() const {
    return "{\"count\": " + std::to_string(replicas_.count) +
           ", \"latency\": " + number_text(replicas_.latency, unit_) +
           ", \"time_per_size\": " + scaled_text(replicas_.time_per_byte, power_of(unit_)) +
           (replicas_.shards_optimizer ? ", \"shards_optimizer\": true}" : "}");
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
  std::span<double const> rank_speeds_ = {};
  std::span<double const> factors_ = {};
  replica_costs replicas_;
  time_unit unit_;
  std::string indent_;
  std::string text_;
};

}  // namespace zbpp::json::detail
