#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the user seconds that compiling a source takes with -O2, header-only and against the compiled
# form, as rows of a table. Run it on a machine that does nothing else.
# usage: compile_times.sh [COMPILER]     (default: g++-12)
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
compiler=${1:-g++-12}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# user_seconds SOURCE [FLAG...]: of one compilation, without a compiler cache
user_seconds() {
  source=$1
  shift
  (
    "$compiler" -std=c++20 -O2 -foptimize-sibling-calls -pthread "-I$root/include" "$@" \
      -c "$source" -o "$scratch/out.o"
    times >"$scratch/times"
  )
  awk -F '[ms ]' 'NR == 2 { printf "%.2f", 60 * $1 + $2 }' "$scratch/times"  # of child processes
}

echo '#include <zbpp/zbpp.hpp>' >"$scratch/zbpp.cpp"
echo '#include <zbpp/asio/tcp.hpp>' >"$scratch/tcp.cpp"
echo "| source | header-only | compiled |"
echo "|---|---|---|"
for source in "$scratch/zbpp.cpp" "$scratch/tcp.cpp" "$root"/examples/01_*.cpp \
  "$root"/examples/04_*.cpp "$root"/examples/09_*.cpp; do
  whole=$(user_seconds "$source")
  declared=$(user_seconds "$source" -DZBPP_SEPARATE_COMPILATION)
  echo "| \`$(basename "$source")\` | $whole | $declared |"
done
