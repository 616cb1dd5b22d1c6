// SPDX-License-Identifier: Apache-2.0
//
// Reads PTX, as nvcc writes it: `parse(text)` gives its kernels. What the interpreter does not know
// is refused with its line.
#pragma once

#include <gpu_model/ptx/operations.hpp>
#include <gpu_model/ptx/program.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cxxabi.h>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace zbpp::test::ptx {

/// Turns a symbol into its name in C++, without blanks.
[[nodiscard]] inline std::string name_of_symbol(std::string const& symbol) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> const found(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? found.get() : symbol;
  std::erase(name, ' ');
  return name;
}

namespace detail {

/// Takes off blanks on both sides.
[[nodiscard]] inline std::string_view trimmed(std::string_view text) {
  constexpr auto blanks = " \t\r\n";
  auto const begin = text.find_first_not_of(blanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

/// Cuts a text at each separator that is not within braces or brackets; nothing from nothing.
[[nodiscard]] inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{' || text[i] == '[') ++depth;
    if (text[i] == '}' || text[i] == ']') --depth;
    if (text[i] != separator || depth != 0) continue;
    parts.push_back(trimmed(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  if (auto const last = trimmed(text.substr(begin)); !last.empty()) parts.push_back(last);
  return parts;
}

/// Splits in two before the first of some characters; the second may be empty.
[[nodiscard]] inline std::pair<std::string_view, std::string_view> split_before(
    std::string_view text, char const* first_of) {
  auto const end = text.find_first_of(first_of);
  if (end == text.npos) return {text, {}};
  return {trimmed(text.substr(0, end)), trimmed(text.substr(end))};
}

/// Takes off what stands around a text, one character on each side.
[[nodiscard]] inline std::string_view within(std::string_view text) {
  return trimmed(text.substr(1, text.size() - 2));
}

/// Reads a whole number.
/// @throws fault
template <class Value = std::size_t>
[[nodiscard]] Value number(std::string_view text, int base = 10) {
  Value value = 0;
  auto const* const end = text.data() + text.size();
  if (auto const read = std::from_chars(text.data(), end, value, base);
      read.ec != std::errc() || read.ptr != end)
    throw fault("expected a number, read '" + std::string(text) + "'");
  return value;
}

/// @return bytes of a type such as u32
[[nodiscard]] inline std::size_t bytes_of(std::string_view type) {
  return type == "bf16" ? 2 : number(type.substr(1)) / 8;
}

[[nodiscard]] inline bool is_word(std::string_view opcode, std::string_view word) {
  return ("." + std::string(opcode) + ".").find("." + std::string(word) + ".") != std::string::npos;
}

/// Reads one kernel, line by line.
class kernel_parser {
 public:
  kernel_parser(std::string_view symbol, operation_table const& operations)
      : operations_(operations) {
    made_.name = name_of_symbol(std::string(symbol));
  }

  /// Reads `.param .align 8 .b8 name[24]` or `.param .u32 name`, and the same for `.shared`.
  void read_variable(std::string_view text, bool is_parameter) {
    std::size_t alignment = 0;
    std::size_t size = 0;
    auto const words = split(text, ' ');
    for (std::size_t i = 1; i + 1 < words.size(); ++i)
      if (words[i] == ".align")
        alignment = number(words[++i]);
      else if (!words[i].empty())
        size = bytes_of(words[i].substr(1));
    auto const [name, length] = split_before(words.back(), "[");
    if (!length.empty()) size *= number(within(length));
    if (alignment == 0) alignment = size;
    auto& end = is_parameter ? made_.parameter_bytes : made_.shared_bytes;
    variable const place{(end + alignment - 1) / alignment * alignment, size};
    end = place.offset + size;
    variables_[std::string(name)] = place;
    if (is_parameter) made_.parameters.push_back(place);
  }
  /// Reads `.maxntid 256, 1, 1`.
  void read_most_lanes(std::string_view text) {
    made_.most_lanes = number<int>(split(split_before(text, " ").second, ',').at(0));
  }
  /// Reads a label, without its colon.
  void read_label(std::string_view name) { labels_[std::string(name)] = made_.code.size(); }
  /// Reads an instruction, without its semicolon.
  void read_instruction(std::string_view text, int line) {
    instruction made;
    made.line = line;
    if (text.front() == '@') {
      auto const [guard, rest] = split_before(text, " \t");
      made.guard_is_negated = guard[1] == '!';
      made.guard = reg(guard.substr(made.guard_is_negated ? 2 : 1));
      text = rest;
    }
    auto const [opcode, rest] = split_before(text, " \t");
    fill(made, opcode, split(rest, ','));
    made_.code.push_back(std::move(made));
  }
  /// @return the kernel, once all of it was read
  [[nodiscard]] kernel take() {
    for (auto const& [place, label] : branches_) {
      auto const found = labels_.find(label);
      if (found == labels_.end()) throw fault("there is no label " + label);
      made_.code[place].target = found->second;
    }
    made_.code.push_back({.act = action::leave});  // as the end of a kernel does
    return std::move(made_);
  }

 private:
  using operands = std::vector<std::string_view>;

  [[nodiscard]] int reg(std::string_view name) {
    auto const next = static_cast<int>(made_.registers.size());
    return made_.registers.try_emplace(std::string(name), next).first->second;
  }
  [[nodiscard]] operand source(std::string_view text) {
    if (text.empty()) throw fault("an operand is missing");
    if (text.front() == '%') return {.reg = reg(text)};
    if (text.starts_with("0f") || text.starts_with("0d"))
      return {.constant = number<std::uint64_t>(text.substr(2), 16)};
    if (text.front() == '-')
      return {.constant = static_cast<std::uint64_t>(number<std::int64_t>(text))};
    if (text.front() >= '0' && text.front() <= '9')
      return {.constant = number<std::uint64_t>(text)};
    auto const found = variables_.find(std::string(text));
    if (found == variables_.end()) throw fault("there is no variable " + std::string(text));
    return {.constant = found->second.offset};
  }
  [[nodiscard]] static operands parts(std::string_view text) {
    return text.starts_with('{') ? split(within(text), ',') : operands{text};
  }
  void write_to(instruction& made, operands const& names) {
    for (auto const name : names) made.to.push_back(reg(name));
  }
  void read_from(instruction& made, operands const& texts) {
    for (auto const text : texts) made.from.push_back(source(text));
  }

  void fill(instruction& made, std::string_view opcode, operands const& all) {
    if (opcode == "ret" || opcode == "exit")
      made.act = action::leave;
    else if (opcode == "bra" || opcode == "bra.uni") {
      made.act = action::branch;
      branches_.emplace_back(made_.code.size(), std::string(all.at(0)));
    } else if (opcode == "bar.sync")
      fill_barrier(made, all);
    else if (opcode.starts_with("ld."))
      fill_access(made, action::load, opcode, all.at(1), all.at(0));
    else if (opcode.starts_with("st."))
      fill_access(made, action::store, opcode, all.at(0), all.at(1));
    else if (opcode.starts_with("shfl.sync.") || opcode.starts_with("vote.sync."))
      fill_exchange(made, opcode, all);
    else
      fill_operation(made, opcode, all);
  }
  static void fill_barrier(instruction& made, operands const& all) {
    if (all.size() != 1 || all[0] != "0") throw fault("the interpreter has one barrier, 0");
    made.act = action::barrier;
  }
  void fill_access(
      instruction& made,
      action act,
      std::string_view opcode,
      std::string_view address,
      std::string_view values) {
    made.act = act;
    made.space = is_word(opcode, "shared")  ? space::shared
                 : is_word(opcode, "param") ? space::parameters
                                            : space::global;
    auto const type = opcode.substr(opcode.rfind('.') + 1);
    made.part = bytes_of(type);
    made.is_signed = type.starts_with('s');
    auto const [base, offset] = split_before(within(address), "+");
    made.from.push_back(source(base));
    if (!offset.empty())
      made.offset = static_cast<std::uint64_t>(number<std::int64_t>(offset.substr(1)));
    if (act == action::load)
      write_to(made, parts(values));
    else
      read_from(made, parts(values));
  }
  // shfl.sync.down.b32 to|is_there, value, by, limits, mask; vote.sync.any.pred to, value, mask
  void fill_exchange(instruction& made, std::string_view opcode, operands const& all) {
    static std::map<std::string_view, action> const acts{
        {"shfl.sync.up.b32", action::shuffle_up},
        {"shfl.sync.down.b32", action::shuffle_down},
        {"shfl.sync.bfly.b32", action::shuffle_xor},
        {"shfl.sync.idx.b32", action::shuffle_index},
        {"vote.sync.any.pred", action::vote_any},
        {"vote.sync.all.pred", action::vote_all},
        {"vote.sync.ballot.b32", action::vote_ballot}};
    auto const found = acts.find(opcode);
    if (found == acts.end()) throw fault("the interpreter has no " + std::string(opcode));
    made.act = found->second;
    write_to(made, split(all.at(0), '|'));
    read_from(made, {all.begin() + 1, all.end()});
  }
  void fill_operation(instruction& made, std::string_view opcode, operands const& all) {
    write_to(made, parts(all.at(0)));
    if (all.size() == 2 && (all[0].starts_with('{') || all[1].starts_with('{'))) {
      read_from(made, parts(all[1]));
      made.act = made.to.size() > 1 ? action::unpack : action::pack;
      made.part = bytes_of(opcode.substr(opcode.rfind('.') + 1));
      made.part /= made.to.size() * made.from.size();
      return;
    }
    read_from(made, {all.begin() + 1, all.end()});
    if (made.from.size() > 3) throw fault("the interpreter has no " + std::string(opcode));
    made.from.resize(3);
    made.with = operations_[std::string(opcode)];
  }

  operation_table const& operations_;
  kernel made_;
  std::map<std::string, variable> variables_;
  std::map<std::string, std::size_t> labels_;
  std::vector<std::pair<std::size_t, std::string>> branches_;
};

}  // namespace detail

/// Reads the kernels of a text of PTX.
/// @throws fault  with the line of what is not known
[[nodiscard]] inline std::vector<kernel> parse(std::string_view text) {
  operation_table const operations;
  std::vector<kernel> all;
  std::unique_ptr<detail::kernel_parser> current;
  int number = 0;
  while (!text.empty()) {
    auto const end = text.find('\n');
    auto line = detail::trimmed(text.substr(0, end));
    line = detail::trimmed(line.substr(0, line.find("//")));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    ++number;
    try {
      if (auto const entry = line.find(".entry"); entry != line.npos) {
        auto const symbol =
            detail::split_before(detail::trimmed(line.substr(entry + 6)), "(").first;
        current = std::make_unique<detail::kernel_parser>(symbol, operations);
      } else if (current == nullptr || line.empty()) {
        continue;
      } else if (line == "}") {
        all.push_back(current->take());
        current.reset();
      } else if (line.starts_with(".param") || line.starts_with(".shared")) {
        auto const declared = line.substr(0, line.find_first_of(",;"));
        current->read_variable(declared, line.starts_with(".param"));
      } else if (line.starts_with(".maxntid")) {
        current->read_most_lanes(line);
      } else if (line.ends_with(':')) {
        current->read_label(line.substr(0, line.size() - 1));
      } else if (line != "{" && line != "(" && line != ")" && !line.starts_with('.')) {
        if (line.starts_with('{') && line.ends_with('}')) line = detail::within(line);
        for (auto const one : detail::split(line, ';')) current->read_instruction(one, number);
      }
    } catch (std::exception const& refused) {
      throw fault("line " + std::to_string(number) + ": " + refused.what());
    }
  }
  return all;
}

}  // namespace zbpp::test::ptx
