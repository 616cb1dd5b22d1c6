#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the headers of the components named with a compiler that makes no code, after macros that system headers
# are known to define.
#
# alone: each header and each .ipp compiles alone, in the compiled form of zbpp, where no .ipp hides that an
# include is missing. Clang makes one module of all of them, in which each sees what it includes and nothing
# else; that takes a tenth of the time of compiling one after the other. Headers of Boost include
# each other in circles, so whoever includes one of them sees all that zbpp uses.
#
# together: header-only, in one source for each component, which includes all headers that users include. Which
# of them comes first makes no difference, as tests/check_include_loops.sh sees to.
# usage: check_headers.sh alone "CLANG FLAG..." COMPONENT...
#        check_headers.sh together "COMPILER FLAG..." COMPONENT...
# (component: CORE JSON CHECKPOINT ASIO MPI CUDA NCCL TORCH)
set -eu
include=$(CDPATH='' cd -- "$(dirname -- "$0")/../include" && pwd)
form=$1
compiler=$2
shift 2

# headers COMPONENT: its files, but for src.hpp, which the compiled form is made of, and those for nvcc,
# which tests/cuda_host compiles.
headers() {
  sed -n "/^set(ZBPP_${1}_HEADERS\$/,/^)/s/^  //p" "$include/zbpp/headers.cmake" |
    grep -v -e '/src\.hpp$' -e '\.cuh$' || {
    echo "check_headers.sh: include/zbpp/headers.cmake has no headers of $1" >&2
    exit 2
  }
}

macros='I=_Complex_I B0=0000000 B50=0000001 FF0=0000000 FF1=0100000 BS0=0000000 CR1=0001000
  NL0=0000000 VT0=0000000 TAB0=0000000 ECHO=0000010'
strict="$compiler -std=c++20 -I$include -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
for macro in $macros; do
  strict="$strict -D$macro"
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# entries PATTERN: the lines of a module map for the headers of others that zbpp includes and whose names fit
entries() {
  (cd "$include/zbpp" && xargs cat <"$scratch/headers") |
    sed -n "s/^# *include <\($1\)>.*/\1/p" | sort -u | while read -r header; do
    while read -r folder; do
      if [ -f "$folder/$header" ]; then
        echo "$header $folder/$header"
        break
      fi
    done <"$scratch/folders"
  done
}

case $form in
  alone)
    for component in "$@"; do
      headers "$component"
    done >"$scratch/headers"
    $compiler -x c++ -E -v /dev/null 2>&1 | sed -n '/#include <...>/,/^End/s/^ //p' >"$scratch/folders"
    {
      echo 'module standard {'
      entries '[a-z_]*' | sed 's/\(.*\) \(.*\)/  module \1 { header "\2" export * }/'
      echo '}'
      echo 'module boost {'
      entries 'boost\/[^>]*' | sed 's/.* \(.*\)/  header "\1"/'
      echo '  export *'
      echo '}'
      echo 'module zbpp {'
      sed "s|.*|  module \"&\" { header \"$include/zbpp/&\" export * }|" "$scratch/headers"
      echo '}'
    } >"$scratch/modules"
    $strict -DZBPP_SEPARATE_COMPILATION -ferror-limit=0 -fmodules "-fmodules-cache-path=$scratch/cache" \
      -fno-implicit-module-maps -Xclang -fmodules-local-submodule-visibility -fmodule-name=zbpp \
      -Wno-modules-ambiguous-internal-linkage -x c++ -Xclang -emit-module -c "$scratch/modules" -o "$scratch/zbpp" || {
      echo "include/zbpp: a header does not compile alone; the lines above name it" >&2
      exit 1
    }
    ;;
  together)
    for component in "$@"; do
      headers "$component" | grep -v -e detail/ -e impl/ | sed 's/.*/#include <zbpp\/&>/' >"$scratch/$component.cpp"
      $strict -fsyntax-only "$scratch/$component.cpp" || {
        echo "include/zbpp: the headers of $component do not compile header-only with $compiler" >&2
        exit 1
      }
    done
    ;;
  *)
    echo "check_headers.sh: the form is alone or together, not '$form'" >&2
    exit 2
    ;;
esac
