#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# faults.sh PROGRAM MPIRUN...: what goes wrong in one rank ends all in time, with a message that names
# it, and gives mpirun a status other than 0.
set -eu
program=$1
shift
out=$(mktemp)
trap 'rm -f "$out"' EXIT

fail() {
  echo "faults.sh: $1; mpirun wrote:" >&2
  cat "$out" >&2
  exit 1
}

# refused TEXT COUNT ARGUMENT...: `ranks` ranks end with a failure, and COUNT of them say TEXT.
ranks=3
refused() {
  text=$1
  count=$2
  shift 2
  status=0
  # shellcheck disable=SC2086
  timeout 100 $mpirun -n $ranks "$program" deadline=20000 "$@" >"$out" 2>&1 || status=$?
  [ "$status" -ne 0 ] || fail "'$*' ended with 0"
  [ "$status" -ne 124 ] || fail "'$*' hangs"
  [ "$(grep -c "$text" "$out")" -ge "$count" ] || fail "'$*' does not say '$text' $count times"
}
mpirun="$*"

# shellcheck disable=SC2086
timeout 100 $mpirun -n 3 "$program" deadline=20000 steps=5 policy=zb_v >"$out" 2>&1 || fail "a run without a fault fails"
[ "$(grep -c 'losses .* gradients' "$out")" -eq 3 ] || fail "not all ranks have ended"

for rank in 0 1 2; do
  for at in 0:0:F 1:2:B 3:4:W; do
    refused "mpi_rank: rank $rank, .*: the toy broke" 3 fault=throw rank=$rank at=$at policy=zb_h1
  done
done
refused 'a rank that was killed has no words' 0 fault=kill rank=1 at=2:1:B
for rank in 0 1 2; do
  refused "mpi_rank: rank $rank: left the run: its program called std::exit or MPI_Finalize in a step" 2 \
    fault=exit rank=$rank at=2:1:B
  refused "mpi_rank: rank $rank: left the run" 2 fault=leave rank=$rank at=2
done
refused 'rank 1, which waits for no rank: it runs B 1 of stage 1' 2 fault=hang rank=1 at=2:1:B stall_deadline=2000
refused 'mpi_rank: .*rank 2 differs from rank 0 in: ' 3 policy=zb_h1,zb_h1,zb_h2
refused 'mpi_rank: .*MPI was initialized with MPI_THREAD_[A-Z]*; mpi::ranks needs MPI_THREAD_MULTIPLE' 3 level=1

# Who leaves when nobody needs it fails nothing.
# shellcheck disable=SC2086
timeout 100 $mpirun -n 3 "$program" deadline=20000 steps=4 fault=leave at=4 >"$out" 2>&1 || fail "ranks that have ended fail"

ranks=4
refused 'mpi_rank: rank 1: left the run: .* (rank 1 is pipeline' 3 replicas=2 fault=exit rank=1 at=1:2:F
refused 'mpi_rank: rank 3, .*: the toy broke' 4 replicas=2 fault=throw rank=3 at=1:2:F
refused 'rank 3 (pipeline 1, replica 1), which waits for no rank: it runs F 2 of stage 1' 3 replicas=2 fault=hang rank=3 at=1:2:F \
  stall_deadline=2000
refused 'a rank that was killed has no words' 0 replicas=2 fault=kill rank=1 at=1:2:F
refused 'weights of layer 1 of stage 1 (.* on rank 2 (pipeline 1, replica 0), .* on rank 3 (pipeline 1, replica 1))' 4 \
  fault=weights
member='rank [23] (pipeline 1, tensor [01])'
call='makes all_reduce of 8 numbers in 1B2'
end='comes to the end of the step'
refused "$member $call .* $member $end\\|$member $end .* $member $call" 4 fault=left_out
