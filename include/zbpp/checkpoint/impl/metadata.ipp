// SPDX-License-Identifier: Apache-2.0
//
// How the numbers of a training state become a text, and back.
#pragma once

#include <zbpp/checkpoint/metadata.hpp>
#include <zbpp/config.hpp>

#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace zbpp::checkpoint {

ZBPP_INLINE std::string to_text(training_state const& state) {
  std::string text;
  auto const add = [&text](auto value) {
    std::array<char, 32> digits{};  // more than the longest number
    auto* const end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    if (!text.empty()) text += ' ';
    text.append(digits.data(), end);
  };
  add(state.steps);
  add(state.updates);
  add(state.loss_scale);
  add(state.finite_steps);
  add(state.amended);
  add(state.accumulated);
  if (state.unagreed != 0) add(state.unagreed);  // else as texts were before there were such steps
  return text;
}

ZBPP_INLINE std::optional<saved_training> to_training(std::string_view text) {
  saved_training read;
  auto& made = read.state;
  bool is_right = true;
  auto const next = [&](auto& value) {
    auto const [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    is_right = is_right && fault == std::errc();
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.starts_with(' ')) text.remove_prefix(1);
  };
  next(made.steps);
  next(made.updates);
  next(made.loss_scale);
  next(made.finite_steps);
  next(made.amended);
  read.has_gradients = !text.empty();
  if (read.has_gradients) next(made.accumulated);
  if (is_right && !text.empty()) next(made.unagreed);
  if (!is_right || !text.empty()) return std::nullopt;
  return read;
}

}  // namespace zbpp::checkpoint
