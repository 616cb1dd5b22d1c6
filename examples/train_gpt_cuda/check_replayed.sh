#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_replayed.sh STEPS PROGRAM ARGUMENT...: all runs are identical, and each captured every pass
# in one step alone, and replayed it in all the others.
steps=$1
shift
told=$("$@")
status=$?
echo "$told"
[ "$status" -eq 0 ] || exit 1
runs=$(echo "$told" | grep -c ' yes ')
right=$(echo "$told" | awk -v steps="$steps" \
  '/ yes / && $(NF-1) > 0 && $NF == $(NF-1) * (steps - 1)' | wc -l)
[ "$runs" -gt 0 ] && [ "$right" -eq "$runs" ] && exit 0
echo "FAILED  of $runs runs, $right captured each pass once"
exit 1
