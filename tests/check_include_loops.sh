#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Says whether no header leads to itself through what it and its .ipp include, which are one where zbpp is
# header-only. Then it makes no difference which of them a user includes first.
# The headers for GPUs have no .ipp; cmake/check_headers.sh looks at each of them alone.
# usage: check_include_loops.sh ROOT
set -eu
cd "$1/include/zbpp"

files=$(find . -path ./cuda -prune -o -path ./nccl -prune -o -name src.hpp -o \( -name '*.[hi]pp' -print \) |
  sed 's,^\./,,')
found=0
loops=$(
  # Splitting is wanted: one word is one file.
  # shellcheck disable=SC2086
  awk '/^#include <zbpp\// {
      sub(/^#include <zbpp\//, ""); sub(/>.*/, "")
      if (/\.ipp$/) owner[$0] = FILENAME
      else { from[++count] = FILENAME; to[count] = $0 }
    }
    END {
      for (i = 1; i <= count; ++i) {
        by = from[i] in owner ? owner[from[i]] : from[i]
        if (by != to[i]) print by, to[i]
      }
    }' $files | tsort 2>&1 >/dev/null
) || found=1
[ "$found" -eq 0 ] && [ -z "$loops" ] && exit 0
echo "$loops" | sed '/contains a loop/d; s/^tsort: //' >&2
echo "include/zbpp: those headers include each other; move what both need to a header of its own" >&2
exit 1
