// SPDX-License-Identifier: Apache-2.0
//
// Checks what is drawn and measured of a run, without running one: the picture of the losses is
// small and has few ticks whatever the losses are, and clocks that have nothing to do with each
// other do not change what a message takes. Exit status 1 and a line for each fault.
#include "planning.hpp"
#include "svg_chart.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace gpt {
namespace {

int faults = 0;

/// Counts a fault unless `good`, and prints it.
void expect(bool good, std::string const& what) {
  if (good) return;
  ++faults;
  std::printf("FAILED  %s\n", what.c_str());
}

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// Expects an axis to hold two values and to have few ticks, which ascend.
void check_axis(double least, double most) {
  auto const name = "axis from " + std::to_string(least) + " to " + std::to_string(most);
  loss_axis const axis(least, most);
  expect(2 <= axis.ticks() && axis.ticks() <= 16, name + ": ticks");
  auto const low = axis.tick(0);
  auto const high = axis.tick(axis.ticks() - 1);
  expect(std::isfinite(low) && std::isfinite(high), name + ": finite");
  for (int i = 1; i < axis.ticks(); ++i)
    expect(axis.tick(i - 1) < axis.tick(i), name + ": ticks ascend");
  auto const slack = 1e-6 * std::max(std::abs(low), std::abs(high));
  if (std::max(std::abs(least), std::abs(most)) <= loss_axis::greatest)
    expect(low - slack <= least && most <= high + slack, name + ": holds its values");
  for (double const value : {least, most})
    expect(0.0 <= axis.share(value) && axis.share(value) <= 1.0, name + ": values stand on it");
}

void check_axes() {
  auto const huge = std::numeric_limits<double>::max();
  check_axis(0.0, 0.0);
  check_axis(-huge, huge);
  check_axis(huge, huge);
  check_axis(1e30, std::nextafter(1e30, huge));
  check_axis(-1e-300, 1e-300);
  for (std::uint64_t i = 0; i < 5000; ++i) {
    auto const random = [&](std::uint64_t what) {
      auto const bits = random_bits(11, i, what);
      auto const power = static_cast<double>(bits % 600) - 300.0;
      auto const value = std::pow(10.0, power) * static_cast<double>(bits / 600 % 1000) / 100.0;
      return bits % 7 == 0 ? -value : value;
    };
    auto const a = random(0);
    auto const b = i % 5 == 0 ? a : random(1);
    check_axis(std::min(a, b), std::max(a, b));
  }
  loss_axis const usual(2.3, 5.6);
  expect(usual.ticks() == 9 && usual.tick(0) == 2.0, "usual losses stand between halves");
}

void check_charts() {
  auto const nan = std::numeric_limits<double>::quiet_NaN();
  auto const infinite = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> const all{
      {},
      {nan},
      {infinite, -infinite},
      {5.5, 6.5e8, 3e38, nan, nan, infinite},
      {5.5, 1e308, -1e308},
      {4.0, 4.0, 4.0},
      std::vector<double>(200, 1e30)};
  for (auto const& values : all)
    for (double const level : {3.1, nan, infinite}) {
      auto const text =
          to_svg({"Loss", {{"sequential", values}, {"ZB-V", values}}, level, "level"});
      auto const name = "chart of " + std::to_string(values.size()) + " losses";
      expect(text.size() < 5000 + 40 * values.size(), name + ": the file is small");
      expect(count(text, "<text") < 50, name + ": it has few labels");
      expect(count(text, "nan") == 0 && count(text, "inf") == 0, name + ": numbers are finite");
      expect(
          count(text, ">level</text>") == (std::isfinite(level) ? 2U : 0U),
          name + ": the level has a name, on a rim");
      expect(text.ends_with("</svg>\n"), name + ": it is whole");
    }
}

/// Gives the clock of each rank another start, as in processes, and reads a step back.
void check_clocks() {
  for (std::uint64_t i = 0; i < 60; ++i) {
    int const ranks = 2 + static_cast<int>(i % 4);
    int const microbatches = 2 * ranks + static_cast<int>(i % 3);
    for (auto const& [name, where] :
         {std::pair{"one_f_one_b", zbpp::placement::linear(ranks)},
          std::pair{"zb_h1", zbpp::placement::linear(ranks)},
          std::pair{"zb_v", zbpp::placement::v_shape(ranks)}}) {
      zbpp::stage_costs const costs{.forward = 500, .backward_input = 600, .backward_weight = 400};
      auto const message = static_cast<zbpp::ticks>(20 + random_bits(5, i) % 100);
      zbpp::problem const problem(where, microbatches, costs, zbpp::transfer_costs(message));
      auto const order = split_backward(zbpp::find_policy(zbpp::builtin_policies(), name)(problem));
      auto const right = zbpp::simulate(order, problem);
      auto measured = right;
      for (int rank = 0; rank < ranks; ++rank) {
        auto const ahead = static_cast<zbpp::ticks>(
            random_bits(6, i, static_cast<std::uint64_t>(rank)) % 1'000'000'000);
        for (auto& timed : measured[rank]) {
          timed.start += ahead;
          timed.end += ahead;
        }
      }
      align_clocks(measured, where, microbatches);
      zbpp::problem const sizes(where, microbatches, zbpp::stage_costs{});
      auto const found = problem_from({measured}, sizes, quick_message_quantile);
      auto const at = std::string(name) + " on " + std::to_string(ranks) + " ranks: ";
      expect(message_time(found) == message, at + "a message takes what it takes");
      expect(found.costs(0).forward == 500, at + "and so does a pass");
    }
  }
}

}  // namespace
}  // namespace gpt

int main() {
  gpt::check_axes();
  gpt::check_charts();
  gpt::check_clocks();
  std::printf("%s\n", gpt::faults == 0 ? "drawing: all as it should be" : "drawing: faults");
  return gpt::faults == 0 ? 0 : 1;
}
