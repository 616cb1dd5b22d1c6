#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints zbpp.cpp: one source file with all definitions of the core, or of the components named, that
# headers only declare under ZBPP_SEPARATE_COMPILATION. A program that compiles it, and defines that macro
# for all of its sources, needs of include/zbpp only what public headers lead to. One file of the core takes
# g++ 12 minutes and 2.5 GB; --into writes zbpp_model.cpp, zbpp_planner.cpp and so on into a folder, which
# take half a minute and a gigabyte at most, each, and can be compiled side by side.
# usage: amalgamate.sh [--into FOLDER] [COMPONENT...]     (component: core asio json; default: core)
set -eu
cd -- "$(dirname -- "$0")/../include/zbpp"
folder=
if [ "${1:-}" = --into ]; then
  folder=$(CDPATH='' cd -- "$OLDPWD" && CDPATH='' cd -- "$2" && pwd)
  shift 2
fi
[ $# -gt 0 ] || set -- core
if [ -n "$folder" ]; then
  for component in "$@"; do
    if [ "$component" = core ]; then
      sed -n 's/^#include <zbpp\/\(.*\)\/impl\/src.hpp>$/\1/p' impl/src.hpp
    else
      echo "$component"
    fi
  done | while read -r room; do
    sh ../../cmake/amalgamate.sh "$room" >"$folder/zbpp_$room.cpp"
  done
  exit
fi

# headers COMPONENT: those that a user may include.
headers() {
  sed -n "/^set(ZBPP_$(echo "$1" | tr '[:lower:]' '[:upper:]')_HEADERS\$/,/^)/s/^  //p" headers.cmake |
    grep -v -e detail/ -e impl/
}

{
  for component in "$@"; do
    headers "$component"
  done
  [ "$*" = core ] || headers core
} | awk -v components="$*" '
  # The header that a line includes; empty where it includes none of zbpp.
  function included(line) {
    if (line !~ /^#include <zbpp\//) return ""
    sub(/^#include <zbpp\//, "", line)
    sub(/>.*/, "", line)
    return line
  }

  # Notes what a header leads to when it only declares: what comes in the other form is left out.
  function declare(header,    line, is_whole, to) {
    if (header in is_declared) return
    is_declared[header] = 1
    while ((getline line <header) > 0) {
      if (line ~ /^#if !defined\(ZBPP_SEPARATE_COMPILATION\)/) is_whole = 1
      else if (line ~ /^#(else|endif)/) is_whole = 0
      to = included(line)
      if (to != "" && !is_whole) declare(to)
    }
    close(header)
  }

  # Prints a file and, in place of its includes, the files that no public header leads to.
  function define(file, is_own,    line, is_whole, to) {
    if (file in is_defined) return
    is_defined[file] = 1
    if (!is_own) {
      print "#include <zbpp/" file ">"
      return
    }
    while ((getline line <file) > 0) {
      if (line ~ /^#if !defined\(ZBPP_SEPARATE_COMPILATION\)/) is_whole = 1
      to = included(line)
      if (is_whole) is_whole = line !~ /^#endif/
      else if (to != "") define(to, !(to in is_declared))
      else if (line !~ /^#pragma once|^\/\/ SPDX-License-Identifier/) print line
    }
    close(file)
  }

  { public[++count] = $0 }
  END {
    for (i = 1; i <= count; ++i) declare(public[i])
    print "// SPDX-License-Identifier: Apache-2.0"
    print "//"
    print "// Made by cmake/amalgamate.sh: what headers declare of zbpp (" components ")."
    print "#if !defined(ZBPP_SEPARATE_COMPILATION)"
    print "#error \"define ZBPP_SEPARATE_COMPILATION for zbpp.cpp and for every source that includes zbpp\""
    print "#endif"
    split(components, each, " ")
    for (i = 1; i in each; ++i)
      define((each[i] == "core" ? "" : each[i] "/") "impl/src.hpp", 1)
  }'
