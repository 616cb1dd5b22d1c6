// SPDX-License-Identifier: Apache-2.0
//
// Stands in for processes.cpp and mpi_processes.cpp in a program whose ranks are threads.
#include "ways.hpp"

namespace gpt {

#ifdef GPT_HAS_ASIO
int train_in_processes(options) {
  throw setting_error(
      "--transport tcp: this program runs threads alone; build the target train_gpt");
}
#endif
#ifdef GPT_HAS_MPI
int train_over_mpi(options) {
  throw setting_error(
      "--transport mpi: this program runs threads alone; build the target train_gpt");
}
#endif

}  // namespace gpt
