// SPDX-License-Identifier: Apache-2.0
//
// What a program was doing when its memory did not suffice: the exception alone does not say.
#pragma once

#include <new>
#include <stdexcept>
#include <string>

namespace gpt {

/// Does some work.
/// @param what  names it, such as "reading the text"
/// @throws std::runtime_error that names the work where memory does not suffice; what `work` throws
template <class Work>
decltype(auto) doing(std::string const& what, Work const& work) {
  try {
    return work();
  } catch (std::bad_alloc const&) {
    throw std::runtime_error(
        "out of memory while " + what +
        "; choose a smaller model or fewer microbatches, or free memory");
  }
}

}  // namespace gpt
