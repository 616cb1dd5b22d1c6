// expect: zbpp needs C++20: compile with -std=c++20
// flags: -std=c++17
// SPDX-License-Identifier: Apache-2.0
#include <zbpp/config.hpp>
