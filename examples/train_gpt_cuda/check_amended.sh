#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_amended.sh PROGRAM ARGUMENT...: all runs are identical, and each that validates afterwards
# amends some of its early steps, and not all.
told=$("$@")
status=$?
echo "$told"
[ "$status" -eq 0 ] || exit 1
runs=$(echo "$told" | grep -c 'post-validated .* yes ')
mixed=$(echo "$told" | awk '/post-validated .* yes / && $(NF-1) > $NF && $NF > 0' | wc -l)
[ "$runs" -gt 0 ] && [ "$mixed" -eq "$runs" ] && exit 0
echo "FAILED  of $runs runs that validate afterwards, $mixed amended some early steps and not all"
exit 1
