# SPDX-License-Identifier: Apache-2.0
# sh check_ends.sh PROGRAM TEXT: train_gpt ends well where much is wrong: a loss that is no number, a
# full disk behind standard output, a checkpoint folder that another run has, too little memory.
. "$(dirname "$0")/check_common.sh"
folder=$scratch/checkpoints
mkdir "$folder"

train() {
  # shellcheck disable=SC2086  # options are words of their own
  timeout 250 "$program" $model --layers 4 --text "$text" --out "$scratch" \
    --policy zb_v "$@" >"$scratch/log" 2>&1
}

# A loss that is no number: told once a run, drawn in a small file, and no checkpoint is lost to it.
train --steps 40 --optimizer sgd --learning-rate 90 --checkpoint "$folder" --every 2 ||
  fail "a run that diverges: status $?"
for run in sequential ZB-V; do
  [ "$(grep -c "^train_gpt: $run: the loss of step [0-9]* is nan" "$scratch/log")" -eq 1 ] ||
    fail "that the loss of $run is nan is not told once"
done
grep -q 'no checkpoint step-000040: parameters are nan' "$scratch/log" ||
  fail "it does not tell that there is no checkpoint"
[ "$(ls "$folder"/step-*/manifest.txt | wc -l)" -eq 2 ] || fail "the last good checkpoints are gone"
[ -d "$folder/step-000040" ] && fail "a checkpoint of a run that has diverged"
[ "$(wc -c <"$scratch/loss.svg")" -lt 20000 ] || fail "loss.svg is large"
train --steps 6 --optimizer sgd --learning-rate 2 --no-reference || fail "a large rate: status $?"
[ "$(wc -c <"$scratch/loss.svg")" -lt 20000 ] || fail "loss.svg is large"

# Standard output that takes nothing.
if [ -w /dev/full ]; then
  for arguments in --help "--policy zb_v --steps 1 --no-reference $model"; do
    # Each argument is a word.
    timeout 250 "$program" $arguments --text "$text" --out "$scratch" >/dev/full 2>"$scratch/log"
    status=$?
    [ $status -eq 1 ] || fail "a full disk behind standard output: status $status"
    [ "$(grep -c '^train_gpt: standard output: ' "$scratch/log")" -eq 1 ] ||
      fail "it does not tell that standard output is full"
  done
fi

# A second run in the folder of one that has not ended.
rm -rf "$folder"
mkdir "$folder"
: >"$folder/.train_gpt-4194303"
: >"$folder/.train_gpt-notes"
echo mine >"$folder/.train_gpt-12"
mkfifo "$scratch/pipe"
# shellcheck disable=SC2086  # options are words of their own
timeout 250 "$program" $model --layers 4 --text "$text" --out "$scratch" \
  --policy zb_v --no-reference --steps 200 --checkpoint "$folder" --every 20 >"$scratch/pipe" 2>&1 &
first=$!
{
  while read -r line; do # until it has begun, so that the folder is its own
    case $line in model:*) break ;; esac
  done
  train --checkpoint "$folder" --resume --no-reference
  status=$?
  cat >"$scratch/first"
} <"$scratch/pipe"
[ $status -eq 2 ] || fail "a second run in a folder: status $status where 2 is right"
grep -q "^train_gpt: --checkpoint $folder is in use by another run, process [0-9]* on " \
  "$scratch/log" || fail "a second run in a folder: not named"
wait $first || fail "the first run in a folder: status $?"
grep -q 'checkpoint: .*step-000200' "$scratch/first" || fail "the first run has no last checkpoint"
ls "$folder"/.train_gpt-4194303 >/dev/null 2>&1 && fail "a stray probe is still there"
[ -f "$folder/.train_gpt-notes" ] && [ -f "$folder/.train_gpt-12" ] || fail "removed what is no probe"

# Too little memory; sanitizers need more than any limit.
nm "$program" 2>/dev/null | grep -q '__[atm]san_init' || {
  (
    ulimit -v 250000
    timeout 250 "$program" --layers 64 --width 1024 --text "$text" --out "$scratch" --policy zb_v \
      --steps 1 --no-reference >"$scratch/log" 2>&1
  )
  status=$?
  [ $status -eq 1 ] || fail "too little memory: status $status where 1 is right"
  grep -q '^train_gpt: out of memory while measuring; ' "$scratch/log" ||
    fail "too little memory: it does not say what it was doing"
}
echo "all as it should be"
