#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compile.sh INCLUDE SCRATCH KIND COMPILER [components]: compiles the programs of this folder as strict users
# do, to whom the headers of zbpp, in INCLUDE, are no system headers. KIND is gcc or clang. With gcc one program
# is also optimized at link time, and runs.
set -eu
include=$1
scratch=$2
kind=$3
compiler=$4
with_components=${5:-}
here=$(dirname "$0")
flags="-std=c++20 -pthread -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror"
case $kind in
  gcc) flags="$flags -foptimize-sibling-calls" ;;
  clang) flags="$flags -DBOOST_ASIO_DISABLE_THREAD_KEYWORD_EXTENSION" ;;
esac
mkdir -p "$scratch"

# compile ARGUMENT...
compile() {
  echo "$compiler $*"
  # Splitting is wanted: one word is one flag.
  # shellcheck disable=SC2086
  "$compiler" $flags "-I$include" "$@"
}

if ! echo '#include <zbpp/config.hpp>' | compile -fsyntax-only -x c++ -; then
  echo "skipped: $compiler cannot compile zbpp, as config.hpp says"
  exit 77
fi
compile -fsyntax-only -include zbpp/plan.hpp "$here/one_pipeline.cpp"
if [ "$with_components" = components ]; then
  compile -fsyntax-only "$here/components.cpp"
fi
# What only an optimizer warns of. What plans is optimized with these warnings by the preset release.
if [ "$kind" = gcc ]; then
  compile -O2 -flto=1 "$here/one_pipeline.cpp" -o "$scratch/one_pipeline"
  "$scratch/one_pipeline"
fi
