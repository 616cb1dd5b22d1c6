# SPDX-License-Identifier: Apache-2.0
# Installs component tools of the build in BINARY into the empty folder PREFIX, and uses it from
# there.
file(REMOVE_RECURSE "${PREFIX}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BINARY}" --prefix "${PREFIX}" --component tools
  COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE installed RELATIVE "${PREFIX}" "${PREFIX}/*")
list(SORT installed)
set(expected bin/zbpp-plan share/bash-completion/completions/zbpp-plan share/man/man1/zbpp-plan.1)
if(NOT installed STREQUAL expected)
  message(FATAL_ERROR "installed: ${installed}\nexpected: ${expected}")
endif()

# plan(argument...): runs the installed program and gives what it prints in `answer`.
macro(plan)
  execute_process(COMMAND "${PREFIX}/bin/zbpp-plan" ${ARGN} WORKING_DIRECTORY "${PREFIX}"
    OUTPUT_VARIABLE answer COMMAND_ERROR_IS_FATAL ANY)
endmacro()
plan(--version)
if(NOT answer STREQUAL "${VERSION}\n")
  message(FATAL_ERROR "--version says ${answer}; expected ${VERSION}")
endif()
plan(--policy zb_h2 --ranks 4 --microbatches 8 --forward 10 --backward-input 10 --backward-weight 10
  --json plan.json)
plan(--check plan.json)
if(NOT answer MATCHES "^plan.json is right\n.*\noptimal +proved\n")
  message(FATAL_ERROR "--check says ${answer}")
endif()
