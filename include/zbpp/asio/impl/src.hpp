// SPDX-License-Identifier: Apache-2.0
//
// All that the component asio compiles separately, in one source for each paragraph.
#pragma once

// How processes meet.
#include <zbpp/asio/impl/control.ipp>
#include <zbpp/asio/impl/io_loop.ipp>
#include <zbpp/asio/impl/launch.ipp>
#include <zbpp/asio/impl/rendezvous.ipp>

// What connects them, and what they do together.
#include <zbpp/asio/impl/measure.ipp>
#include <zbpp/asio/impl/rank_call.ipp>
#include <zbpp/asio/impl/socket_grid.ipp>
#include <zbpp/asio/impl/socket_states.ipp>
#include <zbpp/asio/impl/step_supervisor.ipp>
#include <zbpp/asio/impl/tcp_transport.ipp>
#include <zbpp/asio/impl/token.ipp>

// The backend.
#include <zbpp/asio/tcp.hpp>
#include <zbpp/runtime/detail/backend_link.hpp>
template class zbpp::detail::backend_of<zbpp::asio::tcp>;
