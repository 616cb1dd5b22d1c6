// SPDX-License-Identifier: Apache-2.0
//
// Stands in for the training: says which program, a target of CMake, has what the options ask for
// and least besides. `run demo` builds that one then.
#include "ways.hpp"
#include <zbpp/impl/error.ipp>  // all that this program needs of what zbpp compiles

#include <cstdio>

namespace gpt {

int train_on_threads(options const& o) {
  std::puts(o.searches ? "train_gpt_threads" : "train_gpt_handcrafted");
  return 0;
}

#ifdef GPT_HAS_ASIO
int train_in_processes(options) {
  std::puts("train_gpt");
  return 0;
}
#endif
#ifdef GPT_HAS_MPI
int train_over_mpi(options) {
  std::puts("train_gpt");
  return 0;
}
#endif

}  // namespace gpt
