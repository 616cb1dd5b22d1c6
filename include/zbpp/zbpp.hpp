// SPDX-License-Identifier: Apache-2.0
//
// What a trainer needs of zbpp. Searches, bounds, pictures and files are in `zbpp/plan.hpp`, what
// authors of backends need in `zbpp/backend.hpp`.
#pragma once

#include <zbpp/train.hpp>
