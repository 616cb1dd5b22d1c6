// SPDX-License-Identifier: Apache-2.0
//
// The scale of a chart's axis: where values stand, and which of them have labels. Only
// `impl/line_chart.ipp` includes it.
#pragma once

#include <zbpp/io/chart_axis.hpp>
#include <zbpp/io/text.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp::detail {

/// Writes a power of ten with its exponent raised, as in 10⁻⁶.
[[nodiscard]] inline std::string power_text(int exponent) {
  constexpr std::array<std::string_view, 10> raised{
      "\u2070",
      "\u00b9",
      "\u00b2",
      "\u00b3",
      "\u2074",
      "\u2075",
      "\u2076",
      "\u2077",
      "\u2078",
      "\u2079"};
  std::string text = "10";
  if (exponent < 0) text += "\u207b";
  for (char const digit : std::to_string(std::abs(exponent)))
    text += raised[static_cast<std::size_t>(digit - '0')];
  return text;
}

/// Maps the values of an axis to shares of its length, and labels some of them.
class chart_scale {
 public:
  /// Values beyond are drawn at the end of the axis: their differences would be infinite.
  static constexpr double greatest = 1e150;

  /// Holds all from `least` to `most`, which are finite and, on a logarithmic axis, above 0, in
  /// about `parts` parts.
  chart_scale(chart_axis const& axis, double least, double most, int parts)
      : is_logarithmic_(axis.is_logarithmic) {
    low_ = std::clamp(least, is_logarithmic_ ? 1 / greatest : -greatest, greatest);
    high_ = std::clamp(most, low_, greatest);
    if (!axis.labels.empty())
      take(axis.labels);
    else if (is_logarithmic_)
      divide_powers(parts);
    else
      divide(axis, parts);
  }

  /// @return labels by ascending value, from the lower end of the axis to the upper one
  [[nodiscard]] std::vector<chart_label> const& labels() const noexcept { return labels_; }
  /// @return the exponent of the power of ten that numbers are divided by for their labels
  [[nodiscard]] int exponent() const noexcept { return exponent_; }
  /// Labels round numbers again, divided by another power of ten.
  void set_exponent(int exponent) {
    if (step_digit_ == 0) return;
    exponent_ = exponent;
    labels_.clear();
    auto const step = step_digit_ * std::pow(10.0, step_power_);
    auto const unit = step_digit_ * std::pow(10.0, step_power_ - exponent_);
    auto const last = std::round(high_ / step);
    for (auto i = std::round(low_ / step); i <= last; ++i)
      labels_.push_back({i * step, fixed_text(i * unit, std::max(exponent_ - step_power_, 0))});
  }
  /// @return where a value stands, from 0 at the lower end to 1 at the upper one
  [[nodiscard]] double share(double value) const {
    value = std::clamp(value, low_, high_);
    return is_logarithmic_ ? std::log10(value / low_) / std::log10(high_ / low_)
                           : (value - low_) / (high_ - low_);
  }

 private:
  // A single value stands in the middle.
  void take(std::vector<chart_label> const& labels) {
    labels_ = labels;
    low_ = std::min(low_, labels.front().value);
    high_ = std::max(high_, labels.back().value);
    if (low_ < high_) return;
    auto const room = std::max(std::abs(low_), 1.0) / 2;
    low_ = is_logarithmic_ ? low_ / 2 : low_ - room;
    high_ = is_logarithmic_ ? high_ * 2 : high_ + room;
  }

  // Ticks at 1, 2 or 5 times a power of ten, the first and the last at the ends of the axis.
  void divide(chart_axis const& axis, int parts) {
    if (axis.begins_at_zero) {
      low_ = std::min(low_, 0.0);
      high_ = std::max(high_, 0.0);
    }
    if (low_ == high_) {
      auto const room = low_ == 0 ? 1.0 : std::abs(low_) / 8;
      low_ = low_ >= 0 ? std::max(low_ - room, 0.0) : low_ - room;
      high_ += room;
    }
    // Far from 0 neighbours of a double lie apart, and so do ticks.
    auto const size = std::max(std::abs(low_), std::abs(high_));
    auto const finest = std::max({high_ / parts - low_ / parts, size * 1e-9, 1 / greatest});
    step_power_ = static_cast<int>(std::floor(std::log10(finest)));
    step_digit_ = 1;
    while (step_digit_ * std::pow(10.0, step_power_) < finest * (1 - 1e-9))
      step_digit_ = step_digit_ == 2 ? 5 : 2 * step_digit_;
    if (axis.is_whole && step_power_ < 0) {
      step_power_ = 0;
      step_digit_ = 1;
    }
    auto const step = step_digit_ * std::pow(10.0, step_power_);
    constexpr double slack = 1e-9;  // quotients are rounded
    auto const first = std::floor(low_ / step + slack);
    low_ = first * step;
    high_ = std::max(std::ceil(high_ / step - slack), first + 1) * step;
    set_exponent(exponent_for(std::max(std::abs(low_), std::abs(high_)), step));
  }

  // Long numbers are divided by a million and so on, so long as labels stay short.
  [[nodiscard]] static int exponent_for(double size, double step) {
    if (size >= 1e-3 && size < 1e6) return 0;
    auto exponent = 3 * static_cast<int>(std::floor(std::log10(size) / 3));
    while (exponent >= 6 && step < std::pow(10.0, exponent - 2)) exponent -= 3;
    return exponent > 0 && exponent < 6 ? 0 : exponent;
  }

  // Ticks at 1, 2 and 5 times powers of ten; where those are many, at some powers alone.
  void divide_powers(int parts) {
    auto first = static_cast<int>(std::floor(std::log10(low_) + 1e-9));
    auto last = std::max(static_cast<int>(std::ceil(std::log10(high_) - 1e-9)), first + 1);
    bool const are_many = 3 * (last - first) > parts + 2;
    auto const stride = 1 + (last - first - 1) / std::max(parts, 1);
    last = first + (last - first + stride - 1) / stride * stride;
    for (int power = first; power <= last; power += stride) {
      add_power(1, power);
      if (are_many || power == last) continue;
      for (int const digit : {2, 5}) add_power(digit, power);
    }
    // Fewer labels where the ends are far from the values.
    while (labels_.size() > 2 && labels_[1].value <= low_ * (1 + 1e-9))
      labels_.erase(labels_.begin());
    while (labels_.size() > 2 && labels_[labels_.size() - 2].value >= high_ * (1 - 1e-9))
      labels_.pop_back();
    low_ = labels_.front().value;
    high_ = labels_.back().value;
  }

  void add_power(int digit, int power) {
    auto const value = digit * std::pow(10.0, power);
    auto const factor = digit == 1 ? std::string() : std::to_string(digit) + "\u00b7";
    labels_.push_back(
        {value,
         power >= -4 && power < 6 ? fixed_text(value, std::max(-power, 0))
                                  : factor + power_text(power)});
  }

  bool is_logarithmic_;
  double low_ = 0;
  double high_ = 1;
  int exponent_ = 0;
  int step_digit_ = 0;  // of round numbers, 1, 2 or 5; 0 where the axis has other labels
  int step_power_ = 0;
  std::vector<chart_label> labels_;
};

}  // namespace zbpp::detail
