#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ends with 1 and the lines that hold a retired word.
# usage: check.sh ROOT TABLE
set -eu
table=$(CDPATH='' cd -- "$(dirname -- "$2")" && pwd)/$(basename -- "$2")
cd "$1"
status=0
number=0
while IFS='|' read -r word where instead; do
  number=$((number + 1))
  case $word in '' | '#'*) continue ;; esac
  word=$(echo "$word" | sed 's/^ *//; s/ *$//')
  where=$(echo "$where" | tr ',' ' ')
  instead=$(echo "$instead" | sed 's/^ *//; s/ *$//')
  if [ -z "$where" ] || [ -z "$instead" ]; then
    echo "$table:$number: expected 'word | where | say instead'" >&2
    exit 2
  fi
  for place in $where; do
    if [ ! -e "$place" ]; then
      echo "$table:$number: there is no $place" >&2
      exit 2
    fi
  done
  # Splitting is wanted: one word is one folder. The table itself names the words.
  # shellcheck disable=SC2086,SC2094
  found=$(grep -rnwE --exclude="$(basename -- "$table")" -e "$word" $where) || [ $? -eq 1 ]
  if [ -n "$found" ]; then
    echo "'$word' was given up; say '$instead':"
    echo "$found"
    status=1
  fi
done <"$table" # shellcheck disable=SC2094
exit $status
