#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_told.sh TEXT PROGRAM ARGUMENT...: the program succeeds, and tells this.
text=$1
shift
told=$("$@")
status=$?
echo "$told"
[ "$status" -eq 0 ] || exit 1
echo "$told" | grep -q -F "$text" && exit 0
echo "FAILED  it does not tell: $text"
exit 1
