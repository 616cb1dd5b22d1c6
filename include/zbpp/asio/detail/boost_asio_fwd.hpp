// SPDX-License-Identifier: Apache-2.0
//
// Names the TCP socket of Boost.Asio without its headers, which take seconds to compile.
#pragma once

namespace boost::asio {

class any_io_executor;
template <typename Protocol, typename Executor>
class basic_stream_socket;

namespace ip {

class tcp;

}  // namespace ip
}  // namespace boost::asio

namespace zbpp::asio::detail {

/// Is `boost::asio::ip::tcp::socket`.
using accepted_socket =
    ::boost::asio::basic_stream_socket<::boost::asio::ip::tcp, ::boost::asio::any_io_executor>;

}  // namespace zbpp::asio::detail
