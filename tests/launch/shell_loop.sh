#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shell_loop.sh RANKS PROGRAM [ARGUMENT...]: starts the ranks of a run as docs/launch.md shows, and
# ends well if all of them do. Tries another port where somebody listens already. Tells the ranks who
# they are as the launcher does that the variable LAUNCHER_STYLE names: torchrun (the default), pmi
# or slurm.
set -eu
ranks=$1
shift
style=${LAUNCHER_STYLE:-torchrun}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

ZBPP_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export ZBPP_TOKEN
unset MASTER_ADDR RANK WORLD_SIZE LOCAL_RANK

# What a launcher tells one rank.
variables() {
  case $style in
    torchrun) echo "RANK=$1 WORLD_SIZE=$ranks LOCAL_RANK=$1 MASTER_ADDR=127.0.0.1" ;;
    pmi) echo "PMI_RANK=$1 PMI_SIZE=$ranks MPI_LOCALRANKID=$1 MPI_LOCALNRANKS=$ranks" ;;
    slurm)
      echo "SLURM_PROCID=$1 SLURM_NTASKS=$ranks SLURM_LOCALID=$1" \
        "SLURM_STEP_NODELIST=localhost,node[03-05,9]"
      ;;
    *)
      echo "shell_loop.sh: LAUNCHER_STYLE is '$style'; it must be torchrun, pmi or slurm" >&2
      exit 2
      ;;
  esac
}
variables 0 >/dev/null

for attempt in 1 2 3 4 5; do
  MASTER_PORT=$((20000 + ($$ * 31 + attempt * 977) % 12000)) # below what the kernel gives away
  export MASTER_PORT
  pids=
  rank=0
  while [ "$rank" -lt "$ranks" ]; do
    # Each variable is a word.
    env $(variables "$rank") timeout 250 "$@" >"$out/$rank" 2>&1 &
    pids="$pids $!"
    rank=$((rank + 1))
  done
  good=yes
  for pid in $pids; do
    wait "$pid" || good=no
  done
  if [ "$good" = yes ]; then
    cat "$out"/*
    exit 0
  fi
  if ! grep -q 'cannot listen' "$out"/*; then
    break
  fi
done
cat "$out"/* >&2
exit 1
