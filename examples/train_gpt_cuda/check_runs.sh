#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs train_gpt_cuda, which has to succeed, and checks the runs that it lists.
#
#   check_runs.sh tells TEXT PROGRAM ARGUMENT...
#     It tells this.
#   check_runs.sh amends PROGRAM ARGUMENT...
#     All runs are identical, and each that validates afterwards amends some of its early steps, and
#     not all.
#   check_runs.sh replays N STEPS PROGRAM ARGUMENT...
#     All runs are identical, and each issued one step, captured the next N, where N steps are under
#     way, and replayed all the others.
check=$1
shift
case $check in
  tells)
    text=$1
    shift ;;
  replays)
    graphs=$1
    steps=$2
    shift 2 ;;
esac
output=$("$@")
status=$?
echo "$output"
[ "$status" -eq 0 ] || exit 1
case $check in
  tells)
    echo "$output" | grep -q -F "$text" && exit 0
    echo "FAILED  it does not tell: $text" ;;
  amends)
    runs=$(echo "$output" | grep -c 'post-validated .* yes ')
    right=$(echo "$output" | awk '/post-validated .* yes / && $(NF-1) > $NF && $NF > 0' | wc -l)
    [ "$runs" -gt 0 ] && [ "$right" -eq "$runs" ] && exit 0
    echo "FAILED  of $runs runs that validate afterwards, $right amended some early steps and not all" ;;
  replays)
    runs=$(echo "$output" | grep -c ' yes ')
    right=$(echo "$output" | awk -v steps="$steps" -v issued="$((1 + graphs))" '
      / yes / && $(NF-1) == issued && $NF == steps - issued { print }' | wc -l)
    [ "$runs" -gt 0 ] && [ "$right" -eq "$runs" ] && exit 0
    echo "FAILED  of $runs runs, $right captured $graphs steps and replayed the others" ;;
  *)
    echo "check_runs.sh: '$check' is neither tells, amends nor replays" ;;
esac
exit 1
