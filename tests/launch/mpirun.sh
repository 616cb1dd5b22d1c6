#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# mpirun.sh RANKS PROGRAM [ARGUMENT...]: starts the ranks of a run with Open MPI as docs/launch.md
# shows. Tries another port where somebody listens already.
set -eu
ranks=$1
shift
out=$(mktemp)
trap 'rm -f "$out"' EXIT

ZBPP_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export ZBPP_TOKEN
root=
if [ "$(id -u)" -eq 0 ]; then
  root=--allow-run-as-root
fi

for attempt in 1 2 3 4 5; do
  MASTER_PORT=$((20000 + ($$ * 31 + attempt * 1009) % 12000)) # below what the kernel gives away
  export MASTER_PORT
  # $root is one option or none.
  if timeout 250 mpirun $root --oversubscribe -x ZBPP_TOKEN -x MASTER_PORT -n "$ranks" "$@" \
    >"$out" 2>&1; then
    cat "$out"
    exit 0
  fi
  if ! grep -q 'cannot listen' "$out"; then
    break
  fi
done
cat "$out" >&2
exit 1
