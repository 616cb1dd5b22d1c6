// SPDX-License-Identifier: Apache-2.0
//
// A kernel of PTX as the interpreter has it: instructions whose names, registers and labels are
// looked up. parse.hpp makes it, launch.hpp runs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace zbpp::test::ptx {

/// Says what a kernel does that it must not do, or what the interpreter does not know.
struct fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Computes the bits of a result from those of up to three operands. A value is in the low bits of
/// the 64; what is above it is not read.
using operation = std::uint64_t (*)(std::uint64_t a, std::uint64_t b, std::uint64_t c);

/// Is a register or a constant; the latter also for the address of a variable.
struct operand {
  int reg = -1;  ///< -1: a constant
  std::uint64_t constant = 0;
};

/// Says in what memory an address is.
enum class space { global, shared, parameters };

/// Says what an instruction is besides its operands.
enum class action {
  compute,  ///< to[0] = with(from...)
  pack,     ///< to[0] = the parts `from`, the lowest first
  unpack,   ///< parts `to` = from[0]
  load,     ///< parts `to` = memory at from[0] + offset
  store,    ///< memory at from[0] + offset = parts from[1]...
  branch,
  leave,
  barrier,
  shuffle_up,  ///< to[0], and whether a lane is there in to[1] = from[0] of another lane
  shuffle_down,
  shuffle_xor,
  shuffle_index,
  vote_any,  ///< to[0] = from[0] of all lanes in the mask from[1]
  vote_all,
  vote_ballot,
};

/// Is one instruction.
struct instruction {
  action act = action::compute;
  operation with = nullptr;
  int guard = -1;  ///< a register that says whether it is done; -1: always
  bool guard_is_negated = false;
  std::vector<int> to{};
  std::vector<operand> from{};
  ptx::space space = ptx::space::global;
  std::size_t part = 0;  ///< bytes of each part
  bool is_signed = false;
  std::uint64_t offset = 0;
  std::size_t target = 0;  ///< of a branch
  int line = 0;            ///< in the text
};

/// Is a parameter or a shared variable.
struct variable {
  std::size_t offset = 0;
  std::size_t size = 0;
};

/// Is a kernel.
struct kernel {
  std::string name;  ///< as in C++, without blanks
  std::vector<variable> parameters;
  std::size_t parameter_bytes = 0;
  std::size_t shared_bytes = 0;
  int most_lanes = 1024;                 ///< of a block
  std::map<std::string, int> registers;  ///< special ones, too
  std::vector<instruction> code;
};

}  // namespace zbpp::test::ptx
