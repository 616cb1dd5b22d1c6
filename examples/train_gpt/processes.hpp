// SPDX-License-Identifier: Apache-2.0
//
// Training as one rank of several processes, kept apart from the headers of Asio.
#pragma once

#include "options.hpp"

namespace gpt {

#ifdef GPT_HAS_ASIO

/// Trains as the rank that the launcher says this process is. What goes wrong is told on standard
/// error, on every rank.
/// @return the exit status
[[nodiscard]] int train_in_processes(options o);

#else

/// Refuses: the library was built without processes.
/// @throws setting_error
[[noreturn]] inline int train_in_processes(options const&) {
  throw setting_error(
      "--transport tcp: this program was built without zbpp::asio, which needs Boost 1.81 and "
      "OpenSSL 3.0 (Debian and Ubuntu: libboost1.81-dev, libssl-dev); configure again with them");
}

#endif

}  // namespace gpt
