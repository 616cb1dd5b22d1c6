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

/// Reads a text of lines that ends with its checksum.
class line_reader {
 public:
  /// @throws error (bad_format) unless it ends so
  explicit line_reader(std::string_view all) : rest_(all) {
    constexpr std::size_t last_line = 10 + 16 + 1;  // "checksum: ", digits, end of line
    auto const before = all.size() - std::min(all.size(), last_line);
    auto const right = "checksum: " + hex_text(checksum_of(all.substr(0, before))) + "\n";
    if (all.substr(before) != right)
      refuse(
          "is damaged or torn: it does not end with \"" + right.substr(0, right.size() - 1) + "\"");
  }

  [[nodiscard]] std::string_view next_line() {
    auto const end = std::min(rest_.find('\n'), rest_.size());
    auto const line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return line;
  }
  /// Reads the value of the next line, which has this name.
  [[nodiscard]] std::string_view value(std::string_view name) {
    auto const line = next_line();
    if (!line.starts_with(name) || !line.substr(name.size()).starts_with(": "))
      refuse(zbpp::detail::joined("says \"", line, "\" where \"", name, ": \" belongs"));
    return line.substr(name.size() + 2);
  }
  /// Reads how many lines of a kind follow.
  [[nodiscard]] std::size_t count(std::string_view name) {
    auto const all = number(value(name));
    if (all > rest_.size()) refuse("has fewer lines than it states");
    return static_cast<std::size_t>(all);
  }
  /// Reads a number that fills a text.
  [[nodiscard]] static std::uint64_t number(std::string_view from, int base = 10) {
    std::uint64_t value = 0;
    auto const* const end = from.data() + from.size();
    auto const [stop, fault] = std::from_chars(from.data(), end, value, base);
    if (fault != std::errc{} || stop != end)
      refuse(zbpp::detail::joined("says \"", from, "\" where a number belongs"));
    return value;
  }

  [[noreturn]] static void refuse(std::string const& reason) {
    throw error(errc::bad_format, reason);
  }

 private:
  std::string_view rest_;
};

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

ZBPP_INLINE manifest read_manifest(
    std::string_view text, std::vector<setting> const& settings, std::string& differences) {
  line_reader from(text);
  if (auto const title = from.next_line(); title != manifest::title)
    from.refuse(
        zbpp::detail::joined("begins with \"") + title + "\"; this program reads \"" +
        manifest::title + "\": go on with the program that wrote it");
  manifest made;
  auto const step = from.value("step");
  auto const state = to_training(from.value("training state"));
  if (!state) from.refuse("has a training state that is not six numbers");
  made.state = state->state;
  if (step != std::to_string(made.state.steps)) from.refuse("has the state of another step");
  if (from.count("settings") != settings.size())
    from.refuse("has other settings than this program");
  for (auto const& each : settings)
    if (auto const saved = from.value(each.name); saved != each.value)
      differences += zbpp::detail::joined(differences.empty() ? "" : "; ") + each.name + " was " +
                     saved + " and is " + each.value;
  if (!differences.empty()) return made;
  for (auto lines = from.count("split"); lines > 0; --lines) {
    auto const line = from.next_line();
    auto const end = std::min(line.find(": "), line.size());
    made.split.push_back(
        {std::string(line.substr(0, end)),
         std::string(line.substr(std::min(end + 2, line.size())))});
  }
  auto const files = from.count("files");
  for (std::size_t rank = 0; rank < files; ++rank) {
    auto const record = from.value(rank_file_name(rank));
    auto const middle = std::min(record.find(before_checksum), record.size());
    auto const sum = record.substr(std::min(middle + before_checksum.size(), record.size()));
    made.files.push_back({from.number(record.substr(0, middle)), from.number(sum, 16)});
  }
  if (to_text(made, settings) != text) from.refuse("has lines or signs that do not belong there");
  return made;
}

}  // namespace detail

}  // namespace zbpp::checkpoint
