# SPDX-License-Identifier: Apache-2.0
# Compiles SOURCE as the head of CMakeLists.txt in this folder says.
file(STRINGS "${SOURCE}" lines LIMIT_COUNT 2)
list(GET lines 0 first)
if(NOT first MATCHES "^// expect( \\[([^]]+)\\])?: (.+)$")
  message(FATAL_ERROR "${SOURCE}: the first line must be '// expect: TEXT', it is: ${first}")
endif()
set(only "${CMAKE_MATCH_2}")
set(expected "${CMAKE_MATCH_3}")
if(only AND NOT only STREQUAL COMPILER_IS)
  message(STATUS "only for compiler ${only}; this is ${COMPILER_IS}")
  return()
endif()
set(flags "")
list(GET lines 1 second)
if(second MATCHES "^// flags: (.+)$")
  separate_arguments(flags UNIX_COMMAND "${CMAKE_MATCH_1}")
endif()

# What refuses is in templates and in config.hpp, so no .ipp is needed.
separate_arguments(more UNIX_COMMAND "${FLAGS}")
set(command "${COMPILER}" -std=c++20 -DZBPP_SEPARATE_COMPILATION -fsyntax-only "-I${INCLUDE}" ${more})
execute_process(COMMAND ${command} -DZBPP_EXPECT_OK "${SOURCE}"
  RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "does not compile with ZBPP_EXPECT_OK:\n${out}")
endif()

execute_process(COMMAND ${command} ${flags} "${SOURCE}"
  RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
string(FIND "${out}" "${expected}" found)
if(status EQUAL 0)
  message(FATAL_ERROR "compiles; expected it to fail with: ${expected}")
elseif(found EQUAL -1)
  message(FATAL_ERROR "fails, but not with: ${expected}\n${out}")
endif()
