#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles the compiled form of the components named, source by source, and links a small program of each to it.
# Those of core, asio and checkpoint run; the one of mpi needs an mpirun of its own.
# usage: compiled_form.sh "COMPILER FLAG..." "LINKER_FLAG..." COMPONENT...     (component: core json checkpoint asio mpi)
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
linked=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
with_flags="$1 -std=c++20 -pthread -DZBPP_SEPARATE_COMPILATION -I$root/include -Wall -Wextra -Wpedantic -Wconversion
  -Wshadow -Werror"
shift 2

sh "$root/cmake/compiled_sources.sh" "$scratch" "$@"
# shellcheck disable=SC2016
find "$scratch" -name '*.cpp' -print0 | xargs -0 -P "$(nproc)" -I SOURCE sh -c '
  $2 -c "$1" -o "$1.o" || {
    echo "include/zbpp/: this source does not compile in the compiled form:" >&2
    cat "$1" >&2
    exit 1
  }
' compile SOURCE "$with_flags"

for component in "$@"; do
  case $component in
    core) sources="two_tus/main.cpp two_tus/other.cpp" ;;
    asio | checkpoint | mpi) sources=consumer_$component/main.cpp ;;
    *) continue ;;
  esac
  # Splitting is wanted: one word is one file or one flag.
  # shellcheck disable=SC2086
  (cd "$root/tests/package" && $with_flags $sources "$scratch"/*.o $linked -o "$scratch/$component")
  [ "$component" = mpi ] || (cd "$scratch" && "./$component" >printed) || {
    echo "compiled_form.sh: the program of $component, linked to the compiled form, ends with $?" >&2
    exit 1
  }
done
