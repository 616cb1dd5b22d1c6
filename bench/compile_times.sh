#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints what compiling a source takes with -O2, header-only and in the compiled form, as rows of a
# table: user seconds of the compiler, as multiples of what a source of four standard headers takes. As
# machines are noisy, each is measured beside that source; with several runs it prints the medians. Then it prints
# what the compiled form costs once: seconds of a processor for all its sources, and for the longest.
# usage: compile_times.sh [COMPILER [RUNS]]     (default: g++-12, 1)
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
compiler=${1:-g++-12}
runs=${2:-1}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# user_seconds SOURCE [FLAG...]: of one compilation, without a compiler cache
user_seconds() {
  source=$1
  shift
  (
    "$compiler" -std=c++20 -O2 -pthread "-I$root/include" "$@" -c "$source" -o "$scratch/out.o"
    times >"$scratch/times"
  )
  awk -F '[ ms]' 'NR == 2 { printf "%.2f", 60 * $1 + $2 }' "$scratch/times"  # of child processes
}

# multiple SOURCE [FLAG...]: the median of its seconds over those of the standard headers
multiple() {
  run=0
  while [ "$run" -lt "$runs" ]; do
    echo "$(user_seconds "$scratch/standard.cpp") $(user_seconds "$@")"
    run=$((run + 1))
  done | awk '{ print $2 / $1, $2 }' | sort -n |
    awk '{ line[NR] = $0 } END { split(line[int((NR + 1) / 2)], m, " "); printf "%.1f (%.1f s)", m[1], m[2] }'
}

# row TITLE SOURCE [FLAG...]
row() {
  title=$1
  shift
  echo "| $title | $(multiple "$@") | $(multiple "$@" -DZBPP_SEPARATE_COMPILATION) |"
}

printf '#include <%s>\n' cstdint memory string vector >"$scratch/standard.cpp"
echo '#include <zbpp/zbpp.hpp>' >"$scratch/zbpp.cpp"
trainer=$root/bench/compile_times.cpp
zb_h1='make_plan(zbpp::zb_h1{},linear)'
zb_v='make_plan(zbpp::zb_v{},v_shape)'
five="make_plan(zbpp::gpipe{},linear),make_plan(zbpp::one_f_one_b{},linear),$zb_h1,$zb_v"
five="$five,make_plan(zbpp::greedy_auto{},linear)"

echo "| source | header-only | compiled |"
echo "|---|---|---|"
row '`#include <zbpp/zbpp.hpp>` alone' "$scratch/zbpp.cpp"
row 'a flow, `zb_h1`, threads' "$trainer" "-DPOLICIES=$zb_h1"
row 'a flow, `zb_v`, threads' "$trainer" "-DPOLICIES=$zb_v"
row 'the same with five policies, one of them `greedy_auto`' "$trainer" "-DPOLICIES=$five" -DSEARCHES
row '`examples/09_processes.cpp`' "$root"/examples/09_processes.cpp

# once COMPONENT
once() {
  mkdir "$scratch/$1"
  sh "$root/cmake/compiled_sources.sh" "$scratch/$1" "$1"
  for source in "$scratch/$1"/*.cpp; do
    user_seconds "$source" -DZBPP_SEPARATE_COMPILATION
    echo
  done | awk -v name="$1" '{ sum += $1; if ($1 > most) most = $1 }
    END { printf "| `%s` | %d | %.0f s | %.0f s |\n", name, NR, sum, most }'
}

echo
echo "| the compiled form, once | sources | all | the longest |"
echo "|---|---|---|---|"
once core
once json
once asio
