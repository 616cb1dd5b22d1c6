// SPDX-License-Identifier: Apache-2.0
//
// Training as one rank of several processes, kept apart from the headers of Asio. Under the model
// of CUDA, which is one process, all ranks are threads instead.
#pragma once

#include "options.hpp"

namespace gpt::cuda {

#ifdef GPT_HAS_NCCL

/// Trains as the rank that the launcher says this process is. What goes wrong is told on standard
/// error, on every rank.
/// @return the exit status
/// @throws setting_error where no launcher is there, or the options do not fit
[[nodiscard]] int train_in_processes(options o);

#else

/// Refuses: the program was built without NCCL.
/// @throws setting_error
[[noreturn]] inline int train_in_processes(options const&) {
  throw setting_error(
      "--transport nccl: this program was built without zbpp::nccl, which needs NCCL 2.22, Boost "
      "1.81 and OpenSSL 3.0; configure again with them");
}

#endif

}  // namespace gpt::cuda
