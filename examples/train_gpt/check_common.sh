# SPDX-License-Identifier: Apache-2.0
# What the other check_*.sh read first: their arguments PROGRAM TEXT [SHELL_LOOP], the options of a
# small $model, which ZBPP_MODEL=... makes another one, and the folder $scratch, where runs write to the
# file `log` and which goes when the check ends.
# shellcheck disable=SC2034  # those who read this use the variables
set -u
program=$1
text=$2
shell_loop=${3:-}
model=${ZBPP_MODEL:---width 32 --context 24}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "FAILED  $*"
  sed 's/^/  | /' "$scratch/log"
  exit 1
}
# The digest of the parameters that the run in the log ends with.
digest() { sed -n 's/^parameters: //p' "$scratch/log"; }
# said PATTERN: the last number after PATTERN in the log; 0 if there is none.
said() { sed -n "s/.*$1 *0*\([0-9][0-9]*\).*/\1/p" "$scratch/log" | tail -n 1 | grep . || echo 0; }
