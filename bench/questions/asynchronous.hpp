// SPDX-License-Identifier: Apache-2.0
//
// Synchronous zero bubble against asynchronous steps that keep two versions of the weights.
#pragma once

#include "models.hpp"
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/period.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace questions {

/// Answers for the paper's models.
class asynchronous_answer {
 public:
  explicit asynchronous_answer(settings const& how) : how_(how) {}

  [[nodiscard]] answer operator()() {
    std::vector<chart_panel> panels;
    for (std::size_t row :
         how_.quick ? std::vector<std::size_t>{3} : std::vector<std::size_t>{0, 3, 6, 9})
      panels.push_back(one_model(row));
    return {rows_.text(), draw("step time over the work", "%", std::move(panels))};
  }

 private:
  // What a rank holds of a model in bytes; per layer 12 h^2 weights, and the activations of
  // costs_with_memory for each of b s tokens. @source arXiv 2401.10241v1 tables 1 and 3
  struct sizes {
    sizes(pipeline const& each, std::size_t row) {
      constexpr double tokens = 1024;
      auto const hidden = static_cast<double>(each.share.weight_gradient_input) / 32;
      double const samples = row < 3 ? 6 : row < 6 ? 3 : 1;
      auto const layers = static_cast<double>(paper_rows[row].chunks);  // of one layer each
      activation = static_cast<double>(each.share.activation) * tokens * samples * layers;
      weights = 12 * hidden * hidden * layers * 2;
    }
    double activation = 0;  // of a microbatch
    double weights = 0;     // in half precision
  };

  [[nodiscard]] chart_panel one_model(std::size_t row) {
    auto const each = paper_pipeline(row);
    auto const p = each.ranks;
    chart_panel result{
        .title = each.name,
        .horizontal = {.title = "activations and copies", .unit = "GiB", .begins_at_zero = true}};
    sizes const size(each, row);
    auto const add = [&](std::string const& name,
                         problem const& what,
                         double step,
                         double whole,
                         zbpp::schedule const& order,
                         int versions) {
      constexpr double gib = 1024.0 * 1024 * 1024;
      auto const peaks = zbpp::peak_activations(order, what);
      auto const most = static_cast<double>(*std::max_element(peaks.begin(), peaks.end())) /
                        static_cast<double>(each.share.activation);
      auto const more = (versions - 1) * size.weights / gib;
      auto const memory = most * size.activation / gib + more;
      rows_.add(
          {each.name,
           name,
           fixed_text(100 * (step / each.work() - 1), 2),
           fixed_text(100 * (whole / each.work() - 1), 2),
           fixed_text(most, 1),
           fixed_text(most * size.activation / gib, 1),
           std::to_string(versions),
           fixed_text(more, 1),
           std::to_string(versions - 1)});
      auto const more_time = 100 * (step / each.work() - 1);
      result.curves.push_back(
          {name, {{memory, more_time, name + ": " + fixed_text(more_time, 2)}}});
    };
    auto const synchronous = [&](std::string const& name, problem const& what, auto const& order) {
      auto const times = zbpp::period(order, what);
      auto const step = static_cast<double>(times.period.whole) +
                        static_cast<double>(times.period.part) / times.period.of;
      add(name, what, step, static_cast<double>(times.synchronous), order, 1);
    };
    auto const linear = each.linear();
    synchronous("1F1B", linear, zbpp::one_f_one_b{}(linear));
    synchronous("ZB-H1", linear, zbpp::zb_h1{}(linear));
    synchronous("linear, 2p", each.linear(2 * p), search(each.linear(2 * p)).schedule);
    synchronous("V, 1p", each.v(p), search(each.v(p)).schedule);
    synchronous("V, 1.5p", each.v(3 * p / 2), search(each.v(3 * p / 2)).schedule);
    auto const flowing = [&](std::string const& name, auto const& policy) {
      auto const step = without_flush(policy, each);
      add(name, linear, step, step, policy(linear), 2);
    };
    flowing("2BW, 1F1B", zbpp::one_f_one_b{});
    flowing("2BW, ZB-H1", zbpp::zb_h1{});
    return result;
  }

  // What a step adds to a long run of one order without a flush.
  template <class Policy>
  [[nodiscard]] static double without_flush(Policy const& policy, pipeline each) {
    auto const once = each.microbatches;
    auto const run = [&](int steps) {
      each.microbatches = steps * once;
      return static_cast<double>(cost_of(policy, each.linear()));
    };
    constexpr int many = 4;
    auto const step = (run(2 * many) - run(many)) / many;
    expect(step == (run(3 * many) - run(2 * many)) / many, "the run is not steady");
    return step;
  }

  settings how_;
  table rows_{
      {"model",
       "schedule",
       "over the work, ranks drift [%]",
       "over the work, ranks meet [%]",
       "activations [microbatches]",
       "activations [GiB]",
       "versions of weights",
       "second version [GiB]",
       "delay [steps]"}};
};

}  // namespace questions
