// SPDX-License-Identifier: Apache-2.0
//
// Names the TCP socket of Boost.Asio without its headers, which take seconds to compile, and what
// is called when a connection is lost.
#pragma once

#include <functional>
#include <string>

namespace boost::asio {

class any_io_executor;
template <typename Protocol, typename Executor>
class basic_stream_socket;

namespace ip {

class tcp;

}  // namespace ip
}  // namespace boost::asio

namespace zbpp::asio::detail {

/// The type `boost::asio::ip::tcp::socket`.
using accepted_socket =
    ::boost::asio::basic_stream_socket<::boost::asio::ip::tcp, ::boost::asio::any_io_executor>;

/// Called on the I/O thread when a channel cannot be used any more, and with why. It must not
/// throw, and must not call what may not be called from a handler.
using lost_handler = std::function<void(int channel, std::string why)>;

}  // namespace zbpp::asio::detail
