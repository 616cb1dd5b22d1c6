# SPDX-License-Identifier: Apache-2.0
# sh check_tcp_reference.sh PROGRAM TEXT SHELL_LOOP: a rank that is killed while rank 0 runs the
# reference ends all of them at once, and not when the reference has run. ZBPP_STEPS=... is how long
# that is, 20000 steps by default; it is told of after a fifth of them.
. "$(dirname "$0")/check_common.sh"
steps=${ZBPP_STEPS:-20000}

# Rank 1 is killed by rank 0's reader, when the first line about the reference comes.
# shellcheck disable=SC2016  # what $RANK is, the rank knows
SCRATCH=$scratch timeout 280 sh "$shell_loop" 2 sh -c '
  status=$SCRATCH/status-$RANK
  if [ "$RANK" = 1 ]; then
    "$0" "$@" &
    echo $! >"$SCRATCH/pid.new"
    mv "$SCRATCH/pid.new" "$SCRATCH/pid"
    wait $!
    echo $? >"$status"
    exit 1
  fi
  { "$0" "$@"; echo $? >"$status"; } | while read -r line; do
    echo "$line"
    case $line in sequential*step*) [ -f "$SCRATCH/killed" ] ||
      { : >"$SCRATCH/killed"; kill -9 "$(cat "$SCRATCH/pid")"; } ;;
    esac
  done
  exit 1' "$program" --transport tcp --policy zb_h1 --layers 2 --width 32 --context 16 --sequences 1 \
  --microbatches 1 --steps "$steps" --text "$text" --out "$scratch" >"$scratch/log" 2>&1
[ -f "$scratch/killed" ] || fail "the reference did not begin"
[ "$(cat "$scratch/status-1")" -eq 137 ] || fail "rank 1 was not killed"
[ "$(cat "$scratch/status-0")" -eq 1 ] || fail "rank 0: status $(cat "$scratch/status-0")"
grep -q '^train_gpt: rank 0: .*rank 1: its process has ended' "$scratch/log" ||
  fail "rank 0 does not say that rank 1 has ended"
grep -q "sequential *step $steps of $steps" "$scratch/log" && fail "rank 0 ran the reference to its end"
echo "all as it should be"
