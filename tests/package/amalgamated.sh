#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles a program of two sources with zbpp.cpp, as cmake/amalgamate.sh makes it, and with no other file
# of zbpp than those that its public headers lead to; compares what it prints with PROGRAM.
# usage: amalgamated.sh SOURCE_DIR SCRATCH COMPILER PROGRAM
set -eu
source=$1
scratch=$2
compiler=$3
program=$4
flags="-std=c++20 -pthread -DZBPP_SEPARATE_COMPILATION"

rm -rf "$scratch"
mkdir -p "$scratch"
cd "$source/include"
sed -n '/^set(ZBPP_CORE_HEADERS$/,/^)/s/^  //p' zbpp/headers.cmake | grep -v -e detail/ -e impl/ |
  sed 's/.*/#include <zbpp\/&>/' >"$scratch/public.cpp"
# shellcheck disable=SC2086
"$compiler" $flags -I. -MM "$scratch/public.cpp" | tr -s ' \\\n' '\n' | sed -n 's/^\(\.\/\)*zbpp/zbpp/p' |
  while read -r header; do
    mkdir -p "$scratch/include/$(dirname "$header")"
    cp "$header" "$scratch/include/$header"
  done
sh "$source/cmake/amalgamate.sh" >"$scratch/zbpp.cpp"

cd "$source/tests/package/two_tus"
# shellcheck disable=SC2086
"$compiler" $flags "-I$scratch/include" main.cpp other.cpp "$scratch/zbpp.cpp" -o "$scratch/program"
"$scratch/program" >"$scratch/printed"
"$program" | diff - "$scratch/printed"
