# SPDX-License-Identifier: Apache-2.0
# Runs PROGRAMS; all must print the same, and something.
set(first "")
foreach(program IN LISTS PROGRAMS)
  execute_process(COMMAND "${program}" OUTPUT_VARIABLE out COMMAND_ERROR_IS_FATAL ANY)
  if(out STREQUAL "")
    message(FATAL_ERROR "${program} prints nothing")
  elseif(first STREQUAL "")
    set(first "${out}")
  elseif(NOT out STREQUAL first)
    message(FATAL_ERROR "${program} prints\n${out}instead of\n${first}")
  endif()
endforeach()
