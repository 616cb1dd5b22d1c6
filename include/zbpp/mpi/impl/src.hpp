// SPDX-License-Identifier: Apache-2.0
//
// All that the component mpi compiles separately; one source file of the program includes it.
#pragma once

#include <zbpp/mpi/impl/ranks.ipp>
#include <zbpp/mpi/impl/rendezvous.ipp>
