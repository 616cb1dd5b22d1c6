#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_replayed.sh WHAT STEPS PROGRAM ARGUMENT...: all runs are identical. Where WHAT is pass, each
# captured every pass in one step alone, and replayed it in all the others; where it is step, each
# issued one step, captured the next, and replayed all the others. Where it is step:N, with N steps at
# once, each captured the next N.
what=${1%:*}
graphs=${1#"$what"}
graphs=${graphs#:}
steps=$2
shift 2
told=$("$@")
status=$?
echo "$told"
[ "$status" -eq 0 ] || exit 1
runs=$(echo "$told" | grep -c ' yes ')
right=$(echo "$told" | awk -v what="$what" -v steps="$steps" -v issued="$((1 + ${graphs:-1}))" '/ yes / {
  if (what == "pass" ? $(NF-1) > 0 && $NF == $(NF-1) * (steps - 1) : $(NF-1) == issued && $NF == steps - issued)
    print
}' | wc -l)
[ "$runs" -gt 0 ] && [ "$right" -eq "$runs" ] && exit 0
echo "FAILED  of $runs runs, $right captured each $what once"
exit 1
