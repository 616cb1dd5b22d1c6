# SPDX-License-Identifier: Apache-2.0
# zbpp_strict: warnings as errors, sanitizers and a faster compiler for our own tests, examples,
# benchmarks and tools.
# Never part of zbpp::zbpp: a user's flags are the user's.
# Who only installs the tools may have any compiler.
set(zbpp_werror OFF)
if(ZBPP_BUILD_TESTS OR ZBPP_BUILD_EXAMPLES OR ZBPP_BUILD_BENCH)
  set(zbpp_werror ON)
endif()
option(ZBPP_WERROR "Take warnings for errors; OFF where an untried compiler only has to build"
  ${zbpp_werror})
add_library(zbpp_strict INTERFACE)
set(zbpp_warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
# What nvcc takes, for itself and for the compiler behind it; not every warning suits its output.
set(zbpp_cuda_warnings "SHELL:-Xcompiler=-Wall,-Wextra")
if(ZBPP_WERROR)
  list(APPEND zbpp_warnings -Werror)
  list(APPEND zbpp_cuda_warnings "SHELL:-Werror all-warnings -Xcompiler=-Werror")
endif()
target_compile_options(zbpp_strict INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${zbpp_warnings}>")

# By default g++ looks for garbage in its memory from 128 MB on. From 1 GB on it takes a sixth less time,
# and a quarter more memory.
set(zbpp_fewer_collections "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(zbpp_fewer_collections "--param=ggc-min-heapsize=1000000")
endif()
target_compile_options(zbpp_strict INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${zbpp_fewer_collections}>")

if(ZBPP_SANITIZE)
  if(NOT ZBPP_SANITIZE MATCHES "^(thread|(address|undefined)(,(address|undefined))?)$")
    message(FATAL_ERROR "ZBPP_SANITIZE is '${ZBPP_SANITIZE}'; it must be thread, address, undefined "
      "or address,undefined")
  endif()
  set(zbpp_sanitize -fsanitize=${ZBPP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # clang 14 cannot link -fsanitize=function with coroutines.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16)
    list(APPEND zbpp_sanitize -fno-sanitize=function)
  endif()
  target_compile_options(zbpp_strict INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${zbpp_sanitize}>")
  target_compile_definitions(zbpp_strict INTERFACE ZBPP_SLOW_BUILD)  # tests/support/thinned.hpp
  target_link_options(zbpp_strict INTERFACE ${zbpp_sanitize})
  # These programs are large; where lld is there, it links them in a third of the time.
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=lld ZBPP_HAS_LLD)
  if(ZBPP_HAS_LLD)
    target_link_options(zbpp_strict INTERFACE -fuse-ld=lld)
  endif()
endif()
