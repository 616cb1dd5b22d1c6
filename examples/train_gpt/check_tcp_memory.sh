# SPDX-License-Identifier: Apache-2.0
# sh check_tcp_memory.sh PROGRAM TEXT SHELL_LOOP PEAK_MEMORY: in processes no rank holds the stages of
# the others, rank 0 neither, not even while stages are measured.
. "$(dirname "$0")/check_common.sh"
peak_memory=$4

# shellcheck disable=SC2016  # what $RANK is, the rank knows
SCRATCH=$scratch timeout 280 sh "$shell_loop" 4 sh -c 'exec "$0" "$SCRATCH/peak-$RANK" "$@"' \
  "$peak_memory" "$program" --transport tcp --policy zb_h1 --layers 4 --width 512 --context 16 \
  --sequences 1 --microbatches 4 --steps 1 --no-reference --text "$text" --out "$scratch" \
  >"$scratch/log" 2>&1 || fail "a run: status $?"
most=$(cat "$scratch"/peak-[123] | sort -n | tail -n 1)
first=$(cat "$scratch/peak-0")
echo "rank 0: $first KiB at most, the others: $most KiB"
# It has a stage like the others, and tells; the whole model is four of them.
[ $((2 * first)) -lt $((3 * most)) ] || fail "rank 0 holds more than its own stages"
echo "all as it should be"
