# SPDX-License-Identifier: Apache-2.0
# refuses(culprit argument...): fails unless `program` ends with status 2 for these arguments, nothing
# on standard output, and one line on standard error that names the culprit.
function(refuses culprit)
  execute_process(COMMAND "${program}" ${ARGN}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors TIMEOUT 60)
  string(REGEX MATCHALL "\n" line_ends "${errors}")
  list(LENGTH line_ends lines)
  string(FIND "${errors}" "${culprit}" found)
  if(NOT status STREQUAL 2 OR NOT output STREQUAL "" OR NOT lines EQUAL 1 OR found EQUAL -1)
    cmake_path(GET program FILENAME name)
    message(SEND_ERROR "${name} ${ARGN}: expected one line with '${culprit}' and status 2, got "
      "status ${status}, output '${output}', errors '${errors}'")
  endif()
endfunction()
