#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles each header of the components named alone and twice, after macros that system headers are
# known to define; makes no code. Each is compiled as in the compiled form of zbpp, where no .ipp hides
# that an include is missing; those that users include are compiled header-only as well.
# usage: headers_alone.sh "COMPILER FLAG..." COMPONENT...     (component: CORE JSON ASIO CUDA NCCL)
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
compiler=$1
shift
headers=
for component in "$@"; do
  headers="$headers $(sed -n "/^set(ZBPP_${component}_HEADERS\$/,/^)/s/^  //p" \
    "$root/include/zbpp/headers.cmake")"
done
if [ -z "$(echo "$headers" | tr -d ' ')" ]; then
  echo "headers_alone.sh: include/zbpp/headers.cmake has no headers of $*" >&2
  exit 2
fi

macros='I=_Complex_I B0=0000000 B50=0000001 FF0=0000000 FF1=0100000 BS0=0000000 CR1=0001000
  NL0=0000000 VT0=0000000 TAB0=0000000 ECHO=0000010'
definitions=
for macro in $macros; do
  definitions="$definitions -D$macro"
done

# check_alone NAME FLAG...: the headers on standard input, compiled with the flags too.
check_alone() {
  form=$1
  shift
  # shellcheck disable=SC2016
  xargs -P "$(nproc)" -I HEADER sh -c '
    printf "#include <zbpp/%s>\n" "$1" "$1" |
      $2 -std=c++20 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -fsyntax-only "-I$3" -x c++ - || {
      echo "include/zbpp/$1 does not compile alone, $4" >&2
      exit 1
    }
  ' alone HEADER "$compiler $definitions $*" "$root/include" "$form"
}

# Splitting is wanted: one word is one header, or one argument.
# shellcheck disable=SC2086
printf '%s\n' $headers | grep -v impl/ | check_alone compiled -DZBPP_SEPARATE_COMPILATION
# shellcheck disable=SC2086
printf '%s\n' $headers | grep -v -e detail/ -e impl/ | check_alone header-only
