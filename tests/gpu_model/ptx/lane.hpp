// SPDX-License-Identifier: Apache-2.0
//
// One lane, that is, one thread of a block: its registers and its next instruction. It runs until
// it has to wait for others, which warp.hpp and launch.hpp let go on, or ends.
#pragma once

#include <gpu_model/ptx/memory.hpp>
#include <gpu_model/ptx/program.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace zbpp::test::ptx {

/// Holds the memory that a block has.
struct block_memory {
  memory& global;
  memory& shared;
  memory& parameters;

  [[nodiscard]] memory& of(space which) const {
    switch (which) {
      case space::shared: return shared;
      case space::parameters: return parameters;
      case space::global: break;
    }
    return global;
  }
};

/// Runs the instructions of one lane.
class lane {
 public:
  /// @param undefined  what registers hold that nothing was written to
  lane(kernel const& runs, int number, std::uint64_t undefined)
      : kernel_(&runs), number_(number), registers_(runs.registers.size(), undefined) {}

  /// Sets a register such as %tid.x, if the kernel has it.
  void set_special(std::string const& name, std::uint64_t value) {
    if (auto const found = kernel_->registers.find(name); found != kernel_->registers.end())
      set(found->second, value);
  }

  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] bool has_ended() const { return has_ended_; }
  /// @return the instruction that it waits at, once it has run
  [[nodiscard]] instruction const& next() const { return kernel_->code[next_]; }
  [[nodiscard]] std::uint64_t value(operand const& of) const {
    return of.reg < 0 ? of.constant : registers_[static_cast<std::size_t>(of.reg)];
  }
  void set(int reg, std::uint64_t value) { registers_[static_cast<std::size_t>(reg)] = value; }
  /// Ends the wait.
  void go_on() { ++next_; }

  /// Runs until it ends, or to an instruction for which it needs others.
  /// @throws fault
  void run(block_memory const& memory, int block, int barriers) {
    while (!has_ended_) {
      if (++instructions_ > most_instructions) throw fault("does not end");
      auto const& i = next();
      if (i.guard >= 0 && ((value({.reg = i.guard}) & 1) != 0) == i.guard_is_negated) {
        ++next_;
        continue;
      }
      switch (i.act) {
        case action::compute: set(i.to[0], i.with(from(0), from(1), from(2))); break;
        case action::pack: pack(i); break;
        case action::unpack: unpack(i); break;
        case action::load: load(i, memory, {block, number_, barriers}); break;
        case action::store: store(i, memory, {block, number_, barriers}); break;
        case action::branch: next_ = i.target; continue;
        case action::leave: has_ended_ = true; continue;
        default: return;
      }
      ++next_;
    }
  }

 private:
  // Own choice: far more than a lane of any kernel takes in tests.
  static constexpr std::uint64_t most_instructions = 1U << 24U;
  static constexpr std::size_t most_bytes = 16;  // of an access

  [[nodiscard]] std::uint64_t from(std::size_t place) const { return value(next().from[place]); }

  void pack(instruction const& i) {
    std::uint64_t all = 0;
    for (std::size_t p = 0; p < i.from.size(); ++p)
      all |= low_bytes(from(p), i.part) << (8 * i.part * p);
    set(i.to[0], all);
  }
  void unpack(instruction const& i) {
    auto const all = from(0);
    for (std::size_t p = 0; p < i.to.size(); ++p)
      set(i.to[p], low_bytes(all >> (8 * i.part * p), i.part));
  }
  void load(instruction const& i, block_memory const& memory, user const& by) {
    std::array<std::byte, most_bytes> bytes{};
    auto const address = from(0) + i.offset;
    memory.of(i.space).at(address).read(by, address, std::span(bytes).first(i.part * i.to.size()));
    for (std::size_t p = 0; p < i.to.size(); ++p) {
      std::uint64_t value = 0;
      std::memcpy(&value, bytes.data() + i.part * p, i.part);
      auto const above = 8 * (sizeof(value) - i.part);
      if (i.is_signed)
        value = static_cast<std::uint64_t>(static_cast<std::int64_t>(value << above) >> above);
      set(i.to[p], value);
    }
  }
  void store(instruction const& i, block_memory const& memory, user const& by) {
    std::array<std::byte, most_bytes> bytes{};
    auto const parts = i.from.size() - 1;
    for (std::size_t p = 0; p < parts; ++p) {
      auto const value = from(p + 1);
      std::memcpy(bytes.data() + i.part * p, &value, i.part);
    }
    auto const address = from(0) + i.offset;
    memory.of(i.space).at(address).write(by, address, std::span(bytes).first(i.part * parts));
  }
  [[nodiscard]] static std::uint64_t low_bytes(std::uint64_t value, std::size_t bytes) {
    return bytes == sizeof(value) ? value : value & ((std::uint64_t{1} << (8 * bytes)) - 1);
  }

  kernel const* kernel_;
  int number_;
  std::vector<std::uint64_t> registers_;
  std::size_t next_ = 0;
  std::uint64_t instructions_ = 0;
  bool has_ended_ = false;
};

}  // namespace zbpp::test::ptx
