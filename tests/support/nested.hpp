// SPDX-License-Identifier: Apache-2.0
//
// Whether what a pass threw left the pipeline as it should: nested in an error that says where.
#pragma once

#include <zbpp/error.hpp>

#include <exception>
#include <utility>

namespace zbpp::test {

/// Calls `look` with the object of type T that an error nests. @return whether it nests one
template <class T, class Look>
bool look_into(error const& outer, Look look) {
  try {
    std::rethrow_if_nested(outer);
  } catch (T const& inner) {
    look(inner);
    return true;
  } catch (...) {
  }
  return false;
}

/// @return whether `act` throws an error (pass_failed) that has a place and nests a T
template <class T, class Act>
[[nodiscard]] bool throws_nested(Act act) {
  try {
    act();
  } catch (error const& outer) {
    return outer.code() == errc::pass_failed && outer.location().rank >= 0 &&
           look_into<T>(outer, [](T const&) {});
  }
  return false;
}

}  // namespace zbpp::test
