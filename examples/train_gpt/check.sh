# SPDX-License-Identifier: Apache-2.0
# sh check.sh CHECK PROGRAM TEXT SHELL_LOOP: checks of train_gpt as a program.
#
#   ends           it ends well where much is wrong: a loss that is no number, a full disk behind
#                  standard output, a checkpoint folder that another run has, too little memory
#   resuming       killed at random points and resumed it gives the parameters of a run that never
#                  stopped, whatever number of ranks and policy goes on each time; a damaged
#                  checkpoint ends it with status 2, a full disk with status 1
#   replicas       several replicas give the bits of the sequential run that adds them up, and go on
#                  from the checkpoint of another number of them
#   grid           members of tensor groups that share stages, in replicas too, give the bits of the
#                  sequential run that adds up their shares, and any grid goes on from what one saved
#   explaining     what it tells of the passes of a typical step is what zbpp-plan tells from the files it writes, of
#                  threads and of processes
#   tcp            processes give the bits of the same run in one process and of the sequential run;
#                  ranks that were not started alike end, all of them
#   tcp_killed     when one of the processes is killed at a random time, the others end by themselves,
#                  and as many, fewer or more go on to the bits of a run that never stopped; so do all
#                  ranks in one process
#   tcp_memory     no process holds the stages of the others, not even while stages are measured
#   mpi            the same of processes that MPI_RUN=... starts, the mpirun of the library at hand
#   tcp_reference  a rank that is killed while rank 0 runs the reference ends all of them at once
#
# ZBPP_MODEL=... are the options of another small model. ZBPP_SEED=... repeats the random choices, as far
# as time can be repeated; ZBPP_KILLS=... is how many; ZBPP_STEPS=... is how long a run is, a multiple of 5.
# PEAK_MEMORY=... is the program of that name, which tcp_memory needs, and ZBPP_PLAN=... that which
# explaining needs; with ZBPP_PROCESSES=yes it looks at processes, too.
# shellcheck disable=SC2086,SC2016  # options are words of their own; what $RANK is, the rank knows
set -u
check=$1
program=$2
text=$3
shell_loop=$4
model=${ZBPP_MODEL:---width 32 --context 24}
seed=${ZBPP_SEED:-20241117}
every=5
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
export SCRATCH="$scratch"
folder=$scratch/checkpoints
mkdir "$folder"

fail() {
  echo "FAILED  $*"
  sed 's/^/  | /' "$scratch/log"
  exit 1
}
# ends STATUS NAME COMMAND...: runs what has to end with this status.
ends() {
  wanted=$1 name=$2
  shift 2
  "$@"
  status=$?
  [ $status -eq "$wanted" ] || fail "$name: status $status where $wanted is right"
}
# says PATTERN [COUNT]: lines of the log match, as many as COUNT if that is given.
says() {
  count=$(grep -c -e "$1" "$scratch/log")
  [ "$count" -eq "${2:-$count}" ] && [ "$count" -gt 0 ] || fail "$count lines say '$1'"
}
# The last number after a pattern in the log; 0 if there is none.
said() { sed -n "s/.*$1 *0*\([0-9][0-9]*\).*/\1/p" "$scratch/log" | tail -n 1 | grep . || echo 0; }
# The digest of the parameters that the run in the log ends with.
digest() { sed -n 's/^parameters: //p' "$scratch/log"; }
# gives DIGEST NAME: the run in the log ended with these parameters.
gives() { [ -n "$1" ] && [ "$(digest)" = "$1" ] || fail "$2: $(digest) where '$1' is right"; }

# here ARGUMENT...: trains in one process.
here() {
  timeout -s KILL 250 "$program" $model --text "$text" --out "$scratch" "$@" >"$scratch/log" 2>&1
}
# apart_by SCRIPT RANKS ARGUMENT...: trains in as many processes, each of them sh -c SCRIPT PROGRAM ...
apart_by() {
  script=$1 ranks=$2
  shift 2
  timeout 280 sh "$shell_loop" "$ranks" sh -c "$script" "$program" --transport tcp $model \
    --text "$text" --out "$scratch" "$@" >"$scratch/log" 2>&1
}
apart() { apart_by 'exec "$0" "$@"' "$@"; }
# over_mpi RANKS ARGUMENT...: trains in as many processes that mpirun starts.
over_mpi() {
  ranks=$1
  shift
  timeout 280 "$MPI_RUN" -n "$ranks" "$program" --transport mpi $model --text "$text" \
    --out "$scratch" "$@" >"$scratch/log" 2>&1
}
# equals START RANKS ARGUMENT...: trains in one process and, by `apart` or `over_mpi`, in many, and compares.
equals() {
  start=$1 n=$2
  shift 2
  ends 0 "one process, $n ranks" here --ranks "$n" --no-reference "$@"
  right=$(digest)
  rm -f "$scratch/loss.svg"
  ends 0 "$n processes" "$start" "$n" "$@"
  gives "$right" "$n processes"
  says ' yes '
  [ -s "$scratch/loss.svg" ] || fail "$n processes: no loss.svg"
  echo "$n processes, $*: $right"
}

# What a run told to be saved is not lost to the next, of what it told else $every steps at most.
least=0
expect_resumed() {
  grep -q '^resumed: ' "$scratch/log" || return 0
  resumed=$(said 'resumed:.*step-')
  [ "$resumed" -ge $least ] || fail "resumed from step $resumed; step $least was saved or due"
}
note_progress() {
  for step in $(said ' checkpoint step-') $(($(said '  step') - every)); do
    [ "$step" -gt $least ] && least=$step
  done
}

check_ends() {
  run() { here --layers 4 --policy zb_v "$@"; }
  small_picture() { [ "$(wc -c <"$scratch/loss.svg")" -lt 20000 ] || fail "loss.svg is large"; }

  # A loss that is no number: told once a run, drawn in a small file, no checkpoint is lost to it.
  ends 0 "a run that diverges" run --steps 40 --optimizer sgd --learning-rate 90 \
    --checkpoint "$folder" --every 2
  for name in sequential ZB-V; do
    says "^train_gpt: $name: the loss of step [0-9]* is nan" 1
  done
  says 'no checkpoint step-000040: parameters are nan'
  [ "$(ls "$folder"/step-*/manifest.txt | wc -l)" -eq 2 ] || fail "the last good checkpoints are gone"
  [ -d "$folder/step-000040" ] && fail "a checkpoint of a run that has diverged"
  small_picture
  ends 0 "a large rate" run --steps 6 --optimizer sgd --learning-rate 2 --no-reference
  small_picture

  # Standard output that takes nothing.
  if [ -w /dev/full ]; then
    for arguments in --help "--policy zb_v --steps 1 --no-reference $model"; do
      timeout 250 "$program" $arguments --text "$text" --out "$scratch" >/dev/full 2>"$scratch/log"
      ends 1 "a full disk behind standard output" return_status $?
      says '^train_gpt: standard output: ' 1
    done
  fi

  # A second run in the folder of one that has not ended.
  rm -rf "${folder:?}"/*
  mkfifo "$scratch/pipe"
  timeout 250 "$program" $model --layers 4 --text "$text" --out "$scratch" --policy zb_v \
    --no-reference --steps 200 --checkpoint "$folder" --every 20 >"$scratch/pipe" 2>&1 &
  first=$!
  {
    while read -r line; do # until it has begun, so that the folder is its own
      case $line in model:*) break ;; esac
    done
    ends 2 "a second run in a folder" run --checkpoint "$folder" --resume --no-reference
    cat >"$scratch/first"
  } <"$scratch/pipe"
  says "^train_gpt: --checkpoint $folder: is in use by another run, process [0-9]* on "
  ends 0 "the first run in a folder" wait $first
  grep -q 'checkpoint: .*step-000200' "$scratch/first" || fail "the first run has no last checkpoint"

  # Too little memory; sanitizers need more than any limit.
  nm "$program" 2>/dev/null | grep -q '__[atm]san_init' && return
  model='--layers 64 --width 1024'
  limited() (
    ulimit -v 250000
    here --policy zb_v --steps 1 --no-reference
  )
  ends 1 "too little memory" limited
  says '^train_gpt: out of memory while measuring; '
}
return_status() { return "$1"; }

check_resuming() {
  echo "ZBPP_SEED=$seed"
  steps=${ZBPP_STEPS:-150}
  last=$(printf step-%06d "$steps")
  before=$(printf step-%06d $((steps - every)))
  v='--ranks 2 --policy zb_v'
  # run FOLDER ARGUMENT...: trains as $split says, killed after $limit seconds.
  split=$v
  limit=250
  run() {
    at=$scratch/$1
    shift
    mkdir -p "$at"
    timeout -s KILL "$limit" "$program" --steps "$steps" $model --layers 4 --text "$text" \
      --out "$scratch" $split --checkpoint "$at" --every $every "$@" >"$scratch/log" 2>&1
  }

  ends 0 "a run with its reference" run whole
  says 'ZB-V.* yes '
  right=$(digest)
  start=$(date +%s%N)
  ends 0 "a run without its reference" run alone --no-reference
  took=$((($(date +%s%N) - start) / 1000000))
  says 'nothing is compared'
  gives "$right" "without the reference"

  kills=0
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
    run killed --resume --no-reference
    status=$?
    expect_resumed
    [ $status -eq 0 ] && break
    [ $status -eq 137 ] || fail "killed after $limit s: status $status"
    note_progress
  done
  split=$v
  limit=250
  echo "killed $kills times in $took ms, at step $least or after"
  ends 0 "the last run" run killed --resume
  gives "$right" "killed and resumed"

  # Shards of the head are parameters of their own.
  ends 2 "another number of shards" run alone --resume --vocabulary-parallel
  says '^train_gpt: --checkpoint .*: --vocabulary-parallel was no and is 2 shards'

  # Two checkpoints are there; without the newest, training goes on from the other.
  rm -r "$scratch/alone/$last"
  limited() (
    trap '' XFSZ
    ulimit -f 16
    run alone --resume --no-reference
  )
  ends 1 "a full disk" limited
  says "$last/rank-0.safetensors: cannot be written: File too large"
  printf 'half' >"$scratch/alone/$before/rank-1.safetensors"
  ends 2 "a torn file" run alone --resume
  says "$before/rank-1.safetensors: has 4 bytes.*remove .*$before to begin anew"
  ends 2 "a new run among old checkpoints" run whole
  rm "$scratch/whole/$last/manifest.txt"
  ends 0 "resumed from the one before" run whole --resume
  says "^skipped: .*$last has no manifest"
  says 'ZB-V.* yes '
  gives "$right" "resumed from the one before"
}

check_replicas() {
  ends 0 "two replicas" here --data 2 --policy zb_v,one_f_one_b --steps 6 --layers 4
  says ' yes ' 2
  ends 0 "three, whose steps are validated" here --data 3 --microbatches 6 --policy zb_h2 --steps 6 --tied --clip 1
  says 'ZB-H2.* yes '
  keeps="--policy zb_h1 --steps 8 --checkpoint $folder --every 3"
  ends 0 "two replicas that are saved" here --data 2 $keeps
  rm -r "$folder/step-000008"
  ends 0 "four that go on" here --data 4 $keeps --resume --no-reference
  says '^resumed: .*step-000006'
  says 'step *8 of 8'
}

check_grid() {
  model='--width 192 --context 16 --sequences 1 --microbatches 4'
  ends 0 "stages that three share" here --tensor 3 --policy zb_v,one_f_one_b --steps 3 --layers 4
  says ' yes ' 2
  ends 0 "two that share, and two replicas" here --tensor 2 --data 2 --policy zb_h2 --steps 3 \
    --tied --clip 1 --step synchronous,post-validated
  says 'ZB-H2.* yes ' 2
  ends 0 "shards of the head that two share" here --tensor 2 --vocabulary-parallel --policy zb_v \
    --steps 3 --layers 4 --clip 1
  says ' yes '

  # Any other grid goes on.
  keeps="--policy zb_h1 --steps 4 --no-reference --checkpoint $folder --every 3"
  ends 0 "a grid that is saved" here --tensor 2 --data 2 $keeps
  for grid in '--tensor 3' '--tensor 1' '--tensor 2 --data 4' '--ranks 1 --tensor 6'; do
    rm -r "$folder/step-000004"
    ends 0 "$grid goes on" here $grid $keeps --resume
    says '^resumed: .*step-000003'
    says 'step *4 of 4'
  done
}

check_explaining() {
  # shared FILE: what a trace, which holds no messages, tells as well: the step, and passes by rank.
  shared() {
    grep '^step ' "$1"
    awk '/^[0-9]+ / { print $1, $2, $3 }' "$1"
  }
  # same NAME: the program told what zbpp-plan tells, and three lines in the end.
  same() {
    "$ZBPP_PLAN" --explain "$scratch/trace.json" --plan "$scratch/plan.json" >"$scratch/again"
    ends 0 "zbpp-plan, $1" return_status $?
    sed -n '/^explained, /,/^wrote /p' "$scratch/log" | sed '1d;$d' >"$scratch/told"
    shared "$scratch/told" >"$scratch/told-shared"
    shared "$scratch/again" | diff - "$scratch/told-shared" ||
      fail "$1: zbpp-plan tells something else"
    [ "$(wc -l <"$scratch/told-shared")" -gt 2 ] || fail "$1: nothing is explained"
    grep -q 'sent late  messages  taken late' "$scratch/told" || fail "$1: waits are not split"
    tail -n 3 "$scratch/log" | head -n 1 | grep -q '^a typical step of .* than predicted$' ||
      fail "$1: the last lines do not say what made a step longer"
    longer='longer than planned</title>'
    drawn=$("$ZBPP_PLAN" --explain "$scratch/trace.json" --plan "$scratch/plan.json" --svg - |
      grep -o "$longer" | wc -l)
    [ "$drawn" -eq "$(grep -o "$longer" "$scratch/explained.svg" | wc -l)" ] ||
      fail "$1: zbpp-plan draws something else"
    rm "$scratch/trace.json" "$scratch/plan.json" "$scratch/explained.svg"
  }
  for policy in zb_v zb_h1,stp; do
    ends 0 "$policy" here --policy $policy --steps 9 --layers 4 --no-reference --explain
    same "$policy"
  done
  ends 0 "steps that are checked" here --policy zb_h2 --steps 9 --layers 4 --clip 1.5 --explain
  same "steps that are checked"
  ends 0 "a run that is not to explain" here --policy zb_h2 --steps 2 --layers 4 --no-reference
  grep -q '^explained' "$scratch/log" && fail "explained without being asked"
  [ -e "$scratch/explained.svg" ] && fail "drawn without being asked"
  [ "${ZBPP_PROCESSES:-no}" = yes ] || return 0
  rm "$scratch/trace.json" "$scratch/plan.json"
  ends 0 "processes" apart 2 --policy zb_h1 --steps 9 --layers 4 --no-reference --explain
  same "processes"
}

check_tcp() {
  equals apart 2 --policy zb_v --layers 4 --steps 12
  # Some of these steps are early, and some of those are amended.
  equals apart 2 --policy zb_h2 --layers 4 --steps 40 --clip 1.5 --tied
  says 'ZB-H2.* yes .* [1-9][0-9]* *[1-9][0-9]*$'
  # The last stage, which has the losses, is not on rank 0.
  equals apart 3 --policy zb_h1 --layers 7 --steps 8 --microbatches 5 --optimizer sgd --seed 9

  equals apart 3 --policy greedy_auto --layers 4 --steps 8 --vocabulary-parallel --vocabulary 301

  # A grid of pipelines, which any other one goes on from.
  small=$model
  model='--width 64 --context 16 --sequences 1'
  set -- --policy zb_h1 --layers 4 --steps 8 --clip 1.5
  ends 0 "a grid in one process" here --ranks 2 --data 2 --tensor 2 "$@" --no-reference
  right=$(digest)
  ends 0 "a grid of 8 processes" apart 8 --data 2 --tensor 2 "$@" --explain \
    --checkpoint "$folder" --every 3
  gives "$right" "a grid of 8 processes"
  says ' yes '
  rm -r "$folder/step-000008"
  ends 0 "one that goes on" here --ranks 2 --data 2 --tensor 2 "$@" --no-reference \
    --checkpoint "$folder" --resume
  gives "$right" "resumed in one process"
  rm -r "${folder:?}"/*
  apart 2 --data 2 --tensor 2 --policy zb_h1 && fail "2 processes are no grid of 4"
  says 'data is 2, --tensor is 2, and torchrun started 2 ranks; start as many' 2
  model=$small

  apart 2 --policy zb_h1 --layers 4 --steps 4 --ranks 3 && fail "2 processes are no 3 ranks"
  says 'ranks is 3 and torchrun started 2' 2
  apart_by '"$0" --seed "$((RANK / 2))" "$@"' 3 --policy zb_h1 && fail "another seed went unnoticed"
  for rank in 0 1 2; do
    says "^train_gpt: rank $rank: rank 2 differs from rank 0 in: --seed (1 at rank 2, 0 at"
  done

  # refused CULPRIT VARIABLE=VALUE... PROGRAM ARGUMENT...: bad input of one rank, told in one line.
  refused() {
    culprit=$1
    shift
    timeout 100 env -u ZBPP_TOKEN RANK=0 WORLD_SIZE=2 MASTER_PORT=0 "$@" >"$scratch/log" 2>&1
    ends 2 "$culprit" return_status $?
    says "^train_gpt: rank 0: .*$culprit"
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
  ends 1 "a rank alone" return_status $?
  says '^train_gpt: rank 1: did not reach rank 0 at \[::1\]:1 within 1.0 s'

  # Ranks that listen on one address reach each other there.
  for where in '--bind 127.0.0.2' '--bind 0.0.0.0 --advertise 127.0.0.2'; do
    ends 0 "$where" apart_by 'MASTER_ADDR=127.0.0.2 exec "$0" "$@"' 2 \
      --policy zb_h1 --steps 2 --no-reference $where
  done

  # A rank that fails by itself, its disk full: all say so.
  set -- --policy zb_h1 --layers 4 --no-reference
  apart_by 'trap "" XFSZ; [ "$RANK" = 1 ] && ulimit -f 16; exec "$0" "$@"' 2 "$@" --steps 9 \
    --checkpoint "$folder" --every 4 && fail "a full disk went unnoticed"
  for rank in 0 1; do
    says "^train_gpt: rank $rank: .*step-000004/rank-1.safetensors: cannot be written: File too large"
  done
  ls "$folder"/step-*/manifest.txt >"$scratch/log" 2>&1 && fail "a checkpoint counts that is not whole"

  # A folder for each rank, as on machines that share none: both say so.
  mkdir "$scratch/own-0" "$scratch/own-1"
  own='exec "$0" --checkpoint "$SCRATCH/own-$RANK" "$@"'
  apart_by "$own" 2 "$@" --steps 4 --every 2 && fail "a folder that is not shared went unnoticed"
  says 'own-1/step-000002: rank 0 has made it, and it is not there at rank 1; name a folder' 2
  ends 0 "a run with checkpoints" here --ranks 2 "$@" --steps 4 --checkpoint "$scratch/own-0"
  apart_by "$own" 2 "$@" --steps 4 --every 2 --resume && fail "another newest one went unnoticed"
  says 'has step-000004 at rank 0 and no checkpoint at rank 1; give all ranks the same run'
}

check_mpi() {
  equals over_mpi 2 --policy zb_v --layers 4 --steps 8 --explain
  equals over_mpi 3 --policy zb_h2 --layers 4 --steps 12 --clip 1.5 --tied

  # A grid of pipelines.
  small=$model
  model='--width 64 --context 16 --sequences 1'
  set -- --policy zb_h1 --layers 4 --steps 4
  ends 0 "a grid in one process" here --ranks 1 --data 2 --tensor 2 "$@" --no-reference
  right=$(digest)
  ends 0 "a grid of 4 processes" over_mpi 4 --data 2 --tensor 2 "$@"
  gives "$right" "a grid of 4 processes"
  says ' yes '
  model=$small

  # What they keep goes on in one process.
  set -- --policy zb_h1 --layers 4 --no-reference --checkpoint "$folder" --every 2
  ends 0 "processes with checkpoints" over_mpi 2 "$@" --steps 8
  right=$(digest)
  rm -rf "$folder/step-000008"
  ends 0 "one process" here --ranks 2 "$@" --steps 8 --resume
  gives "$right" "resumed in one process"

  ends 2 "2 processes are no 3 ranks" over_mpi 2 --policy zb_h1 --layers 4 --ranks 3
  says 'ranks is 3 and MPI started 2'
  set -- "$program" --transport mpi $model --policy zb_h1 --text "$text" --out "$scratch"
  timeout 100 "$MPI_RUN" -n 1 "$@" --seed 0 : -n 1 "$@" --seed 1 >"$scratch/log" 2>&1 &&
    fail "another seed went unnoticed"
  says 'train_gpt: rank [01]: rank 1 differs from rank 0 in: --seed (1 at rank 1, 0 at'
}

check_tcp_killed() {
  echo "ZBPP_SEED=$seed"
  random() { awk -v s="$seed" -v n="$1" 'BEGIN { srand(s + n); rand(); print rand() }'; }
  # run VICTIM LIMIT ARGUMENT...: trains on $n ranks by $policy, and kills one of them after LIMIT
  # seconds; -1 for none. Writes the exit status of each rank, too.
  n=3 policy=zb_v
  set -- --steps "${ZBPP_STEPS:-100}" --layers 6 --no-reference
  run() {
    export VICTIM="$1" LIMIT="$2"
    shift 2
    rm -f "$scratch"/status-*
    apart_by 'if [ "$RANK" = "$VICTIM" ]; then timeout -s KILL "$LIMIT" "$0" "$@"; else "$0" "$@"; fi
      status=$?
      echo $status >"$SCRATCH/status-$RANK"
      exit $status' $n --join 20 --policy $policy "$@"
  }

  start=$(date +%s%N)
  ends 0 "a run that never stops" run -1 0 "$@"
  took=$((($(date +%s%N) - start) / 1000000))
  right=$(digest)
  kills=0
  hits=0
  while [ $kills -lt "${ZBPP_KILLS:-8}" ]; do
    case $((kills % 3)) in
      0) n=3 policy=zb_v ;;
      1) n=2 policy=zb_h1 ;;
      2) n=4 policy=zb_h2 ;;
    esac
    kills=$((kills + 1))
    victim=$(random $((2 * kills)) | awk -v n=$n '{ print int(n * $1) }')
    limit=$(random $((2 * kills + 1)) | awk -v t=$took '{ printf "%.3f", 0.01 + $1 * t / 1500 }')
    run "$victim" "$limit" "$@" --checkpoint "$folder" --every $every --resume
    status=$?
    expect_resumed
    if [ $status -eq 0 ]; then
      [ $hits -eq 0 ] && [ $took -gt 0 ] || break
      # The run that was timed was slowed down, and this one was not: anew, and sooner.
      took=$((took / 2)) least=0 kills=0
      rm -rf "${folder:?}"/*
      continue
    fi
    [ "$(cat "$scratch/status-$victim")" -eq 137 ] ||
      fail "rank $victim, to be killed after $limit s: status $(cat "$scratch/status-$victim")"
    hits=$((hits + 1))
    for rank in $(seq 0 $((n - 1))); do
      [ "$rank" -eq "$victim" ] && continue
      status=$(cat "$scratch/status-$rank")
      [ "$status" -eq 0 ] && [ -n "$(digest)" ] && continue # it was killed when all was done
      [ "$status" -eq 1 ] || fail "rank $victim killed after $limit s: status $status of rank $rank"
      says "^train_gpt: rank $rank: "
    done
    note_progress
  done
  [ $hits -gt 0 ] || fail "no rank was killed"
  echo "killed $hits times a rank of a run of $took ms, at step $least or after"
  cp -r "$folder" "$scratch/copy"
  n=3 policy=zb_v
  ends 0 "the last run" run -1 0 "$@" --checkpoint "$folder" --every $every --resume
  gives "$right" "killed and resumed"
  ends 0 "the last run in one process" here --ranks 6 --policy zb_h1 "$@" \
    --checkpoint "$scratch/copy" --every $every --resume
  gives "$right" "resumed in one process"
}

check_tcp_memory() {
  model='--layers 4 --width 512 --context 16 --sequences 1'
  ends 0 "a run" apart_by 'exec "$PEAK_MEMORY" "$SCRATCH/peak-$RANK" "$0" "$@"' 4 --policy zb_h1 \
    --microbatches 4 --steps 1 --no-reference
  most=$(cat "$scratch"/peak-[123] | sort -n | tail -n 1)
  first=$(cat "$scratch/peak-0")
  echo "rank 0: $first KiB at most, the others: $most KiB"
  # It has a stage like the others, and tells; the whole model is four of them.
  [ $((2 * first)) -lt $((3 * most)) ] || fail "rank 0 holds more than its own stages"
}

check_tcp_reference() {
  steps=${ZBPP_STEPS:-20000} # it is told of after a fifth of them
  model='--layers 2 --width 32 --context 16 --sequences 1'
  # Rank 1 is killed by rank 0's reader, when the first line about the reference comes.
  apart_by '
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
    exit 1' 2 --policy zb_h1 --microbatches 1 --steps "$steps"
  [ -f "$scratch/killed" ] || fail "the reference did not begin"
  [ "$(cat "$scratch/status-1")" -eq 137 ] || fail "rank 1 was not killed"
  [ "$(cat "$scratch/status-0")" -eq 1 ] || fail "rank 0: status $(cat "$scratch/status-0")"
  says '^train_gpt: rank 0: .*rank 1: its process has ended'
  grep -q "sequential *step $steps of $steps" "$scratch/log" && fail "rank 0 ran it to its end"
  return 0
}

"check_$check"
echo "all as it should be"
