// SPDX-License-Identifier: Apache-2.0
//
// The functions of the core that headers only declare under ZBPP_SEPARATE_COMPILATION. One source
// file of a program includes this one; the target `zbpp::compiled` has such a file.
#pragma once

#include <zbpp/adapt/impl/src.hpp>
#include <zbpp/analysis/impl/src.hpp>
#include <zbpp/io/impl/src.hpp>
#include <zbpp/model/impl/src.hpp>
#include <zbpp/optim/impl/src.hpp>
#include <zbpp/planner/impl/src.hpp>
#include <zbpp/policy/impl/src.hpp>
#include <zbpp/runtime/impl/src.hpp>
