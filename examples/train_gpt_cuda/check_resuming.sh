#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_resuming.sh FOLDER PROGRAM [--alone] CLIP ARGUMENT...: train_gpt_cuda goes on from a checkpoint
# with the bits of its reference, which was not interrupted, whichever split and kind of replay saved it
# and go on, also where gradients are clipped; and it refuses a folder that it cannot use. --alone: the
# program has no NCCL.
scratch=$1
program=$2
shift 2
transports="peer nccl"
if [ "$1" = --alone ]; then
  transports=peer
  shift
fi
clip=$1
shift
rm -rf "$scratch"
mkdir -p "$scratch/plain" "$scratch/clipped"
folder=$scratch/plain
sizes=$*

fail() {
  cat "$scratch/log"
  echo "FAILED  $*"
  exit 1
}
# train ARGUMENT...: six steps, saved after each second one
train() {
  # shellcheck disable=SC2086  # sizes are words of their own
  "$program" --check --steps 6 --every 2 --checkpoint "$folder" $sizes "$@" >"$scratch/log" 2>&1
}
# resumes ARGUMENT...: without the newest checkpoint, training goes on from the one before
resumes() {
  rm -r "$folder/step-000006" || fail "the last checkpoint is missing before $*"
  train --resume "$@" || fail "$*: status $?"
  grep -q 'resumed: .*/step-000004' "$scratch/log" || fail "$*: it does not resume from step 4"
  grep -q ' yes ' "$scratch/log" || fail "$*: not identical to the sequential run"
  [ -f "$folder/step-000006/manifest.txt" ] || fail "$*: the end is not saved"
}
# refuses TEXT ARGUMENT...
refuses() {
  text=$1
  shift
  train "$@"
  status=$?
  [ $status -eq 2 ] || fail "$*: status $status where 2 is right"
  grep -q -F -e "$text" "$scratch/log" || fail "$*: no word of $text"
}

train --ranks 2 --policy zb_v || fail "a new run: status $?"
for transport in $transports; do
  resumes --transport $transport --ranks 3 --policy zb_h1
  resumes --transport $transport --ranks 2 --policy zb_v --replay step
  resumes --transport $transport --ranks 2 --policy one_f_one_b --replay step --steps-at-once 2
  resumes --transport $transport --ranks 2 --policy zb_h2
  train --resume --transport $transport --policy zb_v || fail "nothing left to do: status $?"
  grep -q 'took all its steps before' "$scratch/log" || fail "it does not say that nothing is left"
done
resumes --ranks 1 --policy one_f_one_b --replay step
refuses "has step-000006" --policy zb_v
refuses "--seed" --policy zb_v --resume --seed 2
refuses "norm of gradients" --policy zb_v --resume --step synchronous
printf half >"$folder/step-000006/rank-0.safetensors"
refuses "rank-0.safetensors" --policy zb_v --resume

folder=$scratch/clipped
train --policy zb_v --clip "$clip" || fail "a clipped run: status $?"
resumes --policy zb_h2 --clip "$clip" --step synchronous
resumes --policy zb_v --clip "$clip"
echo "all as it should be"
