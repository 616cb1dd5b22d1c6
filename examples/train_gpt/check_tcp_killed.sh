# SPDX-License-Identifier: Apache-2.0
# sh check_tcp_killed.sh PROGRAM TEXT SHELL_LOOP: processes of train_gpt, of which one is killed at a
# random time, again and again: the others end by themselves, and as many, fewer or more go on from the last
# checkpoint, to the bits of a run that never stopped; so do all ranks in one process.
# ZBPP_SEED=... repeats the random choices, as far as time can be repeated; ZBPP_KILLS=... is how many,
# 8 by default; ZBPP_STEPS=... is how long a run is, 100 by default.
. "$(dirname "$0")/check_common.sh"
every=5
seed=${ZBPP_SEED:-20241121}
echo "ZBPP_SEED=$seed"
folder=$scratch/checkpoints
mkdir "$folder"

ranks=3
policy=zb_v
# train VICTIM LIMIT ARGUMENT...: trains on $ranks ranks by $policy, and kills one of them after LIMIT
# seconds; -1 for none. Writes the exit status of each rank, too.
train() {
  victim=$1
  limit=$2
  shift 2
  rm -f "$scratch"/status-*
  # shellcheck disable=SC2016,SC2086  # what $RANK is, the rank knows; options are words
  VICTIM=$victim LIMIT=$limit SCRATCH=$scratch timeout 280 sh "$shell_loop" $ranks sh -c '
    if [ "$RANK" = "$VICTIM" ]; then
      timeout -s KILL "$LIMIT" "$0" "$@"
    else
      "$0" "$@"
    fi
    status=$?
    echo $status >"$SCRATCH/status-$RANK"
    exit $status' "$program" --transport tcp --join 20 --steps "${ZBPP_STEPS:-100}" $model --layers 6 \
    --text "$text" --out "$scratch" --policy $policy --no-reference "$@" >"$scratch/log" 2>&1
}

random() { awk -v s="$seed" -v n="$1" 'BEGIN { srand(s + n); rand(); print rand() }'; }

start=$(date +%s%N)
train -1 0 || fail "a run that never stops"
took=$((($(date +%s%N) - start) / 1000000))
right=$(digest)
[ -n "$right" ] || fail "no digest of the parameters"

kills=0
hits=0
least=0
while [ $kills -lt "${ZBPP_KILLS:-8}" ]; do
  case $((kills % 3)) in
    0) ranks=3 policy=zb_v ;;
    1) ranks=2 policy=zb_h1 ;;
    2) ranks=4 policy=zb_h2 ;;
  esac
  kills=$((kills + 1))
  victim=$(random $((2 * kills)) | awk -v n=$ranks '{ print int(n * $1) }')
  limit=$(random $((2 * kills + 1)) | awk -v t=$took '{ printf "%.3f", 0.01 + $1 * t / 1500 }')
  train "$victim" "$limit" --checkpoint "$folder" --every $every --resume
  status=$?
  grep -q '^resumed: ' "$scratch/log" && {
    resumed=$(said 'resumed:.*step-')
    [ "$resumed" -ge $least ] || fail "resumed from step $resumed; step $least was saved or due"
  }
  if [ $status -eq 0 ]; then
    [ $hits -gt 0 ] && break
    [ $took -gt 0 ] || break
    # The run that was timed was slowed down, and this one was not: anew, and sooner.
    took=$((took / 2)) least=0 kills=0
    rm -rf "$folder"
    mkdir "$folder"
    continue
  fi
  [ "$(cat "$scratch/status-$victim")" -eq 137 ] ||
    fail "rank $victim, to be killed after $limit s: status $(cat "$scratch/status-$victim")"
  hits=$((hits + 1))
  for rank in $(seq 0 $((ranks - 1))); do
    [ "$rank" -eq "$victim" ] && continue
    status=$(cat "$scratch/status-$rank")
    [ "$status" -eq 0 ] && [ -n "$(digest)" ] && continue # it was killed when all was done
    [ "$status" -eq 1 ] || fail "rank $victim killed after $limit s: status $status of rank $rank"
    grep -q "^train_gpt: rank $rank: " "$scratch/log" || fail "rank $rank does not say why it ends"
  done
  # The next run may lose $every steps of what this one told, and no checkpoint.
  for step in $(said ' checkpoint step-') $(($(said '  step') - every)); do
    [ "$step" -gt $least ] && least=$step
  done
done
[ $hits -gt 0 ] || fail "no rank was killed"
echo "killed $hits times a rank of a run of $took ms, at step $least or after"
cp -r "$folder" "$scratch/copy"
ranks=3 policy=zb_v
train -1 0 --checkpoint "$folder" --every $every --resume || fail "the last run"
[ "$(digest)" = "$right" ] || fail "killed and resumed: $(digest) where $right is right"
# shellcheck disable=SC2086
timeout 280 "$program" --steps "${ZBPP_STEPS:-100}" $model --layers 6 --text "$text" --out "$scratch" \
  --ranks 6 --policy zb_h1 --no-reference --checkpoint "$scratch/copy" --every $every --resume \
  >"$scratch/log" 2>&1 || fail "the last run in one process: status $?"
[ "$(digest)" = "$right" ] || fail "resumed in one process: $(digest) where $right is right"
echo "all as it should be"
