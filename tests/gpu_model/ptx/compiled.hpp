// SPDX-License-Identifier: Apache-2.0
//
// The PTX that nvcc makes of the kernels of this repository, where there is one: CMakeLists.txt has
// it made, and says where it is.
#pragma once

#include <gpu_model/ptx/parse.hpp>
#include <gpu_model/ptx/program.hpp>

#include <fstream>
#include <iterator>
#include <string>
#include <typeinfo>
#include <vector>

namespace zbpp::test::ptx {

/// Says what a machine lacks for PTX to be made; empty: nothing.
[[nodiscard]] inline std::string missing() { return ZBPP_PTX_MISSING; }

/// Reads a file of PTX.
/// @throws fault
[[nodiscard]] inline std::string text_of(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw fault("there is no file " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Changes one kernel in a text of PTX, as a compiler or an author might err.
/// @param part   of the kernel's symbol
/// @param which  of the places where the right text stands, from 0
/// @throws fault if there is no such place
[[nodiscard]] inline std::string changed(
    std::string text,
    std::string const& part,
    std::string const& right,
    std::string const& wrong,
    int which = 0) {
  auto const symbol = text.find(part, text.find(".entry"));
  auto const end = text.find("\n}", symbol);
  auto at = text.find(right, text.find('{', symbol));
  for (; which > 0 && at < end; --which) at = text.find(right, at + 1);
  if (at >= end) throw fault(part + " has no such " + right);
  return text.replace(at, right.size(), wrong);
}

/// Holds the kernels of one .cu.
class compiled {
 public:
  /// @throws fault
  explicit compiled(std::string const& text) : all_(parse(text)) {}

  /// @param name  a part of the name in C++, which one kernel has
  /// @throws fault
  [[nodiscard]] kernel const& operator[](std::string name) const {
    std::erase(name, ' ');
    kernel const* found = nullptr;
    for (auto const& each : all_) {
      if (each.name.find(name) == std::string::npos) continue;
      if (found != nullptr) throw fault("there are several kernels " + name);
      found = &each;
    }
    if (found == nullptr) throw fault("there is no kernel " + name);
    return *found;
  }
  /// @return the instance of a kernel template for a type
  /// @throws fault
  template <class Type>
  [[nodiscard]] kernel const& instance(std::string const& of) const {
    return (*this)[of + "<" + name_of_symbol(typeid(Type).name()) + ">"];
  }

 private:
  std::vector<kernel> all_;
};

}  // namespace zbpp::test::ptx
