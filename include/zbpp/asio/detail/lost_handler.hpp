// SPDX-License-Identifier: Apache-2.0
//
// What a transport calls when it has lost a connection.
#pragma once

#include <functional>
#include <string>

namespace zbpp::asio::detail {

/// Is told, on the I/O thread, that a channel cannot be used any more, and why. It must not throw,
/// and must not call what may not be called from a handler.
using lost_handler = std::function<void(int channel, std::string why)>;

}  // namespace zbpp::asio::detail
