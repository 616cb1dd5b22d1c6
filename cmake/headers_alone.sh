#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles each header and each .ipp of the components named alone, after macros that system headers are
# known to define; makes no code. Each is compiled as in the compiled form of zbpp, where no .ipp hides
# that an include is missing. What another file includes before anything else is alone there as well,
# so it is not compiled again.
#
# Header-only, a header brings its .ipp, and one source includes all headers of a component that users
# include. Which of them comes first makes no difference, as tests/check_include_loops.sh sees to.
# usage: headers_alone.sh "COMPILER FLAG..." COMPONENT...     (component: CORE JSON CHECKPOINT ASIO MPI CUDA NCCL TORCH)
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
compiler=$1
shift

# headers COMPONENT: its files, but for src.hpp, which the compiled form is made of, and those for nvcc,
# which tests/cuda_host compiles.
headers() {
  sed -n "/^set(ZBPP_${1}_HEADERS\$/,/^)/s/^  //p" "$root/include/zbpp/headers.cmake" |
    grep -v -e '/src\.hpp$' -e '\.cuh$' || {
    echo "headers_alone.sh: include/zbpp/headers.cmake has no headers of $1" >&2
    exit 2
  }
}

macros='I=_Complex_I B0=0000000 B50=0000001 FF0=0000000 FF1=0100000 BS0=0000000 CR1=0001000
  NL0=0000000 VT0=0000000 TAB0=0000000 ECHO=0000010'
definitions=
for macro in $macros; do
  definitions="$definitions -D$macro"
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
as_cxx20="$compiler $definitions -std=c++20 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"

# compile NAME FLAG...: each line of the standard input is a source: headers to include in turn. One that
# leads to LibTorch, which takes nearly all the time, begins with LibTorch as it was compiled once.
compile() {
  form=$1
  shift
  # shellcheck disable=SC2016
  xargs -P "$(nproc)" -I HEADERS sh -c '
    source=$3/$$.cpp
    printf "#include <zbpp/%s>\n" $1 >"$source"
    if [ -e "$3/libtorch.hpp.gch" ] &&
      $2 "-I$5" -nostdinc -MG -MM "$source" | grep -q torch/detail/libtorch.hpp; then
      $2 "-I$5" -fsyntax-only -include "$3/libtorch.hpp" "$source"
    else
      $2 "-I$5" -fsyntax-only "$source"
    fi || {
      echo "include/zbpp: $1: does not compile $4" >&2
      exit 1
    }
  ' compile HEADERS "$as_cxx20 $*" "$scratch" "$form" "$root/include"
}

for component in "$@"; do
  headers "$component" >"$scratch/$component"
  cat "$scratch/$component" >>"$scratch/all"
  if [ "$component" = TORCH ]; then
    echo '#include <zbpp/torch/detail/libtorch.hpp>' >"$scratch/libtorch.hpp"
    $as_cxx20 "-I$root/include" -x c++-header "$scratch/libtorch.hpp" -o "$scratch/libtorch.hpp.gch"
  fi
done
cd "$root/include/zbpp"

# Splitting is wanted: one word is one header.
# shellcheck disable=SC2046
awk 'FNR == 1 { seen = 0 } /^# *include/ && !seen++ && sub(/^#include <zbpp\//, "") { sub(/>.*/, ""); print }' \
  $(cat "$scratch/all") >"$scratch/first"
grep -vxF -f "$scratch/first" "$scratch/all" | compile alone -DZBPP_SEPARATE_COMPILATION

for component in "$@"; do
  grep -v -e detail/ -e impl/ "$scratch/$component" | tr '\n' ' '
  echo
done | compile header-only
