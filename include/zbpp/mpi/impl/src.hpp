// SPDX-License-Identifier: Apache-2.0
//
// All that the component mpi compiles separately, in one source for each paragraph.
#pragma once

#include <zbpp/mpi/impl/ranks.ipp>
#include <zbpp/mpi/impl/rendezvous.ipp>

// The backend.
#include <zbpp/mpi/ranks.hpp>
#include <zbpp/runtime/detail/backend_link.hpp>
template class zbpp::detail::backend_of<zbpp::mpi::ranks>;
