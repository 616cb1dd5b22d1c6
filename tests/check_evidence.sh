#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_evidence.sh ROOT LEAST PAGE: fails when a claim of PAGE names no file, when a file that is named
# does not exist below ROOT, or when there are fewer claims than LEAST, as when the search finds none.
#
# A claim is a line of a table whose second column names files, as `tests/model/test_x.cpp`; a pattern such as
# `tests/cuda/*.cpp` has to match a file. In "`name` of `file`" the file has to contain the name.
#
# shellcheck disable=SC2016  # the backquotes in patterns are those of Markdown
set -eu
root=$1
least=$2
page=$3
cd "$root"

claims=$(grep '^| ' "$page" | grep -v '^| claim |' || true)
count=$(printf '%s\n' "$claims" | grep -c '^| ' || true)
status=0
if [ "$count" -lt "$least" ]; then
  echo "$page: expected at least $least claims, found $count"
  status=1
fi

wrong=$(printf '%s\n' "$claims" | while IFS='|' read -r _ claim evidence _; do
  files=$(printf '%s\n' "$evidence" | grep -oE '`(tests|bench|examples)/[^`]+`' | tr -d '`' || true)
  [ -n "$files" ] || echo "$page: name the test or the benchmark that shows:$claim"
  # Splitting is wanted, and so is matching: a word is a file or a pattern of files.
  for file in $files; do
    [ -f "$file" ] || echo "$page: there is no file $file; it shows:$claim"
  done
  printf '%s\n' "$evidence" | grep -oE '`[^`]+` of `[^`]+`' | tr -d '`' |
    while read -r name _ file; do
      [ ! -f "$file" ] || grep -qF -e "$name" "$file" || echo "$page: there is no $name in $file"
    done
done)
if [ -n "$wrong" ]; then
  printf '%s\n' "$wrong"
  status=1
fi
[ $status -ne 0 ] || echo "$page: the files of $count claims exist"
exit $status
