#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles a program of two sources with the files that cmake/amalgamate.sh makes, and with no other file of zbpp
# than those that its public headers lead to; compares what it prints with PROGRAM. The one file of the core, which
# takes long to compile, is only looked at.
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
cd "$scratch"
mkdir core
sh "$source/cmake/amalgamate.sh" --into core
sh "$source/cmake/amalgamate.sh" >zbpp.cpp
cp "$source"/tests/package/two_tus/*.?pp .
mkdir objects
# shellcheck disable=SC2016
find . -maxdepth 2 -name '*.cpp' ! -name zbpp.cpp ! -name public.cpp -print0 | xargs -0 -P "$(nproc)" -I FILE \
  sh -c '$1 -Iinclude -c "$2" -o "objects/$(basename "$2").o"' compile "$compiler $flags" FILE
"$compiler" -pthread objects/*.o -o program
# shellcheck disable=SC2086
"$compiler" $flags -Iinclude -fsyntax-only zbpp.cpp
"$scratch/program" >"$scratch/printed"
"$program" | diff - "$scratch/printed"
