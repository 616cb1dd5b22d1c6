# SPDX-License-Identifier: Apache-2.0
# sh check_tcp.sh PROGRAM TEXT SHELL_LOOP: train_gpt as processes gives the bits of the same run in one
# process and of the sequential run; ranks that were not started alike end, all of them.
. "$(dirname "$0")/check_common.sh"

# here ARGUMENT...: trains in one process. apart RANKS ARGUMENT...: trains in as many as ranks.
# shellcheck disable=SC2086  # options are words of their own
here() {
  timeout 250 "$program" $model --text "$text" --out "$scratch" "$@" >"$scratch/log" 2>&1
}
apart() {
  ranks=$1
  shift
  # shellcheck disable=SC2086
  timeout 280 sh "$shell_loop" "$ranks" "$program" --transport tcp $model \
    --text "$text" --out "$scratch" "$@" >"$scratch/log" 2>&1
}

# same RANKS ARGUMENT...: trains in both ways and compares.
same() {
  ranks=$1
  shift
  here --ranks "$ranks" --no-reference "$@" || fail "one process, $ranks ranks: status $?"
  right=$(digest)
  [ -n "$right" ] || fail "no digest of the parameters"
  rm -f "$scratch/loss.svg"
  apart "$ranks" "$@" || fail "$ranks processes: status $?"
  [ "$(digest)" = "$right" ] || fail "$ranks processes: $(digest) where $right is right"
  grep -q ' yes ' "$scratch/log" || fail "$ranks processes: not identical to the sequential run"
  [ -s "$scratch/loss.svg" ] || fail "$ranks processes: no loss.svg"
  echo "$ranks processes, $*: $right"
}

same 2 --policy zb_v --layers 4 --steps 12
# Some of these steps are early, and some of those are amended.
same 2 --policy zb_h2 --layers 4 --steps 40 --clip 1.5 --tied
grep -q 'ZB-H2.* yes .* [1-9][0-9]* *[1-9][0-9]*$' "$scratch/log" || fail "no amended step"
# The last stage, which has the losses, is not on rank 0.
same 3 --policy zb_h1 --layers 7 --steps 8 --microbatches 5 --optimizer sgd --seed 9

apart 2 --policy zb_h1 --layers 4 --steps 4 --ranks 3 && fail "2 processes are no 3 ranks"
[ "$(grep -c 'ranks is 3 and torchrun started 2' "$scratch/log")" -eq 2 ] ||
  fail "not each of 2 processes says that they are no 3 ranks"

# shellcheck disable=SC2016,SC2086  # what $RANK is, the rank knows
timeout 280 sh "$shell_loop" 3 sh -c '"$0" --seed "$((RANK / 2))" "$@"' "$program" --transport tcp \
  --policy zb_h1 $model --text "$text" --out "$scratch" >"$scratch/log" 2>&1 &&
  fail "another seed on rank 2 went unnoticed"
for rank in 0 1 2; do
  grep -q "^train_gpt: rank $rank: rank 2 differs from rank 0 in: --seed (1 at rank 2, 0 at" \
    "$scratch/log" || fail "rank $rank does not say that the seed of rank 2 differs"
done

# refused CULPRIT VARIABLE=VALUE... PROGRAM ARGUMENT...: bad input of one rank, told in one line.
refused() {
  culprit=$1
  shift
  timeout 100 env -u ZBPP_TOKEN RANK=0 WORLD_SIZE=2 MASTER_PORT=0 "$@" >"$scratch/log" 2>&1
  status=$?
  [ $status -eq 2 ] || fail "$culprit: status $status, not 2"
  grep -q "^train_gpt: rank 0: .*$culprit" "$scratch/log" || fail "nothing says '$culprit'"
}
token=0123456789abcdef
set -- "$program" --transport tcp --policy zb_h1 --text "$text"
refused 'neither ZBPP_TOKEN nor ZBPP_TOKEN_FILE is set' "$@"
refused 'ZBPP_TOKEN has 5 bytes' ZBPP_TOKEN=short "$@"
refused 'cannot be read: No such file' ZBPP_TOKEN_FILE="$scratch/nothing" "$@"
refused "bind is 'somewhere'" ZBPP_TOKEN=$token "$@" --bind somewhere
refused 'Cannot assign requested address' ZBPP_TOKEN=$token "$@" --bind 192.0.2.1

# A rank alone says once which rank it is, and understands an address in brackets.
env RANK=1 WORLD_SIZE=2 MASTER_ADDR='[::1]' MASTER_PORT=1 ZBPP_TOKEN=$token \
  timeout 100 "$@" --join 1 >"$scratch/log" 2>&1
[ $? -eq 1 ] || fail "a rank alone ends with 1"
grep -q '^train_gpt: rank 1: did not reach rank 0 at \[::1\]:1 within 1.0 s' "$scratch/log" ||
  fail "a rank alone does not say what it did not reach"

# Ranks that listen on one address reach each other there.
for where in '--bind 127.0.0.2' '--bind 0.0.0.0 --advertise 127.0.0.2'; do
  # shellcheck disable=SC2086  # options are words of their own
  timeout 280 sh "$shell_loop" 2 env MASTER_ADDR=127.0.0.2 "$@" --steps 2 --no-reference $model \
    --out "$scratch" $where >"$scratch/log" 2>&1 || fail "$where: status $?"
done

# A rank that fails by itself, its disk full: all say so.
mkdir "$scratch/checkpoints"
# shellcheck disable=SC2016,SC2086
timeout 280 sh "$shell_loop" 2 sh -c '
  trap "" XFSZ
  if [ "$RANK" = 1 ]; then ulimit -f 16; fi
  exec "$0" "$@"' "$program" --transport tcp --policy zb_h1 --layers 4 $model \
  --steps 9 --no-reference --checkpoint "$scratch/checkpoints" --every 4 --text "$text" \
  --out "$scratch" >"$scratch/log" 2>&1 && fail "a full disk went unnoticed"
for rank in 0 1; do
  grep -q "^train_gpt: rank $rank: .*step-000004/rank-1.bin: cannot be written: File too large" \
    "$scratch/log" || fail "rank $rank does not tell of the full disk of rank 1"
done
ls "$scratch"/checkpoints/step-*/manifest.txt >"$scratch/log" 2>&1 &&
  fail "a checkpoint counts that is not whole"

# A folder for each rank, as on machines that share none: both say so.
mkdir "$scratch/own-0" "$scratch/own-1"
own() {
  # shellcheck disable=SC2016,SC2086
  SCRATCH=$scratch timeout 280 sh "$shell_loop" 2 sh -c 'exec "$0" --checkpoint "$SCRATCH/own-$RANK" "$@"' \
    "$program" --transport tcp --policy zb_h1 --layers 4 $model --steps 4 \
    --no-reference --text "$text" --out "$scratch" "$@" >"$scratch/log" 2>&1
}
own --every 2 && fail "a folder that is not shared went unnoticed"
[ "$(grep -c 'rank-1.bin.*name a folder that all machines share' "$scratch/log")" -eq 2 ] ||
  fail "a folder that is not shared: not told"
here --ranks 2 --policy zb_h1 --layers 4 --steps 4 --no-reference --checkpoint "$scratch/own-0" ||
  fail "a run with checkpoints: status $?"
own --every 2 --resume && fail "another newest checkpoint on rank 1 went unnoticed"
grep -q 'has step-000004 at rank 0 and no checkpoint at rank 1; name a folder' "$scratch/log" ||
  fail "another newest checkpoint on rank 1: not told"
echo "all as it should be"
