// SPDX-License-Identifier: Apache-2.0
//
// Names each case as it begins, at once: where one test of ctest is many cases, and a sanitizer
// ends the program, the last name is that of the case.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <support/catch.hpp>

#include <cstdio>

namespace {

#if __has_include(<catch2/catch_all.hpp>)
using listener_base = Catch::EventListenerBase;
#else
using listener_base = Catch::TestEventListenerBase;
#endif

struct name_cases : listener_base {
  using listener_base::listener_base;
  void testCaseStarting(Catch::TestCaseInfo const& begun) override {
    std::fprintf(stderr, "case: %s\n", begun.name.c_str());
  }
};

}  // namespace

CATCH_REGISTER_LISTENER(name_cases)
