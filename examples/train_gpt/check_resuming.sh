# SPDX-License-Identifier: Apache-2.0
# sh check_resuming.sh PROGRAM TEXT: train_gpt killed at random points and resumed gives the parameters
# of a run that never stopped, whatever number of ranks and policy goes on each time; a damaged checkpoint
# ends it with status 2, a full disk with status 1.
# ZBPP_SEED=... repeats the random points, as far as time can be repeated; ZBPP_KILLS=... is how many,
# 8 by default; ZBPP_STEPS=... is how long a run is, a multiple of 5, 150 by default.
. "$(dirname "$0")/check_common.sh"
every=5
steps=${ZBPP_STEPS:-150}
last=$(printf step-%06d "$steps")
before=$(printf step-%06d $((steps - every)))
seed=${ZBPP_SEED:-20241117}
echo "ZBPP_SEED=$seed"

v='--ranks 2 --policy zb_v'
split=$v
# train LIMIT FOLDER ARGUMENT...: trains as $split says into $scratch/log, killed after LIMIT seconds.
train() {
  limit=$1
  folder=$2
  shift 2
  mkdir -p "$folder"
  # shellcheck disable=SC2086  # options are words of their own
  timeout -s KILL "$limit" "$program" --steps "$steps" $model --layers 4 \
    --text "$text" --out "$scratch" $split --checkpoint "$folder" --every $every \
    "$@" >"$scratch/log" 2>&1
}

train 250 "$scratch/whole" || fail "a run with its reference: status $?"
grep -q 'ZB-V.* yes ' "$scratch/log" || fail "not identical to the sequential run"
right=$(digest)
[ -n "$right" ] || fail "no digest of the parameters"
start=$(date +%s%N)
train 250 "$scratch/alone" --no-reference || fail "a run without its reference: status $?"
grep -q 'nothing is compared' "$scratch/log" || fail "it does not say that nothing is compared"
took=$((($(date +%s%N) - start) / 1000000))
[ "$(digest)" = "$right" ] || fail "other parameters without the reference than with it"

kills=0
least=0
while [ $kills -lt "${ZBPP_KILLS:-8}" ]; do
  case $((kills % 4)) in
    0) split=$v ;;
    1) split='--ranks 4 --policy zb_h1' ;;
    2) split='--ranks 1 --policy one_f_one_b' ;;
    3) split='--ranks 3 --policy zb_h2' ;;
  esac
  kills=$((kills + 1))
  limit=$(awk -v s="$seed" -v n=$kills -v t=$took \
    'BEGIN { srand(s + n); r = rand(); printf "%.3f", 0.001 + r * t / 3000 }')
  train "$limit" "$scratch/killed" --resume --no-reference
  status=$?
  grep -q '^resumed: ' "$scratch/log" && {
    resumed=$(said 'resumed:.*step-')
    [ "$resumed" -ge $least ] || fail "resumed from step $resumed; step $least was saved or due"
  }
  [ $status -eq 0 ] && break
  [ $status -eq 137 ] || fail "killed after $limit s: status $status"
  # The next run may lose $every steps of what this one told, and no checkpoint.
  for step in $(said ' checkpoint step-') $(($(said '  step') - every)); do
    [ "$step" -gt $least ] && least=$step
  done
done
split=$v
echo "killed $kills times in $took ms, at step $least or after"
train 250 "$scratch/killed" --resume || fail "the last run: status $?"
[ "$(digest)" = "$right" ] || fail "killed and resumed: $(digest) where $right is right"

# Two checkpoints are there; without the newest, training goes on from the other.
rm -r "$scratch/alone/$last"
(
  trap '' XFSZ
  ulimit -f 16
  train 250 "$scratch/alone" --resume --no-reference
)
status=$?
[ $status -eq 1 ] || fail "a full disk: status $status where 1 is right"
grep -q "$last/rank-0.bin: cannot be written: File too large" "$scratch/log" ||
  fail "a full disk: the file is not named"
printf 'half' >"$scratch/alone/$before/rank-1.bin"
train 250 "$scratch/alone" --resume
status=$?
[ $status -eq 2 ] || fail "a torn file: status $status where 2 is right"
grep -q "$before/rank-1.bin has 4 bytes.*remove .*$before to begin anew" "$scratch/log" ||
  fail "a torn file: not named"
train 250 "$scratch/whole"
status=$?
[ $status -eq 2 ] || fail "a new run among old checkpoints: status $status where 2 is right"
rm -r "$scratch/whole/$last"
train 250 "$scratch/whole" --resume || fail "resumed: status $?"
grep -q 'ZB-V.* yes ' "$scratch/log" || fail "resumed: not identical to the sequential run"
[ "$(digest)" = "$right" ] || fail "resumed: $(digest) where $right is right"
echo "all as it should be"
