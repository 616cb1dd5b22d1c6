#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compile.sh INCLUDE SCRATCH GCC CLANG [components]: compiles the programs of this folder as strict users
# do, to whom the headers of zbpp, in INCLUDE, are no system headers. GCC or CLANG may be empty. One program
# is also optimized at link time, and runs.
set -eu
include=$1
scratch=$2
gcc=$3
clang=$4
with_components=${5:-}
here=$(dirname "$0")
flags="-std=c++20 -pthread -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror"
mkdir -p "$scratch"

# compile COMPILER ARGUMENT...
compile() {
  echo "$*"
  # Splitting is wanted: one word is one flag.
  # shellcheck disable=SC2086
  "$@" $flags "-I$include"
}

sources=$here/one_pipeline.cpp
if [ "$with_components" = components ]; then
  sources="$sources $here/components.cpp"
fi
for source in $sources; do
  if [ -n "$clang" ]; then
    compile "$clang" -DBOOST_ASIO_DISABLE_THREAD_KEYWORD_EXTENSION -fsyntax-only "$source"
  fi
  if [ -n "$gcc" ]; then
    compile "$gcc" -foptimize-sibling-calls -fsyntax-only "$source"
  fi
done
# What only an optimizer warns of.
if [ -n "$gcc" ]; then
  compile "$gcc" -foptimize-sibling-calls -O2 -flto=1 "$here/one_pipeline.cpp" -o "$scratch/one_pipeline"
  "$scratch/one_pipeline"
fi
