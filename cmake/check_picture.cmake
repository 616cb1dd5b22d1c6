# SPDX-License-Identifier: Apache-2.0
# Checks that a picture, and its text in a Markdown page, are what a program draws today.
#
#   cmake -DPROGRAM=FILE -DPICTURE=docs/two_timelines.svg -DPAGE=README.md -P cmake/check_picture.cmake
#
# PROGRAM prints the text, and with the argument `svg` the picture. The picture must be equal byte for
# byte; the text must stand in PAGE as a whole block that begins with ```text.

execute_process(COMMAND "${PROGRAM}" svg OUTPUT_VARIABLE drawn COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${PROGRAM}" OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)

file(READ "${PICTURE}" picture)
if(NOT drawn STREQUAL picture)
  message(FATAL_ERROR "${PICTURE} is not what ${PROGRAM} draws; draw it again:\n"
    "  ${PROGRAM} svg >${PICTURE}")
endif()

file(READ "${PAGE}" page)
string(FIND "${page}" "\n```text\n${text}```\n" place)
if(place EQUAL -1)
  message(FATAL_ERROR "${PAGE} has no block ```text with what ${PROGRAM} prints; put this there:\n"
    "${text}")
endif()
message(STATUS "${PICTURE} and its text in ${PAGE} are what the program draws")
