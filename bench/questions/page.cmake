# SPDX-License-Identifier: Apache-2.0
# Keeps docs/questions.md what the program `questions` prints.
#
#   cmake -DPROGRAM=FILE -DFOLDER=docs -P page.cmake
#   cmake -DPROGRAM=FILE -DFOLDER=docs -DQUICK=noise -P page.cmake
#
# The first form asks each question of the page, puts the answer between the lines
# `<!-- answer: NAME -->` and `<!-- end of answer -->`, and draws FOLDER/questions_NAME.svg. The second
# one asks a question in its quick form: all that is printed must stand in that answer, line by line.
# Text is kept in strings, never in lists, for lists take brackets and semicolons apart.
cmake_minimum_required(VERSION 3.24)
set(page "${FOLDER}/questions.md")
file(READ "${page}" text)

# Splits the page around the answer of a question into the variables before, answer and after.
macro(find_answer name)
  set(begin "<!-- answer: ${name} -->\n")
  string(FIND "${text}" "${begin}" from)
  if(from EQUAL -1)
    message(FATAL_ERROR "${page}: there is no line <!-- answer: ${name} -->")
  endif()
  string(LENGTH "${begin}" length)
  math(EXPR from "${from} + ${length}")
  string(SUBSTRING "${text}" 0 ${from} before)
  string(SUBSTRING "${text}" ${from} -1 after)
  string(FIND "${after}" "<!-- end of answer -->\n" to)
  if(to EQUAL -1)
    message(FATAL_ERROR "${page}: the answer of ${name} does not end with <!-- end of answer -->")
  endif()
  string(SUBSTRING "${after}" 0 ${to} answer)
  string(SUBSTRING "${after}" ${to} -1 after)
endmacro()

if(QUICK)
  set(picture "${CMAKE_CURRENT_BINARY_DIR}/questions_quick_${QUICK}.svg")
  execute_process(COMMAND "${PROGRAM}" "${QUICK}" --quick --svg "${picture}"
    OUTPUT_VARIABLE rest COMMAND_ERROR_IS_FATAL ANY)
  file(READ "${picture}" drawn)
  file(REMOVE "${picture}")
  if(NOT drawn MATCHES "^<svg .*<title>.*</svg>\n$" OR drawn MATCHES "nan|inf")
    message(FATAL_ERROR "the picture of ${QUICK} is not one:\n${drawn}")
  endif()
  find_answer("${QUICK}")
  set(lines 0)
  while(NOT rest STREQUAL "")
    string(FIND "${rest}" "\n" at)
    string(SUBSTRING "${rest}" 0 ${at} line)
    math(EXPR at "${at} + 1")
    string(SUBSTRING "${rest}" ${at} -1 rest)
    string(FIND "\n${answer}" "\n${line}\n" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "${page} does not have this line of ${QUICK}; build the target "
        "questions_page to renew it, and read whether its sentences still hold:\n${line}")
    endif()
    math(EXPR lines "${lines} + 1")
  endwhile()
  if(lines LESS 3)
    message(FATAL_ERROR "${QUICK} printed ${lines} lines, which is no table")
  endif()
  message(STATUS "${page} has all ${lines} lines of ${QUICK}")
  return()
endif()

foreach(name IN ITEMS noise memory scaling links asynchronous halving)
  message(STATUS "${name} ...")
  find_answer("${name}")
  execute_process(COMMAND "${PROGRAM}" "${name}" --svg "${FOLDER}/questions_${name}.svg"
    OUTPUT_VARIABLE answer COMMAND_ERROR_IS_FATAL ANY)
  set(text "${before}\n${answer}${after}")
endforeach()
file(WRITE "${page}" "${text}")
