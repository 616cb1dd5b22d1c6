#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_messages.sh LEAST PAGE HEADER...: fails when a header has text for people that the page lacks,
# or when there are fewer texts than LEAST, as when the search finds none.
#
# Such a text is a string literal, joined over lines, with a space in it and 12 bytes or more. Line
# ends in it separate texts; blanks around it do not count.
set -eu
least=$1
page=$2
shift 2
awk -v least="$least" '
  # The page comes first: all of it in one line.
  FNR == NR { page = page " " $0; next }
  FNR == 1 && code != "" { look() }
  {
    file = FILENAME
    sub(/^[ \t]*\/\/.*/, "")
    sub(/[ \t]\/\/[^"]*$/, "")
    if ($0 !~ /^#include/) code = code $0 "\n"
  }
  END {
    look()
    printf "%d texts of %d headers, %d of them not in the page\n", texts, headers, missing
    if (texts < least || missing > 0) exit 1
  }

  function look(   at, literal) {
    ++headers
    gsub(/"[ \t\n]*\n[ \t]*"/, "", code)
    gsub(/\047\\?.\047/, "0", code)  # characters, among them quotes
    while (match(code, /"([^"\\\n]|\\.)*"/)) {
      literal = substr(code, RSTART + 1, RLENGTH - 2)
      code = substr(code, RSTART + RLENGTH)
      check(literal)
    }
    code = ""
  }

  function check(literal,   count, parts, i) {
    count = split(literal, parts, /\\n/)
    for (i = 1; i <= count; ++i) {
      gsub(/\\"/, "\"", parts[i])
      gsub(/^ +| +$/, "", parts[i])
      if (length(parts[i]) < 12 || parts[i] !~ / /) continue
      ++texts
      if (index(page, parts[i]) > 0) continue
      ++missing
      printf "%s: the page lacks \"%s\"\n", file, parts[i]
    }
  }
' "$page" "$@"
