# SPDX-License-Identifier: Apache-2.0
# cmake -Dprogram=FILE -P check_refusals.cmake: bad input ends train_gpt with status 2, nothing on
# standard output, and one line on standard error that names the culprit.
function(refuses culprit)
  execute_process(COMMAND "${program}" ${ARGN}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors TIMEOUT 60)
  string(REGEX MATCHALL "\n" line_ends "${errors}")
  list(LENGTH line_ends lines)
  string(FIND "${errors}" "${culprit}" found)
  if(NOT status STREQUAL 2 OR NOT output STREQUAL "" OR NOT lines EQUAL 1 OR found EQUAL -1)
    message(SEND_ERROR "train_gpt ${ARGN}: expected one line with '${culprit}' and status 2, got "
      "status ${status}, output '${output}', errors '${errors}'")
  endif()
endfunction()

refuses("--ranks" --ranks 0)
refuses("--ranks" --ranks two)
refuses("--ranks" --ranks)
refuses("--layers" --ranks 5 --layers 4)
refuses("--microbatches" --microbatches -1)
refuses("--steps" --steps 0)
refuses("--steps" --steps 1e3)
refuses("--layers" --layers 99)
refuses("--width" --width 100)
refuses("--context" --context 8)
refuses("--seed" --seed -1)
refuses("--learning-rate" --learning-rate nan)
refuses("--optimizer" --optimizer lion)
refuses("no policy is called" --policy fastest)
refuses("needs 4 stages" --policy zb_v --layers 3)
refuses("--text" --text "${program}/nothing")
refuses("--out" --out "${program}/nothing")
refuses("--bogus" --bogus)
