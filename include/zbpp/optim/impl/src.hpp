// SPDX-License-Identifier: Apache-2.0
//
// All definitions of this folder, for the one source file that compiles them.
#pragma once

#include <zbpp/optim/impl/adamw.ipp>
#include <zbpp/optim/impl/elementwise.ipp>
#include <zbpp/optim/impl/sgd.ipp>
