// SPDX-License-Identifier: Apache-2.0
//
// How training states and manifests become texts, and are read as strictly as they are written.
#pragma once

#include <zbpp/checkpoint/metadata.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/checksum.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

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

namespace detail {

ZBPP_INLINE std::string with_checksum(std::string lines) {
  auto const sum = checksum_of(std::string_view(lines));
  return std::move(lines) + "checksum: " + hex_text(sum) + "\n";
}

ZBPP_INLINE std::string to_text(std::vector<setting> const& settings) {
  std::string lines;
  for (auto const& each : settings) lines += each.name + ": " + each.value + "\n";
  return lines;
}

ZBPP_INLINE std::string rank_file_name(std::size_t rank) {
  return zbpp::detail::joined("rank-", rank, ".safetensors");
}

inline constexpr std::string_view before_checksum = " bytes, checksum ";

ZBPP_INLINE std::string to_text(manifest const& of, std::vector<setting> const& settings) {
  std::string lines = zbpp::detail::joined(manifest::title) + "\nstep: " + of.state.steps +
                      "\ntraining state: " + checkpoint::to_text(of.state) +
                      "\nsettings: " + settings.size() + "\n" + to_text(settings) +
                      "split: " + of.split.size() + "\n" + to_text(of.split) +
                      "files: " + of.files.size() + "\n";
  for (std::size_t rank = 0; rank < of.files.size(); ++rank)
    lines.append(zbpp::detail::joined(rank_file_name(rank), ": ", of.files[rank].size))
        .append(before_checksum)
        .append(hex_text(of.files[rank].checksum) + "\n");
  return with_checksum(std::move(lines));
}

// What this leaves unchecked differs from what is written of it.
ZBPP_INLINE manifest read_manifest(
    std::string_view text,
    std::string const& name,
    std::vector<setting> const& settings,
    std::string& differences) {
  auto const refuse = [&](std::string const& reason) {
    throw error(errc::bad_format, name + ": " + reason);
  };
  constexpr std::size_t last_line = 10 + 16 + 1;  // "checksum: ", digits, end of line
  auto rest = text.substr(0, text.size() - std::min(text.size(), last_line));
  if (auto const right = with_checksum(std::string(rest)); text != right)
    refuse(
        "is damaged or torn: it does not end with \"" +
        right.substr(rest.size(), right.size() - rest.size() - 1) + "\"");
  auto const next_line = [&] {
    auto const line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    return line;
  };
  auto const next_setting = [&] {
    auto const line = next_line();
    auto const end = std::min(line.find(": "), line.size());
    return setting{
        std::string(line.substr(0, end)), std::string(line.substr(std::min(end + 2, line.size())))};
  };
  if (auto const title = next_line(); title != manifest::title)
    refuse(
        zbpp::detail::joined("begins with \"") + title + "\"; this program reads \"" +
        manifest::title + "\": go on with the program that wrote it");
  manifest made;
  next_line();  // the step, which the state has, too
  auto const state = to_training(next_setting().value);
  if (!state) refuse("has a training state that is not six numbers");
  made.state = state->state;
  if (next_setting().value != std::to_string(settings.size()))
    refuse("has other settings than this program");
  for (auto const& each : settings) {
    auto const saved = next_setting();
    if (saved.name != each.name) refuse("has other settings than this program");
    if (saved.value != each.value)
      differences += zbpp::detail::joined(differences.empty() ? "" : "; ") + each.name + " was " +
                     saved.value + " and is " + each.value;
  }
  if (!differences.empty()) return made;
  next_line();  // how many lines follow
  while (!rest.empty() && !rest.starts_with("files: ")) made.split.push_back(next_setting());
  next_line();
  while (!rest.empty()) {
    auto const record = next_setting().value;
    auto const middle = std::min(record.find(before_checksum), record.size());
    auto const* const sum =
        record.data() + std::min(middle + before_checksum.size(), record.size());
    auto& [size, checksum] = made.files.emplace_back();
    std::from_chars(record.data(), record.data() + middle, size);
    std::from_chars(sum, record.data() + record.size(), checksum, 16);
  }
  if (to_text(made, settings) != text) refuse("has lines or signs that do not belong there");
  return made;
}

}  // namespace detail

}  // namespace zbpp::checkpoint
