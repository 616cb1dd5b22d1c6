// expect: zbpp needs exceptions, which all of its errors are: compile without -fno-exceptions
// flags: -fno-exceptions
// SPDX-License-Identifier: Apache-2.0
#include <zbpp/config.hpp>
