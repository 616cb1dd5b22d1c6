// expect: zbpp needs std::stop_token, which libc++ before 20 lacks: use libstdc++ 12 or newer
// SPDX-License-Identifier: Apache-2.0
#include <version>
#if !defined(ZBPP_EXPECT_OK)
#undef __cpp_lib_jthread  // as with such a libc++
#endif
#include <zbpp/config.hpp>
