# SPDX-License-Identifier: Apache-2.0
# Configures, builds and tests the project in SOURCE, or only configures it; see zbpp_package_test.
file(REMOVE_RECURSE "${BINARY}")

set(command "${CMAKE_COMMAND}" -S "${SOURCE}" -B "${BINARY}" -G "${GENERATOR}"
  "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
  "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" -DCMAKE_BUILD_TYPE=Debug
  "-DCMAKE_CXX_FLAGS_DEBUG=${FLAGS}" ${ARGUMENTS})  # without -g: nobody debugs it
execute_process(COMMAND ${command} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
if(NOT EXPECT STREQUAL "")
  # CMake breaks the lines of its messages.
  string(REGEX REPLACE "[ \n]+" " " text "${out}")
  string(FIND "${text}" "${EXPECT}" found)
  if(status EQUAL 0)
    message(FATAL_ERROR "configuring succeeded; expected it to fail with: ${EXPECT}\n${out}")
  elseif(found EQUAL -1)
    message(FATAL_ERROR "configuring failed, but not with: ${EXPECT}\n${out}")
  endif()
  return()
endif()
if(NOT status EQUAL 0)
  message(FATAL_ERROR "configuring failed:\n${out}")
endif()
if(CONFIGURE_ONLY)
  return()
endif()

execute_process(COMMAND "${CMAKE_COMMAND}" --build "${BINARY}"
  RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "building failed:\n${out}")
endif()

execute_process(COMMAND "${CMAKE_CTEST_COMMAND}" --output-on-failure --no-tests=error
  WORKING_DIRECTORY "${BINARY}" RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "its tests failed:\n${out}")
endif()
