// SPDX-License-Identifier: Apache-2.0
//
// How a problem is read from the tree of a file, and written as one; and what a plan must satisfy
// so that it can be written and checked.
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

/// @throws error (bad_format) unless it is that
[[nodiscard]] std::vector<int> read_first_layers(value const& list, int stages);

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

  [[nodiscard]] problem read() {
    bool const has_layers = object_.has("layers");
    if (has_layers && object_.has("stages"))
      object_.refuse("the key 'stages'", "'layers' in its place, which are cut into stages");
    for (auto const* const key : {"rank_speeds", "first_layer", "recompute"})
      if (!has_layers && object_.has(key))
        object_.refuse(
            zbpp::detail::joined("the key '", key, "'"),
            "stages with what they take on their ranks");
    std::array<std::string_view, 13> const names{
        "ranks",
        "microbatches",
        has_layers ? "layers" : "stages",
        "placement",
        "chunks",
        "time_unit",
        "transfer",
        "memory_limit",
        "rank_speeds",
        "microbatch_factors",
        "replicas",
        "first_layer",
        "recompute"};
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
         factor,
         replicas,
         first,
         again] = object_.members(names, 3);
    if (unit) unit_ = read_unit(unit);
    auto const p = static_cast<int>(whole(ranks, 1, problem_limits::stages));
    if (form && is_word(form, "v") && p > problem_limits::stages / 2)
      ranks.refuse("at most " + std::to_string(problem_limits::stages / 2) + " for a v-shape");
    auto layout = read_placement(p, form, chunks);
    if (layout.ranks() != p) ranks.refuse(std::to_string(layout.ranks()) + ", as in placement");
    auto const count = static_cast<int>(whole(microbatches, 1, 1 << 27));
    auto costs = has_layers ? read_layers(entries) : read_stages(entries, layout.stages());
    auto hops = transfer ? read_transfer(transfer, layout.ranks()) : transfer_costs{};
    auto limits = limit ? read_limits(limit, layout.ranks()) : std::vector<bytes>{};
    auto speeds =
        speed ? read_list_of("speed", "rank", speed, layout.ranks()) : std::vector<double>{};
    auto factors =
        factor ? read_list_of("factor", "microbatch", factor, count) : std::vector<double>{};
    auto const others = replicas ? read_replicas(replicas) : replica_costs{};
    auto const stage_count = layout.stages();
    auto const first_layer = first ? read_first_layers(first, stage_count) : std::vector<int>{};
    auto const recompute = again ? read_recompute(again, stage_count) : std::vector<bool>{};
    if (again && !first) again.refuse("'first_layer' beside 'recompute'");
    return as_format_error(object_, [&] {
      auto read =
          has_layers
              ? with_placement(
                    problem(
                        std::move(costs),
                        {.ranks = layout.ranks(),
                         .microbatches = count,
                         .transfer = std::move(hops),
                         .memory_limits = std::move(limits),
                         .rank_speeds = std::move(speeds)}),
                    layout)
              : problem(
                    std::move(layout), count, std::move(costs), std::move(hops), std::move(limits));
      if (!first_layer.empty()) read = with_cut(std::move(read), first_layer, recompute);
      return with_microbatch_factors(with_replicas(std::move(read), others), std::move(factors));
    });
  }

  /// @return the unit of the file's times, once it has been read
  [[nodiscard]] time_unit unit() const noexcept { return unit_; }

  /// Reads a placement on so many ranks; one that is listed may have fewer.
  [[nodiscard]] static placement read_placement(int ranks, value const& form, value const& chunks) {
    auto read_chunks = [&](int low, int high) {
      return chunks ? static_cast<int>(whole(chunks, low, high)) : low;
    };
    if (form && form.is(value_kind::array)) {
      if (chunks) chunks.refuse("no chunks beside a list of ranks");
      return read_list(form, ranks);
    }
    if (!form || is_word(form, "linear")) {
      static_cast<void>(read_chunks(1, 1));
      return placement::linear(ranks);
    }
    if (is_word(form, "looped")) {
      if (!chunks) form.refuse("chunks, the number of chunks per rank, beside 'looped'");
      return placement::looped(ranks, read_chunks(1, problem_limits::stages / ranks));
    }
    if (!is_word(form, "v")) form.refuse("'linear', 'looped', 'v' or the rank of every stage");
    static_cast<void>(read_chunks(2, 2));
    return placement::v_shape(ranks);
  }

  /// Reads for each stage whether it recomputes.
  [[nodiscard]] static std::vector<bool> read_recompute(value const& list, int stages) {
    if (!list.is(value_kind::array) || list.size() != zbpp::detail::index(stages))
      list.refuse(zbpp::detail::joined("an array of ", stages, ", true or false for each stage"));
    std::vector<bool> recompute;
    list.for_each([&](value const& stage) { recompute.push_back(is_true(stage)); });
    return recompute;
  }

 private:
  [[nodiscard]] static time_unit read_unit(value const& name) {
    for (auto unit :
         {time_unit::nanoseconds,
          time_unit::microseconds,
          time_unit::milliseconds,
          time_unit::seconds})
      if (name.is(value_kind::string) && name.text() == to_string(unit)) return unit;
    name.refuse("'ns', 'us', 'ms' or 's'");
  }

  [[nodiscard]] static placement read_list(value const& list, int ranks) {
    if (list.size() > problem_limits::stages)
      list.refuse("at most " + std::to_string(problem_limits::stages) + " stages");
    std::vector<int> rank_of;
    list.for_each(
        [&](value const& rank) { rank_of.push_back(static_cast<int>(whole(rank, 0, ranks - 1))); });
    return as_format_error(list, [&] { return placement::custom(std::move(rank_of)); });
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
};

/// Writes a problem as an object, whose inner lines begin with `indent`.
class problem_writer {
 public:
  problem_writer(problem const& problem, time_unit unit, std::string indent)
      : problem_(problem), unit_(unit), indent_(std::move(indent)) {}

  [[nodiscard]] std::string write() {
    auto const& placement = problem_.placement();
    if (placement.stages() > problem_limits::stages)
      throw error(errc::bad_argument) + "a file holds at most " + problem_limits::stages +
          " stages, not " + placement.stages();
    text_ = "{";
    key("ranks") += std::to_string(placement.ranks());
    key("microbatches") += std::to_string(problem_.microbatches());
    key("placement") += placement_text();
    if (placement.name() == "looped")
      key("chunks") += std::to_string(placement.stages() / placement.ranks());
    key("time_unit").append("\"").append(to_string(unit_)).append("\"");
    if (problem_.layers().empty())
      key("stages") += stages_text();
    else
      key("layers") += layers_text();
    key("transfer") += transfer_text();
    key("memory_limit") += limits_text();
    auto const add_list = [&](std::string_view name, std::span<double const> numbers) {
      if (!numbers.empty())
        key(name) += list(numbers, [](double number) { return scaled_text(number, 0); });
    };
    add_list("rank_speeds", problem_.rank_speeds());
    add_list("microbatch_factors", problem_.microbatch_factors());
    if (problem_.replicas() != replica_costs()) key("replicas") += replicas_text();
    add_cut();
    return text_ + "\n" + indent_ + "}";
  }

 private:
  std::string& key(std::string_view name) {
    text_.append(text_.size() > 1 ? ",\n" : "\n").append(indent_);
    return text_.append("  \"").append(name).append("\": ");
  }

  // Where it is not the cut that a reader makes.
  void add_cut() {
    if (problem_.layers().empty()) return;
    auto const layers = problem_.layers();
    if (with_layers(problem_, {layers.begin(), layers.end()}) == problem_) return;
    key("first_layer") +=
        list(problem_.first_layer(), [](int layer) { return std::to_string(layer); });
    key("recompute") += list(problem_.all_costs(), [](stage_costs const& costs) {
      return std::string(costs.recompute ? "true" : "false");
    });
  }

  [[nodiscard]] std::string placement_text() const {
    auto const name = problem_.placement().name();
    if (name != "custom") return "\"" + name + "\"";
    return list(
        problem_.placement().rank_of_stages(), [](int rank) { return std::to_string(rank); });
  }

  [[nodiscard]] std::string stages_text() const {
    auto all = problem_.all_costs();
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
    for (auto left = problem_.layers(); !left.empty();) {
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
    auto const& hops = problem_.transfer();
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
    auto const& replicas = problem_.replicas();
    return "{\"count\": " + std::to_string(replicas.count) +
           ", \"latency\": " + number_text(replicas.latency, unit_) +
           ", \"time_per_size\": " + scaled_text(replicas.time_per_byte, power_of(unit_)) +
           (replicas.shards_optimizer ? ", \"shards_optimizer\": true}" : "}");
  }

  [[nodiscard]] std::string limits_text() const {
    auto const limits = problem_.memory_limits();
    if (limits.empty()) return "null";
    if (limits.size() == 1) return std::to_string(limits.front());
    return list(limits, [](bytes limit) { return std::to_string(limit); });
  }

  template <class Number, class Text>
  [[nodiscard]] static std::string list(std::span<Number const> numbers, Text text_of) {
    std::string text = "[";
    for (auto const& number : numbers)
      text.append(text.size() > 1 ? ", " : "").append(text_of(number));
    return text + "]";
  }

  template <class Number, class Text>
  [[nodiscard]] std::string table(std::span<Number const> numbers, Text text_of) const {
    auto const row = zbpp::detail::index(problem_.ranks());
    std::string text = "[";
    for (; !numbers.empty(); numbers = numbers.subspan(row))
      text.append(text.size() > 1 ? ", " : "").append(list(numbers.first(row), text_of));
    return text + "]";
  }

  problem const& problem_;
  time_unit unit_;
  std::string indent_;
  std::string text_;
};

}  // namespace zbpp::json::detail
